"""The facts that decisions record, with all of their fields."""

import pytest

from dualwrite.broker.core.commands import Command, Decision, MarkersWritten, Reply, TimeOut, VerifyPartitions
from dualwrite.broker.core.transaction_rules import TransactionSettings, markers_of
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import (
    ABORT,
    C5,
    C6,
    C7,
    COMMIT,
    P0,
    P1,
    SITUATIONS,
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN_ID,
    CoordinatorWorld,
    add,
    end,
    init,
    recorded,
    verify,
    who,
)

EMPTY, ONGOING = TransactionStatus.EMPTY, TransactionStatus.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT
LATER_MS = START_MS + TIMEOUT_MS
ONE = frozenset({P0})
OWNED = SITUATIONS["ongoing"]().entry
"""A transaction of 42:5, which began at START_MS."""


def decided(situation: str, command: Command) -> Decision:
    """The decision at LATER_MS."""
    world = SITUATIONS[situation]()
    world.now_ms = LATER_MS
    return world.decide(command)


def test_a_new_transactional_id_is_recorded_without_a_transaction() -> None:
    world = CoordinatorWorld(42)
    fact = TransactionRecorded(TXN_ID, who(42, 0), EMPTY, TIMEOUT_MS, START_MS)
    assert world.decide(init()) == Decision(Reply(producer=who(42, 0)), (fact,))


@pytest.mark.parametrize("expected", [NO_PRODUCER, C6])
def test_a_session_is_recorded_without_the_transaction_before(expected: ProducerIdentity) -> None:
    fact = TransactionRecorded(TXN_ID, C7, EMPTY, 5, LATER_MS, previous=expected)
    assert decided("committed-2", init(timeout_ms=5, expected=expected)) == Decision(Reply(producer=C7), (fact,))


def test_a_kept_transaction_is_recorded_with_the_identity_of_its_heir() -> None:
    fact = OWNED._replace(next_producer=C6, next_timeout_ms=5, updated_ms=LATER_MS)
    assert decided("ongoing", init(keep=True, timeout_ms=5)) == Decision(Reply(producer=C6, ongoing=C5), (fact,))


@pytest.mark.parametrize(
    ("situation", "asked", "version"),
    [
        ("empty", TV1, TV1),
        ("empty", TV2, TV2),
        ("committed-1", TV1, TV1),
        ("committed-1", TV2, TV1),  # the transaction before had the same epoch
        ("committed-2", TV1, TV1),
        ("committed-2", TV2, TV2),
        ("fenced", TV2, TV2),
    ],
)
def test_a_transaction_is_of_tv2_if_the_client_is_and_no_transaction_before_had_its_epoch(
    situation: str, asked: TransactionVersion, version: TransactionVersion
) -> None:
    client = SITUATIONS[situation]().entry.client
    fact = TransactionRecorded(TXN_ID, client, ONGOING, TIMEOUT_MS, LATER_MS, ONE, LATER_MS, version=version)
    assert decided(situation, add(client)._replace(version=asked)) == Decision(Reply(), (fact,))


def test_a_further_partition_is_recorded_with_the_moment_of_its_addition() -> None:
    fact = OWNED._replace(partitions=frozenset({P0, P1}), updated_ms=LATER_MS)
    assert decided("ongoing", add(C5, P1)) == Decision(Reply(), (fact,))


@pytest.mark.parametrize(
    ("situation", "command", "marker_producer", "previous", "following", "reply"),
    [
        ("ongoing", end(C5, COMMIT, TV1), C5, NO_PRODUCER, NO_PRODUCER, Reply(producer=C5)),
        ("ongoing", end(C5, COMMIT, TV2), C6, C5, NO_PRODUCER, Reply(producer=C6)),
        ("kept", end(C6, COMMIT, TV1), C6, NO_PRODUCER, NO_PRODUCER, Reply(producer=C6)),
        ("kept", end(C6, COMMIT, TV2), C6, C6, C7, Reply(producer=C7)),
        ("ongoing", TimeOut(TXN_ID), C6, C5, NO_PRODUCER, Reply(producer=C6)),
        ("ongoing", init(expected=C5), C6, C5, NO_PRODUCER, None),
    ],
)
def test_a_decision_of_a_transaction_is_recorded_with_a_next_identity_only_if_it_is_not_that_of_the_markers(
    situation: str,
    command: Command,
    marker_producer: ProducerIdentity,
    previous: ProducerIdentity,
    following: ProducerIdentity,
    reply: Reply | None,
) -> None:
    is_commit = getattr(command, "result", ABORT) is COMMIT
    fact = TransactionRecorded(
        TXN_ID,
        marker_producer,
        PREPARE_COMMIT if is_commit else PREPARE_ABORT,
        TIMEOUT_MS,
        LATER_MS,
        ONE,
        START_MS,
        previous,
        following,
        getattr(command, "version", TV2),
    )
    assert decided(situation, command) == Decision(reply, (fact,), (markers_of(fact),))


@pytest.mark.parametrize("situation", ["empty", "committed-1"])
def test_an_abort_without_partitions_begins_when_it_ends(situation: str) -> None:
    """Also where the transaction before has left the moment of its own beginning."""
    fact = TransactionRecorded(
        TXN_ID, C6, PREPARE_ABORT, TIMEOUT_MS, LATER_MS, started_ms=LATER_MS, previous=C5, version=TV2
    )
    decision = decided(situation, end(C5, ABORT, TV2))
    assert decision == Decision(Reply(producer=C6), (fact,), (markers_of(fact),))


@pytest.mark.parametrize(
    ("situation", "status", "client", "previous", "version"),
    [
        ("prepare-commit-1", COMPLETE_COMMIT, C5, NO_PRODUCER, TV1),
        ("prepare-commit-2", COMPLETE_COMMIT, C6, C5, TV2),
        ("prepare-abort-2", COMPLETE_ABORT, C6, C5, TV2),
        ("prepare-kept", COMPLETE_COMMIT, C7, C6, TV2),
        ("fencing", COMPLETE_ABORT, C6, NO_PRODUCER, TV2),
    ],
)
def test_a_completed_transaction_is_recorded_with_the_identity_of_the_client_and_the_moments(
    situation: str,
    status: TransactionStatus,
    client: ProducerIdentity,
    previous: ProducerIdentity,
    version: TransactionVersion,
) -> None:
    fact = TransactionRecorded(
        TXN_ID, client, status, TIMEOUT_MS, LATER_MS, started_ms=START_MS, previous=previous, version=version
    )
    assert decided(situation, MarkersWritten(TXN_ID)) == Decision(Reply(), (fact,))


# --- records of a kept transaction, where nothing else is verified


@pytest.mark.parametrize(
    "command",
    [verify(who(7, 0)), VerifyPartitions("app-1", C5, ONE), VerifyPartitions("app-1", C6, ONE)],
    ids=["another producer", "another transactional id", "another transactional id, from the heir"],
)
def test_no_setting_lets_a_record_join_a_kept_transaction_under_a_wrong_name(command: VerifyPartitions) -> None:
    """The request may have the transactional id of the transaction, or a producer id of it."""
    world = CoordinatorWorld(settings=TransactionSettings(partition_verification_enable=False))
    world.begin_at(recorded(ONGOING, C5, NO_TIMEOUT, ONE, START_MS))
    assert world.decide(command) == Decision(Reply()), "nothing was kept yet, and so nothing is verified"
    world.execute(init(keep=True))
    assert world.decide(command) == Decision(Reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
