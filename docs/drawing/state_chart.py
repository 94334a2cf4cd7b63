"""A state machine as a picture: boxes on a grid, and arrows between them with right angles.

The states, the arrows and their labels come from the machine's table; a chart says where each box stands, and on which
sides an arrow leaves and arrives where the shortest way is not the clear one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from drawing.svg import Drawing, Point

LABEL, LINE = 11.0, 13.0
"""The size of a label, and the height of its line."""
LONGEST_NAME = 20
"""Characters of a line in a box."""
_NAME = 13.0
_BESIDE = 6.0


USUAL = Point(150, 58)
"""The size of a box."""


@dataclass(frozen=True)
class Box:
    """A state in the chart.

    :param at: its middle.
    :param lines: its name.
    :param code: a word below the name.
    :param kind: ``box``, ``end``, or ``around`` for a box around others.
    """

    at: Point
    lines: tuple[str, ...]
    code: str = ""
    size: Point = USUAL
    kind: str = "box"

    def side(self, name: str, shift: float) -> Point:
        """The middle of a side (l, r, t, b), moved along it."""
        if name in ("l", "r"):
            return Point(self.at.x + self.size.x / 2 * (1 if name == "r" else -1), self.at.y + shift)
        return Point(self.at.x + shift, self.at.y + self.size.y / 2 * (1 if name == "b" else -1))

    @property
    def corner(self) -> Point:
        """The upper left one."""
        return Point(self.at.x - self.size.x / 2, self.at.y - self.size.y / 2)


@dataclass(frozen=True)
class Way:
    """How an arrow goes.

    :param sides: where it leaves and arrives, as ``rl``; empty for the shortest way.
    :param shifts: how far from the middle of those sides.
    :param turn: where it turns, as a part of the distance between the boxes; or, if it leaves and arrives on one side,
        how far outside.
    :param segment: the part of the way that has the label.
    :param along: where on a vertical part the label is, from its start (0) to its end (1).
    :param beside: on which side of a vertical part the label is: 1 is right.
    :param copy: which box of the target, if it has several.
    :param wrap: the label's longest line, in characters.
    """

    sides: str = ""
    shifts: tuple[float, float] = (0, 0)
    turn: float = 0.86
    segment: int = 0
    along: float = 0.5
    beside: int = 1
    copy: int = 0
    wrap: int = 40


@dataclass(frozen=True)
class Arrow:
    """A transition, or several between the same two states."""

    source: str
    target: str
    label: str

    @property
    def name(self) -> str:
        """Names it in the file."""
        return f"{self.source} > {self.target}: {self.label}"


@dataclass(frozen=True)
class StateChart:
    """A machine with its places.

    :param boxes: by state; a state at which many ways end may stand there more than once.
    :param begins: the arrow to the first state, from a point above it; its source has no box.
    :param begin_shift: where that arrow arrives, from the middle of the box.
    """

    title: str
    description: str
    size: Point
    boxes: Mapping[str, tuple[Box, ...]]
    arrows: tuple[Arrow, ...]
    ways: Mapping[tuple[str, str], Way] = field(default_factory=dict)
    begins: Arrow | None = None
    begin_shift: float = 0

    def svg(self) -> str:
        """The picture.

        :raises KeyError: if a state has no box.
        :raises ValueError: if an arrow needs a way and has none.
        """
        drawing = Drawing(self.size.x, self.size.y, self.title, self.description)
        for boxes in self.boxes.values():
            for box in boxes:
                _draw_box(drawing, box)
        for arrow in self.arrows:
            self._draw(drawing, arrow)
        if self.begins is not None:
            self._begin(drawing, self.begins)
        return drawing.file()

    def path_of(self, arrow: Arrow) -> list[Point]:
        """The corners of an arrow's way."""
        way = self._way(arrow)
        source, target = self.boxes[arrow.source][0], self.boxes[arrow.target][way.copy]
        sides = way.sides or _shortest(source, target, arrow)
        start, end = source.side(sides[0], way.shifts[0]), target.side(sides[1], way.shifts[1])
        return list(_corners(start, end, sides, way.turn))

    def label_of(self, arrow: Arrow) -> list[tuple[Point, str, str]]:
        """The lines of an arrow's label: place, text, anchor."""
        way, points = self._way(arrow), self.path_of(arrow)
        start, end = points[way.segment], points[way.segment + 1]
        lines = wrapped(arrow.label, way.wrap)
        if abs(start.y - end.y) < 1:
            anchor = "middle" if len(points) == 2 or way.segment else "start" if end.x > start.x else "end"
            shift = {"middle": (end.x - start.x) / 2, "start": 5, "end": -5}[anchor]
            top = start.y - 5 - LINE * (len(lines) - 1)
            return [(Point(start.x + shift, top + LINE * row), line, anchor) for row, line in enumerate(lines)]
        top = start.y + (end.y - start.y) * way.along + LABEL * 0.35 - LINE * (len(lines) - 1) / 2
        x, anchor = start.x + _BESIDE * way.beside, "start" if way.beside > 0 else "end"
        return [(Point(x, top + LINE * row), line, anchor) for row, line in enumerate(lines)]

    def _way(self, arrow: Arrow) -> Way:
        return self.ways.get((arrow.source, arrow.target), Way())

    def _draw(self, drawing: Drawing, arrow: Arrow) -> None:
        drawing.arrow(self.path_of(arrow), name=arrow.name)
        for at, line, anchor in self.label_of(arrow):
            drawing.words(at, line, "quiet", anchor=anchor, size=LABEL)

    def _begin(self, drawing: Drawing, arrow: Arrow) -> None:
        end = self.boxes[arrow.target][0].side("t", self.begin_shift)
        start = Point(end.x, end.y - 56)
        drawing.dot(start, 5)
        drawing.arrow([start, end], name=arrow.name)
        drawing.words(Point(start.x + 12, start.y + 4), arrow.label, "quiet", anchor="start", size=LABEL)


def wrapped(text: str, longest: int) -> tuple[str, ...]:
    """``text`` in as few lines as it needs, of lengths as even as they get."""
    words = text.split()
    shortest: tuple[str, ...] = ()
    for width in range(longest, 0, -1):
        lines = tuple(_filled(words, width))
        if max(map(len, lines)) > longest or (shortest and len(lines) > len(shortest)):
            break
        shortest = lines
    return shortest or (text,)


def _filled(words: list[str], width: int) -> Iterator[str]:
    line = words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line += f" {word}"
    yield line


def _draw_box(drawing: Drawing, box: Box) -> None:
    drawing.box(box.corner, box.size, box.kind, radius=box.size.y / 2 if box.kind == "end" else 8, name=box.lines[0])
    if box.kind == "around":
        drawing.words(Point(box.corner.x + 10, box.corner.y + 17), box.lines[0], "quiet", anchor="start", size=LABEL)
        return
    height = LINE * 1.15 * len(box.lines) + (LINE if box.code else 0)
    y = box.at.y - height / 2 + _NAME * 0.88
    for line in box.lines:
        drawing.words(Point(box.at.x, y), line, size=_NAME)
        y += LINE * 1.15
    if box.code:
        drawing.words(Point(box.at.x, y), box.code, "quiet code", size=10.0)


def _shortest(source: Box, target: Box, arrow: Arrow) -> str:
    if source.at.x == target.at.x:
        return "bt" if target.at.y > source.at.y else "tb"
    if source.at.y == target.at.y:
        return "rl" if target.at.x > source.at.x else "lr"
    raise ValueError(f"{arrow.name}: say in its chart how this arrow goes")


def _corners(start: Point, end: Point, sides: str, turn: float) -> Iterator[Point]:
    yield start
    is_across = [side in "lr" for side in sides]
    if sides[0] == sides[1]:
        out = turn * (1 if sides[0] in "rb" else -1)
        if is_across[0]:
            x = (max if out > 0 else min)(start.x, end.x) + out
            yield from (Point(x, start.y), Point(x, end.y))
        else:
            y = (max if out > 0 else min)(start.y, end.y) + out
            yield from (Point(start.x, y), Point(end.x, y))
    elif is_across[0] != is_across[1]:
        yield Point(end.x, start.y) if is_across[0] else Point(start.x, end.y)
    elif is_across[0] and start.y != end.y:
        x = start.x + (end.x - start.x) * turn
        yield from (Point(x, start.y), Point(x, end.y))
    elif not is_across[0] and start.x != end.x:
        y = start.y + (end.y - start.y) * turn
        yield from (Point(start.x, y), Point(end.x, y))
    yield end
