"""What the table of transactions takes in: a fact that breaks a rule is refused, and does not reach memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker.core.transactions import TRANSITIONS, IllegalTransitionError, TransactionTable
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
)
from dualwrite.ids import NO_PRODUCER
from tests.support.broker.transactions import C4, C5, C6, C7, MAX, P0, P1, START_MS, TIMEOUT_MS, TXN_ID, recorded, who

EMPTY, ONGOING = TransactionStatus.EMPTY, TransactionStatus.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT
STORED = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)

ONE, TWO = frozenset({P0}), frozenset({P0, P1})

SOUND = {
    EMPTY: recorded(EMPTY),
    ONGOING: recorded(ONGOING, partitions=ONE, started_ms=START_MS),
    PREPARE_COMMIT: recorded(PREPARE_COMMIT, partitions=ONE, started_ms=START_MS),
    PREPARE_ABORT: recorded(PREPARE_ABORT, partitions=ONE, started_ms=START_MS),
    COMPLETE_COMMIT: recorded(COMPLETE_COMMIT, started_ms=START_MS),
    COMPLETE_ABORT: recorded(COMPLETE_ABORT, started_ms=START_MS),
}
"""One sound fact of each status, all of them 42:5's."""


def table_with(*facts: TransactionRecorded) -> TransactionTable:
    table = TransactionTable()
    for fact in facts:
        table.apply(fact)
    return table


def assert_refused(table: TransactionTable, fact: TransactionRecorded | TransactionForgotten) -> None:
    before = dict(table.entries)
    with pytest.raises(IllegalTransitionError):
        table.apply(fact)
    assert table.entries == before


def successor_of(before: TransactionRecorded, status: TransactionStatus) -> TransactionRecorded:
    """A fact of ``status`` that is sound in all but perhaps the step from ``before``."""
    producer = C6 if status is EMPTY else C5
    partitions = before.partitions if status in (PREPARE_COMMIT, PREPARE_ABORT) else SOUND[status].partitions
    return SOUND[status]._replace(producer=producer, partitions=partitions)


@pytest.mark.parametrize("after", STORED, ids=lambda status: status.name)
@pytest.mark.parametrize("before", STORED, ids=lambda status: status.name)
def test_only_the_steps_of_the_table_are_taken(before: TransactionStatus, after: TransactionStatus) -> None:
    table = table_with(SOUND[before])
    fact = successor_of(SOUND[before], after)

    if before in TRANSITIONS[after]:
        table.apply(fact)
        assert table.entries == {TXN_ID: fact}
    else:
        assert_refused(table, fact)


@pytest.mark.parametrize("status", STORED, ids=lambda status: status.name)
def test_a_transactional_id_is_forgotten_only_while_it_is_idle(status: TransactionStatus) -> None:
    table = table_with(SOUND[status])
    if status in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        table.apply(TransactionForgotten(TXN_ID))
        assert not table.entries
    else:
        assert_refused(table, TransactionForgotten(TXN_ID))


def test_a_tombstone_of_an_unknown_id_is_ignored() -> None:
    table = TransactionTable()
    table.apply(TransactionForgotten(TXN_ID))
    assert not table.entries


@pytest.mark.parametrize("status", STORED, ids=lambda status: status.name)
def test_a_journal_may_begin_anywhere(status: TransactionStatus) -> None:
    assert table_with(SOUND[status]).entries == {TXN_ID: SOUND[status]}


WRONG_ALONE: list[tuple[str, TransactionStatus, dict[str, Any]]] = [
    ("a status that is never stored", TransactionStatus.DEAD, {}),
    ("no producer id", EMPTY, {"producer": NO_PRODUCER}),
    ("a negative producer id", EMPTY, {"producer": who(-1, 0)}),
    ("a negative epoch", EMPTY, {"producer": who(42, -1)}),
    ("an epoch past 16 bits", EMPTY, {"producer": who(42, MAX + 1)}),
    ("a next epoch past 16 bits", ONGOING, {"next_producer": who(42, MAX + 1)}),
    ("an empty transaction with partitions", EMPTY, {"partitions": ONE}),
    ("an empty transaction that started", EMPTY, {"started_ms": START_MS}),
    ("an empty transaction that started at 0", EMPTY, {"started_ms": 0}),
    ("an empty transaction with a second identity", EMPTY, {"next_producer": C6}),
    ("an empty transaction with a second identity of the producer id 0", EMPTY, {"next_producer": who(0, 6)}),
    ("an empty transaction with a second timeout", EMPTY, {"next_timeout_ms": 0}),
    ("an ongoing transaction without partitions", ONGOING, {"partitions": frozenset()}),
    ("an ongoing transaction that never started", ONGOING, {"started_ms": -1}),
    ("a complete transaction with partitions", COMPLETE_COMMIT, {"partitions": ONE}),
    ("a complete transaction with a second identity", COMPLETE_ABORT, {"next_producer": C6}),
]


@pytest.mark.parametrize(
    ("status", "change"), [case[1:] for case in WRONG_ALONE], ids=[case[0] for case in WRONG_ALONE]
)
def test_a_fact_that_contradicts_itself_is_refused(status: TransactionStatus, change: dict[str, Any]) -> None:
    sound = SOUND.get(status, SOUND[EMPTY]._replace(status=status))
    assert_refused(TransactionTable(), sound._replace(**change))


@pytest.mark.parametrize("status", STORED, ids=lambda status: status.name)
def test_the_producer_id_0_and_the_moment_0_are_sound(status: TransactionStatus) -> None:
    """0 is the first producer id of a new cluster."""
    sound = SOUND[status]
    fact = sound._replace(producer=who(0, 0), started_ms=min(sound.started_ms, 0))
    assert table_with(fact).entries == {TXN_ID: fact}


KEPT = SOUND[ONGOING]._replace(next_producer=C6)
WRONG_STEPS: list[tuple[str, TransactionRecorded, TransactionRecorded]] = [
    ("a session with the identity of the one before", SOUND[EMPTY], SOUND[EMPTY]),
    ("a session whose epoch goes back", SOUND[COMPLETE_COMMIT], SOUND[EMPTY]._replace(producer=C4)),
    ("a transaction begun by a stranger", SOUND[EMPTY], SOUND[ONGOING]._replace(producer=C6)),
    ("a transaction that begins as kept", SOUND[EMPTY], KEPT),
    ("an ongoing transaction that changes hands", SOUND[ONGOING], SOUND[ONGOING]._replace(producer=C6)),
    (
        "an ongoing transaction that loses a partition",
        SOUND[ONGOING]._replace(partitions=TWO),
        SOUND[ONGOING]._replace(partitions=ONE),
    ),
    ("an ongoing transaction that starts again", SOUND[ONGOING], SOUND[ONGOING]._replace(started_ms=START_MS + 1)),
    ("a timeout that shrinks", SOUND[ONGOING]._replace(timeout_ms=NO_TIMEOUT), SOUND[ONGOING]),
    ("a recovering client whose identity goes back", KEPT._replace(next_producer=C7), KEPT),
    ("a kept transaction whose client is lost", KEPT, SOUND[ONGOING]),
    ("a marker for a partition that was not added", SOUND[ONGOING], SOUND[PREPARE_COMMIT]._replace(partitions=TWO)),
    ("no marker for a partition", SOUND[ONGOING]._replace(partitions=TWO), SOUND[PREPARE_COMMIT]),
    ("a marker two epochs on", SOUND[ONGOING], SOUND[PREPARE_COMMIT]._replace(producer=C7)),
    ("a marker of another producer id", SOUND[ONGOING], SOUND[PREPARE_ABORT]._replace(producer=who(7, 6))),
    (
        "a marker for nothing, of another producer id",
        SOUND[EMPTY],
        SOUND[PREPARE_ABORT]._replace(producer=who(7, 6), partitions=frozenset()),
    ),
    (
        "a completed transaction that leaves its client with another identity",
        SOUND[PREPARE_COMMIT]._replace(next_producer=who(85, 0)),
        SOUND[COMPLETE_COMMIT],
    ),
]


@pytest.mark.parametrize(("before", "after"), [case[1:] for case in WRONG_STEPS], ids=[case[0] for case in WRONG_STEPS])
def test_a_fact_that_contradicts_the_one_before_is_refused(
    before: TransactionRecorded, after: TransactionRecorded
) -> None:
    assert_refused(table_with(before), after)


def test_the_refusal_shows_both_facts() -> None:
    with pytest.raises(IllegalTransitionError, match=r"illegal transition from .*EMPTY.* to .*COMPLETE_COMMIT"):
        table_with(SOUND[EMPTY], SOUND[COMPLETE_COMMIT])
    with pytest.raises(IllegalTransitionError, match=r"illegal transition from None to .*ONGOING"):
        table_with(SOUND[ONGOING]._replace(started_ms=-1))
    with pytest.raises(IllegalTransitionError, match=r"illegal transition from .*ONGOING.* to TransactionForgotten"):
        table_with(SOUND[ONGOING]).apply(TransactionForgotten(TXN_ID))


def ids(*facts: TransactionRecorded) -> Iterator[TransactionRecorded]:
    for number, fact in enumerate(facts):
        yield fact._replace(transactional_id=f"app-{number}")


def test_the_table_finds_transactions_past_their_timeout() -> None:
    table = table_with(
        *ids(SOUND[ONGOING], SOUND[ONGOING]._replace(timeout_ms=NO_TIMEOUT), SOUND[EMPTY], SOUND[PREPARE_COMMIT])
    )
    assert list(table.timed_out(lambda _: TIMEOUT_MS - 1)) == []
    assert list(table.timed_out(lambda _: TIMEOUT_MS)) == ["app-0"]


def test_the_table_finds_idle_ids_and_never_one_with_a_transaction() -> None:
    table = table_with(*ids(*SOUND.values()))
    assert list(table.idle_since(START_MS - 1)) == []
    assert list(table.idle_since(START_MS)) == ["app-0", "app-4", "app-5"]


def test_the_table_finds_decided_transactions_after_a_crash() -> None:
    table = table_with(*ids(*SOUND.values()))
    assert [entry.status for entry in table.unfinished()] == [PREPARE_COMMIT, PREPARE_ABORT]


def test_every_status_can_be_reached_and_every_step_has_a_cause() -> None:
    reached = {EMPTY}
    for _ in TransactionStatus:
        reached |= {after for after, causes in TRANSITIONS.items() if reached & causes.keys()}
    assert reached == set(TransactionStatus) == set(TRANSITIONS)
    assert all(cause for causes in TRANSITIONS.values() for cause in causes.values())
