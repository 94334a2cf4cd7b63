"""What follows from a row and from what Kafka says: a table of situations and verdicts."""

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.coordinator.rules.slot_rules import SlotRow, SlotStatus
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.operations.resolving import Intention, obstacle
from dualwrite.operations.terminating import contradicts
from dualwrite.operations.views import KafkaView, RowView, Situation, TransactionView, used_elsewhere_message

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
OURS, OTHER = ProducerIdentity(7, 3), ProducerIdentity(7, 4)
PLACE = TopicPartition("t", 0)


def row(status: SlotStatus, state: PreparedTxnState | None = None) -> RowView:
    owner = "" if status is SlotStatus.FREE else "host:1 - - x"
    known = PreparedTxnState(OURS) if state is None else state
    return RowView(SlotRow("a-0", 0, 1, owner, 5.0), status, known, NOW)


def kafka(state: str, producer: ProducerIdentity = OURS, start: int | None = None) -> KafkaView:
    return KafkaView(state, producer, NOW, 60_000, frozenset({PLACE}), {} if start is None else {PLACE: start})


def view(known: RowView | None, said: KafkaView | None, name: str = "a-0") -> TransactionView:
    return TransactionView(name, known, said)


@pytest.mark.parametrize(
    ("known", "said", "situation", "verdict"),
    [
        (row(SlotStatus.EXPIRED), None, Situation.QUIET, RecoveryDecision.NOTHING),
        (row(SlotStatus.EXPIRED), kafka("Empty"), Situation.QUIET, RecoveryDecision.NOTHING),
        (row(SlotStatus.EXPIRED), kafka("CompleteAbort"), Situation.QUIET, RecoveryDecision.NOTHING),
        (None, kafka("CompleteCommit"), Situation.QUIET, RecoveryDecision.NOTHING),
        (row(SlotStatus.EXPIRED), kafka("PrepareCommit"), Situation.ENDING, RecoveryDecision.NOTHING),
        (None, kafka("PrepareAbort"), Situation.ENDING, RecoveryDecision.NOTHING),
        (None, kafka("Ongoing"), Situation.UNKNOWN, None),
        (row(SlotStatus.HELD), kafka("Ongoing"), Situation.AT_WORK, RecoveryDecision.COMMIT),
        (row(SlotStatus.FOREIGN), None, Situation.FOREIGN, None),
        (row(SlotStatus.FOREIGN), kafka("Ongoing"), Situation.FOREIGN, None),
        (row(SlotStatus.EXPIRED), kafka("Ongoing"), Situation.LEFT_BEHIND, RecoveryDecision.COMMIT),
        (row(SlotStatus.DEAD), kafka("Ongoing", OTHER), Situation.LEFT_BEHIND, RecoveryDecision.ABORT),
        (row(SlotStatus.FREE, PreparedTxnState()), kafka("Ongoing"), Situation.LEFT_BEHIND, RecoveryDecision.ABORT),
        (
            row(SlotStatus.DEAD, PreparedTxnState(OURS, Anchor.of(PLACE, 5))),
            kafka("Ongoing", start=5),
            Situation.LEFT_BEHIND,
            RecoveryDecision.COMMIT,
        ),
        (
            row(SlotStatus.DEAD, PreparedTxnState(OURS, Anchor.of(PLACE, 5))),
            kafka("Ongoing", start=9),
            Situation.LEFT_BEHIND,
            RecoveryDecision.ABORT,
        ),
    ],
)
def test_the_situation_and_the_verdict_follow_from_row_and_transaction(
    known: RowView | None, said: KafkaView | None, situation: Situation, verdict: RecoveryDecision | None
) -> None:
    assert (view(known, said).situation, view(known, said).verdict) == (situation, verdict)
    assert contradicts(view(known, said)) is (verdict is RecoveryDecision.COMMIT)


@pytest.mark.parametrize(
    ("status", "theirs", "said", "situation"),
    [
        (SlotStatus.HELD, "there", None, Situation.AT_WORK_ELSEWHERE),
        (SlotStatus.HELD, "there", kafka("CompleteCommit"), Situation.AT_WORK_ELSEWHERE),
        (SlotStatus.HELD, "there", kafka("Ongoing"), Situation.AT_WORK),
        (SlotStatus.FREE, "there", None, Situation.QUIET),
        (SlotStatus.HELD, "here", None, Situation.QUIET),
        (SlotStatus.HELD, None, None, Situation.QUIET),
    ],
)
def test_a_slot_may_be_in_use_in_another_cluster(
    status: SlotStatus, theirs: str | None, said: KafkaView | None, situation: Situation
) -> None:
    known = row(status)
    seen = TransactionView("a-0", replace(known, slot=replace(known.slot, cluster_id=theirs)), said, "here")
    assert seen.situation is situation
    assert seen.is_elsewhere is (theirs == "there")
    assert bool(used_elsewhere_message([seen])) is seen.is_elsewhere


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"slot": SlotRow("a-0", 0, 1, "", 5.0, "here")}, RecoveryDecision.COMMIT),
        ({"slot": SlotRow("a-0", 0, 1, "", 5.0, "there")}, RecoveryDecision.ABORT),
        ({"is_new": True}, RecoveryDecision.ABORT),
    ],
)
def test_an_open_transaction_that_looks_like_a_new_rows_is_not_the_rows(
    changes: dict[str, Any], verdict: RecoveryDecision
) -> None:
    seen = TransactionView("a-0", replace(row(SlotStatus.FREE), **changes), kafka("Ongoing"), "here")
    assert seen.is_new_here is (verdict is RecoveryDecision.ABORT)
    assert seen.verdict is verdict


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (view(row(SlotStatus.EXPIRED), kafka("Ongoing")), ""),
        (view(row(SlotStatus.HELD), kafka("CompleteCommit")), ""),  # the sweep passes it over
        (view(row(SlotStatus.HELD), kafka("Ongoing")), "host:1 has it, and may be alive: its lease has 5 s left"),
        (view(None, kafka("Ongoing")), "no row names it"),
        (view(row(SlotStatus.FOREIGN), None), "slot a-0 was left in the Kafka cluster "),
        (view(row(SlotStatus.EXPIRED), kafka("Ongoing"), "no-slot"), "the id is not the name of a slot"),
    ],
)
def test_obstacles_to_resolving_are_named(seen: TransactionView, words: str) -> None:
    assert obstacle(seen).startswith(words)
    assert bool(obstacle(seen)) is bool(words)
    assert (Intention(seen, obstacle(seen)).action is None) is bool(words)


@pytest.mark.parametrize(
    ("name", "application"), [("a-0", "a"), ("a-1-20", "a-1"), ("a", None), ("a-x", None), ("-0", None), ("a-01", None)]
)
def test_a_slots_application_follows_from_its_name(name: str, application: str | None) -> None:
    assert view(None, None, name).application == application


@pytest.mark.parametrize(
    ("known", "name", "is_recoverable"),
    [
        (row(SlotStatus.FREE), "a-0", True),
        (row(SlotStatus.EXPIRED), "a-0", True),
        (row(SlotStatus.DEAD), "a-0", True),
        (row(SlotStatus.HELD), "a-0", False),
        (row(SlotStatus.FOREIGN), "a-0", False),
        (row(SlotStatus.EXPIRED), "no-slot", False),
        (None, "a-0", False),
    ],
)
def test_recovery_takes_slots_whose_owner_is_gone(known: RowView | None, name: str, is_recoverable: bool) -> None:
    assert view(known, None, name).is_recoverable is is_recoverable


@pytest.mark.parametrize("timeout_ms", [2147483647, 2147483547])
def test_a_transaction_of_two_phase_commit_never_expires(timeout_ms: int) -> None:
    assert not kafka("Ongoing").never_expires
    assert KafkaView("Ongoing", OURS, NOW, timeout_ms, frozenset()).never_expires
