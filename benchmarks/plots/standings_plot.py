"""Several contenders: bars with the range over all rounds, a panel for each measure."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.plots.page_tables import PageTable, measured
from benchmarks.plots.style import OURS, OURS_TOO, THEIRS, draw_ranges, name_bars, panels

_COMPARED = "ours / its "
_RATES = ("per second",)


def is_standings(table: PageTable) -> bool:
    """True if ``table`` has a row for each contender, of which one is ours."""
    return any(head.startswith(_COMPARED) for head in table.header)


def title_of(table: PageTable) -> str:
    """The picture's title."""
    return table.heading


def measures_of(table: PageTable) -> list[str]:
    """The columns that are drawn: what was measured, and no ratio or load."""
    return [head for head in table.header[1:] if "ours / its" not in head and "busy" not in head]


def describe(table: PageTable) -> str:
    """The picture in words, for a reader who does not see it."""
    first = measures_of(table)[0]
    medians = zip(table.column(table.header[0]), table.column(first), strict=True)
    shown = "; ".join(f"{contender}: {cell.partition(' (')[0]}" for contender, cell in medians)
    return f"Bars of {', '.join(measures_of(table))}. {first[0].upper()}{first[1:]}: {shown}."


def draw_standings(table: PageTable) -> Figure:
    """A panel for each measure, in which longer bars are more."""
    measures, contenders = measures_of(table), [row[0] for row in table.rows]
    ours = contenders[table.column(next(head for head in table.header if head.startswith(_COMPARED))).index("1.00")]
    colours = [OURS if each == ours else OURS_TOO if _kin(each) == _kin(ours) else THEIRS for each in contenders]
    places = range(len(contenders))
    with panels(len(measures), 1.2 + 0.27 * len(contenders)) as (figure, axes):
        for each, measure in zip(axes, measures, strict=True):
            values = [measured(cell) for cell in table.column(measure)]
            found = [value for value in values if value is not None]
            each.barh(places, [value.median for value in found], height=0.62, color=colours)
            draw_ranges(each, found)
            name_bars(each, contenders if each is axes[0] else [""] * len(contenders))
            each.set_xlim(0, None)
            each.xaxis.set_major_locator(MaxNLocator(3))
            each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            each.set_title(measure)
            each.set_xlabel("more is better" if measure.endswith(_RATES) else "less is better")
    return figure


def _kin(contender: str) -> str:
    """What two ways to do the same have in common: ``dualwrite, native`` and ``dualwrite, librdkafka``."""
    return contender.partition(", ")[0]
