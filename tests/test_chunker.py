"""What every receiver may rely on, asked of arbitrary Unicode, and where people would cut, asked by example."""

import itertools
import re
from collections.abc import Sequence

import pytest
import regex
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshai.chunker import CUT_MARK, split, text_of
from meshai.messages import Address, Channel, Direct, OutgoingPacket

LIMITS = [(40, 60), (150, 160), (150, 200), (227, 227), (227, 215), (227, 60), (40, 227)]
"""(characters, bytes) at the minimum, default and maximum the settings allow."""
SPACE = "[\\s\x1c-\x1f]"

fragments = st.sampled_from(
    [
        *("a", "word", "Antenne", "frequency", "слово", "частота", "λέξη", "كلمة", "שלום", "한국어", "नमस्ते", "ქართული"),
        *(
            "水",
            "水在一百度时沸腾",
            "こんにちは",
            "カーテン",
            "สวัสดีครับ",
            "ភាសាខ្មែរ",
            "བོད་སྐད་",
            "。",
            "，",
            "！",
            "、",
            "「",
            "」",
        ),
        *("3.14", "1,000,000", "12:30", "868.125", "2026-07-24", "٣٫١٤", "１２：３０", "-5", "1 000 000"),
        *(
            "https://example.org/a_b*c#d?e=1&f=2",
            "http://10.0.0.1:4403/",
            "www.example.org",
            "https://example.org/" + "x" * 90,
        ),
        *(
            "👍",
            "👨‍👩‍👧‍👦",
            "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
            "🇩🇪",
            "🇩🇪🇫🇷",
            "1️⃣",
            "👍🏽",
            "e\u0301",
            "Z" + "\u0300" * 30,
            "Z" + "\u0300" * 200,
            "\u0301",
        ),
        *(
            " ",
            " ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\u00a0",
            "\u200b",
            "\u200d",
            "\u2028",
            "\u3000",
            "\r\n",
            "\u202e",
            "\x00",
            "\x1c",
        ),
        *(". ", ", ", "? ", "! ", ": ", "; ", "... ", "… ", "(", ")", '"', "-", "– ", "- ", "1. ", "x" * 70, "水" * 40),
    ]
)
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=400),
    st.lists(fragments, max_size=120).map("".join),
    st.lists(fragments, max_size=60).map(" ".join),
)
limits = st.sampled_from(LIMITS)
packet_counts = st.sampled_from([1, 2, 3, 10, 12])


def cut(text: str, limit: tuple[int, int] = (150, 160), max_packets: int = 3) -> tuple[OutgoingPacket, ...]:
    characters, limit_bytes = limit
    return split(text, Address(Channel(1), limit_bytes, 7), max_packets=max_packets, max_characters=characters)


def number(packet: OutgoingPacket) -> str:
    return f"({packet.part}/{packet.parts}) " if packet.parts > 1 else ""


def bodies(packets: Sequence[OutgoingPacket]) -> list[str]:
    """The text of each packet without part number and mark."""
    assert all(packet.text.startswith(number(packet)) for packet in packets)
    texts = [packet.text.removeprefix(number(packet)) for packet in packets]
    if texts:
        texts[-1] = texts[-1].removesuffix(CUT_MARK)
    return texts


def is_cut_off(packets: Sequence[OutgoingPacket]) -> bool:
    return bool(packets) and packets[-1].text.endswith(CUT_MARK)


def spans(text: str, packets: Sequence[OutgoingPacket]) -> list[tuple[int, int]]:
    """Where in `text` each packet's body lies; fails when anything but white space is left out between."""
    found, place = [], 0
    for body in bodies(packets):
        space = re.compile(f"{SPACE}*").match(text, place)
        assert space is not None
        start = space.end() - (len(body) - len(body.lstrip()))
        assert text.startswith(body, start)
        place = start + len(body)
        found.append((start, place))
    return found


def is_blank(text: str) -> bool:
    return not regex.search(r"[^\s\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\u2800]", text)


@given(texts, limits, packet_counts)
def test_no_packet_is_over_a_limit_or_empty_and_parts_are_numbered(
    text: str, limit: tuple[int, int], most: int
) -> None:
    packets = cut(text, limit, most)
    assert len(packets) <= most
    assert [packet.part for packet in packets] == list(range(1, len(packets) + 1))
    assert all(packet.parts == len(packets) for packet in packets)
    for packet in packets:
        assert len(packet.text) <= limit[0]
        assert len(packet.text.encode()) <= limit[1]
    assert all(body.strip() for body in bodies(packets))


@given(texts, limits, packet_counts)
@example("https://example.org/" + "x" * 120 + " and a tail", (150, 160), 1)
@example("word " * 30 + "y" * 140 + " and then the rest that is too much " * 3, (150, 160), 2)
def test_every_word_is_kept_in_order_and_a_mark_tells_when_text_was_cut(
    text: str, limit: tuple[int, int], most: int
) -> None:
    assume(CUT_MARK not in text)
    packets = cut(text, limit, most)
    found = spans(text, packets)
    if is_cut_off(packets):
        assert len(packets) == most
        assert text[found[-1][1] :].strip()
    else:
        assert is_blank(text) == (not packets)
        assert not packets or not text[found[-1][1] :].strip()


@given(texts, limits, packet_counts)
def test_the_same_text_is_always_cut_the_same_way(text: str, limit: tuple[int, int], most: int) -> None:
    assert cut(text, limit, most) == cut(text, limit, most)


@given(texts, limits, packet_counts)
def test_no_cut_inside_a_grapheme_a_number_or_a_url_that_fits_a_packet(
    text: str, limit: tuple[int, int], most: int
) -> None:
    packets = cut(text, limit, most)
    text = text.strip()
    widest = f"({most}/{most}) " if most > 1 else ""
    cuts = [end for _, end in spans(text, packets)]
    graphemes = [match.span() for match in regex.finditer(r"\X", text)]
    starts = {start for start, _ in graphemes} | {len(text)}
    wholes = graphemes + [
        # A combining mark after the last digit belongs to it.
        (max(b for b in starts if b <= match.start()), min(b for b in starts if b >= match.end()))
        for match in re.finditer(r"\d+(?:[.,:]\d+)*|(?<![!-~])https?://[a-z0-9./_*#?=&:]*[a-z0-9/](?![!-~])", text)
    ]
    for place in cuts:
        for start, end in wholes:
            if start < place < end:
                mark = CUT_MARK if place == cuts[-1] else ""
                room = (limit[0] - len(widest + mark), limit[1] - len((widest + mark).encode()))
                whole = text[start:end]
                assert len(whole) > room[0] or len(whole.encode()) > room[1], whole


words = st.text(st.characters(categories=["Ll", "Lu"], exclude_characters="ー"), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=150), st.sampled_from([(150, 160), (227, 215)]))
def test_no_more_packets_than_filling_each_with_whole_words_takes(sentence: list[str], limit: tuple[int, int]) -> None:
    text = " ".join(sentence)
    assert len(cut(text, limit, 12)) == next(n for n in itertools.count(1) if n == 12 or holds(sentence, n, limit))


def holds(sentence: Sequence[str], count: int, limit: tuple[int, int]) -> bool:
    """Whether `count` packets, each filled with words until the next does not fit, hold them all."""
    rest = list(sentence)
    for part in range(1, count + 1):
        packet = (f"({part}/{count}) " if count > 1 else "") + rest.pop(0)
        while rest and len(f"{packet} {rest[0]}") <= limit[0] and len(f"{packet} {rest[0]}".encode()) <= limit[1]:
            packet += " " + rest.pop(0)
        if not rest:
            return True
    return False


@given(st.lists(st.sampled_from(["ab", "abcd.", "abc,", "abcdefghijk", "水", "水在。"]), min_size=1, max_size=200))
def test_nice_cuts_never_cost_a_packet(sentence: list[str]) -> None:
    packets = cut(" ".join(sentence), max_packets=12)
    assert len(packets) <= next(n for n in itertools.count(1) if n == 12 or holds(sentence, n, (150, 160)))


# Where people would cut


def ends(text: str, **options: int) -> list[str]:
    return [body[-12:] for body in bodies(cut(text, **options))[:-1]]  # type: ignore[arg-type]


SENTENCE = "The antenna is mounted on the roof of the old mill near the river"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (f"{SENTENCE}\n\nIt works. {SENTENCE}.\n{SENTENCE}", SENTENCE),
        (f"{SENTENCE}\nIt works. {SENTENCE}. {SENTENCE}", SENTENCE),
        (f"{SENTENCE}. But {SENTENCE}, they say, and so do I", f"{SENTENCE}."),
        (f'"{SENTENCE}!" he said, {SENTENCE}, they say, and so do I', f'"{SENTENCE}!"'),
        (f"{SENTENCE}, but {SENTENCE} and so on and on and on", f"{SENTENCE},"),
        (f"{SENTENCE} — but {SENTENCE} and so on and on and on", f"{SENTENCE} —"),
        (f"{SENTENCE}؟ {SENTENCE} and so on and on and on", f"{SENTENCE}؟"),
    ],
)
def test_cuts_at_paragraph_line_sentence_and_clause_in_that_order(text: str, first: str) -> None:
    assert bodies(cut(text))[0] == first


@pytest.mark.parametrize(
    ("text", "first"),
    [
        # A list number, an initial or an abbreviation ends no sentence.
        (f"{SENTENCE}; 2. {SENTENCE} and so on, and on and on", f"{SENTENCE};"),
        (f"{SENTENCE}, said J. R. Hartley, {SENTENCE} and so on and on", f"{SENTENCE}, said J. R. Hartley,"),
        (f"{SENTENCE}, e.g. with {SENTENCE} and so on and on", f"{SENTENCE},"),
        ("- " + "x " * 60 + "\n- " + "y " * 60, "- " + "x " * 59 + "x"),
        (f"{SENTENCE} near the town\n10. {SENTENCE} and so on and on and on", f"{SENTENCE} near the town"),
    ],
)
def test_a_full_stop_is_not_always_the_end_of_a_sentence(text: str, first: str) -> None:
    assert bodies(cut(text))[0] == first


def test_a_number_written_with_spaces_stays_together_when_that_costs_no_packet() -> None:
    text = "x" * 136 + " 1 000 000 inhabitants"
    assert bodies(cut(text)) == ["x" * 136, "1 000 000 inhabitants"]


def test_scripts_without_spaces_are_cut_behind_their_marks() -> None:
    first, second = "水在一百度时沸腾。" * 5, "如果你在高山上，沸点会降低"
    assert bodies(cut(first + second)) == [first, second]
    assert bodies(cut("水" * 40 + "，" + "沸" * 20)) == ["水" * 40 + "，", "沸" * 20]


def test_no_packet_begins_with_a_closing_mark_of_a_script_without_spaces() -> None:
    packets = bodies(cut("「" + "水" * 50 + "」" + "沸" * 40))
    assert not any(body.startswith(("」", "。")) for body in packets)
    packets = bodies(cut("水" * 51 + "。" + "沸" * 50))
    assert packets[0] == "水" * 50


@pytest.mark.parametrize("filler", ["水", "に", "ไ"])
def test_words_of_another_script_between_them_stay_whole(filler: str) -> None:
    text = filler * 48 + "MeshAI" + filler * 20
    assert all(body.count("MeshAI") == 1 or "M" not in body for body in bodies(cut(text)))
    assert len(cut(text)) == 2


def test_a_url_stays_whole_where_text_follows_without_space() -> None:
    url = "https://example.org/firmware/2.7.26"
    packets = bodies(cut("水" * 45 + url + "请看这里，" + "沸" * 30, max_packets=4))
    assert any(url in body for body in packets)


def test_one_word_of_500_letters_arrives_whole() -> None:
    packets = cut("a" * 500, max_packets=4)
    assert "".join(bodies(packets)) == "a" * 500
    assert [len(packet.text) for packet in packets[:-1]] == [150, 150, 150]


@pytest.mark.parametrize("text", ["ж" * 400, "воды " * 80, "水" * 120, "😀" * 60, "👨‍👩‍👧‍👦" * 20, "🇩🇪" * 45])
def test_scripts_of_many_bytes_arrive_whole(text: str) -> None:
    packets = cut(text, max_packets=10)
    assert "".join(bodies(packets)).replace(" ", "") == text.replace(" ", "")
    assert all(len(packet.text.encode()) <= 160 for packet in packets)


def test_part_numbers_of_two_digits_are_counted() -> None:
    packets = cut("word " * 300, max_packets=12)
    assert [packet.text.split(" ")[0] for packet in packets] == [f"({part}/11)" for part in range(1, 12)]
    assert max(len(packet.text) for packet in packets) <= 150


def test_text_that_fits_has_no_part_number() -> None:
    address = Address(Direct(5), 200, 7, 2)
    assert split("Hi, Anna!", address, max_packets=3, max_characters=150) == (OutgoingPacket(address, "Hi, Anna!"),)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u200b\u200d", "\ufe0f", "\u2800", "\x00", "\u3164 "])
def test_nothing_to_see_is_not_sent(text: str) -> None:
    assert cut(text) == ()


def test_5000_characters_end_with_an_honest_mark() -> None:
    packets = cut("Water boils at 100 degrees. " * 180)
    assert [packet.parts for packet in packets] == [3, 3, 3]
    assert packets[-1].text.endswith('… [cut, say "go on"]')
    assert not any(CUT_MARK in packet.text for packet in packets[:-1])


def test_what_fits_a_packet_but_not_beside_the_mark_is_cut_rather_than_leaving_the_last_packet_empty() -> None:
    url = "https://example.org/" + "x" * 120
    assert [packet.text for packet in cut(f"{url} and a tail", max_packets=1)] == [url[:130] + CUT_MARK]
    first, last = cut(f"{'word ' * 28}{url} and a tail", max_packets=2)
    assert first.text == "(1/2) " + "word " * 27 + "word"
    assert last.text == f"(2/2) {url[:124]}{CUT_MARK}"


def test_a_lone_surrogate_is_replaced() -> None:
    assert [packet.text for packet in cut("a\ud800b")] == ["a?b"]


@pytest.mark.parametrize(("most", "limit"), [(0, (150, 160)), (3, (30, 160)), (3, (150, 35)), (10, (150, 37))])
def test_limits_without_room_for_text_are_refused(most: int, limit: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no room"):
        cut("some text", limit, most)


# Back to text


def test_what_was_read_has_no_part_numbers_and_its_spaces_again() -> None:
    text = f"{SENTENCE}. {SENTENCE}, {SENTENCE}."
    packets = cut(text)
    assert len(packets) == 2
    assert text_of(packets) == text


def test_what_was_read_in_a_script_without_spaces_has_none() -> None:
    text = "水在一百度时沸腾。" * 8
    assert text_of(cut(text)) == text


def test_what_was_cut_off_was_not_read() -> None:
    read = text_of(cut("word " * 500))
    assert read.startswith("word word")
    assert read.endswith("word…")
    assert "go on" not in read


def test_nothing_sent_is_nothing_read() -> None:
    assert text_of(()) == ""


@given(texts, limits, packet_counts)
def test_what_was_read_is_what_was_sent(text: str, limit: tuple[int, int], most: int) -> None:
    assume(CUT_MARK not in text)
    packets = cut(text, limit, most)
    said = "".join(bodies(packets)) + ("…" if is_cut_off(packets) else "")
    assert re.sub(r"\s", "", text_of(packets)) == re.sub(r"\s", "", said)
