"""The control plane: what is asked, and what each answer means to the caller."""

from typing import Any

import pytest

from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription, TransactionListing
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.scripted_broker import (
    HANG_UP,
    coordinator_is,
    described,
    ended,
    initialized,
    listed,
    producers_of,
    scripted,
)
from tests.support.client.scripted_control import ScriptedControl

PRODUCER = ProducerIdentity(7, 0)
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
FENCING = [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]


def keep(control: ControlPlane, **changes: Any) -> InitializedProducer:
    return control.init_producer_id("app-0", **({"two_phase_commit": True, "keep_prepared_txn": True} | changes))


def test_a_configuration_without_brokers_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        ControlPlane({})


def test_init_asks_in_v6_for_two_phase_commit_and_for_the_transaction_to_be_kept() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(producer=(7, 3), ongoing=(7, 2)))
        assert keep(control) == InitializedProducer(ProducerIdentity(7, 3), ProducerIdentity(7, 2))
        (asked,) = broker.requests(ApiKey.INIT_PRODUCER_ID)
        assert asked.version == 6
        assert (asked.message.enable2_pc, asked.message.keep_prepared_txn) == (True, True)
        assert (asked.message.transactional_id, asked.message.transaction_timeout_ms) == ("app-0", 2147483647)
        assert (asked.message.producer_id, asked.message.producer_epoch) == (-1, -1)


def test_init_passes_on_what_it_is_given() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized())
        keep(control, two_phase_commit=False, keep_prepared_txn=False, transaction_timeout_ms=5, expected=PRODUCER)
        asked = broker.requests(ApiKey.INIT_PRODUCER_ID)[0].message
        assert (asked.enable2_pc, asked.keep_prepared_txn, asked.transaction_timeout_ms) == (False, False, 5)
        assert ProducerIdentity(asked.producer_id, asked.producer_epoch) == PRODUCER


def test_init_with_nothing_open_returns_no_ongoing_transaction() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(ongoing=(-1, -1)))
        assert keep(control).ongoing is None


def test_producer_id_zero_is_an_identity_too() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(producer=(0, 1), ongoing=(0, 0)))
        assert keep(control).ongoing == ProducerIdentity(0, 0)


def test_a_lost_answer_to_init_is_asked_for_again() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, HANG_UP, initialized(producer=(7, 4)))
        assert keep(control).producer == ProducerIdentity(7, 4)


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
@pytest.mark.parametrize("flags", [{"two_phase_commit": False}, {"keep_prepared_txn": False}, {}])
def test_a_refusal_of_two_phase_commit_says_what_to_enable(code: ErrorCode, flags: dict[str, bool]) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(code))
        with pytest.raises(TwoPhaseCommitUnavailableError, match=code.name):
            keep(control, **flags)


def test_the_same_refusal_without_the_flags_is_only_a_refusal() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        with pytest.raises(KafkaRefusedError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            keep(control, two_phase_commit=False, keep_prepared_txn=False)


def test_a_refused_coordinator_lookup_is_not_a_refusal_of_two_phase_commit() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        broker.answer(ApiKey.FIND_COORDINATOR, coordinator_is(broker.endpoint, code))
        with pytest.raises(KafkaRefusedError, match="FindCoordinator of app-0: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            keep(control)


def test_a_broker_without_init_v6_is_recognised_before_any_request() -> None:
    with scripted(versions={ApiKey.INIT_PRODUCER_ID: (0, 5)}) as broker, ScriptedControl(broker) as control:
        assert not control.supports_keep_prepared()
        with pytest.raises(TwoPhaseCommitUnavailableError, match="does not offer"):
            keep(control)
        assert not broker.requests(ApiKey.INIT_PRODUCER_ID)


def test_a_broker_with_v6_supports_it() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        assert control.supports_keep_prepared()


@pytest.mark.parametrize("code", FENCING)
def test_fencing_codes_mean_that_another_producer_took_over(code: int) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.INIT_PRODUCER_ID, initialized(code))
        broker.answer(ApiKey.END_TXN, ended(code))
        with pytest.raises(FencedError, match="another producer has taken over"):
            keep(control)
        with pytest.raises(FencedError, match="another producer has taken over"):
            control.end_txn("app-0", PRODUCER, True)


def test_an_expired_identity_is_reported_as_refused_and_not_as_fenced() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        with pytest.raises(KafkaRefusedError, match="has expired") as caught:
            control.end_txn("app-0", PRODUCER, True)
        assert caught.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("committed", [True, False])
def test_end_txn_names_the_producer_and_the_outcome(committed: bool) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, ended())
        assert control.end_txn("app-0", PRODUCER, committed) == PRODUCER
        (asked,) = broker.requests(ApiKey.END_TXN)
        assert (asked.version, asked.message.committed, asked.message.transactional_id) == (4, committed, "app-0")
        assert ProducerIdentity(asked.message.producer_id, asked.message.producer_epoch) == PRODUCER


def test_end_txn_in_v5_returns_the_bumped_identity() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, ended(producer=(8, 0)))
        assert control.end_txn("app-0", PRODUCER, True, bumps_epoch=True) == ProducerIdentity(8, 0)
        assert broker.requests(ApiKey.END_TXN)[0].version == 5


def test_an_end_txn_whose_answer_was_lost_is_never_repeated_blindly() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, HANG_UP, ended())
        with pytest.raises(AnswerLostError, match="END_TXN"):
            control.end_txn("app-0", PRODUCER, True)
        assert len(broker.requests(ApiKey.END_TXN)) == 1


def test_an_end_txn_that_can_hit_nothing_else_is_repeated_until_it_is_answered() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, HANG_UP, ended(ErrorCode.CONCURRENT_TRANSACTIONS), ended())
        control.end_txn("app-0", PRODUCER, True, repeatable=True)
        asked = broker.requests(ApiKey.END_TXN)
        assert len(asked) == 3
        assert {(seen.message.producer_epoch, seen.message.committed) for seen in asked} == {(0, True)}


def test_an_end_txn_the_other_way_is_refused() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.END_TXN, ended(ErrorCode.INVALID_TXN_STATE))
        with pytest.raises(KafkaRefusedError, match=r"EndTxn \(abort\) of app-0: INVALID_TXN_STATE \(48\)") as caught:
            control.end_txn("app-0", PRODUCER, False)
        assert (caught.value.code, caught.value.name) == (48, "INVALID_TXN_STATE")


def test_a_transaction_is_described() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described(partitions={"t": [0, 1], "u": [0]}))
        assert control.describe_transaction("app-0") == TransactionDescription(
            "Ongoing", PRODUCER, 2147483647, 1700000000000, frozenset({T0, T1, U0})
        )


def test_a_transactional_id_without_a_transaction_has_a_negative_start() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described(state="Empty"))
        found = control.describe_transaction("app-0")
        assert found is not None
        assert (found.start_ms, found.partitions) == (-1, frozenset())


def test_an_unknown_transactional_id_is_described_as_none() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
        assert control.describe_transaction("app-0") is None


def test_a_description_waits_until_the_coordinator_has_loaded() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(
            ApiKey.DESCRIBE_TRANSACTIONS, described(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), HANG_UP, described()
        )
        assert control.describe_transaction("app-0") == TransactionDescription(
            "Ongoing", PRODUCER, 2147483647, 1700000000000, frozenset()
        )
        assert len(broker.requests(ApiKey.DESCRIBE_TRANSACTIONS)) == 3


def test_a_description_that_is_refused_is_an_error() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        with pytest.raises(KafkaRefusedError, match="DescribeTransactions of app-0"):
            control.describe_transaction("app-0")


def test_an_empty_description_is_not_taken_for_an_answer() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        empty = described()
        empty.transaction_states = []
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, empty)
        with pytest.raises(KafkaUnavailableError, match="0 answers"):
            control.describe_transaction("app-0")


def test_start_offsets_come_from_each_partitions_leader() -> None:
    with scripted() as first, scripted() as second, ScriptedControl(first) as control:
        first.nodes[2] = second.endpoint
        first.leaders["t", 1] = 2
        first.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 11}))
        second.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 1): 22}))
        assert control.current_transaction_start_offsets([T0, T1], PRODUCER) == {T0: 11, T1: 22}
        assert [topic.partition_indexes for topic in first.requests(ApiKey.DESCRIBE_PRODUCERS)[0].message.topics] == [
            [0]
        ]


def test_a_partition_in_which_the_producer_has_nothing_open_has_no_offset() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 0}))
        assert control.current_transaction_start_offsets([T0, T1], PRODUCER) == {T0: 0}


@pytest.mark.parametrize("other", [(7, 1), (8, 0)])
def test_another_producers_transaction_is_not_taken_for_ours(other: tuple[int, int]) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 5}, producer=other))
        assert control.current_transaction_start_offsets([T0], PRODUCER) == {}


def test_a_leader_that_moved_is_found_again_and_only_the_rest_is_asked() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        moved = producers_of({("t", 0): 1}, codes={("t", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER})
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, moved, producers_of({("t", 1): 2}))
        assert control.current_transaction_start_offsets([T0, T1], PRODUCER) == {T0: 1, T1: 2}
        second = broker.requests(ApiKey.DESCRIBE_PRODUCERS)[1].message
        assert [topic.partition_indexes for topic in second.topics] == [[1]]


def test_an_answer_that_leaves_a_partition_out_is_not_read_as_nothing_open() -> None:
    def only_first(request: Any) -> Any:
        request.topics[0].partition_indexes = [0]
        return producers_of({("t", 0): 1})(request)

    def nothing(request: Any) -> Any:
        request.topics = []
        return producers_of({})(request)

    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, only_first, nothing)
        with pytest.raises(KafkaUnavailableError, match="no answer about t-1"):
            control.current_transaction_start_offsets([T0, T1], PRODUCER)


@pytest.mark.parametrize("deleted_too", [False, True])
def test_a_partition_that_may_not_be_read_is_an_error(deleted_too: bool) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        refused = producers_of({}, codes={("t", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED})
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, refused)
        with pytest.raises(KafkaRefusedError, match="DescribeProducers of t-0: TOPIC_AUTHORIZATION_FAILED"):
            control.current_transaction_start_offsets([T0], PRODUCER, deleted_too=deleted_too)


def test_partitions_that_were_deleted_keep_no_answer_about_the_others_back() -> None:
    """The deletion of T1 has reached its leader, and not yet Metadata."""
    partitions = [T0, T1, TopicPartition("gone", 0)]
    with scripted() as broker, ScriptedControl(broker) as control:
        deleted = producers_of({("t", 0): 11}, codes={("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        broker.answer(ApiKey.DESCRIBE_PRODUCERS, deleted)
        assert control.current_transaction_start_offsets(partitions, PRODUCER, deleted_too=True) == {T0: 11}
        for unknown in (T1, partitions[2]):
            with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                control.current_transaction_start_offsets([T0, unknown], PRODUCER)


@pytest.mark.parametrize(
    ("code", "is_hidden"),
    [
        (ErrorCode.NONE, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_topic_that_this_client_may_not_describe_is_hidden_from_it(code: ErrorCode, is_hidden: bool) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.topic_codes["t"] = code
        assert control.hides("t") is is_hidden


def test_no_partitions_need_no_broker() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        assert control.current_transaction_start_offsets([], PRODUCER) == {}
        assert broker.seen == []


def test_transactions_are_listed_from_every_broker_in_order() -> None:
    with scripted() as first, scripted() as second, ScriptedControl(first) as control:
        first.nodes[2] = second.endpoint
        first.answer(ApiKey.LIST_TRANSACTIONS, listed(("b", 2, "Ongoing")))
        second.answer(
            ApiKey.LIST_TRANSACTIONS, listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), listed(("a", 1, "Empty"))
        )
        assert control.list_transactions() == [
            TransactionListing("a", 1, "Empty"),
            TransactionListing("b", 2, "Ongoing"),
        ]


def test_an_error_code_without_a_name_is_shown_as_a_number() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.LIST_TRANSACTIONS, listed(code=999))
        with pytest.raises(KafkaRefusedError, match="999"):
            control.list_transactions()


def test_a_broker_that_knows_no_features_speaks_the_oldest_transaction_version() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        assert control.transaction_version() == 0
