"""A soak's samples as pictures: one SVG, a panel for each measured thing."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.soak.growth import WARM_UP, Growth


def draw(path: Path, seconds: Sequence[float], series: dict[str, list[float]], found: Sequence[Growth]) -> bool:
    """Draw the picture into ``path``; False if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from benchmarks.plots.style import COLOURS, GUIDE, as_svg, panels

    names = list(series)
    columns = 2
    height = 1.5 * -(-len(names) // columns)
    with panels(1, height) as (figure, (whole,)):
        whole.remove()
        grid = figure.subplots(-(-len(names) // columns), columns, squeeze=False, sharex=True)
        flat = {growth.name: growth.is_flat for growth in found}
        for number, axes in enumerate(grid.flat):
            if number >= len(names):
                axes.remove()
                continue
            name = names[number]
            axes.plot([at / 60 for at in seconds], series[name], color=COLOURS[0 if flat[name] else 4], linewidth=1.0)
            axes.axvline(WARM_UP * seconds[-1] / 60, color=GUIDE, linestyle=(0, (1, 2)), linewidth=0.9)
            axes.set_ylim(0, max(*series[name], 1.0) * 1.2)
            axes.set_title(name if flat[name] else f"{name}: grows")
            axes.grid(axis="y")
        for axes in grid[-1]:
            axes.set_xlabel("minutes")
        path.write_text(as_svg(figure, "Soak", repr(sorted(series.items()))), encoding="utf-8")
    return True
