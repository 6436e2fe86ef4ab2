"""What a simulation keeps of what happened: all of it, or in a long run the newest."""

from typing import TypeVar

T = TypeVar("T")


class Record(list[T]):
    """A list that forgets its oldest entries once it holds more than `keep_last`."""

    def __init__(self, keep_last: int | None) -> None:
        super().__init__()
        self._keep_last = keep_last

    def append(self, entry: T, /) -> None:
        super().append(entry)
        if self._keep_last is not None and len(self) > self._keep_last:
            del self[: -self._keep_last]
