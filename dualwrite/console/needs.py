"""What needs a person: heuristic outcomes, hazards and transactions in doubt, each with the evidence of both sides."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from dualwrite.console.commands import MOST_TARGETS, Commands
from dualwrite.coordinator.rules.slot_rules import named
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.operations.findings import Finding, Level
from dualwrite.operations.groups import grouped_forecasts, grouped_records
from dualwrite.operations.phrases import counted
from dualwrite.operations.replays import replay_advice
from dualwrite.operations.views import (
    KafkaView,
    Situation,
    TransactionView,
    foreign_cluster_message,
    used_elsewhere_message,
)
from dualwrite.operations.wording import owner, recovery

IN_DOUBT = "in doubt"
TOO_LONG = "open for long"
HAS_COPY = "undeclared copy"
ELSEWHERE = "in another cluster"
FAILED_CHECK = "failed check"
LIVE_CHECKS = frozenset({"database", "kafka", "outcomes", "transactions"})
"""The doctor's checks of what the page shows live. The doctor looks once a minute only."""


@dataclass(frozen=True, slots=True)
class OfferedAction:
    """An action that a card offers.

    :param verb: resolve, terminate or acknowledge.
    :param targets: transactional ids, or the numbers of heuristic outcomes; at most MOST_TARGETS.
    :param command: the command line that does the same.
    """

    verb: str
    targets: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Card:
    """One card of what needs a person.

    :param kind: the outcome under XA's name, or one of this module's words.
    :param subject: the slots.
    :param count: how many units of work they are.
    :param database: the database's evidence.
    :param kafka: Kafka's evidence.
    :param verdict: what recovery does, or has found.
    :param reason: why.
    """

    kind: str
    subject: str
    count: int
    database: str
    kafka: str
    verdict: str
    reason: str
    moves: tuple[OfferedAction, ...] = ()


def needs(
    views: Sequence[TransactionView],
    recorded: Sequence[HeuristicOutcome],
    *,
    awaiting_replay: Collection[int] = (),
    obstacle: str,
    now: datetime,
    long_seconds: float,
    commands: Commands,
) -> list[Card]:
    """The cards, the gravest first.

    :param awaiting_replay: the numbers of those of ``recorded`` whose records are kept for a replay.
    :param obstacle: why recovery does nothing in this database; empty if it works.
    :param long_seconds: a transaction that is open for longer is reported, although its owner is alive.
    """
    cards = _CardMaker({view.transactional_id: view for view in views}, now, commands)
    return [
        *cards.of_records(recorded, awaiting_replay),
        *([Card(HAS_COPY, "this database", 0, "a copy", "", "recovery does nothing", obstacle)] if obstacle else []),
        *cards.of_forecasts(views),
        *cards.in_doubt(views, obstacle),
        *cards.elsewhere(views),
        *cards.too_long(views, long_seconds),
    ]


def failed_checks(findings: Iterable[Finding], commands: Commands) -> list[Card]:
    """The doctor's failures: with them dual writes do not work, or lose their guarantee."""
    return [
        Card(FAILED_CHECK, finding.check, 1, "", "", finding.message, finding.advice or f"see {commands.doctor()}")
        for finding in findings
        if finding.level is Level.FAILURE and finding.check not in LIVE_CHECKS
    ]


def database_evidence(view: TransactionView) -> str:
    """What the database has decided on the slot's last unit of work, and the slot's owner."""
    if view.row is None:
        return "no row"
    state = f"decided on {view.row.state}" if view.row.state else "decided on nothing"
    return f"{state}; owner: {owner(view.row)}"


def moment_text(moment: datetime) -> str:
    """A moment, in UTC. A card has no durations: it would change under an operator's click."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def kafka_evidence(kafka: KafkaView | None) -> str:
    """What Kafka says about the slot's last transaction."""
    if kafka is None:
        return "does not know it"
    words = f"{kafka.state}, {kafka.producer}"
    if not kafka.is_open:
        return words
    begun = f", open since {moment_text(kafka.started_at)}" if kafka.started_at is not None else ""
    return f"{words}{begun}, in {counted(len(kafka.partitions), 'partition')}"


def is_long(view: TransactionView, now: datetime, long_seconds: float) -> bool:
    """True if a transaction of a living owner, or of no row of this database, is open for long. Without two-phase
    commit Kafka ends the latter by itself."""
    if view.kafka is None or view.kafka.started_at is None:
        return False
    if (now - view.kafka.started_at).total_seconds() < long_seconds:
        return False
    is_unknown = view.situation is Situation.UNKNOWN and view.kafka.never_expires
    return is_unknown or view.situation is Situation.AT_WORK


class _CardMaker:
    """Makes the cards.

    :param by_name: every view by its transactional id.
    """

    def __init__(self, by_name: dict[str, TransactionView], now: datetime, commands: Commands) -> None:
        self._by_name = by_name
        self._now = now
        self._commands = commands

    def of_records(self, recorded: Iterable[HeuristicOutcome], awaiting_replay: Collection[int]) -> Iterator[Card]:
        """Heuristic outcomes on record, which were not acknowledged."""
        for group in grouped_records(recorded):
            first = group.members[0]
            numbers = [each.id for each in group.members]
            view = self._by_name.get(first.transactional_id)
            kept = [number for number in numbers if number in awaiting_replay]
            yield Card(
                group.outcome.value,
                group.slots,
                len(group.members),
                f"stored {first.state}"
                if len(group.members) == 1
                else counted(len(group.members), "unit") + " of work",
                "" if view is None else f"now {kafka_evidence(view.kafka)}",
                f"on record as {named([str(number) for number in numbers])}, found at {moment_text(first.found_at)}",
                f"{group.detail}. Besides, {replay_advice(kept)}" if kept else group.detail,
                (
                    OfferedAction(
                        "acknowledge", tuple(map(str, numbers[:MOST_TARGETS])), self._commands.acknowledge(numbers)
                    ),
                ),
            )

    def of_forecasts(self, views: Iterable[TransactionView]) -> Iterator[Card]:
        """Heuristic outcomes that recovery would find."""
        for group in grouped_forecasts(views):
            assert group.outcome is not None
            names = group.transactional_ids
            first = group.members[0]
            yield Card(
                group.outcome.value,
                group.slots,
                len(names),
                database_evidence(first),
                kafka_evidence(first.kafka),
                f"recovery would find a {group.outcome.value}",
                group.detail,
                (self._resolve(names),),
            )

    def in_doubt(self, views: Iterable[TransactionView], obstacle: str) -> Iterator[Card]:
        """Open transactions whose owner is gone."""
        for view in views:
            forecast = view.forecast
            if view.situation is not Situation.LEFT_BEHIND or (forecast is not None and forecast.is_heuristic):
                continue
            is_unclear = forecast is not None and forecast.outcome is None
            name = view.transactional_id
            is_slot = view.application is not None
            moves = [] if obstacle or is_unclear or not is_slot else [self._resolve((name,))]
            yield Card(
                IN_DOUBT,
                name,
                1,
                database_evidence(view),
                kafka_evidence(view.kafka),
                "none: a copy" if obstacle else recovery(view),
                forecast.detail if forecast is not None and is_unclear else view.situation.value,
                (*moves, *([] if obstacle or is_unclear else [self._terminate(name)])),
            )

    def elsewhere(self, views: Sequence[TransactionView]) -> Iterator[Card]:
        """Slots with work in another cluster."""
        foreign = [view for view in views if view.is_foreign]
        if foreign:
            yield self._of_many(ELSEWHERE, foreign, "recovered there", foreign_cluster_message(views))
        working = [view for view in views if view.situation is Situation.AT_WORK_ELSEWHERE]
        if working:
            yield self._of_many(ELSEWHERE, working, "its owner's", used_elsewhere_message(working))

    def too_long(self, views: Iterable[TransactionView], long_seconds: float) -> Iterator[Card]:
        """Transactions that hold up consumers for long, although no owner is known to be gone."""
        for view in views:
            if not is_long(view, self._now, long_seconds):
                continue
            is_unknown = view.situation is Situation.UNKNOWN
            name = view.transactional_id
            yield Card(
                TOO_LONG,
                name,
                1,
                database_evidence(view),
                kafka_evidence(view.kafka),
                recovery(view),
                view.situation.value,
                (self._terminate(name),) if is_unknown else (),
            )

    def _of_many(self, kind: str, views: Sequence[TransactionView], verdict: str, why: str) -> Card:
        names = named([view.transactional_id for view in views])
        first = views[0]
        return Card(kind, names, len(views), database_evidence(first), kafka_evidence(first.kafka), verdict, why)

    def _resolve(self, names: Sequence[str]) -> OfferedAction:
        return OfferedAction("resolve", tuple(names[:MOST_TARGETS]), self._commands.resolve(names))

    def _terminate(self, name: str) -> OfferedAction:
        return OfferedAction("terminate", (name,), self._commands.terminate(name))
