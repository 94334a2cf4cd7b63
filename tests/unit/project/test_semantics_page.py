"""docs/reference/semantics.md names a test for every claim, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.syntax_trees import parsed

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "reference" / "semantics.md"

REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")
HEAD = ["claim", "proved by", "what falls short"]


def rows() -> list[list[str]]:
    """The cells of every row of every table."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:].rstrip().removesuffix("|").split("|")] for line in lines]
    return [row for row in cells if row != HEAD and set("".join(row)) != {"-"}]


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The names of functions and classes at the top of a file, which is read and not run."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(node.name for node in parsed(path.read_text(encoding="utf-8")).body if isinstance(node, kinds))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_claim_has_tests_that_exist_or_says_what_it_lacks(row: list[str]) -> None:
    claim, proof, shortfall = row
    named = REFERENCE.findall(proof)
    assert claim
    assert named or shortfall
    assert REFERENCE.sub("", proof).strip(", ") == "", "nothing but tests"
    assert len(set(named)) == len(named)
    missing = [
        (path, name) for path, name in named if not (TESTS / path).exists() or name not in defined_in(TESTS / path)
    ]
    assert missing == []


def test_every_seed_and_section_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for heading in (
        "KIP-98",
        "KIP-447",
        "How Kafka implements it",
        "KIP-890",
        "KIP-939",
        "Groups",
        "Logs",
        "advertised",
    ):
        assert re.search(rf"^## .*{heading}", page, re.MULTILINE), heading
    assert len(rows()) > 60


def test_a_missing_test_would_be_noticed() -> None:
    assert "rows" in defined_in(Path(__file__))
    assert "test_that_was_renamed" not in defined_in(Path(__file__))
