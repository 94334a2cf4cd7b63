"""docs/reference/semantics.md names a test for every claim, and every test that it names exists."""

import re
from pathlib import Path

import pytest

from tests.support.proof_tables import TESTS, besides_tests, defined_in, missing_tests, named_tests, table_rows

PAGE = TESTS.parent / "docs" / "reference" / "semantics.md"

HEAD = ["claim", "proved by", "what falls short"]


def rows() -> list[list[str]]:
    """The cells of every row of every table."""
    return table_rows(PAGE.read_text(encoding="utf-8"), HEAD)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_claim_has_tests_that_exist_or_says_what_it_lacks(row: list[str]) -> None:
    claim, proof, shortfall = row
    named = named_tests(proof)
    assert claim
    assert named or shortfall
    assert besides_tests(proof) == "", "nothing but tests"
    assert len(set(named)) == len(named)
    assert missing_tests(proof) == []


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
