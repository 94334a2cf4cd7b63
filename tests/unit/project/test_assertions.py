"""Every test can fail by an assertion, its own or that of a helper."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.syntax_trees import parsed

TESTS = Path(__file__).parents[2]

ASSERTING = {"raises", "warns", "fail", "fnmatch_lines", "assert_outcomes", "assert_not_called"}
"""Functions of libraries that fail a test."""


class Function(NamedTuple):
    """One function of the tests, and what it calls by name, or gets as a parameter."""

    name: str
    asserts: bool
    calls: set[str]


def functions(tree: ast.Module) -> Iterable[Function]:
    """The functions and methods of one module; those inside of another count as a part of it."""
    for node in tree.body:
        for statement in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = list(ast.walk(statement))
                calls = [part.func for part in inside if isinstance(part, ast.Call)]
                names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
                parameters = [part for mark in statement.decorator_list for part in ast.walk(mark)]
                names |= {part.id for part in parameters if isinstance(part, ast.Name)}
                yield Function(statement.name, any(isinstance(part, ast.Assert) for part in inside), names)


def silent_tests(trees: Iterable[ast.Module]) -> list[str]:
    """The tests that assert nothing, and call no function that has the name of one that does."""
    found = [function for tree in trees for function in functions(tree)]
    helpers = [function for function in found if not function.name.startswith("test_")]
    asserting: set[str] = set()
    more = ASSERTING | {function.name for function in helpers if function.asserts}
    while more - asserting:
        asserting |= more
        more = {function.name for function in helpers if function.calls & asserting}
    tests = [function for function in found if function.name.startswith("test_")]
    return [function.name for function in tests if not function.asserts and not function.calls & asserting]


def test_every_test_asserts_something() -> None:
    assert silent_tests(parsed(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")) == []


def test_a_test_without_an_assertion_is_found() -> None:
    module = parsed(
        "def helper(): assert 1\n"
        "def caller(): helper()\n"
        "def silent(): print()\n"
        "def test_itself(): assert 2\n"
        "def test_by_a_helper(): caller()\n"
        "class TestOfAClass:\n"
        "    def test_nothing(self): silent()\n"
    )
    assert silent_tests([module]) == ["test_nothing"]
