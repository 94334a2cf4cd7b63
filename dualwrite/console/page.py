"""The page's content as a function of the answers and of the moment: the sentence at its top, what needs a person, and
the slots. No look is made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from dualwrite.console.commands import Commands
from dualwrite.console.looks import BothLook, DatabaseLook, KafkaLook
from dualwrite.console.needs import FAILED_CHECK, IN_DOUBT, Card, failed_checks, needs
from dualwrite.console.watching import LookAnswer
from dualwrite.coordinator.rules.slot_rules import SlotStatus
from dualwrite.operations.phrases import counted, since
from dualwrite.operations.views import KafkaView, RowView, Situation, TransactionView
from dualwrite.operations.wording import owner, recovery

DATABASE, KAFKA, BOTH = "database", "Kafka", "both sides"
DOCTOR = "doctor"
SIDES = (DATABASE, KAFKA)
"""The parts that the sentence needs, by name. BOTH compares the SIDES, and has no answer without theirs."""

PATIENCE: Mapping[str, float] = {DATABASE: 5.0, KAFKA: 5.0, BOTH: 60.0}
"""Seconds after which a side that gives no answer is said not to answer. The comparison asks Kafka about each slot, and
may take longer."""

FRESH = 10.0
"""Seconds for which the comparison's age is not worth a word."""

MOST_SLOTS = 200
MOST_NEEDS = 50
"""The most rows and cards on the page. The sentence counts all."""


class Light(Enum):
    """The colour of the sentence."""

    GREEN = "green"
    RED = "red"
    GREY = "grey"
    """Not known: the first look is in progress, or only other applications have slots."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The answer to "is anything wrong?"."""

    light: Light
    text: str


@dataclass(frozen=True, slots=True)
class SlotLine:
    """One transactional id in the table of slots; each field is a cell."""

    name: str
    owner: str
    lease: str
    token: str
    database: str
    kafka: str
    state: str
    open_for: str
    partitions: str
    recovery: str
    is_bad: bool


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that the page shows of both sides.

    :param troubles: a line for each side that does not answer, or is not known.
    :param slots: at most MOST_SLOTS, those that need attention first.
    :param as_of: how old the comparison is; empty if it is fresh, or there is none.
    """

    sentence: Sentence
    troubles: tuple[str, ...]
    needs: tuple[Card, ...]
    more_needs: int
    slots: tuple[SlotLine, ...]
    more_slots: int
    as_of: str = ""


def content(answers: Mapping[str, LookAnswer], *, now: datetime, long_seconds: float, commands: Commands) -> Content:
    """The page's content.

    :param answers: of the parts DATABASE, KAFKA and BOTH; of DOCTOR, if it was asked.
    :param now: the moment, in UTC.
    :param long_seconds: see needs().
    """
    database: DatabaseLook | None = answers[DATABASE].value
    kafka: KafkaLook | None = answers[KAFKA].value
    both: BothLook | None = None if _is_silent(BOTH, answers[BOTH]) else answers[BOTH].value
    troubles = tuple(_troubles(answers))
    views, obstacle = _views(database, kafka, both)
    if both is None and answers[BOTH].reason == "" and answers[BOTH].value is None and not troubles:
        return Content(Sentence(Light.GREY, "looking at both sides …"), (), (), 0, (), 0)
    recorded = () if database is None else database.outcomes
    findings = answers[DOCTOR].value if DOCTOR in answers else None
    cards = failed_checks(findings or (), commands)
    cards += needs(
        views if both is not None else (),
        recorded,
        awaiting_replay=() if database is None else database.awaiting_replay,
        obstacle=obstacle,
        now=now,
        long_seconds=long_seconds,
        commands=commands,
    )
    lines = sorted((_line(view, both is not None, kafka, now) for view in views), key=lambda line: not line.is_bad)
    return Content(
        _sentence(cards, views, troubles, now, both),
        troubles,
        tuple(cards[:MOST_NEEDS]),
        max(0, len(cards) - MOST_NEEDS),
        tuple(lines[:MOST_SLOTS]),
        max(0, len(lines) - MOST_SLOTS),
        "" if both is None or (answers[BOTH].age or 0.0) < FRESH else seconds_text(answers[BOTH].age or 0.0),
    )


def seconds_text(seconds: float) -> str:
    """A duration: with one decimal below ten seconds, then in its largest unit."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    return since(datetime.fromtimestamp(0), datetime.fromtimestamp(seconds))


def _is_silent(name: str, answer: LookAnswer) -> bool:
    return bool(answer.reason) or answer.waited > PATIENCE[name]


def _troubles(answers: Mapping[str, LookAnswer]) -> list[str]:
    """A line for each part that does not answer. What both sides lack is not repeated for their comparison."""
    lines: list[str] = []
    for name, answer in answers.items():
        if name not in PATIENCE or not _is_silent(name, answer) or (name == BOTH and lines):
            continue
        age = "" if answer.age is None else f"; the last answer is {seconds_text(answer.age)} old"
        why = answer.reason or f"no answer for {seconds_text(answer.waited)}"
        failed = "cannot be compared" if name == BOTH else "does not answer"
        subject = "The two sides" if name == BOTH else "The database" if name == DATABASE else name
        lines.append(f"{subject} {failed}: {why}{age}")
    return lines


def _views(
    database: DatabaseLook | None, kafka: KafkaLook | None, both: BothLook | None
) -> tuple[Sequence[TransactionView], str]:
    """The views of both sides; else what is known of one."""
    if both is not None:
        return both.views, both.obstacle
    views = {view.transactional_id: view for view in (kafka.open_views if kafka is not None else ())}
    for name, row in (database.rows if database is not None else {}).items():
        known = views.get(name)
        views[name] = TransactionView(name, row, None if known is None else known.kafka)
    return [views[name] for name in sorted(views)], ""


def _line(view: TransactionView, is_compared: bool, kafka: KafkaLook | None, now: datetime) -> SlotLine:
    row, said = view.row, view.kafka
    is_asked = is_compared or kafka is not None
    open_now = said is not None and said.is_open
    process, lease = _owner_and_lease(row)
    return SlotLine(
        name=view.transactional_id,
        owner=process,
        lease=lease,
        token="" if row is None else str(row.slot.fencing_token),
        database="no row" if row is None else str(row.state.producer) if row.state else "nothing yet",
        kafka="" if said is None else str(said.producer),
        state=said.state if said is not None else "unknown" if is_asked else "not asked",
        open_for=_open_for(said, now),
        partitions=str(len(said.partitions)) if said is not None and open_now else "",
        recovery=recovery(view) if is_compared else "not known",
        is_bad=is_compared and _is_bad(view),
    )


def _owner_and_lease(row: RowView | None) -> tuple[str, str]:
    """The process that holds or held the slot; and the rest of its lease, or that it is dead or silent."""
    if row is None or row.status is SlotStatus.FREE:
        return "free" if row is not None else "", ""
    name, _, lease = owner(row).rpartition(", ")
    return name, f"{lease} left" if row.status is SlotStatus.HELD else lease


def _open_for(kafka: KafkaView | None, now: datetime) -> str:
    if kafka is None or kafka.started_at is None:
        return ""
    return seconds_text((now - kafka.started_at).total_seconds())


def _is_bad(view: TransactionView) -> bool:
    is_heuristic = view.forecast is not None and view.forecast.is_heuristic
    return is_heuristic or view.situation in (Situation.LEFT_BEHIND, Situation.FOREIGN, Situation.AT_WORK_ELSEWHERE)


def _sentence(
    cards: Sequence[Card],
    views: Sequence[TransactionView],
    troubles: Sequence[str],
    now: datetime,
    both: BothLook | None,
) -> Sentence:
    is_compared, unknown = both is not None, "" if both is None else both.unknown
    counts: dict[str, int] = {}
    for card in cards:
        counts[card.kind] = counts.get(card.kind, 0) + max(1, card.count)
    words = [f"{counts.pop(IN_DOUBT, 0):,} in doubt" if is_compared else "in doubt: not known"]
    words += [counted(count, kind, f"{kind}s" if _has_plural(kind) else kind) for kind, count in counts.items()]
    begun = [
        view.kafka.started_at
        for view in views
        if view.kafka is not None and view.kafka.is_open and view.kafka.started_at is not None
    ]
    if begun:
        words.append(f"oldest open transaction {seconds_text((now - min(begun)).total_seconds())}")
    elif is_compared:
        words.append("no open transaction")
    silent = [trouble.partition(":")[0] for trouble in troubles]
    light = Light.RED if cards or troubles else Light.GREY if unknown else Light.GREEN
    return Sentence(light, "; ".join([", ".join(words), *silent, *([unknown] if unknown else [])]))


def _has_plural(kind: str) -> bool:
    return kind == FAILED_CHECK or kind.startswith("heuristic")
