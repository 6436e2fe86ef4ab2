"""What a command is, and what it is given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from meshai.clock import Clock
from meshai.memory.memory import Memory
from meshai.messages import IncomingMessage, Node, Reply
from meshai.orders import Orders
from meshai.radio.base import Radio
from meshai.status import Status


@dataclass(frozen=True, slots=True)
class Request:
    """One use of a command: the message, the words behind the name, and the services commands use."""

    message: IncomingMessage
    argument: str
    asker: Node
    memory: Memory
    status: Callable[[], Status]
    orders: Orders
    radio: Radio
    clock: Clock
    commands: "Mapping[str, Command]"
    """Those the asker may use."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command people type as `!name`. `examples` show in `!help name` and run as tests."""

    name: str
    help: str
    run: Callable[[Request], Awaitable[Reply]]
    examples: Sequence[str] = ()
    admin: bool = False
    """For those alone whose key the settings list and the packet proves; for others it does not exist."""


def duration(seconds: float) -> str:
    """A length of time in its two largest units: 3 d 4 h, 5 min 6 s."""
    total = int(seconds)
    units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)]
    values = []
    for unit, size in units:
        count, total = divmod(total, size)
        values.append((count, unit))
    first = next((index for index, (count, _) in enumerate(values) if count), len(values) - 1)
    return " ".join(f"{count} {unit}" for count, unit in values[first : first + 2] if count or unit == "s")
