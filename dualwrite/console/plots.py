"""Plots as lines in a box, for inline SVG: pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualwrite.console.units import SecondOfUnits, percentile

WIDTH, HEIGHT = 600, 120


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line of a plot.

    :param paths: the points of each unbroken piece, as SVG's polyline has them.
    :param last: its last value, as text.
    """

    name: str
    paths: tuple[str, ...]
    last: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    :param top: what its upper edge stands for; its lower one is 0.
    """

    title: str
    unit: str
    top: str
    lines: tuple[PlotLine, ...]


def plot(title: str, unit: str, series: Sequence[tuple[str, Sequence[float | None]]]) -> Plot:
    """A plot of ``series``: names, and values at equal distances. None is a gap."""
    highest = max((value for _, values in series for value in values if value is not None), default=0.0)
    top = rounded_up(highest)
    lines = tuple(PlotLine(name, _paths(values, top), _last(values)) for name, values in series)
    return Plot(title, unit, f"{top:g}", lines)


def plots_of(history: Sequence[SecondOfUnits], sampled: Sequence[tuple[int, int]]) -> list[Plot]:
    """The console's plots.

    :param history: seconds in their order.
    :param sampled: the counters of recoveries and replays, one pair for each look.
    """
    middle = [_milliseconds(percentile(second.durations, 0.5)) for second in history]
    slow = [_milliseconds(percentile(second.durations, 0.99)) for second in history]
    return [
        plot(
            "units of work",
            "per second",
            [
                ("committed", [float(each.committed) for each in history]),
                ("not committed", [float(each.others) for each in history]),
            ],
        ),
        plot("duration", "ms", [("p50", middle), ("p99", slow)]),
        plot(
            "recoveries and replays",
            "since the start",
            [
                ("recoveries", [float(recoveries) for recoveries, _ in sampled]),
                ("replays", [float(replays) for _, replays in sampled]),
            ],
        ),
    ]


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 … that is not below ``value``; fractions, too."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size < value:
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next(size * part for part in (0.1, 0.2, 0.5, 1.0) if size * part >= value)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _last(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    return f"{known[-1]:.3g}" if known[-1] < 1000 else f"{known[-1]:,.0f}"


def _paths(values: Sequence[float | None], top: float) -> tuple[str, ...]:
    pieces: list[list[str]] = [[]]
    step = WIDTH / max(1, len(values) - 1)
    for number, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{number * step:.1f},{HEIGHT - value / top * HEIGHT:.1f}")
    return tuple(" ".join(piece) for piece in pieces if piece)
