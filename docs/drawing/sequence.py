"""The recipe as a sequence diagram: the database, the application between both sides, and Kafka.

The steps, their order and the place of the decision are the machine's (``crash_moments``); here is how each looks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from drawing.crash_moments import OWN, Moment, decisive, moments
from drawing.svg import Drawing, Point
from dualwrite.coordinator.rules.machine import Step, UnitState


@dataclass(frozen=True)
class Message:
    """What the application sends in a step.

    :param side: -1 to the database, 1 to Kafka.
    :param reply: the answer, if the recipe is about it.
    :param is_sent: False if the step sends nothing.
    """

    side: int
    text: str
    reply: str = ""
    is_sent: bool = True

    @property
    def height(self) -> float:
        """The row's."""
        return _ROW + 24 * bool(self.reply)


_ROW = 46.0
_AROUND_DECISION = 36.0
"""Room for the words beside the decision."""
MESSAGES: Mapping[UnitState, Message] = {
    UnitState.BEGINNING_DATABASE: Message(-1, "BEGIN"),
    UnitState.RUNNING: Message(-1, "your rows"),
    UnitState.BEGINNING_KAFKA: Message(1, "begin (sends nothing)", is_sent=False),
    UnitState.PRODUCING: Message(1, "your records"),
    UnitState.PREPARING_KAFKA: Message(1, "prepare: flush", "all acknowledged"),
    UnitState.STORING_STATE: Message(-1, f"UPDATE: state {OWN}"),
    UnitState.COMMITTING_DATABASE: Message(-1, "COMMIT"),
    UnitState.COMMITTING_KAFKA: Message(1, "commit"),
}
"""For each state of a unit in which nothing fails, what its step sends."""


@dataclass(frozen=True)
class Lanes:
    """Where the three lifelines are, from left to right."""

    width: float
    database: float
    application: float
    kafka: float

    def of(self, side: int) -> float:
        """The lifeline of a side, or of the application (0)."""
        return (self.database, self.application, self.kafka)[side + 1]


PAGE = Lanes(520, 84, 260, 436)
"""Those of the picture that stands alone."""
ROWS = Lanes(420, 44, 210, 376)
"""Those of the rows from which a reader chooses."""
_CROSS = 7.0
NAMES = ("database", "application", "Kafka")
_HEADER = 34.0


def recipe_picture() -> str:
    """The recipe in one picture, as the README shows it."""
    rows = [moment for moment in moments() if moment.state in MESSAGES and MESSAGES[moment.state].is_sent]
    decision = decisive(moments())
    top = 68.0
    height = top + sum(MESSAGES[row.state].height for row in rows) + _AROUND_DECISION + 34
    drawing = Drawing(PAGE.width, height, "The recipe of a dual write", sentence())
    for name, x in zip(NAMES, (PAGE.database, PAGE.application, PAGE.kafka), strict=True):
        drawing.line([Point(x, 20 + _HEADER), Point(x, height - 20)], "line life")
        drawing.box(Point(x - 66, 20), Point(132, _HEADER), name=name)
        drawing.words(Point(x, 20 + _HEADER / 2 + 5.5), name, "strong", size=15.5)
    y = top
    for row in rows:
        message = MESSAGES[row.state]
        is_decision = row == decision
        if is_decision:
            y += _AROUND_DECISION / 2
            _draw_decision(drawing, y + 30)
        draw_message(drawing, PAGE, message, y, is_decision=is_decision, size=15.5)
        y += message.height + _AROUND_DECISION / 2 * is_decision
    return drawing.file()


def _draw_decision(drawing: Drawing, y: float) -> None:
    """The line that parts the moments after which nothing stays from those after which everything does."""
    drawing.line([Point(PAGE.application, y), Point(PAGE.width - 18, y)], "line accent back")
    middle = (PAGE.application + PAGE.kafka) / 2
    drawing.words(Point(middle, y - 9), "killed before: neither", "accent", size=14.5)
    drawing.words(Point(middle, y + 20), "killed after: both", "accent", size=14.5)


def draw_message(
    drawing: Drawing, lanes: Lanes, message: Message, y: float, *, is_decision: bool = False, size: float = 13.5
) -> None:
    """A row: what the application sends, and the answer."""
    start, end = lanes.application, lanes.of(message.side)
    middle, line = (start + end) / 2, y + 30
    drawing.dot(Point(start, line), 3, "head accent" if is_decision else "head")
    if not message.is_sent:
        drawing.words(Point(middle, line + 5), message.text, "quiet", size=size)
        return
    classes = "line accent" if is_decision else "line"
    drawing.arrow([Point(start, line), Point(end - message.side, line)], classes, name=message.text)
    text, words = (f"{message.text}: the decision", "accent strong") if is_decision else (message.text, "")
    drawing.words(Point(middle, line - 8), text, words, size=size)
    if message.reply:
        drawing.arrow([Point(end, line + 30), Point(start + message.side, line + 30)], "line back", name=message.reply)
        drawing.words(Point(middle, line + 22), message.reply, size=size)


def row_picture(moment: Moment, *, is_decision: bool) -> str:
    """The row of ``moment``, as a part of a page; without a message if the unit has ended.

    It has a cross where the application's line ends, for a style sheet to show if a reader chooses the moment.
    """
    message = MESSAGES.get(moment.state)
    height = message.height if message else _ROW
    drawing = Drawing(ROWS.width, height, "", "")
    for side in (-1, 0, 1):
        drawing.line([Point(ROWS.of(side), 0), Point(ROWS.of(side), height)], "line life")
    with drawing.group("moment-message"):
        if message is None:
            drawing.words(Point((ROWS.application + ROWS.kafka) / 2, 35), "the end", "quiet", size=13.5)
            drawing.dot(Point(ROWS.application, 30), 3)
        else:
            draw_message(drawing, ROWS, message, 0, is_decision=is_decision)
    with drawing.group("moment-cross"):
        for slope in (1, -1):
            ends = [Point(ROWS.application + step, 30 + step * slope) for step in (-_CROSS, _CROSS)]
            drawing.line(ends, "line")
    return drawing.fragment("moment-row")


def header_picture() -> str:
    """The names above the rows."""
    drawing = Drawing(ROWS.width, 30, "", "")
    for name, side in zip(NAMES, (-1, 0, 1), strict=True):
        drawing.words(Point(ROWS.of(side), 20), name, "strong", size=13.5)
    return drawing.fragment("moment-row")


_SAID: Mapping[Step | None, str] = {
    Step.PREPARE_KAFKA: "prepares Kafka (flushes, until every record is acknowledged)",
    Step.STORE_STATE: "writes the prepared state in the same database transaction",
    Step.COMMIT_DATABASE: "commits the database, which is the decision",
    Step.COMMIT_KAFKA: "commits Kafka",
}
"""The steps that :func:`sentence` names, beside the user's code."""


def sentence() -> str:
    """The recipe in words, for a reader who does not see the picture."""
    steps = [moment.step for moment in moments()]
    said = [_SAID[step] for step in steps if step in _SAID]
    return (
        f"The application writes rows and records, {', '.join(said[:-1])}, and {said[-1]}. A process that is killed "
        "before the decision leaves neither; killed after it, both."
    )
