"""How all pictures look: colours for light and for dark pages, and SVG that is the same for the same data.

Text stays text, so a picture is small. Its ink changes with the reader's colour scheme (``prefers-color-scheme``), also
where a page shows it with ``<img>``.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, GUIDE, GRID = "#3b4252", "#8a93a3", "#c9ced6"
"""Of text and axes; of guides; of grids. :data:`_ON_DARK` has what they are on a dark page."""
_ON_DARK = {INK: "#cfd6e1", GUIDE: "#7d8799", GRID: "#3f4656"}
COLOURS = ("#1f77b4", "#d9670a", "#2a9a3d", "#9467bd", "#d13b3b", "#8d6e5c", "#128fa0", "#7d7d7d")
"""Of data, on either kind of page."""
OURS, OURS_TOO, THEIRS = COLOURS[0], COLOURS[6], COLOURS[7]
AHEAD, BEHIND = COLOURS[0], COLOURS[1]
WIDTH = 7.4
"""Inches of every picture: the width of a page."""
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dualwrite",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "figure.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
_NO_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def panels(columns: int, height: float, widths: Sequence[float] | None = None) -> Iterator[tuple[Figure, list[Axes]]]:
    """A picture of so many panels side by side; what is drawn in the ``with`` block has its style."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False, width_ratios=widths)
        yield figure, list(axes[0])


class Ranged(Protocol):
    """A median over all rounds, with the range."""

    @property
    def median(self) -> float:
        """Of all rounds."""

    @property
    def lowest(self) -> float:
        """The least of any round."""

    @property
    def highest(self) -> float:
        """The most of any round."""


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Name the horizontal bars, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def draw_ranges(axes: Axes, values: Sequence[Ranged]) -> None:
    """Draw the range of each of the horizontal bars."""
    axes.errorbar(
        [each.median for each in values],
        range(len(values)),
        xerr=[[each.median - each.lowest for each in values], [each.highest - each.median for each in values]],
        fmt="none",
        ecolor=INK,
        elinewidth=0.9,
        capsize=2.0,
    )


def as_svg(figure: Figure, title: str, source: str) -> str:
    """``figure`` as SVG. It names the table that it was drawn from, with the text ``source``, and the library."""
    file = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        figure.suptitle(title, x=0.01, ha="left")
        FigureCanvasSVG(figure).print_svg(file, metadata={**_NO_DATE, "Title": title})
    svg = file.getvalue()
    dark = "".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {colour} !important }} '
        for light, colour in _ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"@media (prefers-color-scheme: dark) {{ {dark}}}"
    svg = svg.replace("</style>", f"\n  {style}\n  </style>", 1)
    svg = re.sub(r"<!--.*?-->\n?", "", svg.replace("\r", ""), flags=re.DOTALL)  # glyphs and groups have comments
    return svg.replace("<metadata>", f"<desc>{_origin(source)}{_LIBRARY}</desc>\n <metadata>", 1)


_LIBRARY = f"matplotlib {mpl.__version__}"


def _origin(source: str) -> str:
    return f"drawn from the table {hashlib.sha256(source.encode()).hexdigest()[:16]} by "


def is_drawn_from(svg: str, source: str) -> bool:
    """True if the picture ``svg`` was drawn from the table with the text ``source``."""
    return _origin(source) in svg


def is_drawn_alike(svg: str) -> bool:
    """True if this version of the library has drawn ``svg``: only then a new picture has the same bytes."""
    return f" by {_LIBRARY}<" in svg
