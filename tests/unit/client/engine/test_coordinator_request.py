"""The requests that begin and end a producer's transactions: their fields, and what becomes of records at an abort."""

from typing import Any

import pytest

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.contract import Request
from dualwrite.client.engine.coordinator_request import CoordinatorRequest, end_request, init_request, offsets_request
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import GROUP, TRANSACTION, CommittedOffset, CoordinatorOf, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, PrepareFailedError
from dualwrite.ids import PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver


def begun(driver: SimulatedDriver) -> SimulatedDriver:
    driver.init()
    driver.begin()
    return driver


def flags(call: CoordinatorRequest | None) -> tuple[Any, Any] | None:
    """KIP-939's two, as InitProducerId has them."""
    return None if call is None else (call.request.message.enable2_pc, call.request.message.keep_prepared_txn)


@pytest.mark.parametrize(
    ("two_phase", "keeps", "first", "fallback"),
    [
        (True, True, (True, True), None),
        (True, False, (True, True), (True, False)),
        (False, True, (False, True), None),
        (False, False, (False, False), None),
    ],
)
def test_init_keeps_an_open_transaction_in_two_phase_commit_and_has_a_fallback_that_aborts_it(
    two_phase: bool, keeps: bool, first: tuple[bool, bool], fallback: tuple[bool, bool] | None
) -> None:
    settings = ProducerSettings(ClientSettings((Endpoint("one", 1),)), "app-0", two_phase_commit=two_phase)
    call = init_request(settings, keeps, lambda answer: None)
    assert flags(call) == first
    assert flags(call.fallback) == fallback


def test_the_transaction_that_a_predecessor_left_is_aborted_by_a_request_that_says_so() -> None:
    cluster = SimulatedCluster()
    driver = begun(SimulatedDriver(cluster))
    driver.produce(b"a")
    driver.prepare()
    arrive, decisions = cluster.arrive, []

    def noting(endpoint: Endpoint, request: Request) -> Message | None:
        if request.api_key is ApiKey.END_TXN:
            decisions.append(request.message.committed)
        return arrive(endpoint, request)

    cluster.arrive = noting  # type: ignore[method-assign]
    SimulatedDriver(cluster).init()
    assert decisions == [False]


def test_after_a_predecessors_transaction_was_aborted_the_next_one_has_the_identity_that_the_answer_gave() -> None:
    cluster = SimulatedCluster()
    driver = begun(SimulatedDriver(cluster))
    driver.produce(b"a")
    driver.prepare()
    successor = SimulatedDriver(cluster)
    successor.now = 1_000_000.0  # an abort whose time were counted from elsewhere would be over
    successor.init()
    successor.begin(b"b")
    assert successor.commit() is TransactionResult.COMMITTED
    assert cluster.logs[TopicPartition("t", 0)].committed() == [b"b"]


def test_a_groups_offsets_are_sent_to_the_coordinator_of_the_group() -> None:
    settings = ProducerSettings(ClientSettings((Endpoint("one", 1),)), "app-0")
    identity, offsets = ProducerIdentity(7, 3), [CommittedOffset("t", 0, 5)]
    call = offsets_request(settings, identity, offsets, GroupMember("app-0"), lambda answer: None)
    assert call.coordinator == CoordinatorOf(GROUP, "app-0")
    assert end_request(settings, identity, True, lambda answer: None).coordinator == CoordinatorOf(TRANSACTION, "app-0")


@pytest.mark.parametrize("is_known", [True, False], ids=["of a known topic", "of an unknown topic"])
def test_the_callbacks_of_aborted_records_get_an_error_that_says_so(is_known: bool) -> None:
    told: list[Any] = []
    driver = begun(SimulatedDriver(SimulatedCluster()))
    if is_known:
        driver.produce(b"first")
        driver.commit()
        driver.begin()
    driver.produce(b"a", on_delivery=lambda error, record: told.append((error, record.error())))
    assert driver.abort() is TransactionResult.NOTHING
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    ((given, of_record),) = told
    assert given is of_record
    assert isinstance(given, PrepareFailedError)
    assert str(given) == "the transaction was aborted"


def test_an_aborted_transaction_that_sent_nothing_leaves_neither_a_name_nor_an_error() -> None:
    driver = begun(SimulatedDriver(SimulatedCluster(), max_message_bytes=1000))
    driver.produce(b"a")
    with pytest.raises(KafkaRefusedError):
        driver.produce(b"x" * 1000)
    assert driver.abort() is TransactionResult.NOTHING
    assert driver.engine.transaction.prepared == PreparedTxnState()
    with pytest.raises(InvalidTransactionStateError, match="the producer is ready"):
        driver.produce(b"b")
