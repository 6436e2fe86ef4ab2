"""Dataclasses from the tables of a TOML file, every key and type checked."""

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from meshai.errors import ConfigError

T = TypeVar("T")

NAMES: Final = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


def read(kind: type[T], table: Any, where: str) -> T:
    """A value of a dataclass; `where` names file and place in a ConfigError. Its own ValueErrors become such, too."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: a table belongs here, not {table!r}")
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    if unknown := table.keys() - known:
        raise ConfigError(f"{where}: unknown key {min(unknown)!r}; there are {', '.join(known)}")
    missing = [name for name, entry in known.items() if entry.default is MISSING and name not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]!r} is missing")
    types = get_type_hints(kind)
    values = {key: _value(types[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _value(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, UnionType):  # optional, and TOML has no way to say None
        (kind,) = [part for part in get_args(kind) if part is not NoneType]
    if is_dataclass(kind):
        return read(kind, value, where)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        return _entries(get_args(kind), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {value!r} is not {NAMES[kind]}")
    return value


def _entries(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {value!r} is not a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise ConfigError(f"{where}: {len(kinds)} entries belong here, not {len(value)}")
    return tuple(
        _value(kind, entry, f"{where} {index}") for index, (kind, entry) in enumerate(zip(kinds, value, strict=True), 1)
    )
