"""A page's tables as pictures beside it: which kind of picture a table has, where it is, and the line that shows it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.plots import amounts_plot, growth_plot, ratio_plot, sizes_plot, standings_plot
from benchmarks.plots.page_tables import PageTable, tables_of
from benchmarks.plots.style import as_svg

FOLDER = "plots"
"""Beside the page."""
_SHOWN = re.compile(rf"!\[[^]]*\]\({FOLDER}/[^)]+\.svg\)")


@dataclass(frozen=True)
class KindOfPicture:
    """How a kind of table is drawn.

    :param describe: the alternative text.
    """

    applies: Callable[[PageTable], bool]
    title: Callable[[PageTable], str]
    describe: Callable[[PageTable], str]
    draw: Callable[[PageTable], Figure]


KINDS = (
    KindOfPicture(growth_plot.is_growth, growth_plot.title_of, growth_plot.describe, growth_plot.draw_growth),
    KindOfPicture(ratio_plot.is_ratio, ratio_plot.title_of, ratio_plot.describe, ratio_plot.draw_ratios),
    KindOfPicture(
        standings_plot.is_standings, standings_plot.title_of, standings_plot.describe, standings_plot.draw_standings
    ),
    KindOfPicture(sizes_plot.is_by_size, sizes_plot.title_of, sizes_plot.describe, sizes_plot.draw_sizes),
    KindOfPicture(amounts_plot.is_amounts, amounts_plot.title_of, amounts_plot.describe, amounts_plot.draw_amounts),
)


@dataclass(frozen=True)
class Picture:
    """A table's picture.

    :param name: its file, in FOLDER.
    """

    table: PageTable
    kind: KindOfPicture
    name: str

    @property
    def line(self) -> str:
        """Shows it on the page."""
        return f"![{self.kind.describe(self.table)}]({FOLDER}/{self.name})"

    def svg(self) -> str:
        """Draw it."""
        return as_svg(self.kind.draw(self.table), self.kind.title(self.table), self.table.text)


def pictures_of(page: Path, text: str) -> Iterator[Picture]:
    """Those of the page with ``text``, in order."""
    names: dict[str, int] = {}
    for table in tables_of(text.split("\n")):
        kind = next((each for each in KINDS if each.applies(table)), None)
        if kind is not None:
            slug = f"{page.stem}-{re.sub(r'[^a-z0-9]+', '-', table.heading.lower()).strip('-')}"
            names[slug] = number = names.get(slug, 0) + 1
            yield Picture(table, kind, f"{slug}-{number}.svg" if number > 1 else f"{slug}.svg")


def illustrated(page: Path, text: str) -> str:
    """``text`` of ``page`` with a line below each such table that shows its picture, in place of a former one."""
    lines = text.split("\n")
    for picture in reversed(list(pictures_of(page, text))):
        after = picture.table.lines[1] + 1
        until = after
        if lines[after + 1 : after + 2] and _SHOWN.fullmatch(lines[after + 1]):
            until = after + 2
        lines[after:until] = ["", picture.line]
    return "\n".join(lines)


def draw_page(page: Path) -> list[Path]:
    """Draw every picture of ``page``, remove those of earlier tables, and show them on the page."""
    text = page.read_text(encoding="utf-8")
    folder = page.parent / FOLDER
    drawn = {folder / picture.name: picture.svg() for picture in pictures_of(page, text)}
    if drawn:
        folder.mkdir(exist_ok=True)
    for former in folder.glob(f"{page.stem}-*.svg"):
        if former not in drawn:
            former.unlink()
    for path, svg in drawn.items():
        path.write_text(svg, encoding="utf-8")
    page.write_text(illustrated(page, text), encoding="utf-8")
    return list(drawn)
