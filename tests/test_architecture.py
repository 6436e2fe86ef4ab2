"""The shape of the package, read from its source: what imports what, who knows what, and what nobody reads."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES = 450

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "cli __main__ testing",
        "app",
        "web responder builtin",
        "listener",
        "registry commands tools",
        "status",
        "memory outbox orders",
        "governor",
        "radio model store sim window",
        "router chunker plaintext retries loops quiet airtime limits pace",
        "messages config configfile entries yamlfile clock errors notify characters",
    )
)
"""Imports point down this list."""
LEVEL_IMPORTS = {("__main__", "cli"), ("registry", "commands"), ("registry", "tools")}
"""The only imports between neighbours of one row."""
OPEN_TO_ALL = frozenset({"messages", "errors", "config", "clock", "characters"})
TAKES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(LAYERS[-2], OPEN_TO_ALL),
    **dict.fromkeys(LAYERS[-1], frozenset({"errors"})),
    "config": frozenset({"errors", "configfile", "entries"}),
    "configfile": frozenset({"errors", "yamlfile"}),
}
"""All that these modules may import of the package."""
SIBLINGS = {
    "commands": {"base"},
    "tools": {"base"},
    "store": {"database", "migrations", "conversations", "health", "aside", "carrying", "forgetting"},
}
"""In these sub-packages modules import only these of their siblings."""

KNOWS: Mapping[str, tuple[str, ...]] = {
    "meshtastic.protobuf": ("radio", "sim"),
    "meshtastic": ("radio",),
    "pubsub": ("radio",),
    "serial": ("radio",),
    "bleak": ("radio",),
    "threading": ("radio",),
    "concurrent": ("radio",),
    "openai": ("model.openai",),
    "httpx": ("model",),
    "httpx2": ("model",),
    "requests": (),
    "aiohttp": (),
    "urllib.request": (),
    "xllamacpp": ("model",),
    "subprocess": ("model",),
    "multiprocessing": ("model",),
    "aiosqlite": ("store",),
    "sqlite3": ("store",),
    "yaml": ("config", "configfile", "yamlfile"),
    "pydantic": ("config", "configfile", "entries", "status"),
    "platformdirs": ("config",),
    "starlette": ("web",),
    "uvicorn": ("web",),
    "jinja2": ("web",),
    "fastapi": ("web",),
    "html": ("web",),
    "markdown_it": ("plaintext",),
    "click": ("cli",),
    "rich": ("cli",),
    "prompt_toolkit": ("cli",),
}
"""Who may import what from outside: a module, or a sub-package with all of its modules. The longest name decides."""

SETTINGS_WITHOUT_READER: frozenset[str] = frozenset()
"""Settings whose reader is still to be written. Keep this empty: a setting that does nothing is a lie."""


@dataclass(frozen=True)
class Import:
    """`importer` imports `target`; names of our package are without its own."""

    importer: str
    target: str
    is_late: bool
    """Inside a function, or where only type checkers look."""

    def __str__(self) -> str:
        return f"{self.importer} imports {self.target or 'meshai'}"


@dataclass(frozen=True)
class Module:
    name: str
    """Without the package's own: `radio.base`; the package itself is the empty name."""
    path: Path
    tree: ast.Module
    lines: int


@cache
def package() -> Mapping[str, Module]:
    """Every module of the package by its name."""
    return {module.name: module for module in map(read, sorted((ROOT / "meshai").rglob("*.py")))}


def read(path: Path) -> Module:
    parts = path.relative_to(ROOT / "meshai").with_suffix("").parts
    text = path.read_text()
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(text), len(text.splitlines()))


def all_imports(module: Module) -> Iterator[tuple[str, str, bool]]:
    """(module, imported name or nothing, whether late) of each import, with absolute names."""
    late = {
        id(inner)
        for outer in ast.walk(module.tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(outer)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", id(node) in late
        elif isinstance(node, ast.ImportFrom):
            home = f"meshai.{module.name}".rstrip(".").split(".")
            is_package = module.path.name == "__init__.py"
            above = home[: len(home) - node.level + is_package] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield source, alias.name, id(node) in late


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


@cache
def own_imports() -> tuple[Import, ...]:
    """Every import of a module of the package by another."""
    found = []
    for module in package().values():
        for source, name, is_late in all_imports(module):
            if source == "meshai" or source.startswith("meshai."):
                target = source.removeprefix("meshai").lstrip(".")
                inner = f"{target}.{name}".lstrip(".")
                found.append(Import(module.name, inner if inner in package() else target, is_late))
    return tuple(found)


def listed(faults: Iterable[object]) -> list[str]:
    """Faults as text, each once, in order."""
    return sorted({str(fault) for fault in faults})


def part(module: str) -> str:
    """The entry of the import rule a module belongs to."""
    return module.split(".")[0]


def layer(module: str) -> int | None:
    return next((number for number, row in enumerate(LAYERS) if part(module) in row), None)


# Imports


def test_every_module_has_its_place_in_the_import_rule() -> None:
    assert {part(name) for name in package()} - {""} <= frozenset().union(*LAYERS)


def test_every_import_names_a_module_that_exists() -> None:
    assert listed(found for found in own_imports() if found.target not in package()) == []


def test_imports_point_down() -> None:
    assert listed(found for found in own_imports() if not points_down(found)) == []


def points_down(found: Import) -> bool:
    # The package itself holds the version, which anybody may show, and the names that plugins need.
    if not found.importer or not found.target or part(found.importer) == part(found.target):
        return True
    if part(found.importer) in TAKES:
        return True  # told exactly, and tested below
    importer, target = layer(found.importer), layer(found.target)
    assert importer is not None
    assert target is not None
    return importer < target or (part(found.importer), part(found.target)) in LEVEL_IMPORTS


@pytest.mark.parametrize(
    ("importer", "target", "is_right"),
    [
        ("app", "cli", False),
        ("store.turns", "memory.memory", False),
        ("memory.memory", "outbox", False),
        ("radio.base", "airtime", True),
        ("registry", "commands.base", True),
        ("commands.base", "registry", False),
        ("cli.run", "app", True),
        ("sim.air", "sim.node", True),
        ("builtin", "", True),
    ],
)
def test_an_import_that_points_up_or_aside_is_found(importer: str, target: str, is_right: bool) -> None:
    assert points_down(Import(importer, target, is_late=False)) == is_right


def test_the_bottom_imports_next_to_nothing_of_the_package() -> None:
    wrong = [
        found
        for found in own_imports()
        if part(found.importer) in TAKES
        and part(found.target) not in TAKES[part(found.importer)] | {part(found.importer)}
    ]
    assert listed(wrong) == []


def test_siblings_do_not_import_each_other() -> None:
    wrong = [
        found
        for found in own_imports()
        if part(found.importer) in SIBLINGS
        and part(found.importer) == part(found.target)
        and "." in found.target
        and found.target.split(".", 1)[1] not in SIBLINGS[part(found.importer)]
    ]
    assert listed(wrong) == []


@pytest.mark.parametrize(
    ("concrete", "namer"),
    [("radio.meshtastic", "app"), ("radio.console", "app"), ("model.openai", "builtin"), ("model.embedded", "builtin")],
)
def test_one_module_names_a_concrete_radio_or_model(concrete: str, namer: str) -> None:
    wrong = [
        found
        for found in own_imports()
        if found.target == concrete and part(found.importer) not in (namer, part(concrete))
    ]
    assert listed(wrong) == []


def test_the_radios_do_not_know_each_other() -> None:
    radios = {"radio.meshtastic", "radio.console"}
    assert listed(found for found in own_imports() if {found.importer, found.target} == radios) == []


def test_no_import_of_the_package_hides() -> None:
    assert listed(found for found in own_imports() if found.is_late and not needs_the_library(found)) == []


def needs_the_library(found: Import) -> bool:
    """Importing `meshtastic` starts a thread, so a module that does may be imported late by one of its own package."""
    return part(found.importer) == part(found.target) and any(
        source.startswith("meshtastic") and not is_late for source, _, is_late in all_imports(package()[found.target])
    )


def test_no_module_needs_itself() -> None:
    targets: dict[str, set[str]] = {name: set() for name in package()}
    for found in own_imports():
        if found.target != found.importer:
            targets[found.importer].add(found.target)
    assert listed(cycle(targets)) == []


def cycle(targets: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or nothing."""
    left = {name: {target for target in reached if target in targets} for name, reached in targets.items()}
    while leaves := [name for name, reached in left.items() if not reached & left.keys()]:
        for name in leaves:
            del left[name]
    # What only leads into a circle is not part of it.
    while roots := left.keys() - {target for reached in left.values() for target in reached}:
        for name in roots:
            del left[name]
    return sorted(left)


def test_a_circle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


# Knowledge


def test_what_only_some_may_know_is_imported_by_no_other() -> None:
    wrong = []
    for module in package().values():
        for source, name, _ in all_imports(module):
            known = knowledge(f"{source}.{name}")
            if known is not None and not any(is_in(module.name, home) for home in KNOWS[known]):
                wrong.append(f"{module.name} imports {source}")
    assert listed(wrong) == []


def knowledge(imported: str) -> str | None:
    return max((known for known in KNOWS if is_in(imported, known)), key=len, default=None)


def is_in(name: str, home: str) -> bool:
    return name == home or name.startswith(home + ".")


def test_only_the_settings_look_into_the_environment() -> None:
    looks = [
        module.name
        for module in package().values()
        if module.name != "config"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert listed(looks) == []


def test_no_module_is_too_long_to_read() -> None:
    assert {module.name: module.lines for module in package().values() if module.lines > MOST_LINES} == {}


def test_no_function_changes_a_module() -> None:
    assert [
        module.name for module in package().values() for node in ast.walk(module.tree) if isinstance(node, ast.Global)
    ] == []


# Settings


@pytest.mark.skipif("app" not in package(), reason="parts that read settings are still to be written")
def test_every_setting_is_read() -> None:
    assert unread(package()) == SETTINGS_WITHOUT_READER


def test_a_setting_without_reader_is_found() -> None:
    sources = {
        "config": """
class Inner(Section):
    used: int
    used_inside: int
    unused: int
    of_a_namesake: int

    @property
    def derived(self): return self.used_inside

class Config(Section):
    inner: Inner

def load() -> Config: ...
""",
        "app": """
def start():
    config = load()
    Part(config.inner)
""",
        "part": """
class Part:
    def __init__(self, settings: Inner, other: Other):
        self._settings = settings
        self._other = other
    def work(self): return self._settings.used + self._settings.derived + self._other.of_a_namesake
""",
    }
    modules = {name: Module(name, Path(f"{name}.py"), ast.parse(source), 1) for name, source in sources.items()}
    assert unread(modules) == {"Inner.unused", "Inner.of_a_namesake"}


def unread(modules: Mapping[str, Module]) -> set[str]:
    """The settings, as `Section.field`, that no module reads."""
    known = sections(modules["config"])
    return {
        f"{section}.{field}" for section, fields in known.items() if section != "Config" for field in fields
    } - Readers(modules).read()


def sections(config: Module) -> Mapping[str, Mapping[str, str]]:
    """The fields of each section of the settings, with the section a field holds, if any."""
    classes = [node for node in config.tree.body if isinstance(node, ast.ClassDef)]
    names = {node.name for node in classes if any(isinstance(b, ast.Name) and b.id == "Section" for b in node.bases)}
    return {
        node.name: {
            line.target.id: next(iter(named(line.annotation) & names), "")
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for node in classes
        if node.name in names
    }


def named(annotation: ast.AST | None) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()


class Readers:
    """Follows settings by the sections named in annotations, through assignments, to the fields that are read.

    A field read in the settings' own module counts when the function or property that reads it is used elsewhere.
    """

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._modules = modules
        self._sections = sections(modules["config"])
        # What sections a name in a module (`app:config`), an attribute (`.config`) or a call (`load()`) may stand for.
        self._held: dict[str, set[str]] = {}
        for module in self._modules.values():
            self._learn_annotations(module)
        size = -1
        while size != (size := sum(map(len, self._held.values()))):
            for module in self._modules.values():
                self._learn_assignments(module)

    def read(self) -> set[str]:
        """The fields that are read, as `Section.field`."""
        used: set[str] = set()
        fields: set[str] = set()
        for module in self._modules.values():
            if module.name != "config":
                fields.update(self._fields_in(module.name, module.tree))
                used.update(node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute))
                used.update(node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name))
        for function in functions(self._modules["config"].tree):
            if function.name in used:
                fields.update(self._fields_in("config", function))
        return fields

    def _fields_in(self, module: str, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                for section in self._sections_of(module, node.value):
                    yield f"{section}.{node.attr}"

    def _learn_annotations(self, module: Module) -> None:
        for node in ast.walk(module.tree):
            match node:
                case ast.arg(arg=name, annotation=annotation):
                    self._learn(f"{module.name}:{name}", named(annotation))
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    self._learn(f"{module.name}:{name}", named(annotation))
                    self._learn(f".{name}", named(annotation))
                case ast.FunctionDef(name=name, returns=returns) | ast.AsyncFunctionDef(name=name, returns=returns):
                    self._learn(f"{name}()", named(returns))
                    self._learn(f".{name}", named(returns))
                case ast.ClassDef(name=name) if module.name == "config":
                    self._learn("config:self", {name})

    def _learn(self, key: str, names: set[str]) -> None:
        if found := names & self._sections.keys():
            self._held.setdefault(key, set()).update(found)

    def _learn_assignments(self, module: Module) -> None:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assign) and (found := self._sections_of(module.name, node.value)):
                for target in node.targets:
                    match target:
                        case ast.Name(id=name):
                            self._learn(f"{module.name}:{name}", found)
                        case ast.Attribute(attr=name):
                            self._learn(f".{name}", found)

    def _sections_of(self, module: str, node: ast.AST) -> set[str]:
        match node:
            case ast.Name(id=name):
                return self._held.get(f"{module}:{name}", set())
            case ast.Attribute(value=value, attr=name):
                owners = self._sections_of(module, value)
                inner = {self._sections[owner][name] for owner in owners if name in self._sections[owner]} - {""}
                return inner or (set() if owners else self._held.get(f".{name}", set()))
            case ast.Call(func=ast.Attribute(value=value, attr="model_copy")) | ast.Await(value=value):
                return self._sections_of(module, value)
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                return {name} if name in self._sections else self._held.get(f"{name}()", set())
            case _:
                return set()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# Tests


@cache
def parsed_tests() -> Mapping[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py"))}


def test_every_test_asserts_something() -> None:
    asserting = {
        function.name for tree in parsed_tests().values() for function in functions(tree) if asserts(function, set())
    }
    size = -1
    while size != len(asserting):
        size = len(asserting)
        asserting |= {f.name for tree in parsed_tests().values() for f in functions(tree) if asserts(f, asserting)}
    silent = [
        f"{path.name}: {function.name}"
        for path, tree in parsed_tests().items()
        for function in functions(tree)
        if function.name.startswith("test_") and function.name not in asserting
    ]
    assert listed(silent) == []


def asserts(function: ast.AST, asserting: Iterable[str]) -> bool:
    """Whether something in `function` can fail a test: an assertion, an expected error, or a helper that asserts."""
    known = {"raises", "warns", "fail", *asserting} - set(dir(builtins))
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in known)
        for node in ast.walk(function)
    )


def test_no_test_patches_what_it_tests() -> None:
    wrong = [
        path.name
        for path, tree in parsed_tests().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.startswith(("mock", "unittest.mock")) for name in imported_names(node))
    ]
    assert listed(wrong) == []


def imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [source + alias.name for alias in node.names]


def test_the_tests_mirror_the_package() -> None:
    homes = {path.parent.relative_to(ROOT / "tests") for path in parsed_tests()}
    known = {Path(*name.split(".")) for name, module in package().items() if module.path.name == "__init__.py" and name}
    assert homes - known - {Path(), Path("acceptance"), Path("systemd"), Path("benchmarks")} == set()
