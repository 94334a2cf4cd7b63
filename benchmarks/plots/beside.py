"""Pictures beside a report of the benchmarks, if the library that draws them is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path


def draw_beside(report: Path) -> None:
    """Draw the tables of ``report`` in Markdown, and show the pictures in it. Without matplotlib, say on stderr that
    there are none."""
    if find_spec("matplotlib") is None:
        print(f"{report}: no pictures: matplotlib is not installed; run pip install '.[plots]'", file=sys.stderr)
        return
    from benchmarks.plots.pictures import draw_page

    draw_page(report)
