"""What several contenders need, by size: a line for each."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.plots.page_tables import PageTable, measured
from benchmarks.plots.style import COLOURS, OURS, OURS_TOO, THEIRS, panels

_COLOURS = (OURS, OURS_TOO, COLOURS[1], THEIRS)
_MARKERS = "os^D"


def is_by_size(table: PageTable) -> bool:
    """True if each row of ``table`` is a size, with a figure for each contender."""
    is_compared = table.header[0] != "" and 1 < len(table.header) - 1 <= len(_COLOURS)
    return is_compared and len(table.rows) > 2 and all(measured(cell) for row in table.rows for cell in row)


def title_of(table: PageTable) -> str:
    """The picture's title."""
    return table.heading


def describe(table: PageTable) -> str:
    """The picture in words, for a reader who does not see it."""
    first, last = table.rows[0], table.rows[-1]
    ends = (
        f"{contender}: {first[column]} to {last[column]}" for column, contender in enumerate(table.header) if column
    )
    return f"Lines by {table.header[0]}, {first[0]} to {last[0]}. {'; '.join(ends)}."


def draw_sizes(table: PageTable) -> Figure:
    """A line for each contender; the sizes are on a logarithmic scale."""
    sizes = _numbers(table, table.header[0])
    with panels(1, 3.4) as (figure, (axes,)):
        for contender, colour, marker in zip(table.header[1:], _COLOURS, _MARKERS, strict=False):
            axes.plot(sizes, _numbers(table, contender), color=colour, marker=marker, label=contender)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,g}" for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(table.header[0])
        axes.set_ylim(0, None)
        axes.grid(axis="y")
        axes.legend(loc="upper left")
    return figure


def _numbers(table: PageTable, head: str) -> list[float]:
    return [found.median for cell in table.column(head) if (found := measured(cell))]
