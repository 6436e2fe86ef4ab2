"""Whether and how to answer: each message becomes silence with its reason, a command, or a prompt.

Silence is the default. Names, aliases and commands are compared with the text after NFKC and case folding, without what
cannot be seen, so that they are found in every script, style and case, and never inside a longer word.
"""

import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

import regex

from meshai.characters import SPACELESS, is_blank
from meshai.config import BotSettings, ChannelSettings, CommandSettings
from meshai.errors import ConfigError
from meshai.messages import (
    Address,
    Command,
    Decision,
    Ignore,
    IncomingMessage,
    Node,
    NodeNum,
    Prompt,
    parse_key,
    parse_node_id,
)

SettingKey: TypeAlias = tuple[str | int, ...]
"""The names and list indexes that lead to a setting."""
_MOST_REMEMBERED: Final = 1_000
"""Packets known again when they are heard again; of those before a restart the store knows."""

_INVISIBLE: Final = regex.compile(r"(?V1)[[\p{Default_Ignorable_Code_Point}\p{Cc}]--\s]+")
_COMMAND: Final = regex.compile(r"[\s\p{Default_Ignorable_Code_Point}]*[!！]\s*(\S+)\s*(.*)", regex.DOTALL)
_PUNCTUATION: Final = regex.compile(r"[\s\p{P}\p{C}\p{Default_Ignorable_Code_Point}]*")
_CLOSING: Final = regex.compile(r"[\p{Po}\p{Pe}\p{Pf}]")

_LETTER: Final = r"[\p{L}\p{N}\p{M}_]"
_JOINED: Final = rf"[{_LETTER}--{SPACELESS}]"
"""A letter that makes one word with the letter beside it."""
_INNER_MARK: Final = r"[.\-'’]"
"""What may stand inside a word, an address or a longer name: AI's, ai.example, AI-2."""
_CALLING_MARK: Final = r"[:,、،፣፥]"
"""What follows a name that is called, after NFKC."""
_AFTER_CALL: Final = " \t\r\n\u00a0\u3000:：,，、､،፣፥"


class Router:
    """Decides on messages one after the other; it remembers which packets it has seen, and nothing else."""

    def __init__(
        self,
        bot: BotSettings,
        channels: ChannelSettings,
        commands: CommandSettings,
        command_names: Collection[str],
        admin_names: Collection[str] = (),
    ) -> None:
        """`admin_names` are those of `command_names` that only admins may use."""
        if found := faults(bot, commands, command_names):
            raise ConfigError("\n".join(f"{'.'.join(map(str, key))}: {text}" for key, text in found.items()))
        self._answer_mqtt = bot.answer_mqtt
        self._answer_on = frozenset(channels.answer_on)
        self._ignored = _Listed("bot.ignore_nodes", bot.ignore_nodes)
        self._answered = _Listed("bot.answer_nodes", bot.answer_nodes)
        self._max_hops = bot.max_hops
        self._answers_far = bot.beyond_max_hops == "direct"
        self._replies_directly = channels.reply_by == "direct"
        words = _commands(command_names, commands.aliases)
        self._commands = {word: name for word, name in words.items() if name not in admin_names}
        self._orders = {word: name for word, name in words.items() if name in admin_names}
        self._admins = _keys("bot.admin_keys", bot.admin_keys)
        self._aliases = tuple(alias.strip().removeprefix("@") for alias in bot.aliases)
        self._own_names = ("", "")
        self._addressing = _Addressing(self._own_names, self._aliases)
        self._heard: OrderedDict[tuple[NodeNum, int], None] = OrderedDict()

    def route(self, message: IncomingMessage, me: Node, sender: Node) -> Decision:
        """Decide on `message`, heard by `me`, whose number and names may change from one message to the next.

        `sender` is what our node knows of who sent it.
        """
        if reason := self._silence(message, me):
            return Ignore(reason)
        self._learn_own_names(me)
        order = self._order(message)
        if order is None and (reason := self._unwanted(message, sender)):
            return Ignore(reason)
        if self._is_repeated(message):
            return Ignore("repeated packet")
        if order is not None:
            return order
        if message.is_direct:
            rest = self._addressing.after_call(message.text)
            return self._addressed(message.text) if rest is None else self._addressed(rest, is_called=True)
        if message.channel not in self._answer_on:
            return Ignore(f"channel {message.channel} is not in channels.answer_on")
        rest = self._addressing.without_name(message.text)
        if _typed_command(message.text):
            # Other bots have commands too, also some that name us.
            return _command(message.text if rest is None else rest, self._commands) or Ignore("unknown command")
        return Ignore("not addressed") if rest is None else self._addressed(rest, is_called=True)

    def reply_address(self, message: IncomingMessage) -> Address:
        """Where the answer to `message` goes."""
        return message.reply_address(direct=self._replies_directly or self._is_far(message))

    def is_from_admin(self, message: IncomingMessage) -> bool:
        """Whether `message` proves by its encryption that an admin sent it to us alone, by radio."""
        return (
            message.is_direct and not message.via_mqtt and message.packet_id != 0 and message.public_key in self._admins
        )

    def _order(self, message: IncomingMessage) -> Command | None:
        """The command of an admin's that only admins may use."""
        if not self.is_from_admin(message):
            return None
        rest = self._addressing.after_call(message.text)
        return _command(message.text if rest is None else rest, self._orders)

    def _silence(self, message: IncomingMessage, me: Node) -> str:
        """Why the message gets no answer whatever it says; empty if it may get one."""
        if message.sender == me.number:
            return "own packet"
        if message.is_direct and message.to != me.number:
            return "direct message to another node"
        if message.via_mqtt and not self._answer_mqtt:
            return "came over MQTT"
        if message.is_tapback:
            return "tapback"
        if message.is_stale:
            return "stale"
        if is_blank(message.text):
            return "empty text"
        return ""

    def _unwanted(self, message: IncomingMessage, sender: Node) -> str:
        """Why the settings want no answer for this sender; empty if they do."""
        if self._ignored.has(message.sender, message.public_key, sender.public_key):
            return "from a node in bot.ignore_nodes"
        if self._answered and not self._answered.has(message.sender, message.public_key):
            return "from a node that is not in bot.answer_nodes"
        if self._is_far(message) and not self._answers_far:
            return f"came over {message.hops} hops, more than bot.max_hops"
        return ""

    def _is_far(self, message: IncomingMessage) -> bool:
        return message.hops is not None and message.hops > self._max_hops

    def _is_repeated(self, message: IncomingMessage) -> bool:
        if not message.packet_id:
            return False
        key = (message.sender, message.packet_id)
        is_known = key in self._heard
        self._heard[key] = None
        self._heard.move_to_end(key)
        if len(self._heard) > _MOST_REMEMBERED:
            self._heard.popitem(last=False)
        return is_known

    def _learn_own_names(self, me: Node) -> None:
        own_names = (me.long_name, me.short_name)
        if own_names != self._own_names:
            self._own_names = own_names
            self._addressing = _Addressing(own_names, self._aliases)

    def _addressed(self, text: str, *, is_called: bool = False) -> Decision:
        """What to do with a text that is meant for us. Calling us without a word more asks what we can do."""
        text = text.strip()
        if is_called and _PUNCTUATION.fullmatch(text):
            return Command("help")
        if command := _command(text, self._commands):
            return command
        if typed := _typed_command(text):
            return Command("help", typed[0])
        # The words alone, as people who do not know of the `!` type them.
        if name := self._commands.get(_folded(text)):
            return Command(name)
        return Prompt(text)


def _command(text: str, names: Mapping[str, str]) -> Command | None:
    """The known command at the very start of `text`; `names` are the commands by the words for them."""
    typed = _typed_command(text)
    if not typed:
        return None
    word, argument = typed
    name = names.get(_folded(word)) or names.get(_folded(word.rstrip(".,:;!?…。，！？")))
    return Command(name, argument) if name else None


def _typed_command(text: str) -> tuple[str, str] | None:
    """The word after a `!` at the start, and the rest."""
    found = _COMMAND.match(text)
    if not found or _PUNCTUATION.fullmatch(found[1]):
        return None
    return found[1], found[2].strip()


class _Addressing:
    """Finds out whether a text calls one of the names, and what it says besides."""

    def __init__(self, own_names: Iterable[str], aliases: Iterable[str]) -> None:
        folded_aliases = _longest_first(aliases)
        names = _longest_first([*own_names, *aliases])
        mention = rf"@(?:{_any_of(names, _mention_end)}|\[\s*{_any_of(names)}\s*\])"
        call = rf"{_any_of(names)}(?:(?:(?<!\d){_CALLING_MARK}|{_CALLING_MARK}(?!\d))(?!//)|\s+{_CALLING_MARK}(?=\s|$))"
        self._call = regex.compile(rf"(?V1)\s*(?:{mention}|{call})")
        self._call_or_alias = regex.compile(rf"(?V1)\s*(?:{mention}|{call}|{_any_of(folded_aliases, _word_end)})")
        self._mention = regex.compile(rf"(?V1)(?<!{_JOINED}|/){mention}")

    def after_call(self, text: str) -> str | None:
        """What follows a call at the start; None if there is none."""
        return self._after(self._call, text)

    def without_name(self, text: str) -> str | None:
        """The text without the words that call us, wherever they are; None if there are none."""
        rest = self._after(self._call_or_alias, text)
        said = text if rest is None else rest
        spans = list(_spans(self._mention, said))
        for start, end in reversed(spans):
            said = _joined(said[:start], said[end:])
        return said if spans else rest

    def _after(self, call: regex.Pattern[str], text: str) -> str | None:
        rest = None
        while (end := _end_of_match(call, text)) is not None:
            rest = text = text[end:].lstrip(_AFTER_CALL)
            call = self._call
        return rest


def _end_of_match(pattern: regex.Pattern[str], text: str) -> int | None:
    folded, places = _folded_with_places(text)
    found = pattern.match(folded)
    return places.get(found.end()) if found else None


def _spans(pattern: regex.Pattern[str], text: str) -> Iterable[tuple[int, int]]:
    folded, places = _folded_with_places(text)
    for found in pattern.finditer(folded):
        # A match that ends inside a grapheme is part of a longer word.
        if found.start() in places and found.end() in places:
            yield places[found.start()], places[found.end()]


def _joined(before: str, after: str) -> str:
    """What is left on both sides of a name, without the comma and space that set it off."""
    is_spaced = before.endswith((" ", "\n")) or after.startswith((" ", "\n"))
    before, after = before.rstrip(), after.lstrip(_AFTER_CALL)
    if _CLOSING.match(after) or not after:
        return before.rstrip(_AFTER_CALL) + after
    return f"{before} {after}" if is_spaced and before else before + after


def _folded(text: str) -> str:
    """`text` as it is compared."""
    return _folded_with_places(text)[0]


def _folded_with_places(text: str) -> tuple[str, Mapping[int, int]]:
    """`text` as it is compared, and for each place between graphemes in it the one in `text`."""
    folded, places = "", {}
    for grapheme in regex.finditer(r"\X", text):
        places[len(folded)] = grapheme.start()
        visible = unicodedata.normalize("NFKC", _INVISIBLE.sub("", grapheme[0]))
        folded += unicodedata.normalize("NFKC", visible.casefold())
    places[len(folded)] = len(text)
    return folded, places


def _longest_first(names: Iterable[str]) -> list[str]:
    folded = {" ".join(_folded(name).split()) for name in names} - {""}
    return sorted(folded, key=lambda name: (-len(name), name))


def _any_of(names: Iterable[str], end: Callable[[str], str] = lambda name: "") -> str:
    """A pattern for one of `names`, each followed by the pattern `end` gives for it."""
    alternatives = [r"\s+".join(map(regex.escape, name.split())) + end(name) for name in names]
    return f"(?:{'|'.join(alternatives)})" if alternatives else "(?!)"


def _mention_end(name: str) -> str:
    """Behind `@name` a word must end, but where no spaces are written, text may follow at once."""
    return rf"(?!{_INNER_MARK}?{_JOINED})" if regex.search(rf"(?V1){_JOINED}$", name) else ""


def _word_end(name: str) -> str:
    return rf"(?!{_INNER_MARK}?{_LETTER})" if regex.search(rf"(?V1){_LETTER}$", name) else ""


class _Listed:
    """The nodes that a setting lists, by number or by public key."""

    def __init__(self, setting: str, entries: Collection[str]) -> None:
        try:
            self._numbers = frozenset(parse_node_id(entry) for entry in entries if entry.startswith("!"))
        except ValueError as error:
            raise ConfigError(f"{setting}: {error}") from None
        self._keys = _keys(setting, [entry for entry in entries if not entry.startswith("!")])

    def __bool__(self) -> bool:
        return bool(self._numbers or self._keys)

    def has(self, number: NodeNum, *keys: bytes | None) -> bool:
        return number in self._numbers or not self._keys.isdisjoint(keys)


def _keys(setting: str, entries: Iterable[str]) -> frozenset[bytes]:
    try:
        return frozenset(map(parse_key, entries))
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None


def faults(bot: BotSettings, commands: CommandSettings, command_names: Collection[str]) -> dict[SettingKey, str]:
    """What of these settings cannot work with the commands there are, by the key that has to change."""
    unusable: dict[SettingKey, str] = {
        ("bot", "aliases", index): f"found {alias!r}; expected a name, in letters, digits or emoji"
        for index, alias in enumerate(bot.aliases)
        if _PUNCTUATION.fullmatch(alias)
    }
    words = {_folded(name): name for name in command_names}
    known = dict(words)
    for alias, target in commands.aliases.items():
        key: SettingKey = ("commands", "aliases", alias)
        word, name = _folded(alias.removeprefix("!")), known.get(_folded(target.removeprefix("!")))
        if name is None:
            unusable[key] = f"found {target!r}; expected one of the commands {', '.join(sorted(command_names))}"
        elif not word or len(word.split()) != 1:
            unusable[key] = "expected one word to type after the !"
        elif words.setdefault(word, name) != name:
            unusable[key] = f"!{word} already means {words[word]}"
    return unusable


def _commands(names: Collection[str], aliases: Mapping[str, str]) -> Mapping[str, str]:
    """Each word that may follow the `!`, as it is compared, and the command it stands for."""
    known = {_folded(name): name for name in names}
    return known | {
        _folded(alias.removeprefix("!")): known[_folded(target.removeprefix("!"))] for alias, target in aliases.items()
    }
