"""How long the native producer's engine goes on with what will not come, how often it asks, and what it says then."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.engine.contract import Request
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError, PrepareFailedError
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver

_FOR_EVER = 1000
MEMBER = GroupMember("g", 3, "member-1")


def begun(*values: bytes, **settings: Any) -> SimulatedDriver:
    """A producer in a transaction, whose cluster knows no topic yet."""
    driver = SimulatedDriver(SimulatedCluster(), **settings)
    driver.init()
    driver.begin(*values)
    return driver


def dropping(cluster: SimulatedCluster, api_key: ApiKey) -> list[ApiKey]:
    """Have every connection closed on which ``api_key`` is asked; those requests, as they come."""
    dropped: list[ApiKey] = []
    arrive: Callable[[Endpoint, Request], Message | None] = cluster.arrive

    def dropped_or_answered(endpoint: Endpoint, request: Request) -> Message | None:
        if request.api_key is not api_key:
            return arrive(endpoint, request)
        dropped.append(request.api_key)
        assert len(dropped) < _FOR_EVER, "it is asked again and again without a pause"
        return None

    cluster.arrive = dropped_or_answered  # type: ignore[method-assign]
    return dropped


# --- connections that are closed instead of an answer


def test_a_broker_that_drops_the_first_request_is_retried_with_growing_pauses() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    asked = dropping(driver.cluster, ApiKey.FIND_COORDINATOR)
    with pytest.raises(KafkaUnavailableError, match=r"no answer in 30 s: FindCoordinator: broker \w+:\d: reset"):
        driver.init()
    assert driver.now == pytest.approx(30.0)
    assert len(asked) < 40


def test_a_large_request_that_always_closes_the_connection_is_refused_for_its_size() -> None:
    driver = begun(value := b"x" * 2_000_000, max_message_bytes=5_000_000)
    asked = dropping(driver.cluster, ApiKey.PRODUCE)
    with pytest.raises(KafkaRefusedError, match=r"1 record .* 5 times .* socket\.request\.max\.bytes") as refused:
        driver.prepare()
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert not refused.value.retriable
    assert f"over {len(value)}"[:8] in str(refused.value)
    assert len(asked) == 5
    assert driver.now < 5
    assert driver.engine.state is ProducerState.ABORTABLE


def test_a_small_request_is_sent_again_until_its_time_is_up() -> None:
    driver = begun(b"a")
    dropping(driver.cluster, ApiKey.PRODUCE)
    with pytest.raises(PrepareFailedError, match=r"1 record not acknowledged in 30 s: t-0: .*reset"):
        driver.prepare()
    assert driver.now == pytest.approx(30.0)


def test_a_late_answer_to_a_large_request_is_not_taken_for_a_refusal() -> None:
    driver = begun(b"x" * 2_000_000, max_message_bytes=5_000_000, request_timeout=1.0)
    answer = driver.answer

    def answer_late(endpoint: Endpoint, tag: int, message: Message) -> None:
        if not hasattr(message, "responses"):
            answer(endpoint, tag, message)

    driver.answer = answer_late  # type: ignore[method-assign]
    with pytest.raises(PrepareFailedError, match=r"1 record not acknowledged in 30 s: t-0: .*timed out"):
        driver.prepare()


def test_an_answer_between_two_losses_begins_the_count_anew() -> None:
    driver = begun(b"x" * 2_000_000, max_message_bytes=5_000_000)
    fates = deque([None] * 4 + [ErrorCode.NOT_ENOUGH_REPLICAS] + [None] * 4)
    arrive = driver.cluster.arrive

    def arriving(endpoint: Endpoint, request: Request) -> Message | None:
        if request.api_key is not ApiKey.PRODUCE or not fates:
            return arrive(endpoint, request)
        fate = fates.popleft()
        if fate is None:
            return None
        driver.cluster.refusals[ApiKey.PRODUCE] = deque([fate])
        return arrive(endpoint, request)

    driver.cluster.arrive = arriving  # type: ignore[method-assign]
    assert driver.prepare()


# --- topics that do not come


def test_records_of_a_missing_topic_wait_no_longer_than_the_delivery_timeout() -> None:
    driver = begun(b"a", b"b", delivery_timeout=2.0)
    driver.cluster.topic_errors = deque([ErrorCode.LEADER_NOT_AVAILABLE] * _FOR_EVER)
    began = driver.now
    with pytest.raises(PrepareFailedError, match="2 records not acknowledged in 2 s: t: the topic is not known"):
        driver.prepare()
    assert driver.now == pytest.approx(began + 2.0)


def test_a_topic_that_is_not_known_has_the_shorter_of_the_two_times() -> None:
    driver = begun(b"a", topic_propagation=1.0)
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * _FOR_EVER)
    with pytest.raises(KafkaRefusedError, match="1 record not acknowledged in 1 s: t: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()


def test_the_delivery_timeout_begins_when_the_delivery_is_awaited() -> None:
    driver = begun(b"a", delivery_timeout=2.0)
    driver.cluster.topic_errors = deque([ErrorCode.LEADER_NOT_AVAILABLE] * 3)
    driver.now += 20  # the unit of work does something else
    assert driver.prepare()


# --- offsets for a topic that there is not


def test_offsets_for_a_missing_topic_are_refused_by_its_name() -> None:
    driver = begun()
    driver.cluster.refusals[ApiKey.TXN_OFFSET_COMMIT] = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * _FOR_EVER)
    with pytest.raises(KafkaRefusedError, match=r"refused for 30 s: in-3: UNKNOWN_TOPIC_OR_PARTITION \(3\)") as refused:
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 3, 42)], MEMBER, driver.now))
    assert not refused.value.retriable
    assert driver.engine.state is ProducerState.ABORTABLE


def test_offsets_that_are_refused_name_their_partition() -> None:
    driver = begun()
    driver.cluster.refusals[ApiKey.TXN_OFFSET_COMMIT] = deque([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(KafkaRefusedError, match=r"group g in app-0: in-3: TOPIC_AUTHORIZATION_FAILED"):
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 3, 42)], MEMBER, driver.now))


# --- what callbacks are told


def test_a_delivered_record_has_the_methods_of_confluent_kafkas_message() -> None:
    told: list[Any] = []
    driver = begun()
    driver.produce(b"a", on_delivery=lambda error, record: told.append(record))
    driver.now += 0.5
    driver.prepare()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert (told[0].offset(), told[0].partition(), told[0].leader_epoch()) == (0, 0, None)
    assert told[0].latency() == pytest.approx(0.5)


def test_a_record_that_was_not_delivered_has_no_place_and_no_latency() -> None:
    told: list[Any] = []
    driver = begun()
    driver.produce(b"a", partition=-1, on_delivery=lambda error, record: told.append(record))
    driver.abort()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert (told[0].offset(), told[0].partition(), told[0].latency()) == (None, None, None)
