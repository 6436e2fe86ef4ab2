"""How long a GGUF file has to be by its own table of tensors, to find one that was cut short on its way.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from typing import BinaryIO, Final

MAGIC: Final = b"GGUF"
"""How every model file begins."""
_VERSIONS: Final = (2, 3)
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value in the head, by its type."""
_UINT32: Final = 4
_TEXT: Final = 8
_LIST: Final = 9
_ALIGNMENT: Final = 32
_MOST_ITEMS: Final = 10_000_000
"""More of anything in a head is nonsense."""
_PLAIN: Final = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}
_OF_32: Final = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 36, 20: 18, 39: 17}
_OF_256: Final = dict(
    zip(
        (10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 23, 29, 34, 35),
        (84, 110, 144, 176, 210, 292, 66, 74, 98, 50, 110, 82, 136, 56, 54, 66),
        strict=True,
    )
)
"""Bytes of a block of 1, 32 or 256 numbers of a tensor, by its type."""


class NotGguf(ValueError):
    """The file is none, is damaged at its head, or of a version we do not know."""


def least_size(file: BinaryIO) -> int:
    """The bytes a whole file has at least, read from its head. Raises NotGguf, and EOFError for a head cut short."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        raise NotGguf("does not begin as one")
    if (version := _number(file, "I")) not in _VERSIONS:
        raise NotGguf(f"is of version {version}; known are {', '.join(map(str, _VERSIONS))}")
    tensors, values = _count(file), _count(file)
    alignment = _ALIGNMENT
    for _ in range(values):
        name, kind = _text(file), _number(file, "I")
        if name == b"general.alignment" and kind == _UINT32:
            alignment = _number(file, "I") or _ALIGNMENT
        else:
            _skip(file, kind)
    end = max((_tensor_end(file) for _ in range(tensors)), default=0)
    # The tensors begin at the next multiple of the alignment; without any, the head is all.
    return -(-file.tell() // alignment) * alignment + end if tensors else file.tell()


def _tensor_end(file: BinaryIO) -> int:
    """Where one tensor ends, counted from where all of them begin."""
    _text(file)
    dimensions = _number(file, "I")
    if dimensions > 8:
        raise NotGguf(f"has a tensor of {dimensions} dimensions")
    numbers = math.prod(_number(file, "Q") for _ in range(dimensions))
    kind, offset = _number(file, "I"), _number(file, "Q")
    blocks = ((1, _PLAIN), (32, _OF_32), (256, _OF_256))
    # Of a type that is newer than this, only the place counts.
    return offset + sum(numbers // in_block * sizes.get(kind, 0) for in_block, sizes in blocks)


def _skip(file: BinaryIO, kind: int) -> None:
    """Pass over one value."""
    if kind == _TEXT:
        _text(file)
    elif kind == _LIST:
        inner, count = _number(file, "I"), _count(file)
        if inner in _SIZES:
            _read(file, count * _SIZES[inner])
        elif inner == _TEXT:
            for _ in range(count):
                _text(file)
        else:
            raise NotGguf("has a list of lists")
    elif kind in _SIZES:
        _read(file, _SIZES[kind])
    else:
        raise NotGguf(f"has a value of the unknown type {kind}")


def _number(file: BinaryIO, code: str) -> int:
    (number,) = struct.unpack(f"<{code}", _read(file, struct.calcsize(code)))
    return int(number)


def _count(file: BinaryIO) -> int:
    if (count := _number(file, "Q")) > _MOST_ITEMS:
        raise NotGguf(f"speaks of {count} items")
    return count


def _text(file: BinaryIO) -> bytes:
    return _read(file, _count(file))


def _read(file: BinaryIO, size: int) -> bytes:
    piece = file.read(size)
    if len(piece) < size:
        raise EOFError
    return piece
