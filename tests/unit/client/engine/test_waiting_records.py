"""Records that wait for the metadata of their topic: their order, their time, and what an earlier one leaves behind."""

from collections import deque
from collections.abc import Callable

import pytest

from dualwrite.client.engine.contract import Request
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaRefusedError, PrepareFailedError
from dualwrite.ids import TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver


@pytest.fixture
def driver() -> SimulatedDriver:
    """A producer in its first transaction, which knows no topic."""
    made = SimulatedDriver(SimulatedCluster())
    made.init()
    made.begin()
    return made


def committed(driver: SimulatedDriver, topic: str = "t") -> list[bytes | None]:
    return driver.cluster.logs[TopicPartition(topic, 0)].committed()


def answer_of_metadata(driver: SimulatedDriver) -> Callable[[], None]:
    """Let the producer ask for its topic; the answer is on its way, and arrives with a call."""
    while True:
        for command in driver.engine.step(driver.now):
            driver.perform(command)
        late = driver.events.popleft()
        if ApiKey.METADATA in driver.cluster.requests:
            return late
        late()


def lose_a_topic(driver: SimulatedDriver) -> None:
    """A transaction with a record for the topic "u", which does not exist."""
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    driver.produce(b"lost", topic="u")
    with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    driver.abort()
    driver.cluster.topic_errors.clear()


def test_records_of_a_partition_keep_their_order_while_a_new_partition_is_looked_for(driver: SimulatedDriver) -> None:
    driver.now += 1.0
    driver.produce(b"a")
    late = answer_of_metadata(driver)
    driver.now += 1.0
    driver.produce(b"x", partition=1)  # the answer that is on its way may be older than the partition
    driver.produce(b"b")
    late()
    driver.produce(b"c")
    driver.cluster.partitions = 2
    driver.commit()
    assert committed(driver) == [b"a", b"b", b"c"]
    assert driver.cluster.logs[TopicPartition("t", 1)].committed() == [b"x"]


def test_a_verb_does_not_wait_longer_for_a_record_whose_partition_an_answer_lacks() -> None:
    driver = SimulatedDriver(SimulatedCluster(), delivery_timeout=5.0, topic_propagation=600.0)
    driver.init()
    driver.now += 1.0
    driver.begin(b"a")
    late, arrive = answer_of_metadata(driver), driver.cluster.arrive

    def silent(endpoint: Endpoint, request: Request) -> Message | None:
        return None if request.api_key is ApiKey.METADATA else arrive(endpoint, request)

    driver.now += 1.0
    driver.produce(b"x", partition=1)  # the answer that is on its way may be older than the partition
    flushed = driver.engine.flush(driver.now)
    late()
    driver.cluster.arrive = silent  # type: ignore[method-assign]
    with pytest.raises(PrepareFailedError, match="not acknowledged in 5 s: t: the topic is not known"):
        driver.run(flushed)


def test_a_topic_that_was_waited_for_in_vain_has_its_whole_time_in_the_next_transaction(
    driver: SimulatedDriver,
) -> None:
    lose_a_topic(driver)
    driver.begin(b"a", topic="u")
    driver.commit()
    assert committed(driver, "u") == [b"a"]


def test_a_topic_that_was_not_there_is_no_reason_if_no_broker_answers_in_the_next_transaction(
    driver: SimulatedDriver,
) -> None:
    lose_a_topic(driver)
    arrive = driver.cluster.arrive

    def silent(endpoint: Endpoint, request: Request) -> Message | None:
        return None if request.api_key is ApiKey.METADATA else arrive(endpoint, request)

    driver.cluster.arrive = silent  # type: ignore[method-assign]
    driver.begin(b"a", topic="u")
    with pytest.raises(PrepareFailedError, match="not acknowledged in 30 s"):
        driver.prepare()


def test_a_waiting_record_that_is_dropped_has_its_own_timestamp(driver: SimulatedDriver) -> None:
    told: list[tuple[int, int]] = []
    driver.produce(b"a", timestamp=123, on_delivery=lambda _error, record: told.append(record.timestamp()))
    driver.abort()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert told == [(1, 123)]


def test_a_record_that_waited_has_the_time_at_which_the_producer_took_it(driver: SimulatedDriver) -> None:
    told: list[tuple[int, int]] = []
    record = OutgoingRecord("t", b"a", on_delivery=lambda _error, record: told.append(record.timestamp()))
    assert driver.engine.produce(record, 777, driver.now)
    driver.commit()
    for on_delivery, error, delivered in driver.engine.take_reports():
        on_delivery(error, delivered)
    assert told == [(1, 777)]


def test_a_new_partition_of_a_topic_that_was_waited_for_before_has_its_whole_time(driver: SimulatedDriver) -> None:
    driver.produce(b"a")
    driver.run(driver.engine.flush(driver.now))
    driver.cluster.partitions = 2
    driver.now += 100.0
    driver.produce(b"b", partition=1)
    driver.commit()
    assert driver.cluster.logs[TopicPartition("t", 1)].committed() == [b"b"]
