"""The engine looks for leaders and topics: when it asks, what it keeps, and what it forgets."""

from collections import deque
from typing import Any

import pytest

from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver
from tests.support.client.simulated_engine import committed, ready, refuse


@pytest.mark.parametrize(("gives_hints", "seconds"), [(True, 0.0), (False, 0.1)])
def test_a_moved_leader_is_found_again_without_a_pause_if_its_predecessor_names_it(
    gives_hints: bool, seconds: float
) -> None:
    driver = ready(batch_records=1)
    driver.begin(b"a", b"b", b"c")
    driver.cluster.leader, driver.cluster.gives_hints = 1, gives_hints
    began = driver.now
    driver.commit()
    assert driver.now - began == pytest.approx(seconds)
    assert driver.cluster.requests.count(ApiKey.METADATA) == 1, "other partitions may have moved too"
    assert committed(driver) == [b"a", b"b", b"c"]


def test_one_refused_refresh_does_not_blind_the_producer_to_a_topic_that_it_knows() -> None:
    driver = ready(metadata_max_age=300.0)
    driver.cluster.gives_hints = False
    driver.cluster.topic_errors = deque([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    driver.now += 400.0
    driver.begin(b"a")
    driver.commit()
    while driver.cluster.topic_errors:
        driver.turn()
    while driver.events:
        driver.turn()
    driver.cluster.leader = 1
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"a", b"b"]


def test_a_refused_topic_that_is_not_known_is_asked_for_when_it_is_written_to_again() -> None:
    driver = ready()
    driver.cluster.topic_errors = deque([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    driver.begin()
    driver.produce(b"a", topic="u")
    with pytest.raises(KafkaRefusedError, match="topic 'u': TOPIC_AUTHORIZATION_FAILED"):
        driver.prepare()
    driver.abort()
    driver.begin()
    driver.produce(b"b", topic="u")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("u", 0)].committed() == [b"b"]


def test_a_partition_without_a_leader_is_asked_for_with_growing_pauses() -> None:
    driver = ready()
    driver.cluster.has_leaders = False
    driver.begin(b"a")
    driver.cluster.leader = 1  # the old one refuses the record
    operation = driver.engine.prepare_transaction(driver.now)
    began = driver.now
    while driver.now < began + 10.0:
        driver.turn()
        assert driver.cluster.requests.count(ApiKey.METADATA) < 25, "pauses grow to a second"
    assert driver.cluster.requests.count(ApiKey.METADATA) > 5
    driver.cluster.has_leaders = True
    driver.run(operation)
    driver.commit()
    assert committed(driver) == [b"a"]


def test_a_topic_that_did_not_come_to_be_is_not_asked_for_after_its_transaction() -> None:
    driver = ready(topic_propagation=5.0)
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    driver.begin()
    driver.produce(b"a", topic="mistyped")
    with pytest.raises(KafkaRefusedError, match="not acknowledged in 5 s: mistyped: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    driver.abort()
    driver.cluster.topic_errors.clear()
    while driver.events:
        driver.turn()
    driver.cluster.requests.clear()
    for _ in range(3):
        driver.now += 2.0
        driver.begin(b"b")
        driver.commit()
    assert ApiKey.METADATA not in driver.cluster.requests[1:], "at most once, of those that there are"
    assert list(driver.engine.metadata.wanted) == ["t"]
    driver.begin()
    driver.produce(b"c", topic="mistyped")  # somebody has made it
    driver.commit()
    assert driver.cluster.logs[TopicPartition("mistyped", 0)].committed() == [b"c"]


def test_a_topic_that_was_deleted_is_forgotten_with_the_transaction_that_found_it_gone() -> None:
    driver = ready(delivery_timeout=5.0)
    driver.begin(b"a")
    refuse(driver, ApiKey.PRODUCE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    driver.abort()
    assert not driver.engine.metadata.wanted
    assert not driver.engine.metadata.topics
    assert not driver.engine.metadata.is_stale
    refuse(driver, ApiKey.PRODUCE)
    driver.cluster.topic_errors.clear()
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"b"]


def test_an_answer_that_comes_after_its_transaction_brings_no_topic_back() -> None:
    driver = ready()
    driver.begin()
    driver.produce(b"a", topic="u")
    for command in driver.engine.step(driver.now):
        driver.perform(command)  # the answer is on its way
    driver.abort()
    while driver.events:
        driver.turn()
    assert not driver.engine.metadata.is_stale
    assert list(driver.engine.metadata.topics) == ["t"]


def test_metadata_of_an_unused_topic_is_dropped_after_its_maximum_age() -> None:
    driver = ready(metadata_max_age=100.0)
    for _ in range(5):
        driver.now += 101.0
        driver.begin()
        driver.produce(b"a", topic="u")
        driver.commit()
        driver.turn()
    assert list(driver.engine.metadata.wanted) == list(driver.engine.metadata.topics) == ["u"]
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"b"]


def test_metadata_of_a_topic_is_refreshed_when_it_is_written_to_after_a_long_time() -> None:
    driver = ready()
    driver.cluster.gives_hints = False
    driver.now += 10_000.0
    driver.cluster.partitions = 2
    driver.begin()
    driver.produce(b"a", partition=1)  # one that there was not when it was written to last
    driver.commit()
    assert committed(driver, 1) == [b"a"]
    driver.begin(b"b")
    driver.now += 10_000.0
    driver.cluster.leader = 1
    driver.commit()
    assert committed(driver) == [b"b"]


@pytest.mark.parametrize("topic", ["t\ud800", "", "a b", "..", "x" * 250])
def test_an_invalid_topic_name_is_refused_at_once_and_affects_no_other_topic(topic: Any) -> None:
    driver = ready()
    driver.begin()
    with pytest.raises(KafkaRefusedError, match=r"a name has 1 to 249 letters, .*: INVALID_TOPIC_EXCEPTION"):
        driver.produce(b"a", topic=topic)
    assert driver.abort() is TransactionResult.NOTHING
    driver.begin()
    driver.produce(b"b", topic="u")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("u", 0)].committed() == [b"b"]


def test_a_partition_that_had_no_leader_when_its_topic_was_learnt_is_asked_for_when_it_is_written_to() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    driver.cluster.has_leaders = False
    driver.init()
    driver.begin(b"a")
    flush = driver.engine.flush(driver.now)
    while not driver.engine.metadata.topics:
        driver.turn(flush)
    driver.engine.abandon()
    driver.abort()
    while driver.turn():
        """The engine takes in what is known of the topic, and has nothing left to ask for."""
    driver.cluster.has_leaders = True
    driver.begin(b"b")
    assert driver.commit() is TransactionResult.COMMITTED
    assert driver.cluster.logs[TopicPartition("t", 0)].committed() == [b"b"]


def test_the_pauses_between_questions_begin_anew_when_a_leader_was_found() -> None:
    driver, questions = ready(), []
    driver.cluster.gives_hints = False
    for value in (b"a", b"b"):
        driver.cluster.has_leaders, driver.cluster.leader = False, 1 - driver.cluster.leader
        driver.begin(value)
        commit, began = driver.engine.commit_transaction(driver.now), driver.now
        while driver.now < began + 3.0:
            driver.turn(commit)
        questions.append(driver.cluster.requests.count(ApiKey.METADATA))
        driver.cluster.has_leaders = True
        driver.run(commit)
        driver.cluster.requests.clear()
    assert questions[0] == questions[1]
    assert committed(driver) == [b"a", b"b"]
