"""Frames are found in any stream, however it is cut, and none is made up."""

from hypothesis import assume, given
from hypothesis import strategies as st
from meshtastic.protobuf import mesh_pb2

from meshai.radio.frames import MOST_BYTES, START, FrameFinder
from meshai.radio.interface import is_from_radio

PAYLOADS = st.lists(
    st.builds(
        lambda number, text: mesh_pb2.FromRadio(id=number, log_record={"message": text}).SerializeToString(),
        st.integers(1, 2**32 - 1),
        st.text(st.characters(codec="ascii"), max_size=60),
    ),
    max_size=8,
)
QUIET_NOISE = st.binary(max_size=40).filter(lambda noise: START[0] not in noise)


def framed(payload: bytes) -> bytes:
    return START + len(payload).to_bytes(2, "big") + payload


def message(text: str) -> bytes:
    payload: bytes = mesh_pb2.FromRadio(id=7, log_record={"message": text}).SerializeToString()
    return payload


def found(wire: bytes, *, chunk: int = 64, pause: bool = True) -> list[bytes]:
    finder = FrameFinder(is_from_radio)
    frames = [frame for at in range(0, len(wire), chunk) for frame in finder.feed(wire[at : at + chunk])]
    return frames + (list(finder.pause()) if pause else [])


@given(PAYLOADS, st.integers(1, 700), st.lists(QUIET_NOISE, min_size=9, max_size=9))
def test_every_frame_is_found_between_noise_however_the_stream_is_cut(
    payloads: list[bytes], chunk: int, noise: list[bytes]
) -> None:
    wire = noise[-1] + b"".join(framed(payload) + noise[at] for at, payload in enumerate(payloads))
    assert found(wire, chunk=chunk, pause=False) == payloads


@given(st.binary(max_size=1500), st.integers(1, 700))
def test_nothing_raises_and_nothing_grows(wire: bytes, chunk: int) -> None:
    finder = FrameFinder(is_from_radio)
    for at in range(0, len(wire), chunk):
        for frame in finder.feed(wire[at : at + chunk]):
            assert len(frame) <= MOST_BYTES
            assert is_from_radio(frame)
        assert len(finder._buffer) <= MOST_BYTES + 6 + chunk
    list(finder.pause())
    assert len(finder._buffer) <= 3


@given(PAYLOADS.filter(bool), st.integers(1, 500), st.binary(max_size=30), st.integers(1, 64))
def test_a_wrong_length_swallows_nothing_for_good(payloads: list[bytes], length: int, cut: bytes, chunk: int) -> None:
    cut = cut.replace(START[:1], b"")
    head = START + length.to_bytes(2, "big") + b"\xff" + cut
    wire = head + b"".join(map(framed, payloads))
    starts = [len(head) + sum(map(len, map(framed, payloads[:at]))) for at in range(len(payloads) + 1)]
    # A wrong length that happens to end where a frame does is taken for a damaged frame.
    assume(4 + length not in starts and (4 + length) % chunk)
    assert found(wire, chunk=chunk)[-len(payloads) :] == payloads


def test_a_damaged_frame_costs_only_itself() -> None:
    assert found(framed(b"\xff\xff\xff") + framed(message("a")), pause=False) == [message("a")]


def test_an_absurd_length_is_no_frame() -> None:
    assert found(START + b"\xff\xff" + framed(message("a")) + framed(message("b"))) == [message("a"), message("b")]


def test_half_a_frame_holds_up_what_follows_only_until_a_pause() -> None:
    wire = framed(message("x" * 200))[:50] + framed(message("a"))
    assert found(wire, pause=False) == []
    assert found(wire) == [message("a")]


def test_a_frame_hidden_in_a_text_is_not_believed_when_the_frame_around_it_is_damaged() -> None:
    forged = framed(message("forged"))
    around = mesh_pb2.FromRadio(packet={"decoded": {"payload": b"look: " + forged}, "id": 5, "rx_time": 9})
    whole = framed(around.SerializeToString())
    damaged = bytearray(whole)
    damaged[4] ^= 0xFF
    assert not is_from_radio(bytes(damaged[4:]))
    for chunk in range(1, len(whole)):
        assert found(whole, chunk=chunk) == [around.SerializeToString()]
        assert message("forged") not in found(bytes(damaged) + framed(message("next")), chunk=chunk)


def test_broken_headers_are_counted() -> None:
    finder = FrameFinder(is_from_radio)
    wire = framed(b"\xff\xff\xff") + framed(message("a")) + START + b"\xff\xff"
    assert list(finder.feed(wire)) == [message("a")]
    assert finder.broken == 2
