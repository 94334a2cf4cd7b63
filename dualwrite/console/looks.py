"""What the console looks at. Each look reads by itself, blocks, and fails by itself: a side that does not answer hides
nothing of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.rules.slot_rules import slot_number
from dualwrite.coordinator.rules.two_phase import TwoPhase
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, outcomes
from dualwrite.operations.copies import reason_to_leave
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Finding
from dualwrite.operations.listing import inspector, list_transactions, views_of
from dualwrite.operations.replays import awaiting_replay
from dualwrite.operations.resolving import applications, unknown_application
from dualwrite.operations.rows import state_rows
from dualwrite.operations.spark_runs import OpenRun, open_runs
from dualwrite.operations.views import OPEN_STATES, RowView, TransactionView

ANSWER_SECONDS = 5.0
"""How long Kafka has to give a first answer. A broker that listens answers in milliseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the console looks: a database and a cluster.

    :param application: only the slots of this application; None for all.
    :param two_phase: the application's own mode, as for DualWrite.
    """

    engine: Engine
    kafka: Mapping[str, Any]
    application: str | None = None
    two_phase: TwoPhase = "keep-prepared"


@dataclass(frozen=True, slots=True)
class DatabaseLook:
    """The database alone: the rows of its slots, and the heuristic outcomes that are not acknowledged.

    :param awaiting_replay: the numbers of the outcomes whose records are kept for a replay.
    """

    rows: Mapping[str, RowView]
    outcomes: tuple[HeuristicOutcome, ...]
    awaiting_replay: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaLook:
    """Kafka alone: its transactions that are open, without the rows that decide on them."""

    cluster_id: str | None
    open_views: tuple[TransactionView, ...]


@dataclass(frozen=True, slots=True)
class BothLook:
    """Both sides, compared.

    :param obstacle: why recovery does nothing in this database, which is a copy; empty if it works.
    :param unknown: that the console's application has no slot here, and which applications have; empty if it has one,
        or if none has.
    """

    views: tuple[TransactionView, ...]
    obstacle: str
    unknown: str = ""


def look_at_database(place: Place) -> DatabaseLook:
    """Look at the database.

    :raises DualWriteError: if it does not answer, or has no tables; also SQLAlchemyError.
    """
    rows = state_rows(place.engine, application=place.application)
    found = tuple(outcomes(place.engine, place.application))
    return DatabaseLook(rows, found, tuple(awaiting_replay(place.engine, found)))


def look_at_kafka(place: Place) -> KafkaLook:
    """Look at Kafka.

    :raises DualWriteError: if it does not answer, or refuses.
    """
    with inspector(place.kafka, ANSWER_SECONDS) as cluster:
        names = [
            entry.transactional_id
            for entry in cluster.list_transactions()
            if entry.state in OPEN_STATES and is_wanted(place.application, entry.transactional_id)
        ]
        return KafkaLook(cluster.cluster_id(), tuple(views_of(None, cluster, sorted(names)).values()))


def look_at_spark(place: Place) -> tuple[OpenRun, ...]:
    """Look at the open runs of Spark jobs.

    :raises DualWriteError: as look_at_database().
    """
    return tuple(open_runs(place.engine))


def look_at_findings(place: Place) -> tuple[Finding, ...]:
    """Let the doctor examine both sides. Without an application: its check of two-phase commit under the application's
    name begins a producer in Kafka, and the console changes nothing.
    """
    return tuple(examine(place.engine, place.kafka, two_phase=place.two_phase))


def look_at_both(place: Place) -> BothLook:
    """Compare both sides.

    :raises DualWriteError: if one of them does not answer, or refuses; also SQLAlchemyError.
    """
    require_answer(place.kafka)
    obstacle = reason_to_leave(place.engine, place.kafka)
    views = list_transactions(place.engine, place.kafka, application=place.application, foretells=not obstacle)
    unknown = ""
    if place.application is not None and all(view.row is None for view in views) and applications(place.engine):
        unknown = unknown_application(place.engine, place.application)
    return BothLook(tuple(views), obstacle, unknown)


def require_answer(kafka: Mapping[str, Any]) -> None:
    """Require that a broker answers. Later requests wait as long as a failover of the cluster may take.

    :raises KafkaUnavailableError: if no broker answers.
    """
    with inspector(kafka, ANSWER_SECONDS) as cluster:
        cluster.cluster_id()


def is_wanted(application: str | None, transactional_id: str) -> bool:
    """True for a slot of ``application``; None stands for all."""
    return application is None or slot_number(application, transactional_id) is not None
