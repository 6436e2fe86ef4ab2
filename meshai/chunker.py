"""Text to packets that fit an address, and back to what their reader has read.

Theory of operation. A text has *cuts*: places where one packet may end and the next begin, each with a cost that says
how much it disturbs the reader. White space between words is a cut, and so is every border in scripts that write no
spaces. What is longer than a packet gets cuts inside as well, or it could never be sent. Filling each packet as far
as it goes gives the least number of packets; among all ways to use that number, the one with the least cost is taken,
so that a nice cut never costs airtime.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import regex

from meshai.characters import SPACELESS, is_blank
from meshai.messages import Address, OutgoingPacket

_ELLIPSIS: Final = "…"
CUT_MARK: Final = f'{_ELLIPSIS} [cut, say "go on"]'
"""Ends the last packet of a text that did not fit."""

_ROOM_LEFT: Final = 8
"""Bytes that must remain beside part number and mark; no code point takes more than 4."""


class _Level(IntEnum):
    """What a cut divides, from the least to the most disturbing."""

    PARAGRAPH = 0
    LINE = 1
    SENTENCE = 2
    CLAUSE = 3
    WORD = 4
    TIED_WORD = 5
    """A space that belongs inside something: `1 000`, or between `2.` and its list item."""
    GRAPHEME = 6
    CODE_POINT = 7


class _Cut(NamedTuple):
    """A place to cut: the packet before it ends at `end`, the one after begins at `start`."""

    end: int
    start: int
    level: _Level

    @property
    def cost(self) -> int:
        # One worse cut weighs more than any number of better ones that fit in a reply.
        return 1 << 6 * self.level


class _Room(NamedTuple):
    """What fits in one packet beside its part number and mark."""

    characters: int
    bytes: int

    def less(self, text: str) -> "_Room":
        return _Room(self.characters - len(text), self.bytes - len(text.encode()))


_NEVER_FIRST: Final = (
    r"[\p{Pe}\p{Pf}\p{Po}\p{Pd}\p{M}々〻ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮ゛゜%％\u0e2f-\u0e3a\u0e45-\u0e4e]"
)
_NEVER_LAST: Final = r"[\p{Ps}\p{Pi}\u0e40-\u0e44\u0ec0-\u0ec4]"

_GRAPHEME: Final = regex.compile(r"\X")
_SPACES: Final = regex.compile(r"(?V1)[[\s\x1c-\x1f]--[\u00a0\u2007\u202f]]+")
_LINE_BREAK: Final = regex.compile(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_LIST_MARKER: Final = regex.compile(r"(?:^|[\n\r\u2028\u2029]|[.;:,!?]\s)[ \t]*(?:\d{1,3}[.)]|[-*+•–])$")
_INITIAL: Final = regex.compile(r"(?:^|[\s(.])\p{L}\.$")
_SENTENCE_END: Final = regex.compile(r"[.!?…؟۔।॥።។။。！？｡]+[\p{Pe}\p{Pf}\p{Pi}\"']*$")
_CLAUSE_END: Final = regex.compile(r"[,;:，、；：､،؛၊፣፤—–][\p{Pe}\p{Pf}\"']*$")
_UNSPACED: Final[Sequence[tuple[_Level, regex.Pattern[str]]]] = tuple(
    (level, regex.compile(rf"{mark}(?=[^\s])(?!{_NEVER_FIRST})"))
    for level, mark in (
        (_Level.GRAPHEME, rf"(?:(?<={SPACELESS})|(?<=\S)(?={SPACELESS}))(?<!{_NEVER_LAST})"),
        (_Level.WORD, r"[\u200b་]"),
        (_Level.CLAUSE, r"[，、；：､][\p{Pe}\p{Pf}\"']*"),
        (_Level.SENTENCE, r"[。！？．｡][\p{Pe}\p{Pf}\"']*"),
    )
)
"""Cuts without white space, the better level last."""
_WHOLE: Final[Sequence[regex.Pattern[str]]] = (
    regex.compile(r"[+−-]?\d+(?:[.,:/'’٫٬．，：-]\d+)*"),
    # A URL may hold letters of any script, but where no spaces are written the text goes on right behind it: the first
    # pattern is kept whole when it fits, the second, ASCII as in RFC 3986, even when the first does not.
    regex.compile(r"(?i)(?:(?:https?|ftp)://|www\.)[^\s<>。，！？、；：「」（）]+(?<![.,;:!?'\")\]}])"),
    regex.compile(r"(?i)(?:(?:https?|ftp)://|www\.)[\w.~:/?#\[\]@!$&'()*+,;=%-]+(?<![.,;:!?'\")\]}])", regex.ASCII),
)
"""Numbers and URLs: never cut when they fit a packet."""


def split(text: str, address: Address, *, max_packets: int, max_characters: int) -> tuple[OutgoingPacket, ...]:
    """The packets of `text`, each within both limits with its part number. What does not fit is cut off with a mark.

    Nothing to see gives no packets. Raises ValueError for limits with no room beside part number and mark.
    """
    text = text.encode("utf-8", "replace").decode().strip()
    if is_blank(text):
        return ()
    whole = _Room(max_characters, address.limit_bytes)
    if max_packets < 1 or min(whole.less(_number(max_packets, max_packets) + CUT_MARK)) < _ROOM_LEFT:
        raise ValueError(
            f"no room for text in {max_packets} packets of {max_characters} characters and {whole.bytes} bytes"
        )
    pieces = _pieces(text, whole, max_packets)
    return tuple(
        OutgoingPacket(address, _number(part, len(pieces)) + piece, part, len(pieces))
        for part, piece in enumerate(pieces, 1)
    )


def text_of(packets: Sequence[OutgoingPacket]) -> str:
    """What was read in `packets`, without part numbers; of the mark that text was cut, the ellipsis remains.

    A cut hides whether there was white space. A space is put there, except beside scripts that write none.
    """
    text = ""
    for packet in packets:
        piece = packet.text.removeprefix(_number(packet.part, packet.parts))
        glue = "" if not text or _IS_UNSPACED_BORDER.search(text[-1] + piece[:1]) else " "
        text += glue + piece
    return text.removesuffix(CUT_MARK) + _ELLIPSIS if text.endswith(CUT_MARK) else text


def rest_of(text: str, packets: Sequence[OutgoingPacket]) -> str:
    """What `split` cut off from `text`: empty when everything is in `packets`."""
    if not packets or not packets[-1].text.endswith(CUT_MARK):
        return ""
    rest = text.encode("utf-8", "replace").decode()
    for packet in packets:
        piece = packet.text.removeprefix(_number(packet.part, packet.parts)).removesuffix(CUT_MARK)
        rest = rest[rest.index(piece) + len(piece) :]
    return rest.strip()


def unread(packets: Sequence[OutgoingPacket], rest: str) -> str:
    """The end of a text whose reader got neither these, the last packets of it, nor the `rest` behind them."""
    *others, last = packets
    last = replace(last, text=last.text.removesuffix(CUT_MARK))
    return text_of([*others, last, *([OutgoingPacket(last.address, rest)] if rest else [])])


_IS_UNSPACED_BORDER: Final = regex.compile(rf"{SPACELESS}|^[。！？，、；：]")


def _number(part: int, parts: int) -> str:
    return f"({part}/{parts}) " if parts > 1 else ""


def _pieces(text: str, whole: _Room, max_packets: int) -> Sequence[str]:
    """The texts of the packets, without part numbers."""
    plan = _Plan(text, whole.less(_number(max_packets, max_packets)))
    for count in range(1, max_packets + 1):
        rooms = [whole.less(_number(part, count)) for part in range(1, count + 1)]
        farthest = plan.reach(rooms)
        if farthest[-1] == plan.end:
            return plan.pieces(rooms, farthest)
    rooms[-1] = rooms[-1].less(CUT_MARK)
    *before_last, begin, end = plan.reach(rooms)
    if begin == end:
        end = plan.force(begin, rooms[-1])
    *pieces, last = plan.pieces(rooms, [*before_last, begin, end])
    return [*pieces, last + CUT_MARK]


class _Plan:
    """The cuts of a text, and how far packets of some rooms get from one to the next.

    Cuts are spoken of by their index; 0 is the beginning of the text. A packet begins at one cut and ends at another.
    """

    def __init__(self, text: str, smallest: _Room) -> None:
        self._text = text
        self._bytes = [0, *accumulate(map(_utf8_bytes, text))]
        self._borders = [match.start() for match in _GRAPHEME.finditer(text)] + [len(text)]
        self._index(self._all_cuts(smallest))

    @property
    def end(self) -> int:
        return len(self._cuts) - 1

    def reach(self, rooms: Sequence[_Room]) -> list[int]:
        """The farthest cut after 0, 1, ... packets; equal neighbours where nothing more fits."""
        return [*accumulate(rooms, self._farthest, initial=0)]

    def force(self, begin: int, room: _Room) -> int:
        """Allow cuts in what follows `begin` and is too long for `room`. Returns the farthest that fits."""
        inside = self._cuts_inside(self._cuts[begin].start, self._cuts[begin + 1].end, room)
        self._index([*self._cuts[: begin + 1], *inside, *self._cuts[begin + 1 :]])
        return self._farthest(begin, room)

    def pieces(self, rooms: Sequence[_Room], farthest: Sequence[int]) -> list[str]:
        """The text up to the last of `farthest` in one piece for each room, at the least disturbing cuts.

        Among equals, the first pieces are the fuller ones.
        """
        # For each number of packets: the earliest cut from which the others still reach the goal, and the cost of the
        # rest from there on.
        earliest, costs = farthest[-1], [0]
        rest = [(earliest, costs)]
        for room, last in zip(reversed(rooms[1:]), reversed(farthest[1:-1]), strict=True):
            first = last
            row = []
            while first >= 0 and (far := self._farthest(first, room)) >= earliest:
                choices = costs[max(0, first + 1 - earliest) : far + 1 - earliest]
                row.append(self._cuts[first].cost + min(choices))
                first -= 1
            earliest, costs = first + 1, row[::-1]
            rest.append((earliest, costs))
        begin, pieces = 0, []
        for room, (earliest, costs) in zip(rooms, reversed(rest), strict=True):
            far = min(self._farthest(begin, room), earliest + len(costs) - 1)
            end = min(range(far, max(begin, earliest - 1), -1), key=lambda cut: costs[cut - earliest])
            pieces.append(self._text[self._cuts[begin].start : self._cuts[end].end])
            begin = end
        return pieces

    def _index(self, cuts: Sequence[_Cut]) -> None:
        self._cuts = cuts
        self._ends = [cut.end for cut in cuts]
        self._end_bytes = [self._bytes[cut.end] for cut in cuts]

    def _farthest(self, begin: int, room: _Room) -> int:
        start = self._cuts[begin].start
        by_characters = bisect_right(self._ends, start + room.characters)
        by_bytes = bisect_right(self._end_bytes, self._bytes[start] + room.bytes)
        return max(begin, min(by_characters, by_bytes) - 1)

    def _fits(self, start: int, end: int, room: _Room) -> bool:
        return end - start <= room.characters and self._bytes[end] - self._bytes[start] <= room.bytes

    def _all_cuts(self, room: _Room) -> list[_Cut]:
        """The beginning, every cut between words, those inside what does not fit in `room`, and the end."""
        end = len(self._text)
        between = [_Cut(0, 0, _Level.PARAGRAPH), *self._cuts_between(room), _Cut(end, end, _Level.PARAGRAPH)]
        cuts = between[:1]
        for before, after in pairwise(between):
            if not self._fits(before.start, after.end, room):
                cuts.extend(self._cuts_inside(before.start, after.end, room))
            cuts.append(after)
        return cuts

    def _cuts_between(self, room: _Room) -> list[_Cut]:
        cuttable = self._cuttable(0, len(self._text), room)
        cuts = {}
        for level, pattern in _UNSPACED:
            for match in pattern.finditer(self._text):
                place = match.end()
                if place in cuttable:
                    cuts[place] = _Cut(place, place, level)
        for match in _SPACES.finditer(self._text):
            # A mark may sit on the last space, or one before the run may take the first into its grapheme.
            end = next((place for place in range(match.start(), match.end()) if place in cuttable), match.end())
            start = next((place for place in range(match.end(), end, -1) if place in cuttable), end)
            if start > end:
                cuts[end] = _Cut(end, start, _level(self._text, end, start))
        return [cuts[place] for place in sorted(cuts)]

    def _cuts_inside(self, start: int, end: int, room: _Room) -> Iterator[_Cut]:
        """The cuts in a piece without any that is too long for `room`."""
        places = [start, *sorted(self._cuttable(start, end, room) - {start, end}), end]
        for before, after in pairwise(places):
            if before != start:
                yield _Cut(before, before, _Level.GRAPHEME)
            if not self._fits(before, after, room):
                yield from (_Cut(place, place, _Level.CODE_POINT) for place in range(before + 1, after))

    def _cuttable(self, start: int, end: int, room: _Room) -> set[int]:
        """Grapheme borders from `start` to `end` that are not inside a number or URL that fits in `room`."""
        borders = self._borders[bisect_left(self._borders, start) : bisect_right(self._borders, end)]
        places = set(borders)
        for pattern in _WHOLE:
            for match in pattern.finditer(self._text, start, end):
                first = bisect_right(borders, match.start()) - 1
                last = bisect_left(borders, match.end())
                if self._fits(borders[first], borders[last], room):
                    places.difference_update(borders[first + 1 : last])
        return places


def _utf8_bytes(character: str) -> int:
    return 1 + (character > "\x7f") + (character > "\u07ff") + (character > "\uffff")


def _level(text: str, end: int, start: int) -> _Level:
    """What the white space from `end` to `start` divides."""
    breaks = len(_LINE_BREAK.findall(text, end, start))
    before = text[max(0, end - 12) : end]
    after = text[start : start + 1]
    if breaks:
        return _Level.PARAGRAPH if breaks > 1 else _Level.LINE
    if _LIST_MARKER.search(before) or (before[-1:].isdigit() and after.isdigit()):
        return _Level.TIED_WORD
    if _SENTENCE_END.search(before) and not (before.endswith(".") and (after.islower() or _INITIAL.search(before))):
        return _Level.SENTENCE
    return _Level.CLAUSE if _CLAUSE_END.search(before) else _Level.WORD
