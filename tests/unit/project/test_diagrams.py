"""The diagrams are drawn from the code: they are complete, and they can be read."""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from drawing.crash_moments import decisive, moments
from drawing.files import PICTURES
from drawing.machines import dual_write_chart, group_chart, transaction_chart
from drawing.sequence import MESSAGES, recipe_picture
from drawing.state_chart import LABEL, LONGEST_NAME, Arrow, Box, StateChart, Way, wrapped
from drawing.svg import Drawing, Point, width_of
from dualwrite.broker.core.groups import TRANSITIONS as GROUP_TRANSITIONS
from dualwrite.broker.core.transactions import TRANSITIONS as TRANSACTION_TRANSITIONS
from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.coordinator.rules.machine import STEPS, TRANSITIONS, UnitState

SVG = "{http://www.w3.org/2000/svg}"
CHARTS = (dual_write_chart, transaction_chart, group_chart)
charts = pytest.mark.parametrize("chart", [make() for make in CHARTS], ids=lambda chart: chart.title)
pictures = pytest.mark.parametrize("name", PICTURES)


class Area(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Area") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, other: "Area") -> bool:
        is_across = self.left <= other.left and other.right <= self.right
        return is_across and self.top <= other.top and other.bottom <= self.bottom


def area_of(box: Box) -> Area:
    return Area(*box.corner, box.corner.x + box.size.x, box.corner.y + box.size.y)


def area_of_words(at: Point, text: str, anchor: str, size: float) -> Area:
    width = width_of(text, size)
    left = at.x - {"start": 0, "middle": width / 2, "end": width}[anchor]
    return Area(left, at.y - size * 0.75, left + width, at.y + size * 0.2)


def boxes_of(chart: StateChart) -> list[Box]:
    return [box for boxes in chart.boxes.values() for box in boxes if box.kind != "around"]


def labels_of(chart: StateChart, arrow: Arrow) -> list[Area]:
    return [area_of_words(at, line, anchor, LABEL) for at, line, anchor in chart.label_of(arrow)]


def parts_of(path: Iterable[Point]) -> Iterator[Area]:
    for start, end in pairwise(path):
        xs, ys = sorted((start.x, end.x)), sorted((start.y, end.y))
        yield Area(xs[0], ys[0], xs[1], ys[1])


def names_in(svg: str, element: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}{element}")
    return [each.attrib["data-name"] for each in found if "data-name" in each.attrib]


def test_each_transition_of_a_dual_write_is_drawn() -> None:
    drawn = [re.fullmatch(r"(\w+) > (\w+): (.+)", name) for name in names_in(dual_write_chart().svg(), "path")]
    arrows = {(each[1], each[2]): set(each[3].split(", ")) for each in drawn if each}
    assert len(arrows) == len(drawn)
    events: dict[tuple[str, str], set[str]] = {}
    for state, outgoing in TRANSITIONS.items():
        for event, target in outgoing.items():
            events.setdefault((state.name, target.name), set()).add(event.name)
    assert arrows == events


def test_each_state_of_a_dual_write_is_drawn_with_its_step() -> None:
    svg = dual_write_chart().svg()
    words = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {wrapped(state.value, LONGEST_NAME)[0] for state in UnitState} <= set(names_in(svg, "rect"))
    assert {step.name for step in STEPS.values()} <= set(words)


@pytest.mark.parametrize(
    ("chart", "table"), [(transaction_chart(), TRANSACTION_TRANSITIONS), (group_chart(), GROUP_TRANSITIONS)]
)
def test_each_transition_of_the_broker_is_drawn(chart: StateChart, table: Mapping[Enum, Mapping[Enum, str]]) -> None:
    idle = [status.name for status in TRANSACTION_TRANSITIONS[TransactionStatus.DEAD]]
    drawn = set()
    for name in names_in(chart.svg(), "path"):
        source, _, rest = name.partition(" > ")
        target, _, cause = rest.partition(": ")
        drawn |= {(each, target, cause) for each in (idle if source == "IDLE" else [source])}
    named = {(source.name, to.name, cause) for to, sources in table.items() for source, cause in sources.items()}
    assert {each for each in drawn if each[0]} == named
    assert {target for source, target, _ in drawn if not source} == {"EMPTY"}


def test_the_recipe_has_a_message_for_each_state_in_which_a_step_runs() -> None:
    assert list(MESSAGES) == [moment.state for moment in moments() if moment.step is not None]
    svg = recipe_picture()
    sent = [message for message in MESSAGES.values() if message.is_sent]
    assert [name for name in names_in(svg, "path") if name in {each.text for each in sent}] == [e.text for e in sent]
    assert svg.count(": the decision</text>") == 1
    assert f"{MESSAGES[decisive(moments()).state].text}: the decision</text>" in svg


@pictures
def test_a_picture_is_sound_and_says_what_it_shows_in_words(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]())
    assert root.attrib["role"] == "img"
    title, description, style = (next(root.iter(f"{SVG}{tag}")) for tag in ("title", "desc", "style"))
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]
    assert all(len(each.text or "") > 8 for each in (title, description))
    assert "@media (prefers-color-scheme:dark)" in (style.text or "")
    assert "http" not in (style.text or ""), "nothing is fetched from elsewhere"
    classes = {word for each in root.iter() for word in each.get("class", "").split()}
    unknown = {word for word in classes if f".{word}" not in (style.text or "")}
    assert unknown == set()


@pictures
def test_every_word_is_inside_its_picture(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]())
    card = Area(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    for each in root.iter(f"{SVG}text"):
        at = Point(float(each.attrib["x"]), float(each.attrib["y"]))
        size, anchor = float(each.attrib["font-size"]), each.attrib["text-anchor"]
        assert size >= 10
        assert card.holds(area_of_words(at, each.text or "", anchor, size)), each.text


@charts
def test_no_box_is_upon_another(chart: StateChart) -> None:
    for one, other in combinations(map(area_of, boxes_of(chart)), 2):
        assert not one.meets(other)
    for around in (box for boxes in chart.boxes.values() for box in boxes if box.kind == "around"):
        assert all(
            area_of(around).holds(area_of(box)) or not area_of(around).meets(area_of(box)) for box in boxes_of(chart)
        )


@charts
def test_no_arrow_goes_through_a_box_and_no_label_is_upon_anything(chart: StateChart) -> None:
    boxes = list(map(area_of, boxes_of(chart)))
    labels = [label for arrow in chart.arrows for label in labels_of(chart, arrow)]
    for arrow in chart.arrows:
        for part in parts_of(chart.path_of(arrow)):
            assert not any(part.meets(box) for box in boxes), arrow.name
            assert not any(part.meets(label) for label in labels), arrow.name
    assert not any(label.meets(box) for label in labels for box in boxes)
    assert not any(one.meets(other) for one, other in combinations(labels, 2))


@charts
def test_the_words_of_a_box_fit_in_it(chart: StateChart) -> None:
    for box in boxes_of(chart):
        assert all(width_of(line, 13.0) <= box.size.x + 8 for line in box.lines), box
        assert width_of(box.code, 10.0) <= box.size.x - 12, box


def test_an_arrow_that_would_cross_the_chart_needs_a_way() -> None:
    boxes = {"A": (Box(Point(0, 0), ("a",)),), "B": (Box(Point(300, 300), ("b",)),)}
    arrow = Arrow("A", "B", "go")
    chart = StateChart("", "", Point(600, 600), boxes, (arrow,))
    with pytest.raises(ValueError, match="A > B: go: say in its chart how this arrow goes"):
        chart.svg()
    assert StateChart("", "", Point(600, 600), boxes, (arrow,), {("A", "B"): Way("rt")}).path_of(arrow) == [
        (75, 0),
        (300, 0),
        (300, 271),
    ]


def test_a_name_is_wrapped_evenly_and_never_longer_than_allowed() -> None:
    assert wrapped("leaving the kafka commit to recovery", 22) == ("leaving the kafka", "commit to recovery")
    assert wrapped("new", 22) == ("new",)
    for state in UnitState:
        assert all(len(line) <= LONGEST_NAME for line in wrapped(state.value, LONGEST_NAME))
        assert " ".join(wrapped(state.value, LONGEST_NAME)) == state.value


def test_words_of_a_drawing_are_escaped() -> None:
    drawing = Drawing(100, 100, "a < b", "a & b")
    drawing.words(Point(50, 50), "<script>")
    root = ElementTree.fromstring(drawing.file())
    assert [root.findtext(f"{SVG}{tag}") for tag in ("title", "desc", "text")] == ["a < b", "a & b", "<script>"]
