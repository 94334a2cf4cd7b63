"""Cost against size: lines in a log-log plot, with the slope of linear growth as a guide."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.growth.tables import is_of_one
from benchmarks.plots.page_tables import PageTable, measured
from benchmarks.plots.style import COLOURS, GUIDE, panels

_UNIT = re.compile(r",[^,]*?\b(µs|ms|s|MiB)\b[^,]*$")
_SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
_MEMORY = "MiB"
_MARKERS = "os^Dv<>"
_EXPONENTS = "exponents"
_GUIDE: Mapping[str, Any] = {"color": GUIDE, "linewidth": 0.9, "linestyle": (0, (1, 2))}
_FEW_DECADES = 300
"""A range of values below this has ticks between the powers of ten."""


def is_growth(table: PageTable) -> bool:
    """True if ``table`` has costs by size."""
    return _EXPONENTS in table.header


def title_of(table: PageTable) -> str:
    """The picture's title."""
    return f"{table.heading}: cost against size"


def describe(table: PageTable) -> str:
    """The picture in words, for a reader who does not see it."""
    sizes = _sizes(table)
    last = [each.rpartition(", ")[2] for each in table.column(_EXPONENTS)]
    lines = "; ".join(f"{row[0]}: {exponent}" for row, exponent in zip(table.rows, last, strict=True))
    return f"Log-log plot of cost against size, {sizes[0]:,} to {sizes[-1]:,}. Last exponents: {lines}."


def draw_growth(table: PageTable) -> Figure:
    """A panel for times, and one for memory if the table has it."""
    sizes = _sizes(table)
    seconds: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for row in table.rows:
        unit = _unit(row[0])
        values = [_value(cell) * _SECONDS.get(unit, 1.0) for cell in row[1 : 1 + len(sizes)]]
        (memory if unit == _MEMORY else seconds)[row[0]] = values
    kinds = [kind for kind in (seconds, memory) if kind]
    height = 3.3 + 0.17 * max(map(len, kinds))
    with panels(len(kinds), height, [1.7, 1.0][: len(kinds)]) as (figure, axes):
        for each, kind in zip(axes, kinds, strict=True):
            is_memory = kind is memory
            _draw(each, sizes, kind, first=len(seconds) * is_memory)
            each.set_title("memory" if is_memory else "time")
            each.set_ylabel("MiB" if is_memory else "seconds")
            each.yaxis.set_major_formatter(FuncFormatter(_mebibytes if is_memory else _duration))
            each.set_xlabel(f"size: {table.heading[0].lower()}{table.heading[1:]}")
    return figure


def _draw(axes: Axes, sizes: Sequence[int], lines: Mapping[str, Sequence[float]], first: int) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (line, values) in enumerate(lines.items(), start=first):
        dashes = (0, (4, 1.5)) if is_of_one(line) else "solid"
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        axes.plot(sizes, values, marker=marker, color=colour, linestyle=dashes, label=line)
    positive = [value for values in lines.values() for value in values if value > 0]
    lowest, highest = min(positive) / 1.6, max(positive) * 1.6
    axes.set_ylim(lowest, max(highest, lowest * 20))
    axes.set_xticks(sizes, [f"{size / 1000:g}k" if size >= 1000 else str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    lowest, highest = axes.get_ylim()
    if highest / lowest < _FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    growth = sizes[-1] / sizes[0]
    for decades in range(-12, 13, 2):
        start = 10.0**decades
        if lowest < start * growth and start < highest:
            axes.plot([sizes[0], sizes[-1]], [start, start * growth], **_GUIDE)
    axes.plot([], [], label="slope of linear growth", **_GUIDE)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8.0, ncols=1 if first else 2)


def _sizes(table: PageTable) -> list[int]:
    return [int(head.replace(",", "")) for head in table.header[1 : table.header.index(_EXPONENTS)]]


def _unit(line: str) -> str:
    found = _UNIT.search(line)
    if found is None:
        raise ValueError(f"the line {line!r} has no unit")
    return found[1]


def _value(cell: str) -> float:
    found = measured(cell)
    if found is None:
        raise ValueError(f"{cell!r} is no figure")
    return found.median


def _duration(seconds: float, _: object = None) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor * 0.999:
            return f"{seconds / factor:,.3g} {unit}"
    return f"{seconds / 1e-9:,.3g} ns"


def _mebibytes(value: float, _: object = None) -> str:
    return f"{value:,.3g}"
