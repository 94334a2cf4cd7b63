"""Which transactional id a producer id was given to, and which transactions the coordinator alone may end."""

import pytest

from dualwrite.broker.core.commands import EndTransaction
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings, decide
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import NO_PRODUCER_ID, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode

P0 = TopicPartition("t", 0)
FIRST, HEIR = ProducerIdentity(7, 0), ProducerIdentity(8, 0)
EMPTY = TransactionRecorded("a", FIRST, TransactionStatus.EMPTY, 1000, 0)
ONGOING = EMPTY._replace(status=TransactionStatus.ONGOING, partitions=frozenset({P0}), started_ms=1)
KEPT = ONGOING._replace(next_producer=HEIR)


def table(*facts: TransactionRecorded | TransactionForgotten) -> TransactionTable:
    made = TransactionTable()
    for fact in facts:
        made.apply(fact)
    return made


def test_a_producer_id_belongs_to_the_transactional_id_that_it_was_given_to() -> None:
    assert table(EMPTY).owner_of(7) == EMPTY
    assert table(EMPTY).owner_of(8) is None


def test_both_identities_of_a_kept_transaction_have_its_owner() -> None:
    kept = table(EMPTY, ONGOING, KEPT)
    assert (kept.owner_of(7), kept.owner_of(8)) == (KEPT, KEPT)


def test_the_first_client_of_a_kept_transaction_is_fenced_and_not_unknown() -> None:
    """A client that is unknown may go on with another identity, and a fenced client may not."""
    late = EndTransaction("a", FIRST, Marker.COMMIT, TransactionVersion.TV2)
    reply = decide(table(EMPTY, ONGOING, KEPT), late, Moment(2, 9), TransactionSettings()).reply
    assert reply is not None
    assert reply.error is ErrorCode.PRODUCER_FENCED


def test_a_producer_id_that_is_not_used_any_more_has_no_owner() -> None:
    """So the table is the same after a restart, which reads the last fact alone."""
    moved_on = EMPTY._replace(producer=HEIR)
    assert table(EMPTY, moved_on).owner_of(7) is None
    assert table(EMPTY, moved_on).owner_of(8) == table(moved_on).owner_of(8) == moved_on


def test_an_expired_transactional_id_owns_nothing() -> None:
    forgotten = table(EMPTY, TransactionForgotten("a"))
    assert forgotten.owner_of(7) is None
    forgotten.apply(EMPTY._replace(producer=HEIR))
    assert forgotten.owner_of(7) is None, "the transactional id has begun anew with another one"


def test_a_record_without_a_producer_id_has_no_owner() -> None:
    assert table(EMPTY).owner_of(NO_PRODUCER_ID) is None


def test_the_identity_of_the_latest_recovery_replaces_that_of_the_one_before() -> None:
    """Where the epochs of the former heir have run out."""
    kept_again = KEPT._replace(next_producer=ProducerIdentity(9, 0))
    kept = table(EMPTY, ONGOING, KEPT, kept_again)
    assert [kept.owner_of(producer_id) for producer_id in (7, 8, 9)] == [kept_again, None, kept_again]


def test_the_identity_of_the_latest_bump_replaces_that_of_the_one_before() -> None:
    bumped = EMPTY._replace(producer=HEIR, previous=FIRST)
    again = bumped._replace(producer=ProducerIdentity(8, 1), previous=ProducerIdentity(9, 0))
    owned = table(EMPTY, bumped, again)
    assert [owned.owner_of(producer_id) for producer_id in (7, 8, 9)] == [None, again, again]


@pytest.mark.parametrize(
    ("fact", "is_coordinated"),
    [
        (EMPTY, False),
        (ONGOING, False),
        (ONGOING._replace(timeout_ms=NO_TIMEOUT), True),
        (KEPT, True),
        (ONGOING._replace(status=TransactionStatus.PREPARE_COMMIT, timeout_ms=NO_TIMEOUT), True),
        (ONGOING._replace(status=TransactionStatus.PREPARE_COMMIT), True),
        (KEPT._replace(status=TransactionStatus.PREPARE_ABORT), True),
    ],
)
def test_only_the_coordinator_ends_what_is_decided_or_prepared(fact: TransactionRecorded, is_coordinated: bool) -> None:
    assert table(fact).is_coordinated(7, P0) is is_coordinated
    assert not table(fact).is_coordinated(7, TopicPartition("t", 1)), "the transaction is not there"
    assert not table(fact).is_coordinated(8, P0), "the records are of the other identity"
