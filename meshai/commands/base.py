"""What a command is, and what it is given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from meshai.governor import Spending
from meshai.memory.memory import Memory
from meshai.messages import IncomingMessage, Node, Reply


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the program, for people."""

    uptime_s: float
    radio: str
    """One line: connected to what, or waiting for what."""
    modem: str
    """Region and preset, or empty before the first connect."""
    model: str
    """The model's name, or empty when there is none."""
    model_trouble: str
    """Why the model cannot answer now; empty when it can."""
    answered: int
    """Messages answered since the start."""
    waiting: int
    """Packets waiting to be sent."""
    airtime: Spending


@dataclass(frozen=True, slots=True)
class Request:
    """One use of a command: the message, the words behind the name, and the services commands use."""

    message: IncomingMessage
    argument: str
    asker: Node
    memory: Memory
    status: Callable[[], Status]
    commands: "Mapping[str, Command]"


@dataclass(frozen=True, slots=True)
class Command:
    """A command people type as `!name`. `examples` show in `!help name` and run as tests."""

    name: str
    help: str
    run: Callable[[Request], Awaitable[Reply]]
    examples: Sequence[str] = ()
