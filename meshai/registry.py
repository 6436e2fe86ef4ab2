"""Commands by name."""

from collections.abc import Mapping
from types import MappingProxyType

from meshai.commands.base import Command


class Registry:
    """What people can call. Names are unique."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}

    @property
    def commands(self) -> Mapping[str, Command]:
        """In the order they were registered, which is the order of `!help`."""
        return MappingProxyType(self._commands)

    @property
    def admin_names(self) -> frozenset[str]:
        """The commands that only admins may use."""
        return frozenset(name for name, command in self._commands.items() if command.admin)

    def command(self, command: Command) -> None:
        """Register a command. Raises ValueError when its name is taken."""
        if command.name in self._commands:
            raise ValueError(f"there is already a command !{command.name}")
        self._commands[command.name] = command
