"""How long a model file has to be, from its head; checked against real weights where they are."""

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.model.gguf import NotGguf, least_size
from meshai.model.weights import SMOLLM2


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


VALUES = [
    text(b"general.name") + struct.pack("<I", 8) + text(b"tiny"),
    text(b"general.alignment") + struct.pack("<II", 4, 64),
    text(b"flag") + struct.pack("<IB", 7, 1),
    text(b"scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
    text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc"),
]


def tensor(name: bytes, kind: int, offset: int, *dimensions: int) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def model_file(*tensors: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(VALUES)) + b"".join((*VALUES, *tensors))


TENSORS = (tensor(b"norm", 0, 0, 16), tensor(b"weights", 3, 64, 64, 4))
"""64 bytes, then 8 blocks of 20."""
HEAD = model_file(*TENSORS)


def test_the_last_tensor_decides() -> None:
    begin = -(-len(HEAD) // 64) * 64
    assert least_size(io.BytesIO(HEAD)) == begin + 64 + 160
    assert least_size(io.BytesIO(model_file(*TENSORS[::-1]))) == begin + 64 + 160


def test_a_tensor_of_a_new_type_counts_by_its_place() -> None:
    head = model_file(tensor(b"new", 99, 640, 4))
    assert least_size(io.BytesIO(head)) == -(-len(head) // 64) * 64 + 640


@pytest.mark.parametrize("size", [*range(4, len(HEAD), 7), len(HEAD) - 1])
def test_a_head_cut_short_is_told(size: int) -> None:
    with pytest.raises(EOFError):
        least_size(io.BytesIO(HEAD[:size]))


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0)])
def test_what_is_none_is_told(content: bytes) -> None:
    with pytest.raises(NotGguf):
        least_size(io.BytesIO(content))


@given(st.binary(max_size=60), st.integers(0, len(HEAD)))
def test_damage_raises_nothing_else(damage: bytes, place: int) -> None:
    damaged = HEAD[:place] + damage + HEAD[place + len(damage) :]
    try:
        assert least_size(io.BytesIO(damaged)) >= 0
    except (NotGguf, EOFError):
        assert damaged != HEAD


@pytest.mark.slow
def test_real_weights_are_exactly_as_long_as_they_say(real_models: Path) -> None:
    with (real_models / SMOLLM2.file).open("rb") as file:
        assert least_size(file) == SMOLLM2.size_bytes
