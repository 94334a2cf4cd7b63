"""A drawing as SVG text: shapes, arrows and words, for light and for dark pages.

Words stay words, so a screen reader reads them and a search finds them. A picture stands on a card of its own colour:
it is legible also where the page does not follow the reader's colour scheme.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

_LIGHT = {
    "card": "#ffffff",
    "edge": "#d8dee9",
    "ink": "#2e3440",
    "quiet": "#667085",
    "line": "#7b8494",
    "box": "#f4f6f9",
    "accent": "#1668a8",
    "soft": "#e3eef8",
}
_DARK = {
    "card": "#1d212b",
    "edge": "#394150",
    "ink": "#dfe5ee",
    "quiet": "#9aa5b8",
    "line": "#77829a",
    "box": "#272d3a",
    "accent": "#79bcf2",
    "soft": "#20384d",
}
_FONT = "-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_HEAD = 6.5
"""The length of an arrow's head."""
_CHARACTER = 0.6
"""The width of a character in its font size, at most: capitals and wide fonts included, on the average."""


class Point(NamedTuple):
    """A place in a drawing; y grows downwards."""

    x: float
    y: float


class Drawing:
    """Shapes in the order in which they are drawn.

    :param title: what the picture shows, in some words.
    :param description: the same in a sentence, for a reader who does not see it.
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self._parts: list[str] = []

    def words(self, at: Point, text: str, classes: str = "", *, anchor: str = "middle", size: float = 13.0) -> None:
        """Write ``text`` in one line, whose base is at ``at``."""
        place = f'x="{number(at.x)}" y="{number(at.y)}"'
        style = f'text-anchor="{anchor}" font-size="{number(size)}"'
        self._parts.append(f"<text {place} {style}{_class(classes)}>{escape(text)}</text>")

    def box(self, corner: Point, size: Point, classes: str = "box", *, radius: float = 8.0, name: str = "") -> None:
        """A rectangle with round corners.

        :param name: what it stands for, for a reader of the file.
        """
        place = f'x="{number(corner.x)}" y="{number(corner.y)}" width="{number(size.x)}" height="{number(size.y)}"'
        named = f" data-name={quoteattr(name)}" if name else ""
        self._parts.append(f'<rect {place} rx="{number(radius)}"{_class(classes)}{named}/>')

    def line(self, points: Sequence[Point], classes: str = "line", *, radius: float = 9.0, name: str = "") -> None:
        """A line through ``points``, whose corners are round."""
        named = f" data-name={quoteattr(name)}" if name else ""
        plain = 'fill="none" stroke="currentColor"'  # for a page without its style sheet
        self._parts.append(f'<path d="{_path(points, radius)}" {plain}{_class(classes)}{named}/>')

    def arrow(self, points: Sequence[Point], classes: str = "line", *, radius: float = 9.0, name: str = "") -> None:
        """A line with a head at its end."""
        tip, before = points[-1], points[-2]
        ux, uy = _direction(before, tip)
        base = Point(tip.x - ux * _HEAD, tip.y - uy * _HEAD)
        self.line([*points[:-1], base], classes, radius=radius, name=name)
        side = _HEAD * 0.52
        corners = [tip, Point(base.x - uy * side, base.y + ux * side), Point(base.x + uy * side, base.y - ux * side)]
        corner = " ".join(f"{number(each.x)},{number(each.y)}" for each in corners)
        heads = " ".join(["head", *(each for each in classes.split() if each == "accent")])
        self._parts.append(f'<polygon points="{corner}"{_class(heads)}/>')

    def dot(self, at: Point, radius: float, classes: str = "head") -> None:
        """A filled circle."""
        self._parts.append(f'<circle cx="{number(at.x)}" cy="{number(at.y)}" r="{number(radius)}"{_class(classes)}/>')

    @contextmanager
    def group(self, classes: str) -> Iterator[None]:
        """What is drawn in the ``with`` block, a style sheet can change as one."""
        self._parts.append(f"<g{_class(classes)}>")
        yield
        self._parts.append("</g>")

    def fragment(self, classes: str) -> str:
        """The drawing inside a page, which brings the style, and the words for a reader who does not see it."""
        return "".join([f'<svg class="{classes}" {self._size} aria-hidden="true">', *self._parts, "</svg>"])

    def file(self) -> str:
        """The drawing as a file of its own."""
        card = f'x="0.5" y="0.5" width="{number(self.width - 1)}" height="{number(self.height - 1)}" rx="12"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect {card} class="card"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _size(self) -> str:
        width, height = number(self.width), number(self.height)
        return f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'


def width_of(text: str, size: float) -> float:
    """The width of ``text``, rather too much than too little."""
    return len(text) * size * _CHARACTER


def number(value: float) -> str:
    """``value`` with two digits at most: the same text on every machine."""
    return f"{round(value, 2):g}"


def _class(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


def _direction(start: Point, end: Point) -> tuple[float, float]:
    length = ((end.x - start.x) ** 2 + (end.y - start.y) ** 2) ** 0.5
    return (end.x - start.x) / length, (end.y - start.y) / length


def _path(points: Sequence[Point], radius: float) -> str:
    steps = [f"M{number(points[0].x)} {number(points[0].y)}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (ix, iy), (ox, oy) = _direction(before, corner), _direction(corner, after)
        room = min(radius, _length(before, corner) / 2, _length(corner, after) / 2)
        steps.append(f"L{number(corner.x - ix * room)} {number(corner.y - iy * room)}")
        steps.append(
            f"Q{number(corner.x)} {number(corner.y)} {number(corner.x + ox * room)} {number(corner.y + oy * room)}"
        )
    steps.append(f"L{number(points[-1].x)} {number(points[-1].y)}")
    return "".join(steps)


def _length(start: Point, end: Point) -> float:
    return abs(end.x - start.x) + abs(end.y - start.y)


def _rules(colours: dict[str, str]) -> str:
    return (
        f"text{{fill:{colours['ink']}}}"
        f".card{{fill:{colours['card']};stroke:{colours['edge']}}}"
        f".quiet{{fill:{colours['quiet']}}}"
        f".line{{fill:none;stroke:{colours['line']}}}"
        f".head{{fill:{colours['line']}}}"
        f".box{{fill:{colours['box']};stroke:{colours['edge']}}}"
        f".around{{fill:none;stroke:{colours['line']}}}"
        f".end{{fill:{colours['soft']};stroke:{colours['accent']}}}"
        f"path.accent{{stroke:{colours['accent']}}}"
        f"text.accent,.head.accent{{fill:{colours['accent']}}}"
    )


_STYLE = (
    f"text{{font-family:{_FONT}}}"
    ".code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
    ".line{stroke-width:1.4}.life{stroke-width:1;stroke-dasharray:2 4}.back{stroke-dasharray:5 4}"
    ".around{stroke-dasharray:4 4}.strong{font-weight:600}path.accent{stroke-width:2}"
    f"{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)
