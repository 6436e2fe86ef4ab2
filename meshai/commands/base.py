"""What a command is, and what it is given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from meshai.memory.memory import Memory
from meshai.messages import IncomingMessage, Node, Reply
from meshai.status import Status


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
