"""The pictures of the benchmarks' tables: what they show, in which colours, and where the page shows them."""

import sys
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.figures import Sample
from benchmarks.growth.tables import GrowthTable
from benchmarks.plots.beside import draw_beside
from benchmarks.plots.page_tables import PageTable, measured, tables_of
from benchmarks.report import FigureComparison
from benchmarks.standings import Standings

pytest.importorskip("matplotlib")

GROWTH = GrowthTable(
    "things", {size: {"create, s": 0.1 * size, "one thing, µs": 7.0, "memory, MiB": 3.0} for size in (1, 10, 1000)}
)
ROUNDS: list[Sample] = [{"1 producer, per second": 200.0, "1 producer, p50": 1.0}] * 2
THEIRS: list[Sample] = [
    {"1 producer, per second": 80.0, "1 producer, p50": 0.5},
    {"1 producer, per second": 120.0, "1 producer, p50": 0.5},
]
RATIOS = FigureComparison("transactions", "os", {"dualwrite": ROUNDS, "kafka": THEIRS})
STANDINGS = Standings(
    "throughput",
    "os",
    {name: [{"per second": 5.0, "p50": 2.0}] for name in ("dualwrite, native", "dualwrite, librdkafka", "outbox")},
    ours="dualwrite, native",
    compared=["per second"],
)
ALONE = FigureComparison("start", "os", {"dualwrite": ROUNDS})
NOT_DRAWN = "\n| a | b |\n|---|---|\n| text | more |\n"


AMOUNTS = """
#### recovery

| | s | processors busy: broker + clients |
|---|--:|--:|
| before the decision, and a name that is longer than a line of a picture | 0.39 (0.36 to 0.44) | 0.43 + 0.72 |
| after it | 1,000 | 0.28 + 0.69 |
"""
BY_SIZE = """
#### cost of a batch

| partitions | whole batch | two sinks |
|--:|--:|--:|
| 1 | 0.14 | 0.22 |
| 10 | 0.28 | 0.30 |
| 200 | 0.53 | 0.66 |
"""


def page(*tables: GrowthTable | FigureComparison | Standings) -> str:
    return "\n".join(line for table in tables for line in table.markdown())


def table_of(table: GrowthTable | FigureComparison | Standings) -> PageTable:
    (found,) = tables_of(page(table).split("\n"))
    return found


def test_a_table_is_read_as_the_benchmarks_write_it() -> None:
    found = table_of(RATIOS)
    assert found.heading == "transactions, durability=os"
    assert found.header[:3] == ("", "dualwrite", "Apache Kafka")
    assert found.rows[0][:4] == ("1 producer, per second (transactions)", "200 (200 to 200)", "100 (80 to 120)", "2.00")
    assert found.lines == (2, 5)


@pytest.mark.parametrize(
    ("cell", "values"),
    [("1,333 (802 to 1,717)", (1333, 802, 1717)), ("0.0881", (0.0881,) * 3), ("4.1e-05", (4.1e-5,) * 3)],
)
def test_a_cell_is_a_median_with_its_range(cell: str, values: tuple[float, float, float]) -> None:
    assert measured(cell) == values


@pytest.mark.parametrize("cell", ["", "ahead", "0.35 + 0.23", "faster"])
def test_a_cell_of_anything_else_is_no_figure(cell: str) -> None:
    assert measured(cell) is None


def test_above_1_ours_is_better_whether_more_or_less_of_it_is_better() -> None:
    from benchmarks.plots.ratio_plot import advantages_of

    rate, latency = advantages_of(table_of(RATIOS))
    assert rate == ("1 producer, per second", 2.0, pytest.approx(200 / 120), pytest.approx(2.5))
    assert latency == ("1 producer, p50", 0.5, 0.5, 0.5)


@pytest.mark.slow
def test_each_kind_of_table_is_drawn_below_it_and_no_other(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    report.write_text(page(GROWTH, RATIOS, STANDINGS, ALONE) + NOT_DRAWN + page(GROWTH))
    draw_beside(report)
    text = report.read_text()
    names = ["things", "transactions-durability-os", "throughput-durability-os", "things-2"]
    shown = [line for line in text.split("\n") if line.startswith("![")]
    assert [line.rpartition("](")[2] for line in shown] == [f"plots/report-{name}.svg)" for name in names]
    assert shown[0].startswith("![Log-log plot of cost against size, 1 to 1,000. Last exponents: create, s: 1.00; one ")
    assert "dualwrite is ahead of Apache Kafka in 1 of 2 lines, from 0.50 times as good (1 producer, p50)" in shown[1]
    assert "Per second: dualwrite, native: 5; dualwrite, librdkafka: 5; outbox: 5." in shown[2]
    drawn = {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    assert set(drawn) == {f"report-{name}.svg" for name in names}
    for svg in drawn.values():
        ElementTree.fromstring(svg)
        assert "20" + "26-" not in svg  # no date
    assert ">slope of linear growth<" in drawn["report-things.svg"]
    draw_beside(report)
    assert report.read_text() == text
    assert {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()} == drawn


def pictures(text: str) -> dict[str, tuple[str, str]]:
    """By the heading: the words and the SVG of each picture."""
    from benchmarks.plots.pictures import pictures_of

    return {found.table.heading: (found.line, found.svg()) for found in pictures_of(Path("page.md"), text)}


def test_amounts_of_one_unit_are_bars_with_their_ranges() -> None:
    line, svg = pictures(AMOUNTS)["recovery"]
    assert (
        "![Bars. s: before the decision, and a name that is longer than a line of a picture: 0.39; after it: 1," in line
    )
    words = [each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"recovery", "seconds", "after it", "before the decision, and a name that is"} <= set(words)
    assert svg.count('id="LineCollection_') == 1, "the ranges"
    without = pictures(AMOUNTS.replace(" (0.36 to 0.44)", ""))["recovery"][1]
    assert "LineCollection" not in without


def test_figures_by_size_are_lines_of_contenders() -> None:
    line, svg = pictures(BY_SIZE)["cost of a batch"]
    assert "Lines by partitions, 1 to 200. whole batch: 0.14 to 0.53; two sinks: 0.22 to 0.66." in line
    words = {each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"cost of a batch", "partitions", "whole batch", "two sinks", "200"} <= words


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(page(ALONE), id="each row has its own unit"),
        pytest.param(AMOUNTS.replace("1,000", "no end"), id="a figure is missing"),
        pytest.param(BY_SIZE.replace("0.30", "n/a"), id="a size has no figure"),
        pytest.param(NOT_DRAWN, id="text"),
    ],
)
def test_a_table_whose_bars_would_not_compare_is_not_drawn(table: str) -> None:
    assert pictures(f"## a table\n{table}") == {}


def test_the_picture_of_a_table_that_is_gone_is_removed(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    report.write_text(page(GROWTH, STANDINGS))
    draw_beside(report)
    (tmp_path / "plots" / "another-page.svg").write_text("")
    report.write_text(page(STANDINGS))
    draw_beside(report)
    left = {path.name for path in (tmp_path / "plots").iterdir()}
    assert left == {"report-throughput-durability-os.svg", "another-page.svg"}


def test_without_the_library_a_report_has_its_tables_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    report.write_text(page(GROWTH))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("benchmarks.plots.beside.find_spec", lambda _: None)
    draw_beside(report)
    assert report.read_text() == page(GROWTH)
    assert "no pictures: matplotlib is not installed" in capsys.readouterr().err


def luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_data_can_be_told_from_a_light_and_from_a_dark_page() -> None:
    from benchmarks.plots.style import COLOURS

    for colour, paper in product(COLOURS, ("#ffffff", "#1e2129")):  # of the site's two palettes
        assert contrast(colour, paper) >= 3, (colour, paper)
