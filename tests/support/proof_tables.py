"""Tables of a documentation page whose rows name the tests that prove them, as ``path/in/tests.py::name``."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.syntax_trees import parsed

TESTS = Path(__file__).parents[1]
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def table_rows(page: str, head: Sequence[str]) -> list[list[str]]:
    """The cells of every row of every table of ``page``, without the heads. A table with another head is taken for
    rows, which shows."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:].rstrip().removesuffix("|").split("|")] for line in lines]
    return [row for row in cells if row != list(head) and set("".join(row)) != {"-"}]


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The names of functions and classes at the top of a file, which is read and not run."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(node.name for node in parsed(path.read_text(encoding="utf-8")).body if isinstance(node, kinds))


def named_tests(cell: str) -> list[tuple[str, str]]:
    """The path and the name of each test that ``cell`` names."""
    return REFERENCE.findall(cell)


def missing_tests(cell: str) -> list[tuple[str, str]]:
    """The tests that ``cell`` names and that do not exist."""
    return [
        (path, name)
        for path, name in named_tests(cell)
        if not (TESTS / path).exists() or name not in defined_in(TESTS / path)
    ]


def besides_tests(cell: str) -> str:
    """What ``cell`` has other than names of tests, and the commas between them."""
    return REFERENCE.sub("", cell).strip(", ")
