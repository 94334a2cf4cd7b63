"""Answers of the console's looks, made by hand: rows, transactions and outcomes at one moment."""

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import create_engine

from dualwrite.console.commands import Commands
from dualwrite.console.looks import BothLook, DatabaseLook, KafkaLook
from dualwrite.console.page import BOTH, DATABASE, KAFKA, Content, content
from dualwrite.console.watching import LookAnswer
from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import SlotRow, SlotStatus
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.ids import PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.operations.views import KafkaView, RowView, TransactionView

MOMENT = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
IDENTITY = ProducerIdentity(7, 3)
TWO_PHASE = 2**31 - 1


def commands(url: str = "sqlite:///app.db", **kafka: Any) -> Commands:
    return Commands(create_engine(url), {"bootstrap.servers": "kafka:9092", **kafka})


def state_row(
    status: SlotStatus, name: str = "a-0", decided: ProducerIdentity | None = IDENTITY, cluster: str | None = None
) -> RowView:
    state = PreparedTxnState() if decided is None else PreparedTxnState(decided)
    owner = "" if status is SlotStatus.FREE else "host:1 - - x"
    return RowView(SlotRow(name, 0, 12, owner, 5.0, cluster), status, state, MOMENT)


def kafka_view(state: str = "Ongoing", age: float | None = 3.0, timeout_ms: int = TWO_PHASE) -> KafkaView:
    started = None if age is None else MOMENT - timedelta(seconds=age)
    return KafkaView(state, IDENTITY, started, timeout_ms, frozenset({TopicPartition("t", 0)}))


def view_of(
    status: SlotStatus | None,
    said: KafkaView | None = None,
    *,
    name: str = "a-0",
    forecast: Forecast | None = None,
    decided: ProducerIdentity | None = IDENTITY,
    cluster: str | None = None,
) -> TransactionView:
    row = None if status is None else state_row(status, name, decided, cluster)
    return TransactionView(name, row, said, "here", forecast)


def outcome_record(number: int = 1, name: str = "a-0", kind: Outcome = Outcome.HEURISTIC_ABORT) -> HeuristicOutcome:
    found = MOMENT - timedelta(minutes=5)
    return HeuristicOutcome(number, name, f"7:{number}", kind, "the two sides differ", found, None, None)


def answers(
    views: Iterable[TransactionView] = (), outcomes: Iterable[HeuristicOutcome] = (), obstacle: str = ""
) -> dict[str, LookAnswer]:
    """Both sides have answered."""
    known = tuple(views)
    rows = {view.transactional_id: view.row for view in known if view.row is not None}
    return {
        DATABASE: LookAnswer(DatabaseLook(rows, tuple(outcomes)), age=0.0),
        KAFKA: LookAnswer(KafkaLook("here", tuple(view for view in known if view.kafka is not None)), age=0.0),
        BOTH: LookAnswer(BothLook(known, obstacle), age=0.0),
    }


def shown(known: dict[str, LookAnswer], *, long_seconds: float = 60.0) -> Content:
    return content(known, now=MOMENT, long_seconds=long_seconds, commands=commands())
