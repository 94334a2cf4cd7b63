"""The documentation's site has every page and every public name. `make docs` builds it, and fails at every warning."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import dualwrite
from dualwrite import errors
from dualwrite.coordinator.rules.machine import STEPS, UnitState

HOME = Path(__file__).parents[3]
DOCS = HOME / "docs"


def test_every_page_is_in_the_navigation_once() -> None:
    _, _, navigation = (HOME / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    listed = re.findall(r"([\w/.-]+\.md)\s*$", navigation, re.MULTILINE)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    made = [
        "index.md",
        "changes.md",
        "contributing.md",
        "threat-model.md",
        "reference/cli.md",
        *(f"examples/{path.stem}.md" for path in HOME.glob("examples/*.py")),
    ]
    assert sorted(listed) == sorted([*pages, *made]), "list the page under nav: in mkdocs.yml"


def test_every_public_name_is_on_the_reference_page() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: dualwrite\.([\w.]+)$", page, re.MULTILINE)
    shown = set(listed)
    assert len(listed) == len(shown)
    assert "errors" in shown
    shown |= {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert [name for name in dualwrite.__all__ if name not in shown and f"`dualwrite.{name}`" not in page] == []


@pytest.fixture
def drawing() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "draw_failures.py"))


def test_the_table_of_failures_is_up_to_date(drawing: dict[str, Any]) -> None:
    drawn = drawing["failures_page"]()
    assert (DOCS / "reference" / "failures.md").read_text() == drawn, "run: python docs/draw_failures.py"


def test_the_table_of_failures_has_each_state_and_says_where_the_decision_is(drawing: dict[str, Any]) -> None:
    decision, known = drawing["Decision"], drawing["known_of_all"]()
    assert {state for state in STEPS if state in known} == set(STEPS)
    in_doubt = {state for state in STEPS if any(way.decision is decision.TRIED for way in known[state])}
    assert in_doubt == {
        UnitState.COMMITTING_DATABASE,
        UnitState.COMMITTING_DATABASE_ALONE,
        UnitState.READING_DECISION,
        UnitState.LEAVING_DOUBT,
    }
    decided = {state for state in STEPS if any(way.decision is decision.MADE for way in known[state])}
    assert decided == {UnitState.COMMITTING_KAFKA, UnitState.LEAVING_COMMIT}


def test_links_to_sources_lead_to_their_generated_pages() -> None:
    pytest.importorskip("mkdocs")
    page_of = runpy.run_path(str(DOCS / "site_hooks.py"))["page_of"]
    assert page_of("README.md") == "index.md"
    assert page_of("CHANGELOG.md") == "changes.md"
    assert page_of("SECURITY.md") == "threat-model.md"
    assert page_of("examples/orders.py") == "examples/orders.md"
    assert page_of("docs/reference/states.md") == "reference/states.md"
    assert page_of("tests/conftest.py") is None
