"""The pictures of measured figures show the tables beside them."""

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="no matplotlib: install the extra plots")

from benchmarks.page import PAGES
from benchmarks.plots.page_tables import measured, tables_of
from benchmarks.plots.pictures import FOLDER, illustrated, pictures_of
from benchmarks.plots.style import is_drawn_alike, is_drawn_from

LARGEST = 60_000
NUMBER = re.compile(r"(?<![\w#])-?\d+(?:\.\d+)?")
MADE_NAME = re.compile(r"\b[a-z][0-9a-f]{10}\b")
AGAIN = "run: python -m benchmarks.plots"
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def alike(one: str, other: str) -> bool:
    """True if both are the same up to a hundredth of a point: the last digits may differ from one process to the next,
    and with them the names that are made of them."""
    one, other = MADE_NAME.sub("", one), MADE_NAME.sub("", other)
    if NUMBER.sub("", one) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) < 0.01 for a, b in pairs)


@pages
def test_every_picture_is_drawn_from_the_table_above_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pictures = list(pictures_of(page, text))
    assert len(pictures) >= 7
    assert illustrated(page, text) == text, AGAIN
    for picture in pictures:
        svg = (page.parent / FOLDER / picture.name).read_text(encoding="utf-8")
        assert is_drawn_from(svg, picture.table.text), f"{picture.name}: {AGAIN}"
        assert len(svg.encode()) < LARGEST


@pages
def test_every_table_of_figures_has_a_picture(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    drawn = {picture.table.lines for picture in pictures_of(page, text)}
    missing = [
        f"{table.heading}: line {table.lines[0] + 1}"
        for table in tables_of(text.split("\n"))
        if any(all(measured(row[column]) for row in table.rows) for column in range(1, len(table.header)))
        and table.lines not in drawn
    ]
    assert missing == []


@pytest.mark.slow
@pages
def test_a_picture_is_the_same_if_it_is_drawn_again(page: Path) -> None:
    for picture in pictures_of(page, page.read_text(encoding="utf-8")):
        svg = (page.parent / FOLDER / picture.name).read_text(encoding="utf-8")
        if is_drawn_alike(svg):
            assert alike(picture.svg(), svg), f"{picture.name}: {AGAIN}"


def test_pictures_with_other_numbers_or_other_parts_are_not_alike() -> None:
    assert alike('<path id="p6147cdc89e" d="M 1.000001 2"/>', '<path id="p6147cdc89f" d="M 1.000002 2"/>')
    assert not alike('<path d="M 1.02 2"/>', '<path d="M 1.00 2"/>')
    assert not alike('<path d="M 1 2"/>', '<path d="L 1 2"/>')


@pages
def test_a_changed_figure_makes_its_picture_outdated(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    first = next(pictures_of(page, text))
    changed = next(pictures_of(page, text.replace(first.table.rows[0][1], "12345", 1)))
    assert changed.name == first.name
    svg = (page.parent / FOLDER / first.name).read_text(encoding="utf-8")
    assert not is_drawn_from(svg, changed.table.text)


def test_no_picture_is_left_over() -> None:
    shown = {name for page in PAGES for name in re.findall(rf"\({FOLDER}/([^)]+)\)", page.read_text(encoding="utf-8"))}
    assert {path.name for path in (PAGES[0].parent / FOLDER).iterdir()} == shown
