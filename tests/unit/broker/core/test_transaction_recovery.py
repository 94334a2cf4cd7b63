"""What a start finds missing, after a power cut that treated every log for itself."""

import pytest

from dualwrite.broker.core.partitions import PartitionState, ProducerEntry
from dualwrite.broker.core.transaction_recovery import LastDecisions, lacks_marker, lost_join, lost_marker
from dualwrite.broker.facts.transactions import (
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import ProducerIdentity, TopicPartition

EMPTY, ONGOING = TransactionStatus.EMPTY, TransactionStatus.ONGOING
PREPARED, COMPLETE = TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT
TV1, TV2 = TransactionVersion.TV1, TransactionVersion.TV2
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def recorded(
    status: TransactionStatus, epoch: int, version: TransactionVersion, *, next_epoch: int = -1
) -> TransactionRecorded:
    """A fact of ``tx``, whose producer id is 7, with one partition if it has a transaction."""
    partitions = frozenset({FIRST}) if status in (ONGOING, PREPARED) else frozenset()
    following = ProducerIdentity(7, next_epoch) if next_epoch >= 0 else ProducerIdentity(-1, -1)
    producer = ProducerIdentity(7, epoch)
    return TransactionRecorded("tx", producer, status, 1, 1, partitions, next_producer=following, version=version)


def partition(epoch: int | None, is_open: bool = False, start: int = 3) -> PartitionState:
    """A partition in which producer 7 wrote last with ``epoch``; its open transaction begins at ``start``."""
    state = PartitionState()
    if epoch is not None:
        state.producers[7] = ProducerEntry(7, epoch, transaction_start=start if is_open else -1)
    return state


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    ("version", "epoch", "is_open", "lacks", "lost"),
    [
        (TV2, None, False, True, False),  # it has no records: the marker fences, and nothing needs it
        (TV2, 4, True, True, True),  # the records of the transaction
        (TV2, 4, False, True, False),  # it has none here
        (TV2, 5, False, False, False),  # the marker is there
        (TV2, 5, True, False, False),  # and the next transaction after it
        (TV2, 6, False, False, False),  # an operator has ended it
        (TV1, 5, True, True, None),
        (TV1, 5, False, False, None),
        (TV1, 4, True, True, None),  # its own identity was kept
        (TV1, 6, True, False, None),
    ],
)
def test_a_decision_with_epoch_5_looks_for_its_marker(
    version: TransactionVersion, epoch: int | None, is_open: bool, lacks: bool, lost: bool | None, start: int
) -> None:
    decision = recorded(PREPARED, 5, version)
    assert lacks_marker(decision, partition(epoch, is_open, start)) is lacks
    if lost is not None:
        assert lost_marker(decision, partition(epoch, is_open, start)) is lost


@pytest.mark.parametrize(
    ("entry", "epoch", "name", "lost"),
    [
        (recorded(EMPTY, 5, TV1), 5, FIRST, True),
        (recorded(COMPLETE, 5, TV2), 5, FIRST, True),
        (recorded(ONGOING, 5, TV2), 5, SECOND, True),
        (recorded(ONGOING, 5, TV2), 5, FIRST, False),  # the coordinator knows it
        (recorded(COMPLETE, 5, TV1), 5, FIRST, False),  # perhaps an earlier transaction's
        (recorded(ONGOING, 5, TV1), 5, SECOND, False),
        (recorded(EMPTY, 5, TV1), 4, FIRST, False),
        (recorded(ONGOING, 5, TV2, next_epoch=6), 5, SECOND, False),  # kept: it can only end
        (recorded(ONGOING, 5, TV2, next_epoch=6), 6, SECOND, False),
        (recorded(PREPARED, 5, TV2), 5, SECOND, False),
    ],
)
def test_open_records_with_the_clients_epoch_join_its_transaction(
    entry: TransactionRecorded, epoch: int, name: TopicPartition, lost: bool
) -> None:
    assert lost_join(entry, ProducerIdentity(7, epoch), name) is lost


def test_the_last_decision_of_each_id_is_remembered_if_it_is_of_tv2() -> None:
    decisions, first, second = LastDecisions(), recorded(PREPARED, 5, TV2), recorded(PREPARED, 6, TV2)
    for fact in (first, recorded(COMPLETE, 5, TV2), second, recorded(ONGOING, 6, TV2), TransactionForgotten("tx")):
        decisions.note(fact)
    assert list(decisions) == [second]
    decisions.note(recorded(PREPARED, 7, TV1))
    assert list(decisions) == []
