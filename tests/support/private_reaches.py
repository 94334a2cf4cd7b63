"""Reaches of a test into private names of other modules.

A test that uses a private attribute breaks when the code behind it changes, although the behaviour stays. So tests
drive the behaviour from outside: by a socket, by a stand-in that a constructor takes, or by a public property. Only
tests/support may use a private name, where no public way can exist; the module says why.
"""

import ast
from collections.abc import Iterator, Sequence

from tests.support.syntax_trees import parsed

PUBLIC_ALTHOUGH = frozenset({"_replace", "_asdict", "_fields", "_mapping", "_make", "_exit", "_getframe"})
"""Documented names of the standard library and of SQLAlchemy."""
OWN = frozenset({"self", "cls"})
DOCUMENTED = frozenset({"KafkaError"})
"""Classes whose constants have a leading underscore: confluent-kafka documents them."""
BY_NAME = frozenset({"setattr", "getattr", "hasattr", "delattr", "setitem", "delitem", "object", "patch", "vars"})
"""Functions that take an attribute by its name."""
PACKAGES = ("dualwrite", "tests")


def private_reaches(source: str) -> list[str]:
    """The private names of others that the module ``source`` uses, each with its line."""
    tree = parsed(source)
    methods = {id(node) for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in ast.walk(owner)}
    reaches: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        names = _names(node, is_in_class=id(node) in methods)
        reaches += [(getattr(node, "lineno", 0), name) for name in names if _is_private(name)]
    return [f"{line}: {name}" for line, name in sorted(reaches)]


def _names(node: ast.AST, *, is_in_class: bool) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and not _is_allowed(node.value, is_in_class):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and _called(node.func) in BY_NAME:
        yield from _strings(node.args)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_namespace(node.value):
        yield str(node.slice.value)
    elif isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load):
        # A table of names to replace: ("_name", replacement), or (owner, "_name", replacement).
        yield from _strings(node.elts)


def _is_allowed(owner: ast.expr, is_in_class: bool) -> bool:
    """True for an object's own attributes, and for documented constants."""
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "super"
    if _called(owner) in DOCUMENTED:
        return True
    return isinstance(owner, ast.Name) and owner.id in OWN and is_in_class


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _strings(nodes: Sequence[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.replace(".", "").isidentifier()
        ):
            yield node.value.rpartition(".")[2]


def _is_namespace(node: ast.expr) -> bool:
    """True for vars(x) and x.__dict__."""
    if isinstance(node, ast.Call):
        return _called(node.func) == "vars"
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC_ALTHOUGH
