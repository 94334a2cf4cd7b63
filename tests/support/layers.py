"""The layering of docs/design.md as rules over a tree of Python files. Files are parsed, never imported.

A rule is a function from the modules of a tree to the sentences that say what breaks it. Modules are named without the
package: ``broker.core.transactions``, and ``""`` for the package's own ``__init__``.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.syntax_trees import parsed

PACKAGE = "dualwrite"
TESTS = "tests"
LONGEST_FILE = 450
LONGEST_FUNCTION = 60

PURE = (
    "errors",
    "extras",
    "ids",
    "ports",
    "version",
    "records",
    "wire",
    "loader.format",
    "broker.access",
    "broker.clients",
    "broker.settings",
    "broker.facts",
    "broker.core",
    "coordinator.rules",
    "client.terms",
    "client.encoding",
    "client.config",
    "client.protocol",
    "client.engine",
    "spark.plan",
    "moving.offset_mapping",
    "moving.journal",
    "moving.plan",
    "moving.records",
)
THROUGH_PORTS = (
    "client.fate",
    "coordinator.ports",
    "coordinator.concurrency",
    "coordinator.recovery",
    "coordinator.slots",
    "coordinator.steps",
    "moving.ports",
    "moving.copying",
)
"""Tier T in the client, the coordinator and the mover."""
THROUGH_LOOP = ("broker.log", "broker.runtime", "broker.api")
"""Tier T in the broker: its event loop is a port, too, which whoever runs it may simulate."""
_LOOP = ("asyncio", "pathlib.Path", "threading.Lock")
"""What THROUGH_LOOP may import beside pure modules: the loop's interface, the names of files, and a lock."""
_PATH_IO = frozenset(
    {"chmod", "exists", "glob", "is_dir", "is_file", "iterdir", "mkdir", "read_bytes", "read_text", "resolve", "rglob"}
    | {"rmdir", "stat", "symlink_to", "unlink", "write_bytes", "write_text"}
)
"""Methods of Path that do I/O."""
_ERRORS_IN_T = ("sqlalchemy.exc", "asyncio.CancelledError")
"""Classes of exceptions that tier T tells apart."""
_NOT_IN_T = {"logging"}
"""What tier P may not import, and T may."""
GROUND_FLOOR = ("errors", "extras", "ids", "ports", "version", "records", "wire")

_IMPURE_IMPORTS = frozenset(
    [
        "asyncio",
        "concurrent",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "confluent_kafka",
        "sqlalchemy",
        "uvloop",
    ]
)
_IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "now", "today", "utcnow", "uuid1", "uuid4"})
_TYPES_IN_PORTS = frozenset({"pathlib.Path"})  # a Protocol names a path by its type

# A room, and the rooms that may be behind its doors. Its own is always one of them, and so is the ground floor.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GROUND_FLOOR, GROUND_FLOOR),
    "client": GROUND_FLOOR,
    "coordinator": (*GROUND_FLOOR, "client"),
    "schema": (*GROUND_FLOOR, "coordinator"),
    "loader": (*GROUND_FLOOR, "coordinator"),
    "spark": (*GROUND_FLOOR, "client", "coordinator"),
    "broker": GROUND_FLOOR,
    "admin": (*GROUND_FLOOR, "client", "broker.access"),
    "comparison": (*GROUND_FLOOR, "client", "coordinator", "loader"),
    "demo": (*GROUND_FLOOR, "coordinator", "loader"),
    "operations": (*GROUND_FLOOR, "client", "coordinator", "schema"),
    "moving": (*GROUND_FLOOR, "client", "coordinator", "admin", "comparison", "operations"),
    "telemetry": (*GROUND_FLOOR, "coordinator", "operations"),
    "console": (*GROUND_FLOOR, "client", "coordinator", "admin", "operations"),
    "web": (*GROUND_FLOOR, "coordinator"),
    "cli": (
        *GROUND_FLOOR,
        "client",
        "coordinator",
        "schema",
        "loader",
        "admin",
        "comparison",
        "operations",
        "moving",
        "console",
        "broker",
        "demo",
    ),
    "testing": (*GROUND_FLOOR, "client", "coordinator", "schema", "loader", "broker"),
    "__main__": ("cli",),
}
# The rooms of a floor, each of which imports only those before it. A module that stands beside them has its place, too;
# the floor's own ``__init__`` is its face.
ORDER: Mapping[str, tuple[str, ...]] = {
    "client": (
        "threads",
        "terms",
        "encoding",
        "config",
        "protocol",
        "engine",
        "net",
        "admin",
        "fate",
        "drivers",
        "librdkafka",
        "producer",
    ),
    "coordinator": (
        "rules",
        "ports",
        "concurrency",
        "process",
        "sql",
        "recovery",
        "kafka",
        "slots",
        "offsets",
        "steps",
        "unit",
        "replay",
        "manager",
        "branch",
        "dual_write",
        "dead_letters",
        "aio",
    ),
    "spark": (
        "plan",
        "tables",
        "known",
        "error_translation",
        "task_socket",
        "unpickling",
        "workers",
        "partitions",
        "batch",
    ),
    "broker": (
        "clients",
        "settings",
        "access",
        "facts",
        "core",
        "log",
        "runtime",
        "config",
        "net",
        "api",
        "process",
        "tls",
        "authentication",
        "listening",
        "token_keys",
        "sasl_listeners",
        "connection",
        "server",
        "current_options",
        "chores",
        "metrics",
        "broker",
        "offline_users",
        "embedded",
    ),
}
MOST_FILES = 20
DIALECTS = "coordinator.sql.dialects"
_DATABASES = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
_DRIVER = frozenset({"drivername", "get_driver_name"})
_EXCEPTIONS = frozenset(
    {"error", "raised", "interrupt", "cancelled", "refused", "failure", "_inner_error", "_rollback_cause", "_objection"}
)
"""Names of variables and attributes that hold an exception or None."""
NEVER: tuple[tuple[str, str], ...] = (("broker.log", "broker.core"), ("broker.api", "broker.log"))
"""Arrows that ORDER allows. Core and log meet in broker.runtime alone."""


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    name: str
    tree: ast.Module
    lines: int
    package: str
    """Where its relative imports begin."""
    known: frozenset[str]
    """The full names of the modules around it."""

    @cached_property
    def imports(self) -> frozenset[str]:
        """Full dotted names: ``socket``, ``pathlib.Path``; of the package itself only modules, ``dualwrite.ids``."""
        return frozenset(_imports(ast.walk(self.tree), self.package, self.known))

    @cached_property
    def runs_with(self) -> frozenset[str]:
        """Those of ``imports`` that are not for type checkers alone."""
        return frozenset(_imports(_run(self.tree), self.package, self.known))


def read_tree(root: Path) -> list[Module]:
    """The modules of the package in the directory ``root``."""
    files = sorted(root.rglob("*.py"))
    names = {_dotted(path.relative_to(root)): path for path in files}
    known = frozenset({PACKAGE, *(f"{PACKAGE}.{name}" for name in names if name)})
    modules = []
    for name, path in names.items():
        text = path.read_text(encoding="utf-8")
        tree = parsed(text, str(path))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        modules.append(Module(name, tree, len(text.splitlines()), package, known))
    return modules


def within(name: str, rooms: tuple[str, ...]) -> bool:
    """True if module ``name`` is one of ``rooms`` or inside one."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def pure_modules_do_no_io(modules: list[Module]) -> Iterator[str]:
    """Tier P: no clock, randomness, socket, file, logging, await; and on pure modules only."""
    for module in modules:
        if not within(module.name, PURE):
            continue
        for imported in sorted(module.imports):
            top = imported.partition(".")[0]
            is_type = module.name == "ports" and imported in _TYPES_IN_PORTS
            if top in _IMPURE_IMPORTS and not is_type:
                yield f"{module.name} is pure and imports {top}"
            if top == PACKAGE and not within(_inside(imported), PURE):
                yield f"{module.name} is pure and imports {_inside(imported)}, which is not"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield f"{module.name} is pure and asynchronous at line {node.lineno}"
            if isinstance(node, ast.Call) and _called(node.func) in _IMPURE_CALLS:
                yield f"{module.name} is pure and calls {_called(node.func)} at line {node.lineno}"


def tier_t_does_io_through_ports_only(modules: list[Module]) -> Iterator[str]:
    """Tier T runs with tiers P and T only, and with no module that reads a clock, waits, makes threads or does I/O.
    The objects that do so are given to it. Under ``if TYPE_CHECKING`` it may name any type, SQLAlchemy's too."""
    for module in modules:
        if not within(module.name, THROUGH_PORTS):
            continue
        for imported in sorted(module.runs_with):
            top = imported.partition(".")[0]
            if top in _IMPURE_IMPORTS - _NOT_IN_T and not within(imported, _ERRORS_IN_T):
                yield f"{module.name} is of tier T and imports {imported}"
            if top == PACKAGE and not within(_inside(imported), (*PURE, *THROUGH_PORTS)):
                yield f"{module.name} is of tier T and imports {_inside(imported)}, which is of tier S"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _called(node.func) in _IMPURE_CALLS:
                yield f"{module.name} is of tier T and calls {_called(node.func)} at line {node.lineno}"


def brokers_tier_t_does_io_through_loop_and_ports(modules: list[Module]) -> Iterator[str]:
    """The broker's tier T runs with tiers P and T only. It waits through the event loop, and its files are Files."""
    for module in modules:
        if not within(module.name, THROUGH_LOOP):
            continue
        for imported in sorted(module.runs_with):
            top = imported.partition(".")[0]
            if top in _IMPURE_IMPORTS - _NOT_IN_T and not within(imported, _LOOP):
                yield f"{module.name} is of tier T and imports {imported}"
            if top == PACKAGE and not within(_inside(imported), (*PURE, *THROUGH_LOOP)):
                yield f"{module.name} is of tier T and imports {_inside(imported)}, which is of tier S"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _does_io(node.func):
                yield f"{module.name} is of tier T and calls {_called(node.func)} at line {node.lineno}"


def rooms_know_only_what_they_stand_on(modules: list[Module]) -> Iterator[str]:
    """The arrows between the rooms of the house, and between the rooms of the broker."""
    for module in modules:
        if not module.name:
            continue
        room = module.name.partition(".")[0]
        if room not in MAY_IMPORT:
            yield f"{module.name} is in a room that the plan of the house lacks"
            continue
        for imported in sorted(_own(module)):
            if not within(imported, (room, *MAY_IMPORT[room])):
                yield f"{module.name} imports {imported}"
            for above, below in NEVER:
                if within(module.name, (above,)) and within(imported, (below,)):
                    yield f"{module.name} imports {imported}"


def rooms_of_a_floor_import_those_before_them(modules: list[Module]) -> Iterator[str]:
    """In ``client``, ``coordinator``, ``spark`` and ``broker`` the path says what a file may touch."""
    for module in modules:
        floor, _, rest = module.name.partition(".")
        if floor not in ORDER or not rest:
            continue
        order, room = ORDER[floor], rest.partition(".")[0]
        if room not in order:
            yield f"{module.name} is in no room of {floor}"
            continue
        later = {f"{floor}.{name}" for name in order[order.index(room) + 1 :]}
        for imported in sorted(_own(module)):
            if within(imported, tuple(later)):
                yield f"{module.name} imports {imported}, which stands on it"


def folders_are_small(modules: list[Module]) -> Iterator[str]:
    """At most 20 modules side by side, ``__init__`` left out."""
    beside: dict[str, int] = {}
    packages = {module.name.rpartition(".")[0] for module in modules}
    for module in modules:
        if module.name and module.name not in packages:
            folder = module.name.rpartition(".")[0]
            beside[folder] = beside.get(folder, 0) + 1
    for folder, count in sorted(beside.items()):
        if count > MOST_FILES:
            yield f"{folder or PACKAGE} has {count} modules side by side; the limit is {MOST_FILES}"


def class_names_are_unique(modules: list[Module]) -> Iterator[str]:
    """A reader who searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.name)
    for name, names in sorted(places.items()):
        if len(names) > 1:
            yield f"the class name {name} stands in {' and '.join(names)}"


def nothing_imports_a_test_module(modules: list[Module]) -> Iterator[str]:
    """What tests share is in tests/support: a test module can be read, moved and removed by itself."""
    for module in modules:
        for imported in sorted(module.imports):
            parts = imported.split(".")
            tests = [number for number, part in enumerate(parts) if part.startswith("test_")]
            if parts[0] == TESTS and tests:
                yield f"{module.name} imports {'.'.join(parts[1 : tests[0] + 1])}, which is a test module"


def nothing_imports_the_face(modules: list[Module]) -> Iterator[str]:
    """The package's own ``__init__`` is for users."""
    for module in modules:
        if PACKAGE in module.imports and module.name:
            yield f"{module.name} imports {PACKAGE} itself"


def pyspark_is_imported_in_spark_only(modules: list[Module]) -> Iterator[str]:
    """Nobody needs Spark for the rest."""
    for module in modules:
        if not within(module.name, ("spark",)) and any(name.partition(".")[0] == "pyspark" for name in module.imports):
            yield f"{module.name} imports pyspark"


def databases_differ_behind_one_interface(modules: list[Module]) -> Iterator[str]:
    """A new database is one file: outside of its room no module asks which database it has, or imports what
    SQLAlchemy knows of one."""
    for module in modules:
        if within(module.name, (DIALECTS,)):
            continue
        for imported in sorted(module.imports):
            if within(imported, ("sqlalchemy.dialects",)):
                yield f"{module.name} imports {imported}"
        for node in ast.walk(module.tree):
            if _is_name_of_dialect(node) or _looks_up_database(node):
                yield f"{module.name} asks which database it has at line {getattr(node, 'lineno', 0)}"


def exceptions_are_compared_with_none(modules: list[Module]) -> Iterator[str]:
    """An exception may have ``__bool__`` or ``__len__`` and be falsy: ``error or …`` would take it for no error."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _called(node.values[0]) in _EXCEPTIONS:
                yield f"{module.name} asks whether an exception is true at line {node.lineno}"


def imports_have_no_loops(modules: list[Module]) -> Iterator[str]:
    """Imports inside functions and for type checkers count too."""
    graph = {module.name: sorted(_own(module)) for module in modules if module.name}
    done: set[str] = set()
    for start in graph:
        yield from _loops(graph, start, [], done)


def every_module_has_a_docstring(modules: list[Module]) -> Iterator[str]:
    """It says why the room exists."""
    for module in modules:
        if not ast.get_docstring(module.tree):
            yield f"{module.name or PACKAGE} has no docstring"


def files_are_short(modules: list[Module]) -> Iterator[str]:
    """At most 450 lines."""
    for module in modules:
        if module.lines > LONGEST_FILE:
            yield f"{module.name} has {module.lines} lines; the limit is {LONGEST_FILE}"


def functions_are_short(modules: list[Module]) -> Iterator[str]:
    """At most 60 lines, docstring included."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    yield f"{module.name}.{node.name} has {length} lines; the limit is {LONGEST_FUNCTION}"


Rule = Callable[[list[Module]], Iterator[str]]
RULES: tuple[Rule, ...] = (
    pure_modules_do_no_io,
    tier_t_does_io_through_ports_only,
    brokers_tier_t_does_io_through_loop_and_ports,
    rooms_know_only_what_they_stand_on,
    rooms_of_a_floor_import_those_before_them,
    folders_are_small,
    class_names_are_unique,
    nothing_imports_the_face,
    pyspark_is_imported_in_spark_only,
    databases_differ_behind_one_interface,
    exceptions_are_compared_with_none,
    imports_have_no_loops,
    every_module_has_a_docstring,
    files_are_short,
    functions_are_short,
)
RULES_OF_TESTS: tuple[Rule, ...] = (folders_are_small, nothing_imports_a_test_module)
"""What tests/ keeps, too."""


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _inside(imported: str) -> str:
    return imported.partition(".")[2]


def _called(function: ast.expr) -> str:
    """The last word of what is called: ``now`` in ``datetime.now()``."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _does_io(function: ast.expr) -> bool:
    """True for ``open()``, but not for the Files port's; and for methods of Path."""
    name = _called(function)
    if isinstance(function, ast.Attribute):
        return name in _PATH_IO or name in _IMPURE_CALLS - {"open"}
    return name in _IMPURE_CALLS


def _is_name_of_dialect(node: ast.AST) -> bool:
    """``….dialect.name``, ``dialect_name``, and a URL's ``get_backend_name()``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("dialect_name", "get_backend_name") or _is_of_dialect(node, "name")
    return isinstance(node, ast.Name) and node.id == "dialect_name"


def _is_of_dialect(node: ast.AST, attribute: str) -> bool:
    """``….dialect.attribute``."""
    if not isinstance(node, ast.Attribute) or node.attr != attribute:
        return False
    return (node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")) == "dialect"


def _looks_up_database(node: ast.AST) -> bool:
    """A comparison with a database's or a driver's name, or a table that is keyed by the former."""
    if isinstance(node, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value in _DATABASES for key in node.keys)
    if not isinstance(node, ast.Compare):
        return False
    inside = list(ast.walk(node))
    names = {part.attr for part in inside if isinstance(part, ast.Attribute)}
    texts = {part.value for part in inside if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return bool(texts & _DATABASES or names & _DRIVER) or any(_is_of_dialect(part, "driver") for part in inside)


def _own(module: Module) -> set[str]:
    """What ``module`` imports of the package, the package's face and itself left out."""
    return {_inside(name) for name in module.imports if name.startswith(f"{PACKAGE}.")} - {module.name}


def _imports(nodes: Iterable[ast.AST], package: str, known: frozenset[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, package)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in known or source.partition(".")[0] != PACKAGE else source


def _run(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of ``tree``, but for those under ``if TYPE_CHECKING``."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        nodes.extend(node.orelse if isinstance(node, ast.If) and _is_for_types(node) else ast.iter_child_nodes(node))


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = [PACKAGE, *package.split(".")] if package else [PACKAGE]
    base = parents[: len(parents) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _loops(graph: Mapping[str, list[str]], name: str, path: list[str], done: set[str]) -> Iterator[str]:
    if name in path:
        yield "import loop: " + " -> ".join([*path[path.index(name) :], name])
        return
    if name in done:
        return
    for imported in graph.get(name, ()):
        yield from _loops(graph, imported, [*path, name], done)
    done.add(name)
