"""The documentation's site has every page and every public name. `make docs` builds it, and fails at every warning."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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


def test_pages_are_dark_when_their_pictures_are() -> None:
    """A picture follows the reader's system. Without this entry a browser keeps the scheme of its first visit."""
    _, _, palettes = (HOME / "mkdocs.yml").read_text(encoding="utf-8").partition("\n  palette:")
    assert re.findall(r"- media: \"([^\"]+)\"", palettes)[0] == "(prefers-color-scheme)"


def test_every_stylesheet_is_used() -> None:
    site = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"- stylesheets/(.+\.css)", site)) == sorted(
        path.name for path in DOCS.glob("stylesheets/*.css")
    )


def test_every_public_name_is_on_the_reference_page() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: dualwrite\.([\w.]+)$", page, re.MULTILINE)
    shown = set(listed)
    assert len(listed) == len(shown)
    assert "errors" in shown
    shown |= {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert [name for name in dualwrite.__all__ if name not in shown and f"`dualwrite.{name}`" not in page] == []


def test_the_figures_beside_other_ways_are_those_of_the_page_of_performance() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_alternatives.py"))["alternatives_page"]()
    assert (DOCS / "alternatives.md").read_text(encoding="utf-8") == drawn, "run: python docs/draw_alternatives.py"


def test_what_is_said_of_the_figures_beside_other_ways_is_true() -> None:
    """The page says: less than half the rate of the naive pair, a third to two fifths of an outbox's, whose reader
    waits three times as long; with eight threads less than half the rate of a Kafka transaction."""
    page = (DOCS / "alternatives.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ([\d,.]+) \| ([\d,.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    figures = {name: [float(cell.replace(",", "")) for cell in cells] for name, *cells in rows}
    assert figures.keys() == {"dualwrite, native", "naive pair", "Kafka transaction", "outbox"}
    ours, naive, outbox = (figures[name] for name in ("dualwrite, native", "naive pair", "outbox"))
    for threads in (0, 1):
        assert 0.35 < ours[threads] / naive[threads] < 0.5
        assert 0.3 < ours[threads] / outbox[threads] < 0.41
    assert outbox[2] / ours[2] > 2.9
    assert figures["Kafka transaction"][1] / ours[1] > 2


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


def test_the_list_of_pages_has_sections_titles_and_first_sentences() -> None:
    pytest.importorskip("mkdocs")
    list_of_pages = runpy.run_path(str(DOCS / "site_hooks.py"))["list_of_pages"]
    pages = {
        "index.md": "# Home\n\nIt [works](other.md), they say. Always.\n",
        "guides/a.md": "# A\n\n```console\n$ a\n```\n\n## More\n\nNot this.\n",
        "guides/c.md": "# C\n\n```python\nimport c\n\nimport d\n```\n\n`c` is a letter.\n",
        "guides/b.md": "# B\n\nDrawn by a program; a test compares.\n\n    python -m b\n\nHow it is\nused: so.\n",
    }
    navigation = ["index.md", {"Guides": [{"First": "guides/a.md"}, {"Inner": ["guides/b.md", "guides/c.md"]}]}]
    assert list(list_of_pages(navigation, pages)) == [
        "- [Home](index.md): It works, they say",
        "\n## Guides\n",
        "- [First](guides/a.md)",
        "- [B](guides/b.md): How it is used",
        "- [C](guides/c.md): `c` is a letter",
    ]


def test_the_site_has_the_list_of_pages_and_their_markdown(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(DOCS / "site_hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(generated_by=None, src_uri="index.md"))
    made = hooks["on_page_markdown"]("# Shop\n\nSee [it](../examples/orders.py).\n", page)
    assert made == "# Shop\n\nSee [it](examples/orders.md).\n"
    config = SimpleNamespace(site_dir=str(tmp_path), site_name="shop", site_description="Tea.", nav=["index.md"])
    hooks["on_post_build"](config)
    assert (tmp_path / "index.md").read_text(encoding="utf-8") == made
    assert (tmp_path / "llms.txt").read_text(encoding="utf-8") == "# shop\n\n> Tea.\n\n- [Shop](index.md): See it\n"


def test_links_to_sources_lead_to_their_generated_pages() -> None:
    pytest.importorskip("mkdocs")
    page_of = runpy.run_path(str(DOCS / "site_hooks.py"))["page_of"]
    assert page_of("README.md") == "index.md"
    assert page_of("CHANGELOG.md") == "changes.md"
    assert page_of("SECURITY.md") == "threat-model.md"
    assert page_of("examples/orders.py") == "examples/orders.md"
    assert page_of("docs/reference/states.md") == "reference/states.md"
    assert page_of("tests/conftest.py") is None


@pytest.fixture
def with_tabs() -> Callable[[str], str]:
    function: Callable[[str], str] = runpy.run_path(str(DOCS / "site_tabs.py"))["with_tabs"]
    return function


def test_parts_with_a_label_in_bold_become_tabs_on_the_site(with_tabs: Callable[[str], str]) -> None:
    group = "<!-- tabs -->\n**A b**\n\n```sql\nx\n\ny\n```\n\n**C**\n\nMore.\n\n<!-- end of tabs -->\n"
    tabs = '=== "A b"\n\n    ```sql\n    x\n\n    y\n    ```\n\n=== "C"\n\n    More.\n\n'
    assert with_tabs(f"Before.\n\n{group}\nBetween.\n\n{group}") == f"Before.\n\n{tabs}\nBetween.\n\n{tabs}"
    assert with_tabs("**A**\n\nNo tabs.\n") == "**A**\n\nNo tabs.\n"


@pytest.mark.parametrize("inside", ["", "**A**\n\nx\n", "x\n\n**A**\n\nx\n\n**B**\n\nx\n"], ids=["none", "one", "text"])
def test_malformed_tabs_fail_the_build(with_tabs: Callable[[str], str], inside: str) -> None:
    with pytest.raises(ValueError, match="tabs need two labels"):
        with_tabs(f"<!-- tabs -->\n{inside}<!-- end of tabs -->\n")


def test_every_group_of_tabs_ends(with_tabs: Callable[[str], str]) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    grouped = {name: text.count("<!-- tabs -->") for name, text in pages.items() if "tabs -->" in text}
    assert sum(grouped.values()) >= 3
    for name in grouped:
        assert "tabs -->" not in with_tabs(pages[name])
