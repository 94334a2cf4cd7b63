"""The moments of a crash on docs/recipe.md: a table in the repository; on the site, a diagram from which a reader
chooses a moment. Both say the same.

The diagram is HTML with radio buttons and no script. Without its style sheet it is a list of moments.
"""

from collections.abc import Iterator
from html import escape

from drawing.crash_moments import OWN, Moment, decisive, moments
from drawing.sequence import header_picture, row_picture
from dualwrite.coordinator.rules.machine import UnitState
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision

BEGIN, END = "<!-- moments: written by python docs/draw.py -->", "<!-- /moments -->"
"""Around the table."""


def when(moment: Moment) -> str:
    """The moment in words."""
    return "afterwards" if moment.step is None else f"while {moment.state.value}"


def row_of(moment: Moment) -> str:
    """What the slot's row says to the next process."""
    stored = moment.sides.stored
    return f"{stored}, this unit" if stored == OWN else f"{stored}, the unit before"


def recovery_of(moment: Moment) -> str:
    """What recovery does."""
    return {
        RecoveryDecision.COMMIT: f"commits {OWN}: the row names it",
        RecoveryDecision.ABORT: f"aborts {OWN}: the row does not name it",
        RecoveryDecision.NOTHING: "has nothing to end in Kafka",
    }[moment.decision]


def end_of_both(moment: Moment) -> str:
    """Where the unit is after recovery.

    :raises ValueError: if the two sides ended differently.
    """
    if moment.has_rows is not moment.has_records:
        raise ValueError(f"the two sides do not end alike if the process dies {when(moment)}")
    return "in both" if moment.has_rows else "in neither"


def with_table(page: str) -> str:
    """``page`` with the table between its marks.

    :raises ValueError: if a mark is missing.
    """
    before, after = _around(page)
    return "\n".join([f"{before}{BEGIN}", "", *_table(), "", f"{END}{after}"])


def with_diagram(page: str) -> str:
    """``page`` with the diagram in place of the marks and the table.

    :raises ValueError: if a mark is missing.
    """
    before, after = _around(page)
    return f"{before}{diagram()}{after}"


def _around(page: str) -> tuple[str, str]:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    return before, after


def _table() -> Iterator[str]:
    yield "| killed | the database holds | Kafka holds | the row names | recovery | the unit is |"
    yield "|---|---|---|---|---|---|"
    for moment in moments():
        cells = (when(moment), moment.sides.database.value, moment.sides.kafka.value, row_of(moment))
        yield f"| {' | '.join(cells)} | {recovery_of(moment)} | **{end_of_both(moment)}** |"


def diagram() -> str:
    """The diagram as HTML, without an empty line: in Markdown one would end it."""
    found = moments()
    decision = decisive(found)
    chosen = found[found.index(decision) + 1]
    lines = [
        f'<div class="moments" role="radiogroup" aria-labelledby="moments" style="--rows: {2 * len(found) + 2}">',
        '<p id="moments" class="moments-title">The process is killed. Choose when:</p>',
        f'<div class="moment-names">{header_picture()}</div>',
    ]
    for number, moment in enumerate(found):
        row = 2 * number + 3  # below the title and the names; the answer has a row of its own
        name = f"moment-{moment.state.name.lower().replace('_', '-')}"
        checked = ' checked="checked"' if moment == chosen else ""
        picture = row_picture(moment, is_decision=moment == decision)
        lines += [
            f'<input type="radio" name="moment" id="{name}" style="--row: {row}"{checked}/>',
            f'<label for="{name}" style="--row: {row}">{picture}',
            f'<span class="moment-name">{escape(when(moment))}</span></label>',
            f'<div class="moment-panel" style="--row: {row + 1}" data-decision="{moment.decision.value}">',
            f"{_panel(moment)}</div>",
        ]
    return "\n".join([*lines, "</div>"])


def _panel(moment: Moment) -> str:
    return "".join(
        [
            f'<p class="moment-title">Killed {escape(when(moment))}</p>',
            f"<p>{escape(_before(moment))}</p>",
            "<dl>",
            *(f"<dt>{head}</dt><dd>{escape(text)}</dd>" for head, text in _facts(moment)),
            "</dl>",
            f'<p class="moment-end">The unit is <strong>{end_of_both(moment)}</strong>.</p>',
        ]
    )


def _facts(moment: Moment) -> Iterator[tuple[str, str]]:
    yield "The database holds", moment.sides.database.value
    yield "Kafka holds", moment.sides.kafka.value
    yield "The row names", row_of(moment)
    yield "Recovery", recovery_of(moment)


def _before(moment: Moment) -> str:
    if moment.step is None:
        return "The unit has ended; nothing of it is open."
    effect = f"Before this step has its effect: {moment.step.value}."
    if moment.state is UnitState.COMMITTING_DATABASE:
        return f"{effect} If the COMMIT has arrived, the next moment applies. Recovery asks the database."
    return effect
