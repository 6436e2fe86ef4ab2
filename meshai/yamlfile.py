"""YAML text into plain values that remember their lines, and back.

PyYAML composes the text into nodes, which know where they stand. Values are made of the nodes here, more strictly than
YAML 1.1 would: only `true` and `false` are truth values (`off` and `no` are words), a number is one as people write
it, and tags, aliases and repeated keys are refused. `${NAME}` in a text becomes an environment variable.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

import yaml

Key: TypeAlias = tuple[str | int, ...]
"""Where a value stands: the keys and list indexes that lead to it."""


class Kind(Enum):
    """What was written for a value; the words are for people."""

    NOTHING = "tag:yaml.org,2002:null"
    TRUTH = "tag:yaml.org,2002:bool"
    WHOLE = "tag:yaml.org,2002:int"
    NUMBER = "tag:yaml.org,2002:float"
    TEXT = "tag:yaml.org,2002:str"
    LIST = "tag:yaml.org,2002:seq"
    MAPPING = "tag:yaml.org,2002:map"


_NATURAL = r"(?:0|[1-9][0-9]{0,17})"
_UNQUOTED: Final = [
    (Kind.NOTHING.value, re.compile(r"(?:~|null|Null|NULL|)$")),
    (Kind.TRUTH.value, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
    (Kind.WHOLE.value, re.compile(rf"(?:[-+]?{_NATURAL}|0x[0-9a-fA-F]{{1,16}}|0o[0-7]{{1,20}})$")),
    (Kind.NUMBER.value, re.compile(rf"[-+]?(?:\.[0-9]+|{_NATURAL}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{{1,2}})?$")),
]
"""What an unquoted word is when it is not text; the first that fits."""
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}\n]*)(\}?)")
_BARE_NODE_ID: Final = re.compile(r"^[^#\"'\n]*?(?<![^\s\[,:-])(![0-9a-fA-F]{8})(?![^\s\],:])", re.MULTILINE)
_SHOWN_MOST: Final = 40
_REFUSED: Final = object()
"""In place of a value that was complained about."""


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    key: Key
    text: str

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.key)
        return f"{where}: {self.text}" if where else self.text


class YamlError(Exception):
    """The text is not YAML at all; `faults` says where."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Written:
    """One value as it stands in the file, before anything is put in for `${NAME}`."""

    line: int
    kind: Kind
    source: str = ""

    @property
    def has_variable(self) -> bool:
        return bool(_VARIABLE.search(self.source))

    def __str__(self) -> str:
        match self.kind:
            case Kind.TEXT:
                # Not the password of an address.
                text = re.sub(r"//[^/\s]*@", "//...@", self.source)[:_SHOWN_MOST] + "..." * (
                    len(self.source) > _SHOWN_MOST
                )
                return f"the text {json.dumps(text, ensure_ascii=False)}"
            case Kind.WHOLE | Kind.NUMBER:
                return f"the number {self.source}"
            case Kind.TRUTH:
                return self.source
            case Kind.LIST:
                return "a list"
            case Kind.MAPPING:
                return "a section with keys"
            case Kind.NOTHING:
                return "nothing"


@dataclass(slots=True)
class Document:
    """The values of one file as JSON would have them (refused ones left out), and how each was written."""

    values: object = None
    written: dict[Key, Written] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line(self, key: Key) -> int:
        """Where `key` stands, or else what is around it."""
        while key and key not in self.written:
            key = key[:-1]
        return self.written[key].line if key else 1

    def add(self, key: Key, text: str) -> None:
        self.faults.append(Fault(self.line(key), key, text))


def read(text: str, environ: Mapping[str, str]) -> Document:
    """Take in `text`, with every fault that can be seen without knowing what the values mean. Raises YamlError."""
    document = Document()
    root = _compose(text)
    if root is not None and (values := _Reader(document, environ).value(root, (), 1)) is not _REFUSED:
        document.values = values
    return document


def one_line(value: object) -> str:
    """One value as YAML on one line, which reads back the same."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=2**31)
    return text.removesuffix("\n").removesuffix("\n...")


def without_variables(text: str) -> str:
    """`text` written so that `${` in it stays what it is."""
    return text.replace("${", "$${")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {None: _UNQUOTED}  # noqa: RUF012 - PyYAML's own way to say it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, 'text that begins with * needs quotes: "*..."', mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either YAML 1.1 or our own reading would not take for text."""

    yaml_implicit_resolvers = {**yaml.SafeDumper.yaml_implicit_resolvers, None: _UNQUOTED}  # noqa: RUF012


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except RecursionError:
        raise YamlError(Fault(1, (), "lists or sections are nested too deeply")) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(Fault(line, (), "a character that no text holds; is this a settings file?")) from None
    except yaml.MarkedYAMLError as error:
        raise YamlError(*_explained(text, error)) from None


def _explained(text: str, error: yaml.MarkedYAMLError) -> list[Fault]:
    """PyYAML's complaint in the words of someone who edits settings, at the line that has to change."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or error.context or "not YAML"
    if "\\t" in problem:
        tabs = [number for number, row in enumerate(text.split("\n"), 1) if re.match(r" *\t", row)]
        return [Fault(number, (), "found a tab; expected spaces before a key") for number in tabs or [line]]
    if bare := _BARE_NODE_ID.search(text):
        line = text.count("\n", 0, bare.start(1)) + 1
        return [Fault(line, (), f'found {bare[1]} without quotes; expected "{bare[1]}"')]
    if "end of stream" in problem and "quoted" in (error.context or "") and error.context_mark:
        line, problem = error.context_mark.line + 1, "found a quote that is never closed"
    elif "another document" in problem:
        problem = "found a second document; expected one, without a line of ---"
    elif "mapping values are not allowed" in problem:
        problem = 'found a colon where none can be; text with ": " in it needs quotes, a key the indent of its section'
    elif "could not find expected ':'" in problem or "expected <block end>" in problem:
        problem = "expected `key: value`, indented by spaces as far as the other keys of its section"
    elif "cannot start any token" in problem or "tag" in f"{error.context}{problem}":
        problem += "; text that begins with ! @ % ` & or * needs quotes"
    return [Fault(line, (), problem)]


@dataclass(frozen=True, slots=True)
class _Reader:
    document: Document
    environ: Mapping[str, str]

    def value(self, node: yaml.Node, key: Key, line: int) -> object:
        tag = _implicit_tag(node)
        source = node.value if isinstance(node, yaml.ScalarNode) else ""
        self.document.written[key] = Written(line, Kind(tag), source)
        if node.tag != tag:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self.document.add(key, f'found {tag} without quotes; expected text that begins with ! in quotes: "{tag}"')
            return _REFUSED
        match Kind(tag):
            case Kind.MAPPING:
                return self._mapping(node.value, key)
            case Kind.LIST:
                items = (self.value(item, (*key, at), item.start_mark.line + 1) for at, item in enumerate(node.value))
                return [item for item in items if item is not _REFUSED]
            case Kind.NOTHING:
                return None
            case Kind.TRUTH:
                return source.lower() == "true"
            case Kind.WHOLE:
                return int(source, 0)
            case Kind.NUMBER:
                return float(source)
            case Kind.TEXT:
                return self._expanded(source, key)

    def _mapping(self, pairs: list[tuple[yaml.Node, yaml.Node]], key: Key) -> dict[str, object]:
        values = {}
        for name, item in pairs:
            # An empty value's own mark may be on the next line.
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode) or name.tag != _implicit_tag(name):
                found = name.tag if isinstance(name, yaml.ScalarNode) else "a list or section"
                self.document.faults.append(Fault(line, key, f"found {found} as a key; expected a word, in quotes"))
            elif (inner := (*key, name.value)) in self.document.written:
                first = self.document.line(inner)
                self.document.faults.append(Fault(line, inner, f"found a second time; it is in line {first} already"))
            elif (value := self.value(item, inner, line)) is not _REFUSED:
                values[name.value] = value
        return values

    def _expanded(self, text: str, key: Key) -> object:
        problems = []

        def variable(match: re.Match[str]) -> str:
            name, end = match.groups()
            if name is None:
                return "${"
            if not end or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                problems.append(f"found {match[0]}; expected ${{NAME}}, or $${{ for a plain ${{")
            elif name not in self.environ:
                problems.append(
                    f"found ${{{name}}}, but no environment variable {name}; set it, or write $${{ for a plain ${{"
                )
            return self.environ.get(name, "")

        expanded = _VARIABLE.sub(variable, text)
        if any("\ud800" <= character <= "\udfff" for character in expanded):
            problems.append("found half a character; expected UTF-8")
        for problem in problems:
            self.document.add(key, problem)
        return _REFUSED if problems else expanded


def _implicit_tag(node: Any) -> str:
    """The tag a node has when the file gives it none."""
    match node:
        case yaml.MappingNode():
            return Kind.MAPPING.value
        case yaml.SequenceNode():
            return Kind.LIST.value
        case yaml.ScalarNode(style=None):
            return next((tag for tag, rule in _UNQUOTED if rule.match(node.value)), Kind.TEXT.value)
        case _:
            return Kind.TEXT.value
