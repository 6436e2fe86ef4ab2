"""Who is answered, and how: every rule of silence, every way to call the bot, in every script."""

import base64
import itertools
import unicodedata
from collections.abc import Collection, Mapping

import pytest
import regex
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshai.config import BotSettings, ChannelSettings, CommandSettings
from meshai.errors import ConfigError
from meshai.messages import (
    BROADCAST,
    Channel,
    Command,
    Decision,
    Direct,
    Ignore,
    IncomingMessage,
    Node,
    Prompt,
    TextLimits,
)
from meshai.router import Router

ME = Node(0xA1, "MeshAI Bot", "AI")
ANNA = 0xB2
SENDER = Node(ANNA)
"""All that our node knows of the one who speaks; few rules ask for more."""
KEY, OTHER_KEY = bytes(range(32)), bytes(32)
SHOWN_KEY = base64.b64encode(KEY).decode()
COMMANDS = ("help", "ping", "status", "reset", "whoami")
packet_ids = itertools.count(1)


def router(
    *,
    aliases: tuple[str, ...] = (),
    command_aliases: Mapping[str, str] | None = None,
    command_names: Collection[str] = COMMANDS,
    ignore: tuple[str, ...] = (),
    answer_on: tuple[int, ...] = (1, 2),
    answer_mqtt: bool = False,
    answer: tuple[str, ...] = (),
    max_hops: int = 7,
    beyond_max_hops: str = "ignore",
    admin_keys: tuple[str, ...] = (),
    admin_names: Collection[str] = (),
) -> Router:
    # Built without validation, as what a plugin or test may pass: the router must hold on its own.
    bot = BotSettings.model_construct(
        aliases=aliases,
        ignore_nodes=ignore,
        answer_nodes=answer,
        answer_mqtt=answer_mqtt,
        max_hops=max_hops,
        beyond_max_hops=beyond_max_hops,  # type: ignore[arg-type]
        admin_keys=admin_keys,
    )
    commands = CommandSettings.model_construct(aliases=dict(command_aliases or {}))
    return Router(
        bot, ChannelSettings.model_construct(answer_on=answer_on), commands, [*command_names, *admin_names], admin_names
    )


def heard(text: str, *, to: int = BROADCAST, sender: int = ANNA, channel: int = 1, **more: object) -> IncomingMessage:
    fields = {"packet_id": next(packet_ids), "heard_at": 0.0, "limits": TextLimits(160, 200), **more}
    return IncomingMessage(sender=sender, to=to, channel=channel, text=text, **fields)  # type: ignore[arg-type]


def on_channel(text: str, me: Node = ME, **options: object) -> Decision:
    return router(**options).route(heard(text), me, SENDER)  # type: ignore[arg-type]


def direct(text: str, me: Node = ME, **options: object) -> Decision:
    return router(**options).route(heard(text, to=me.number), me, SENDER)  # type: ignore[arg-type]


# Silence


@pytest.mark.parametrize("to", [BROADCAST, ME.number])
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"sender": ME.number}, "own packet"),
        ({"sender": 0xC3}, "from a node in bot.ignore_nodes"),
        ({"via_mqtt": True}, "came over MQTT"),
        ({"is_tapback": True}, "tapback"),
        ({"is_stale": True}, "stale"),
    ],
)
def test_some_messages_never_get_an_answer(to: int, message: dict[str, object], reason: str) -> None:
    fields: dict[str, object] = {"text": "@AI !ping", "to": to, **message}
    assert router(ignore=("!000000c3",)).route(heard(**fields), ME, SENDER) == Ignore(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("to", [BROADCAST, ME.number])
@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "\u200b", "\u200d\ufe0f", "\u2060\u00ad", "\u2800", "\x00", "\u3164"]
)
def test_nothing_to_read_gets_no_answer(text: str, to: int) -> None:
    assert router().route(heard(text, to=to), ME, SENDER) == Ignore("empty text")


def test_a_direct_message_to_another_node_gets_no_answer() -> None:
    assert router().route(heard("@AI !ping", to=0xC3), ME, SENDER) == Ignore("direct message to another node")


def test_mqtt_is_answered_when_allowed() -> None:
    assert router(answer_mqtt=True).route(heard("@AI hi", via_mqtt=True), ME, SENDER) == Prompt("hi")


@pytest.mark.parametrize("text", ["@AI hi", "!ping", "AI: hi", "hello"])
def test_a_channel_that_is_not_allowed_is_silent_whatever_is_said(text: str) -> None:
    assert router().route(heard(text, channel=0), ME, SENDER) == Ignore("channel 0 is not in channels.answer_on")
    assert isinstance(router(answer_on=()).route(heard(text, channel=1), ME, SENDER), Ignore)


def test_the_primary_channel_is_silent_by_default() -> None:
    by_default = Router(BotSettings(), ChannelSettings(), CommandSettings(), COMMANDS)
    assert isinstance(by_default.route(heard("@AI !ping", channel=0), ME, SENDER), Ignore)
    assert by_default.route(heard("@AI !ping", channel=7), ME, SENDER) == Command("ping")


def test_direct_messages_are_answered_whatever_channel_they_came_on() -> None:
    assert router(answer_on=()).route(heard("hi", to=ME.number, channel=0), ME, SENDER) == Prompt("hi")


# Who is answered


@pytest.mark.parametrize(
    ("sender", "proved", "known", "is_ignored"),
    [
        (0xC3, None, None, True),
        (0xC3, OTHER_KEY, OTHER_KEY, True),
        (ANNA, KEY, None, True),
        (ANNA, None, KEY, True),
        (ANNA, None, None, False),
        (ANNA, OTHER_KEY, OTHER_KEY, False),
    ],
)
def test_nodes_are_ignored_by_number_and_by_any_sign_of_their_key(
    sender: int, proved: bytes | None, known: bytes | None, is_ignored: bool
) -> None:
    message = heard("hi", to=ME.number, sender=sender, public_key=proved)
    decision = router(ignore=("!000000C3", SHOWN_KEY)).route(message, ME, Node(sender, public_key=known))
    assert decision == (Ignore("from a node in bot.ignore_nodes") if is_ignored else Prompt("hi"))


@pytest.mark.parametrize(
    ("sender", "proved", "is_answered"),
    [(0xC3, None, True), (ANNA, KEY, True), (ANNA, None, False), (ANNA, OTHER_KEY, False)],
)
def test_nodes_are_answered_by_number_and_by_a_proved_key(sender: int, proved: bytes | None, is_answered: bool) -> None:
    message = heard("hi", to=ME.number, sender=sender, public_key=proved)
    # What our node takes for the sender's key proves nothing of a packet that is not encrypted with it.
    decision = router(answer=("!000000c3", SHOWN_KEY)).route(message, ME, Node(sender, public_key=KEY))
    assert decision == (Prompt("hi") if is_answered else Ignore("from a node that is not in bot.answer_nodes"))


def test_a_node_on_both_lists_is_ignored() -> None:
    both = router(ignore=("!000000b2",), answer=("!000000b2",))
    assert both.route(heard("hi", to=ME.number), ME, SENDER) == Ignore("from a node in bot.ignore_nodes")


@pytest.mark.parametrize("beyond", ["ignore", "direct"])
@pytest.mark.parametrize(("most", "hops"), [(0, 0), (0, 1), (3, None), (3, 3), (3, 4), (7, 7)])
def test_questions_from_too_far_away_are_ignored_or_answered_by_direct_message(
    beyond: str, most: int, hops: int | None
) -> None:
    routes = router(max_hops=most, beyond_max_hops=beyond)
    message = heard("@AI hi", hops=hops)
    is_far = hops is not None and hops > most
    decision = routes.route(message, ME, SENDER)
    if is_far and beyond == "ignore":
        assert decision == Ignore(f"came over {hops} hops, more than bot.max_hops")
    else:
        assert decision == Prompt("hi")
        assert routes.reply_address(message).destination == (Direct(ANNA) if is_far else Channel(1))
    direct_message = heard("hi", to=ME.number, hops=hops)
    assert isinstance(routes.route(direct_message, ME, SENDER), Ignore) == (is_far and beyond == "ignore")
    assert routes.reply_address(direct_message).destination == Direct(ANNA)


def test_everybody_is_answered_by_default_however_far_away() -> None:
    by_default = Router(BotSettings(), ChannelSettings(), CommandSettings(), COMMANDS)
    message = heard("@AI hi", hops=7)
    assert by_default.route(message, ME, SENDER) == Prompt("hi")
    assert by_default.reply_address(message).destination == Channel(1)


# Repeated packets


def test_a_packet_is_answered_once_and_equal_text_in_a_new_packet_again() -> None:
    routes = router()
    assert routes.route(heard("hi", to=ME.number, packet_id=7), ME, SENDER) == Prompt("hi")
    assert routes.route(heard("hi", to=ME.number, packet_id=7), ME, SENDER) == Ignore("repeated packet")
    assert routes.route(heard("hi", to=ME.number, packet_id=8), ME, SENDER) == Prompt("hi")
    assert routes.route(heard("hi", to=ME.number, packet_id=7, sender=0xC3), ME, SENDER) == Prompt("hi")


def test_packets_without_id_are_never_taken_for_repeated() -> None:
    routes = router()
    assert [routes.route(heard("hi", to=ME.number, packet_id=0), ME, SENDER) for _ in range(2)] == [Prompt("hi")] * 2


def test_what_it_remembers_of_packets_is_bounded_and_keeps_the_latest() -> None:
    routes = router()
    for packet_id in range(1, 1_001):
        routes.route(heard("hi", packet_id=packet_id), ME, SENDER)
    assert routes.route(heard("@AI hi", packet_id=1), ME, SENDER) == Ignore("repeated packet")
    routes.route(heard("hi", packet_id=1_001), ME, SENDER)
    assert routes.route(heard("@AI hi", packet_id=1), ME, SENDER) == Ignore("repeated packet")
    assert routes.route(heard("@AI hi", packet_id=2), ME, SENDER) == Prompt("hi")


# Calling on a channel


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("@AI what time is it?", "what time is it?"),
        ("@[AI] what time", "what time"),
        ("@[ MeshAI Bot ] what time", "what time"),
        ("@meshai bot what time", "what time"),
        ("@MESHAI  BOT what time", "what time"),
        ("@AI, what time", "what time"),
        ("@AI: what time", "what time"),
        ("AI: what time", "what time"),
        ("ai,what time", "what time"),
        ("AI : what time", "what time"),
        ("MeshAI Bot: what time", "what time"),
        ("  AI: what time  ", "what time"),
        ("AI：几点了", "几点了"),
        ("AI，几点了", "几点了"),
        ("AI、几点了", "几点了"),
        ("AI، كم الساعة", "كم الساعة"),
        ("ＡＩ： wide", "wide"),
        ("＠ＡＩ\u3000wide", "wide"),
        ("hey @AI, what's up", "hey what's up"),
        ("what time is it, @AI?", "what time is it?"),
        ("what time is it @AI", "what time is it"),
        ("今天@AI天气怎么样", "今天天气怎么样"),
        ("@AI今天天气怎么样", "今天天气怎么样"),
        ("@AI @meshai bot: both names", "both names"),
        ("¿@AI?", "¿?"),
        ("@AI 👍", "👍"),
        ("@A\u200bI \u2066isolated\u2069", "\u2066isolated\u2069"),
        ("@AI -5 degrees", "-5 degrees"),
        ("@AI\nline\nline", "line\nline"),
        ("@AI 2*3*4 @Bob", "2*3*4 @Bob"),
    ],
)
def test_called_by_name_it_answers_the_rest(text: str, prompt: str) -> None:
    decision = on_channel(text)
    assert decision == (Command("help") if prompt == "¿?" else Prompt(prompt))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "AI is cool",
            "I like AI",
            "the AI said",
            "AI",
            "MeshAI Bot",
            "meshai",
            "hello",
            "ping",
            "help",
            "Is AI: good?",
        ),
        *("me@ai.example", "@ai.example", "@ai-2 hi", "@AI's antenna", "@AIx hi", "@AI_x", "@AI2", "@xAI", "@[xAI] hi"),
        *(
            "x@AI hi",
            "я@AI",
            "@MeshAI hi",
            "@AI\u0301 hi",
            "https://example.org/@AI",
            "AI://host",
            "[AI] hi",
            "@ AI hi",
        ),
        *(
            "Bob: AI, are you there",
            "say !ping",
            "ping!",
            "! ",
            "!!!",
            "!foo",
            "!foo @AI",
            "!weather AI: hi",
            "/ping",
            "?ping",
        ),
        *("AIs: many", "AI :what", "AI;x", "AI.", "AI-x: y"),
    ],
)
def test_talk_that_does_not_call_it_gets_silence(text: str) -> None:
    assert isinstance(on_channel(text), Ignore)


@pytest.mark.parametrize("text", ["@AI", "@AI ?", "AI:", "@[AI] ...", "@AI\u200b", "AI, !", "@AI @MeshAI Bot"])
def test_called_without_a_word_more_it_tells_what_it_can_do(text: str) -> None:
    assert on_channel(text) == Command("help")


@pytest.mark.parametrize(
    "name",
    [
        "C++ (bot)",
        "a.b*c",
        "[x]",
        "^$",
        "\\d",
        "小明",
        "บอท",
        "бот",
        "μ",
        "🤖",
        "👨‍👩‍👧",
        "☀️",
        "ß",
        "ﬁ",
        "#1",
        "a b",
        "12",
    ],
)
def test_names_of_any_script_with_spaces_emoji_and_regex_characters(name: str) -> None:
    me = Node(ME.number, name, "")
    for text in (f"@{name} hi", f"@[{name}] hi", f"{name}: hi", f"{name}, hi", f"hi @{name}", f"@{name}\n hi"):
        assert on_channel(text, me) == Prompt("hi"), text
    assert isinstance(on_channel("@ hi", me), Ignore)


def test_a_name_in_a_script_without_spaces_may_be_followed_by_text_at_once() -> None:
    me = Node(ME.number, "小明", "บอท")
    assert on_channel("@小明你好", me) == Prompt("你好")
    assert on_channel("@บอทสวัสดี", me) == Prompt("สวัสดี")
    assert isinstance(on_channel("小明你好", me), Ignore)


def test_a_name_of_digits_is_not_called_by_a_time() -> None:
    me = Node(ME.number, "", "12")
    assert isinstance(on_channel("12:30 net on channel 3", me), Ignore)
    assert on_channel("12: what time?", me) == Prompt("what time?")


def test_without_names_it_is_only_called_by_commands() -> None:
    nobody = Node(ME.number)
    assert isinstance(on_channel("@ hi", nobody), Ignore)
    assert isinstance(on_channel(": hi", nobody), Ignore)
    assert on_channel("!ping", nobody) == Command("ping")


def test_it_follows_a_change_of_its_own_number_and_name() -> None:
    routes = router()
    assert routes.route(heard("@AI hi"), ME, SENDER) == Prompt("hi")
    renamed = Node(0xD4, "Relay", "R1")
    assert isinstance(routes.route(heard("@AI hi"), renamed, SENDER), Ignore)
    assert routes.route(heard("@r1 hi"), renamed, SENDER) == Prompt("hi")
    assert routes.route(heard("hi", sender=0xD4), renamed, SENDER) == Ignore("own packet")
    assert routes.route(heard("hi", to=ME.number), renamed, SENDER) == Ignore("direct message to another node")


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("bot what time", "what time"),
        ("Bot, what time", "what time"),
        ("@bot what time", "what time"),
        ("@[BOT] what time", "what time"),
        ("what time, @bot?", "what time?"),
        ("бот привет", "привет"),
        ("БОТ: привет", "привет"),
        ("ρομπότ γεια", "γεια"),
        ("ΡΟΜΠΌΤ γεια", "γεια"),
        ("机器人 你好", "你好"),
        ("机器人，你好", "你好"),
        ("@机器人你好", "你好"),
        ("روبوت مرحبا", "مرحبا"),
        ("🤖 hi", "hi"),
        ("🤖hi", "hi"),
        ("bot bot is who?", "bot is who?"),
    ],
)
def test_an_alias_calls_it_at_the_start_and_with_at_sign_anywhere(text: str, prompt: str) -> None:
    aliases = ("@bot", "бот", "ρομπότ", "机器人", "روبوت", "🤖")
    assert on_channel(text, aliases=aliases) == Prompt(prompt)


@pytest.mark.parametrize(
    "text", ["bots are", "bot's life", "bot-net", "bot.example", "robot hi", "the bot", "机器人你好", "ботинок"]
)
def test_an_alias_is_a_whole_word(text: str) -> None:
    assert isinstance(on_channel(text, aliases=("bot", "бот", "机器人")), Ignore)


# Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_known_everywhere(name: str) -> None:
    for text in (f"!{name}", f" !{name.upper()}", f"！{name}", f"! {name}", f"!{name}?", f"@AI !{name}", f"AI: {name}"):
        assert on_channel(text) == Command(name), text
        assert direct(text) == Command(name), text
    assert direct(name.title()) == Command(name)


def test_a_command_has_the_rest_as_argument() -> None:
    assert on_channel("!help  Reset me \n now ") == Command("help", "Reset me \n now")
    assert on_channel("@AI !help reset") == Command("help", "reset")
    assert on_channel("!help @AI") == Command("help")


def test_unknown_commands_get_silence_on_a_channel_and_help_where_they_are_meant_for_us() -> None:
    assert on_channel("!weather Oslo") == Ignore("unknown command")
    assert direct("!weather Oslo") == Command("help", "weather")
    assert on_channel("@AI !weather Oslo") == Command("help", "weather")


@pytest.mark.parametrize("text", ["help me", "ping 1", "so: ping", "!", "!!!", "! ?", "ping?", "👍", "?"])
def test_a_direct_message_that_is_no_command_is_a_prompt(text: str) -> None:
    assert direct(text) == Prompt(text)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("@AI hi", "hi"),
        ("@[AI] hi", "hi"),
        ("AI: hi", "hi"),
        ("is it @AI?", "is it @AI?"),
        ("bot is a word", "bot is a word"),
    ],
)
def test_a_direct_message_may_call_it_too(text: str, prompt: str) -> None:
    assert direct(text, aliases=("bot",)) == Prompt(prompt)


@pytest.mark.parametrize("text", ["!помощь", "!ПОМОЩЬ", "!Помощь!", "！помощь"])
def test_aliases_of_commands_in_any_script_and_case(text: str) -> None:
    aliases = {"помощь": "help", "🏓": "ping", "帮助": "help", "BOŞ": "status"}
    assert on_channel(text, command_aliases=aliases) == Command("help")
    assert direct("помощь", command_aliases=aliases) == Command("help")
    assert on_channel("!🏓", command_aliases=aliases) == Command("ping")
    assert on_channel("!帮助 ping", command_aliases=aliases) == Command("help", "ping")
    assert on_channel("!boş", command_aliases=aliases) == Command("status")
    assert isinstance(on_channel("помощь", command_aliases=aliases), Ignore)


# Orders of admins


def with_admin(**options: object) -> Router:
    names = ("quiet", "restart-radio")
    return router(admin_keys=(SHOWN_KEY,), admin_names=names, command_aliases={"тихо": "quiet"}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("!quiet 2h", Command("quiet", "2h")),
        ("！ QUIET 2h", Command("quiet", "2h")),
        ("@AI !quiet", Command("quiet")),
        ("!тихо 1d", Command("quiet", "1d")),
        ("!restart-radio", Command("restart-radio")),
    ],
)
def test_an_admins_order_is_followed_and_for_others_it_is_unknown(text: str, order: Command) -> None:
    assert with_admin().route(heard(text, to=ME.number, public_key=KEY), ME, SENDER) == order
    word = text.partition("!")[2].partition("！")[2] or text.replace("！", "!").partition("!")[2]
    for proof in (
        {},
        {"public_key": OTHER_KEY},
        {"public_key": KEY, "packet_id": 0},
        {"public_key": KEY, "via_mqtt": True},
    ):
        routes = with_admin(answer_mqtt=True)
        # Nor does it help that our node takes this key for the sender's.
        decision = routes.route(heard(text, to=ME.number, **proof), ME, Node(ANNA, public_key=KEY))
        assert decision == Command("help", word.split()[0])
    assert with_admin().route(heard(text.removeprefix("@AI "), public_key=KEY), ME, SENDER) == Ignore("unknown command")


def test_the_words_of_orders_alone_are_talk_also_of_an_admins() -> None:
    for key in (None, KEY):
        assert with_admin().route(heard("quiet", to=ME.number, public_key=key), ME, SENDER) == Prompt("quiet")


def test_orders_are_followed_whoever_is_ignored_and_however_far_away() -> None:
    routes = with_admin(ignore=("!000000b2", SHOWN_KEY), answer=("!000000c3",), max_hops=0)
    order = heard("!quiet 2h", to=ME.number, public_key=KEY, hops=5)
    assert routes.route(order, ME, SENDER) == Command("quiet", "2h")
    assert routes.route(order, ME, SENDER) == Ignore("repeated packet")
    talk = heard("!ping", to=ME.number, public_key=KEY, hops=5)
    assert routes.route(talk, ME, SENDER) == Ignore("from a node in bot.ignore_nodes")
    assert routes.route(heard("!quiet", to=ME.number, public_key=KEY, is_stale=True), ME, SENDER) == Ignore("stale")


def test_without_admin_keys_nobody_is_one() -> None:
    routes = router(admin_names=("quiet",))
    for key in (None, b"", KEY):
        assert routes.route(heard("!quiet", to=ME.number, public_key=key), ME, SENDER) == Command("help", "quiet")


# Settings that cannot work


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command_aliases": {"aide": "hilfe"}}, "commands.aliases.aide: found 'hilfe'; .*help, ping, reset"),
        ({"command_aliases": {"ping": "help"}}, "commands.aliases.ping: !ping already means ping"),
        ({"command_aliases": {"A": "help", "a": "ping"}}, "commands.aliases.a: !a already means help"),
        ({"command_aliases": {"two words": "help"}}, "commands.aliases.two words: expected one word"),
        ({"command_aliases": {"\u200b": "help"}}, "expected one word"),
        ({"ignore": ("!a1b2c3d",)}, "bot.ignore_nodes: '!a1b2c3d' is not a node id"),
        ({"answer": ("a1b2c3d4",)}, "bot.answer_nodes: 'a1b2c3d4' is not a public key"),
        ({"admin_keys": ("!a1b2c3d4",)}, "bot.admin_keys: '!a1b2c3d4' is not a public key"),
        ({"aliases": ("bot", " ")}, "bot.aliases.1: found ' '"),
        ({"aliases": ("@",)}, "bot.aliases.0: found '@'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        router(**options)  # type: ignore[arg-type]


# Whatever is said

any_text = st.text(st.characters(codec=None), max_size=80)
called = st.lists(
    st.sampled_from(
        ["@", "AI", "[", "]", "MeshAI Bot", ":", ",", " ", "!", "ping", "бот", "\u0301", "\u200b", "水", "ﷺ", "𝔸𝕀"]
    ),
    max_size=20,
).map("".join)


@given(st.one_of(any_text, called), any_text, any_text, st.lists(any_text, max_size=3), st.booleans())
@example("@\u0301", "\u0301", "@", [], False)
@example("!ﷺ", "ﷺ", "ﷺ", ["ﷺ"], True)
def test_route_never_raises(text: str, long: str, short: str, aliases: list[str], is_direct: bool) -> None:
    usable = tuple(alias for alias in aliases if regex.search(r"[\p{L}\p{N}]", alias))
    me = Node(ME.number, long, short)
    decision = router(aliases=usable).route(heard(text, to=ME.number if is_direct else BROADCAST), me, SENDER)
    match decision:
        case Ignore(reason):
            assert reason
        case Command(name, _):
            assert name in COMMANDS
        case Prompt(prompt):
            assert prompt.strip()


@given(st.one_of(any_text, called), st.booleans())
def test_own_packets_are_never_answered(text: str, is_direct: bool) -> None:
    message = heard(text, sender=ME.number, to=ME.number if is_direct else BROADCAST)
    assert router(aliases=("bot",)).route(message, ME, SENDER) == Ignore("own packet")


names = st.text(st.characters(categories=["L", "N", "S", "P", "Zs"], exclude_characters="!！"), min_size=1, max_size=12)


@given(names)
def test_every_name_can_be_called(name: str) -> None:
    assume(regex.search(r"[\p{L}\p{N}\p{S}]", name) and name == name.strip())
    # A lone accent such as ´ is compared as a space with an accent: no name of anybody.
    assume(not regex.search(r"\s\p{M}", unicodedata.normalize("NFKC", name)))
    me = Node(ME.number, name, "")
    assert on_channel(f"@[{name}] hello", me) == Prompt("hello")
    assert on_channel(f"@{name} hello", me) == Prompt("hello")
    assert on_channel(f"{name}: hello", me) == Prompt("hello")


spaced = st.text(st.characters(categories=["Ll", "Lu"]), min_size=1, max_size=8).filter(
    lambda word: unicodedata.normalize("NFKC", word).isalpha()
)


@given(spaced, spaced)
def test_no_name_is_found_inside_a_longer_word(name: str, more: str) -> None:
    me = Node(ME.number, name, "")
    assert isinstance(on_channel(f"@{name}{more} hello", me), Ignore)
    assert isinstance(on_channel(f"{more}{name}: hello", me), Ignore) or more.casefold() == name.casefold()
    assert isinstance(on_channel(f"{more}@{name}.example hello", me), Ignore)
    assert isinstance(on_channel(f"{name} {more} hello", me), Ignore)
