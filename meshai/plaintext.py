"""Text from a model, or from the air, made fit to be sent, shown and quoted.

What the model thought and the markup it wrote cost airtime and mean nothing on a node's small screen. Markdown is read
with a parser rather than by patterns; where CommonMark would take a formula, a path or an identifier for markup, our
own inline rules replace those of the parser, and rules that could swallow text (link definitions, indented code, HTML
blocks) are switched off.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import regex
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Delimiter
from markdown_it.token import Token

from meshai.characters import SPACELESS, beginning

_MOST_CHARACTERS: Final = 8_000
"""Longest text read as Markdown: many times what one reply can send."""

_LINE_BREAK: Final = regex.compile(r"\r\n|[\r\v\f\x85\u2028\u2029]")
_UNFIT: Final = regex.compile(r"(?V1)[[\p{Cc}\p{Cs}\p{Noncharacter_Code_Point}\u202d\u202e\ufeff]--\n]+")
_SPACES: Final = regex.compile(r"(?<=\S)\p{Zs}{2,}")
_TRAILING: Final = regex.compile(r"\p{Zs}+(?=\n)")
_AROUND_BREAK: Final = regex.compile(r" *\n *")
_BLANK_LINES: Final = regex.compile(r"\n{3,}")

_THINKING: Final = regex.compile(
    r"<\|channel\|>(?:(?P<final>final)|(?!final))[^<>]*<\|message\|>"
    r"|(?i:<\s{0,3}(?P<close>/?)\s{0,3}(?:think|thinking|thoughts?|reasoning|reflection)\b[^<>]*(?:>|\Z))"
    r"|\[(?P<close>/?)THINK\]|◁(?P<close>/?)think▷"
)
"""Tags around what a model thinks. Not all models use `<think>`, some servers pass on the model's own tokens."""
_TOKEN: Final = regex.compile(r"<[|｜][^<>\n]{1,40}[|｜]>|</?s>|<(?:start|end)_of_(?:turn|text)>|\[/?INST\]")
"""Control tokens that a server left in the text."""


def plain(text: str) -> str:
    """A model's answer without its thoughts, markup, and characters that could confuse a terminal or a reader."""
    text = _TOKEN.sub("", _without_thinking(_clean(text)))[:_MOST_CHARACTERS]
    # Entities may have brought new unfit characters.
    text = _clean(_Text(_PARSER.parse(text)).text)
    return _BLANK_LINES.sub("\n\n", _TRAILING.sub("", _SPACES.sub(" ", text))).strip()


def disarm(text: str) -> str:
    """`text`, marked as a quotation where other bots would take it for a command of theirs."""
    return f"> {text}" if _TRIGGER.match(text) else text


_TRIGGER: Final = regex.compile(
    r"[\s\p{C}\p{Default_Ignorable_Code_Point}]*+(?:[!！/／]|[\s\p{P}\p{C}]*+\d{1,3}[\s\p{P}\p{C}]*+\Z)"
)


def one_line(text: str) -> str:
    """Untrusted text as one line, without characters that could confuse a terminal or a reader."""
    text = _LINE_BREAK.sub(" ", text).replace("\n", " ").replace("\t", " ")
    return _SPACES.sub(" ", _UNFIT.sub("", _BIDI.sub("", text))).strip()


def one_line_name(name: str, limit: int = 40) -> str:
    """An untrusted name as one short line that cannot leave the quotes or brackets it is put in."""
    name = one_line(name).translate(_HARMLESS)
    if len(name) > limit:
        # The first grapheme alone may be longer than the limit.
        name = (beginning(name, limit - 1) or name[: limit - 1]).rstrip() + "…"
    return name


_BIDI: Final = regex.compile(r"[\p{Bidi_Control}]+")
_HARMLESS: Final = str.maketrans(
    dict.fromkeys('"“”„‟«»＂`´', "'") | dict.fromkeys("<[{‹＜［｛", "(") | dict.fromkeys(">]}›＞］｝", ")")
)


def _clean(text: str) -> str:
    return _UNFIT.sub("", _LINE_BREAK.sub("\n", text).replace("\t", " "))


def _without_thinking(text: str) -> str:
    """The text outside of thoughts. What a lone closing tag ends, and a lone opening tag begins, is thought."""
    kept: list[str] = []
    depth = place = 0
    for tag in _THINKING.finditer(text):
        if tag["final"]:
            kept, depth, place = [], 0, tag.end()
        elif tag["close"] and depth <= 1:
            kept = kept if depth else []
            depth, place = 0, tag.end()
        elif tag["close"]:
            depth -= 1
        else:
            if not depth:
                kept.append(text[place : tag.start()])
                place = tag.end()
            depth += not tag[0].endswith("/>")
    if not depth:
        kept.append(text[place:])
    return " ".join(kept)


# Markdown to text


class _Text:
    """The text of parsed Markdown, block by block."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.text = ""
        self._gap = ""
        self._lists = 0
        self._marker = ""
        self._cells: list[str] = []
        for token in tokens:
            self._read(token)

    def _read(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._cells.append(_AROUND_BREAK.sub("\n", _inline(token.children or ())))
            case "paragraph_close":
                self._say(" ".join(self._cells))
            case "heading_close":
                self._say(" ".join(self._cells), gap="\n")
            case "tr_close":
                self._say(" | ".join(cell.replace("\n", " ") for cell in self._cells).strip(" |"), gap="\n")
            case "fence":
                self._say(token.content.rstrip("\n"))
            case "table_close" | "hr":
                self._gap = "\n\n"
            case "bullet_list_open" | "ordered_list_open":
                self._lists += 1
                self._gap = "\n"
            case "list_item_open":
                bullet = "-" if token.markup == "*" else token.markup
                self._marker += f"{token.info}{bullet} "
            case "list_item_close" if self._marker:
                # An empty item: its number may be the whole answer, its bullet is nothing.
                self._marker = self._marker if self._marker[0].isdigit() else ""
                self._say("")
            case "bullet_list_close" | "ordered_list_close":
                self._lists -= 1
                self._gap = "\n" if self._lists else "\n\n"

    def _say(self, block: str, gap: str = "\n\n") -> None:
        self._cells.clear()
        block = self._marker + block
        if block.strip():
            self.text += (self._gap if self.text else "") + block
            self._gap = "\n" if self._lists else gap
        self._marker = ""


def _inline(tokens: Iterable[Token]) -> str:
    parts: list[str] = []
    link, label = "", 0
    for token in tokens:
        match token.type:
            case "softbreak" | "hardbreak":
                parts.append("\n")
            case "image":
                parts.append(_inline(token.children or ()) or str(token.attrGet("src") or ""))
            case "link_open":
                link, label = str(token.attrGet("href") or ""), len(parts)
            case "link_close":
                parts[label:] = [_link("".join(parts[label:]), link)]
            case _:
                parts.append(token.content)
    return "".join(parts)


def _link(label: str, url: str) -> str:
    bare = regex.sub(r"^(?:https?://|mailto:)", "", url).rstrip("/")
    if label.strip() in ("", url, bare) or bare == label.rstrip("/"):
        return label if url.startswith("mailto:") and label else url
    return f"{label} ({url})" if url and not url.startswith("#") else label


# Markdown that leaves alone what only looks like it


def _emphasis(state: StateInline, silent: bool) -> bool:
    """`*` and `_` around words, by rules stricter than CommonMark's, so that 2*3*4, *.txt and __init__ stay.

    Scripts without spaces are the exception: there emphasis stands directly between letters.
    """
    marker = state.src[state.pos]
    if silent or marker not in "*_":
        return False
    if name := _DUNDER_NAME.match(state.src, state.pos):
        state.append_pending(name[0])
        state.pos = name.end()
        return True
    start = state.pos
    while state.src[state.pos : state.pos + 1] == marker:
        state.pos += 1
    length = state.pos - start
    before, after = state.src[start - 1 : start] if start else "", state.src[state.pos : state.pos + 1]
    is_strong, is_between_letters = length > 1, marker == "*" and bool(_SPACELESS.search(before + after))
    opens = bool(after.strip()) and (
        is_between_letters
        or (is_strong and bool(_BEFORE_STRONG.fullmatch(before)))
        or (after not in ".,;:!?/\\|=)]}" and bool(_BEFORE_EMPHASIS.fullmatch(before)))
    )
    closes = bool(before.strip()) and (
        is_between_letters or bool(_AFTER_EMPHASIS.fullmatch(after)) or (is_strong and marker == "*" and not opens)
    )
    for _ in range(length):
        state.push("text", "", 0).content = marker
        state.delimiters.append(Delimiter(ord(marker), length, len(state.tokens) - 1, -1, opens, closes))
    return True


_SPACELESS: Final = regex.compile(SPACELESS)
_DUNDER_NAME: Final = regex.compile(
    r"(?<!\w)__(?:(?:init|main|name|file|doc|all|dict|class|str|repr|call|new|len|version|pycache)__(?!\w)"
    r"|[a-z0-9_]*[a-z0-9]__(?=\(|\.\w|=))"
)
_BEFORE_STRONG: Final = regex.compile(r"_?|[^\w\p{Pe}]")
_BEFORE_EMPHASIS: Final = regex.compile(r"|[\s\p{Ps}\p{Pi}\"'*_~|>—–:;,.!?…、。，：；！？¿¡]")
_AFTER_EMPHASIS: Final = regex.compile(r"|[\s\p{Pe}\p{Pf}\"'*_~|<—–:;,.!?…、。，：；！？-]")


def _url(state: StateInline, silent: bool) -> bool:
    """A bare URL: whatever is in it is no markup."""
    found = _URL.match(state.src, state.pos)
    if not found:
        return False
    if not silent:
        state.append_pending(found[0])
    state.pos = found.end()
    return True


_URL: Final = regex.compile(
    r"(?i)(?<=\b(?:https?|ftp|wss?|tcp|mqtts?)):(?://\[[\da-f:.]+\]|//)[^\s<>\[\]`|]+(?<![.,;:!?'\")*_~])"
)


def _escape(state: StateInline, silent: bool) -> bool:
    """A backslash before what could be markup, but not one in the path of a file."""
    found = _ESCAPE.match(state.src, state.pos)
    if not found:
        return False
    if not silent:
        state.append_pending(found[1])
    state.pos = found.end()
    return True


_ESCAPE: Final = regex.compile(r"(?<!\\|\b[A-Za-z]:\S{0,80})\\([*_~`\[\]()#+.!|<>{}$&-])")


def _html_tag(state: StateInline, silent: bool) -> bool:
    """A known tag, or a comment. Anything else in angle brackets is a placeholder or a comparison."""
    if found := _TAG.match(state.src, state.pos):
        tag = found[1].lower()
        end, text = found.end(), "\n" if _LINE_TAG.fullmatch(tag) else _MEANT_BY_TAG.get(tag, "")
    elif state.src.startswith("<!--", state.pos):
        end, text = state.src.find("-->", state.pos + 4) + 3, ""
        if end < 3:
            return False
    else:
        return False
    if not silent:
        state.append_pending(text)
    state.pos = end
    return True


_TAG: Final = regex.compile(
    r"(?i)<(/?(?:a|abbr|b|big|blockquote|br|center|cite|code|dd|del|details|div|dl|dt|em|font|h[1-6]|hr|i|img|ins|kbd|li"
    r"|mark|ol|p|pre|q|s|samp|small|span|strike|strong|sub|summary|sup|table|tbody|td|th|thead|tr|tt|u|ul|var))"
    r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>=`]+))*+\s*/?>"
)
_LINE_TAG: Final = regex.compile(r"/?(?:br|p|div|blockquote|hr|tr|[uod]l|d[td]|details|summary|pre|h[1-6])")
_MEANT_BY_TAG: Final = {"li": "\n- ", "td": " ", "th": " ", "sup": "^"}


def _quote(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Lines behind `> `, unless a number follows: that is a comparison."""
    line = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    return bool(_QUOTE.match(line)) and blockquote(state, start, end, silent)


_QUOTE: Final = regex.compile(r">(?:\s*>)*(?:\s+(?!\d)|$)")


class _Parser(MarkdownIt):
    """CommonMark with tables and strikethrough, and links as they were written."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"maxNesting": 30})
        self.enable(["table", "strikethrough", "linkify"])
        self.disable(["code", "reference", "html_block"])
        self.block.ruler.at("blockquote", _quote, {"alt": ["paragraph", "reference", "blockquote", "list"]})
        self.inline.ruler.at("linkify", _url)
        self.inline.ruler.at("escape", _escape)
        self.inline.ruler.at("emphasis", _emphasis)
        self.inline.ruler.at("html_inline", _html_tag)

    def validateLink(self, url: str) -> bool:  # noqa: N802
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: N802
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802
        return link


_PARSER: Final = _Parser()
