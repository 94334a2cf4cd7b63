"""Two contenders side by side: how many times as good ours is as the other, with the range over all rounds."""

from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.figures import unit_of
from benchmarks.plots.page_tables import PageTable, measured
from benchmarks.plots.style import AHEAD, BEHIND, INK, draw_ranges, name_bars, panels

_RATIO = 3
"""The column with ours / theirs."""


class Advantage(NamedTuple):
    """A line of the table: above 1, ours is better. For a rate it is ours / theirs; for a time, theirs / ours.

    :param lowest: from our worst round and their best one.
    """

    line: str
    median: float
    lowest: float
    highest: float


def is_ratio(table: PageTable) -> bool:
    """True if ``table`` compares two contenders in which both were measured."""
    is_pair = table.header[_RATIO + 1 : _RATIO + 2] == ("",) and " / " in table.header[_RATIO]
    return is_pair and bool(advantages_of(table))


def title_of(table: PageTable) -> str:
    """The picture's title."""
    return f"{table.heading}: {table.header[1]} beside {table.header[2]}"


def advantages_of(table: PageTable) -> list[Advantage]:
    """Those lines that both contenders have, and in which no round was 0."""
    found = []
    for row in table.rows:
        ours, theirs = measured(row[1]), measured(row[2])
        line = row[0].rpartition(" (")[0] if row[0].endswith(")") else row[0]
        if ours is None or theirs is None or 0 in (*ours, *theirs):
            continue
        ratio = float(row[_RATIO])
        if not unit_of(line).more_is_better:
            ours, theirs = theirs, ours
            ratio = ours.median / theirs.median  # the table's, turned over, has too few digits
        found.append(Advantage(line, ratio, ours.lowest / theirs.highest, ours.highest / theirs.lowest))
    return found


def describe(table: PageTable) -> str:
    """The picture in words, for a reader who does not see it."""
    found = sorted(advantages_of(table), key=lambda each: each.median)
    ahead = sum(each.median > 1 for each in found)
    worst, best = found[0], found[-1]
    return (
        f"Bars: {table.header[1]} is ahead of {table.header[2]} in {ahead} of {len(found)} lines, from "
        f"{worst.median:.2f} times as good ({worst.line}) to {best.median:.2f} times ({best.line})."
    )


def draw_ratios(table: PageTable) -> Figure:
    """A bar for each line, from 1."""
    found = advantages_of(table)
    places = range(len(found))
    with panels(1, 1.15 + 0.24 * len(found)) as (figure, (axes,)):
        axes.set_xscale("log")
        axes.barh(
            places,
            [each.median - 1 for each in found],
            left=1.0,
            height=0.62,
            color=[AHEAD if each.median > 1 else BEHIND for each in found],
        )
        draw_ranges(axes, found)
        name_bars(axes, [each.line for each in found])
        lowest, highest = min(0.8, *(each.lowest for each in found)), max(1.25, *(each.highest for each in found))
        axes.set_xlim(lowest / 1.1, highest * 1.1)
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvline(1.0, color=INK, lw=1.0)
        axes.set_xlabel(f"times as good as {table.header[2]}: faster, or less time and memory; range over all rounds")
        for place, each in zip(places, found, strict=True):
            axes.text(1.01, place, f"{each.median:.2f}", transform=axes.get_yaxis_transform(), va="center")
    return figure
