"""Batches of a transaction that has ended: nothing that comes late brings one back into the next transaction."""

from itertools import pairwise

import pytest

from dualwrite.client.engine.contract import Request
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import NODES, SimulatedCluster, SimulatedDriver
from tests.support.client.simulated_engine import committed, ready, refuse


def send_and_abort(driver: SimulatedDriver, value: bytes) -> None:
    """A transaction whose record is sent, and which is aborted before the answer to it comes."""
    driver.begin(value)
    flush = driver.engine.flush(driver.now)
    while ApiKey.PRODUCE not in driver.cluster.requests:
        for command in driver.engine.step(driver.now):
            driver.perform(command)
    driver.events.clear()  # the answer
    assert not flush.is_done
    driver.engine.abandon()
    driver.abort()


@pytest.mark.parametrize("size", [1, 2_000_000], ids=["small", "large enough to count as refused for its size"])
def test_a_connection_that_is_lost_after_the_abort_sends_no_record_again(size: int) -> None:
    driver = ready(max_message_bytes=5_000_000)
    send_and_abort(driver, b"a" * size)
    lost: Endpoint = NODES[driver.cluster.leader]
    driver.opened.discard(lost)
    driver.engine.lost(lost, KafkaUnavailableError("reset"), driver.now)
    driver.begin(b"b")
    driver.now += 10.0  # the pause before another attempt is over
    driver.commit()
    assert committed(driver) == [b"b"]


def test_batches_behind_one_that_is_sent_again_are_not_given_up_as_out_of_order() -> None:
    driver = ready(batch_records=1)
    refuse(driver, ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.begin(b"a", b"b", b"c")
    driver.commit()
    assert committed(driver) == [b"a", b"b", b"c"]
    assert (ApiKey.PRODUCE, "answered", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) in driver.cluster.seen


def test_a_leader_that_names_itself_is_asked_again_after_a_pause() -> None:
    driver = ready()
    refuse(driver, ApiKey.PRODUCE, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3)
    began = driver.now
    driver.begin(b"a")
    driver.commit()
    assert driver.now - began == pytest.approx(0.1 + 0.2 + 0.4)


def test_a_batch_is_sent_no_more_often_than_retries_allows() -> None:
    driver = ready(retries=2)
    refuse(driver, ApiKey.PRODUCE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 9)
    driver.begin(b"a")
    with pytest.raises(PrepareFailedError, match="after 3 attempts: t-0"):
        driver.prepare()
    assert driver.cluster.requests.count(ApiKey.PRODUCE) == 3


def test_a_connection_carries_no_more_requests_than_its_limit() -> None:
    driver = ready(SimulatedCluster(partitions=3), max_in_flight=1, max_message_bytes=1000)
    driver.begin()
    for partition in range(3):
        driver.produce(b"x" * 600, partition=partition)
    flush = driver.engine.flush(driver.now)
    for command in driver.engine.step(driver.now):
        driver.perform(command)
    assert driver.cluster.requests == [ApiKey.PRODUCE]
    driver.run(flush)
    assert driver.cluster.requests == [ApiKey.PRODUCE] * 3


def test_dropped_records_of_a_batch_have_no_offset() -> None:
    offsets: list[int | None] = []
    driver = ready()
    driver.begin(b"a", b"b", on_delivery=lambda _error, record: offsets.append(record.offset()))
    driver.abort()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert offsets == [None, None]


def test_dropped_records_without_a_callback_report_nothing() -> None:
    driver = ready()
    driver.begin(b"a", topic="unknown")
    driver.produce(b"b")
    driver.abort()
    assert driver.engine.take_reports() == []


def test_a_lost_question_about_topics_is_asked_again_with_growing_pauses() -> None:
    driver = ready()
    arrive, lost = driver.cluster.arrive, []

    def losing(endpoint: Endpoint, request: Request) -> Message | None:
        if request.api_key is ApiKey.METADATA and len(lost) < 5:
            lost.append(driver.now)
            return None
        return arrive(endpoint, request)

    driver.cluster.arrive = losing  # type: ignore[method-assign]
    driver.begin(b"a", topic="u")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("u", 0)].committed() == [b"a"]
    pauses = [later - earlier for earlier, later in pairwise(lost)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
