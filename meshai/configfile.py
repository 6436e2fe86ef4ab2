"""A settings file judged by its pydantic model, and written from it.

What may stand behind a key is read from the model's JSON schema, so that complaints and comments say the same.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from meshai.errors import ConfigError
from meshai.yamlfile import Document, Fault, Key, Kind, Written, YamlError, one_line, read, without_variables

Schema: TypeAlias = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)


def parse(
    text: str,
    model: type[Model],
    *,
    file: str,
    environ: Mapping[str, str],
    literal_secrets: str = "",
    check: Callable[[Model], Mapping[Key, str]] = lambda found: {},
) -> Model:
    """Read `text` as a `model`, or raise a ConfigError with one line for each fault.

    A secret written out in the file is refused with `literal_secrets` as the remedy, unless that is empty. `check`
    says what is wrong with a model that is sound by itself.
    """
    try:
        document = read(text, environ)
    except YamlError as error:
        raise _refusal(file, error.faults) from None
    schema = model.model_json_schema()
    _refuse_secrets(document, schema, literal_secrets)
    try:
        # By way of JSON, because pydantic's strict rules for it fit a file: lists are tuples, but "3" is no number.
        found = model.model_validate_json(json.dumps(_without_empty_sections(document.values, schema)), strict=True)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            document.add(_place(fault), _complaint(fault, document, schema))
    else:
        for key, complaint in check(found).items():
            document.add(key, complaint)
    if document.faults:
        raise _refusal(file, document.faults)
    return found


def commented(model: type[BaseModel], values: Mapping[str, object]) -> str:
    """A file of every section and key with its meaning; `values`, by dotted key, replace the defaults.

    `${NAME}` in a value stays a reference to the environment.
    """
    schema = model.model_json_schema()
    lines = []
    for section in schema["properties"]:
        rule = _rule(schema, (section,))
        lines += ["", f"# {rule['description'][:1].upper()}{rule['description'][1:]}.", f"{section}:"]
        for name in rule["properties"]:
            rule = _rule(schema, (section, name))
            limits = "" if rule["type"] == "string" and "enum" not in rule else f" ({_expected(rule)})"
            value = values.get(f"{section}.{name}", rule["default"])
            lines += [f"  # {rule['description']}{limits}", _pair(name, value)]
    return "\n".join(lines) + "\n"


def shown(values: BaseModel) -> str:
    """`values` as YAML, with a word in place of each secret; nothing in it is a reference to the environment."""
    lines = []
    for section, keys in values.model_dump().items():
        lines += [f"{section}:", *(_pair(name, _without_secrets(value)) for name, value in keys.items())]
    return "\n".join(lines) + "\n"


def _pair(name: str, value: object) -> str:
    return f"  {name}: {one_line(value)}" if value is not None else f"  {name}:"


def _refusal(file: str, faults: Iterable[Fault]) -> ConfigError:
    return ConfigError("\n".join(f"{file}:{fault.line}: {fault}" for fault in sorted(faults, key=lambda f: f.line)))


def _without_empty_sections(values: object, schema: Schema) -> object:
    """An empty file or section, as is left when its lines are commented out, means the defaults."""
    match values:
        case None:
            return {}
        case dict():
            return {
                name: {} if value is None and "properties" in _rule(schema, (name,)) else value
                for name, value in values.items()
            }
        case _:
            return values


def _refuse_secrets(document: Document, schema: Schema, remedy: str) -> None:
    for key, written in document.written.items():
        if not _is_secret(_rule(schema, key)) or not written.source or written.has_variable:
            continue
        if bare := re.fullmatch(r"\$([A-Z_][A-Z0-9_]*)", written.source):
            document.add(key, f"found a variable without braces; expected ${{{bare[1]}}}")
        elif remedy and written.kind is not Kind.NOTHING:
            document.add(key, f"found a secret written out; {remedy}")


def _place(fault: ErrorDetails) -> Key:
    """Where the model found a fault; pydantic adds "[key]" when it is the key that is wrong."""
    return tuple(part for part in fault["loc"] if part != "[key]")


def _complaint(fault: ErrorDetails, document: Document, schema: Schema) -> str:
    """One of the model's complaints in the words of the file."""
    key = _place(fault)
    rule = _rule(schema, key)
    if fault["type"] == "extra_forbidden":
        return f"unknown key; {_suggestion(schema, key)}"
    if fault["loc"][-1:] == ("[key]",):
        return f"found the key {one_line(str(key[-1]))}; expected {_expected(rule)}{_meaning(schema, key)}"
    written = document.written.get(key)
    if _is_secret(rule) and written is not None and written.kind is not Kind.NOTHING:
        found = "text that is not shown"
    elif written is None:
        found = f"the default, {one_line(rule['default'])}" if rule.get("default") else "nothing"
    else:
        found = str(written)
    if fault["type"] == "value_error":
        return f"found {found}; {fault['ctx']['error']}"
    expected = _expected(rule)
    match written:
        case Written(kind=Kind.TRUTH | Kind.WHOLE | Kind.NUMBER) if rule.get("type") == "string":
            expected += ", in quotes"
            if not _is_secret(rule) and re.search(rule.get("pattern", ""), written.source):
                expected += f': "{written.source}"'
        case Written(kind=Kind.NOTHING) if "default" in rule and not _is_secret(rule):
            expected += f"; without the line it is the default, {one_line(rule['default'])}"
    return f"found {found}; expected {expected}{_meaning(schema, key)}"


def _suggestion(schema: Schema, key: Key) -> str:
    """What the person may have meant by an unknown key: a like one beside it, or that name elsewhere."""
    name = str(key[-1]).lower().replace("-", "_")
    beside = _rule(schema, key[:-1])["properties"]
    if close := difflib.get_close_matches(name, beside, 1):
        return f"expected {'.'.join(map(str, (*key[:-1], close[0])))}?"
    if elsewhere := [found for found in _keys(schema) if difflib.get_close_matches(name, [found[-1]], cutoff=0.8)]:
        return f"expected {' or '.join(map('.'.join, elsewhere))}?"
    return f"expected one of {', '.join(beside)}"


def _expected(rule: Schema) -> str:
    """What may stand behind a key."""
    match rule:
        case {"enum": values}:
            return f"one of {', '.join(values)}"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "integer" | "number" as kind}:
            return f"a {'whole ' * (kind == 'integer')}number{_limits(rule)}"
        case {"type": "array", "items": items}:
            return f"a list, each {_expected(items)}"
        case {"properties": properties}:
            return f"a section with the keys {', '.join(properties)}"
        case {"type": "object"}:
            return "pairs such as {word: word}"
        case {"type": "string", "examples": [example, *_]}:
            return f"text such as {json.dumps(example, ensure_ascii=False)}"
        case _:
            return "text"


def _limits(rule: Schema) -> str:
    match rule:
        case {"minimum": least, "maximum": most}:
            return f" from {least} to {most}"
        case {"exclusiveMinimum": least, "maximum": most}:
            return f" above {least}, at most {most}"
        case _:
            return ""


def _rule(schema: Schema, key: Key) -> Schema:
    """What the JSON schema says of one key; nothing when the model has no such key."""
    rule = schema
    for part in key:
        if isinstance(part, int):
            rule = rule.get("items", {})
        else:
            others: Schema = next(iter(rule.get("patternProperties", {}).values()), {})
            rule = rule.get("properties", {}).get(part, others)
        if "$ref" in rule:
            rule = {**schema["$defs"][rule["$ref"].rpartition("/")[2]], **rule}
        elif "anyOf" in rule:
            # A value or nothing: the rule for the value.
            rule = {**rule["anyOf"][0], **rule}
    return rule


def _keys(schema: Schema) -> Iterator[tuple[str, ...]]:
    for section in schema["properties"]:
        yield (section,)
        for name in _rule(schema, (section,)).get("properties", {}):
            yield (section, name)


def _meaning(schema: Schema, key: Key) -> str:
    """A key's description in brackets; that of the list or mapping for a value inside one."""
    while key and "description" not in _rule(schema, key):
        key = key[:-1]
    rule = _rule(schema, key)
    return f" ({rule['description']})" if key and "properties" not in rule else ""


def _is_secret(rule: Schema) -> bool:
    return rule.get("format") == "password"


def _without_secrets(value: object) -> object:
    match value:
        case SecretStr():
            return "set" if value.get_secret_value() else "not set"
        case dict():
            return {name: _without_secrets(item) for name, item in value.items()}
        case tuple():
            return [_without_secrets(item) for item in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return without_variables(str(value))
