"""Amounts of one unit: a bar for each row, a panel for each column, on one scale."""

import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.figures import UNITS
from benchmarks.plots.page_tables import PageTable, measured
from benchmarks.plots.style import OURS, draw_ranges, name_bars, panels

_UNITS = {"s": "seconds", "ms": "milliseconds"}
_LONGEST = 44
"""Characters of a line in a bar's name."""


def is_amounts(table: PageTable) -> bool:
    """True if the rows of ``table`` have names, no units of their own, and a figure in every cell of a column."""
    has_units = any(row[0].rpartition(" (")[0].rpartition(", ")[2] in UNITS for row in table.rows)
    return table.header[0] == "" and len(table.rows) > 1 and not has_units and bool(measures_of(table))


def title_of(table: PageTable) -> str:
    """The picture's title."""
    return table.heading


def measures_of(table: PageTable) -> list[str]:
    """The columns with a figure in every cell."""
    return [
        head
        for column, head in enumerate(table.header)
        if column and all(measured(row[column]) is not None for row in table.rows)
    ]


def describe(table: PageTable) -> str:
    """The picture in words, for a reader who does not see it."""
    names, said = [row[0] for row in table.rows], []
    for measure in measures_of(table):
        cells = [cell.partition(" (")[0] for cell in table.column(measure)]
        said.append(f"{measure}: {'; '.join(f'{n}: {cell}' for n, cell in zip(names, cells, strict=True))}.")
    return f"Bars. {' '.join(said)}"


def draw_amounts(table: PageTable) -> Figure:
    """A panel for each measure. All have the same scale."""
    measures, names = measures_of(table), [textwrap.fill(row[0], _LONGEST) for row in table.rows]
    values = {head: [value for cell in table.column(head) if (value := measured(cell))] for head in measures}
    highest = max(each.highest for column in values.values() for each in column)
    lines = sum(name.count("\n") + 1.6 for name in names)
    with panels(len(measures), 1.0 + 0.17 * lines) as (figure, axes):
        for each, (measure, found) in zip(axes, values.items(), strict=True):
            each.barh(range(len(found)), [value.median for value in found], height=0.62, color=OURS)
            if any(value.lowest < value.highest for value in found):
                draw_ranges(each, found)
            name_bars(each, names if each is axes[0] else [""] * len(names))
            each.set_xlim(0, highest * 1.05)
            each.xaxis.set_major_locator(MaxNLocator(4))
            each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            each.set_title(_UNITS.get(measure, measure))
    return figure
