"""The cluster's own rules: which topics can be made, and what its journal may say."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from dualwrite.broker.core.cluster import (
    MAX_PARTITIONS,
    RESERVED_TOPICS,
    ClusterState,
    CreateTopic,
    TopicDecision,
    TopicDefaults,
)
from dualwrite.broker.facts.cluster import ClusterCreated, ClusterFact, ProducerIdsReserved, TopicCreated
from dualwrite.wire.error_codes import ErrorCode

TOPIC_ID = uuid.UUID(int=7)
ORDERS = TopicCreated("orders", TOPIC_ID, 3)


def state_after(*facts: ClusterFact) -> ClusterState:
    state = ClusterState()
    for fact in facts:
        state.apply(fact)
    return state


def decided(command: CreateTopic, state: ClusterState | None = None, room: int = MAX_PARTITIONS) -> TopicDecision:
    return (state or ClusterState()).decide_topic(command, TOPIC_ID, TopicDefaults(partitions=4), room=room)


def test_a_topic_is_made_as_it_is_wanted() -> None:
    command = CreateTopic("orders", 3, 1, configs={"segment.bytes": "1048576", "cleanup.policy": "delete"})
    wanted = {"segment.bytes": "1048576", "cleanup.policy": "delete"}
    assert decided(command) == TopicDecision(fact=replace(ORDERS, configs=wanted))


def test_what_is_not_said_is_the_brokers_default() -> None:
    assert decided(CreateTopic("orders")) == TopicDecision(fact=replace(ORDERS, partitions=4))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_a_legal_name(name: str) -> None:
    assert decided(CreateTopic(name)).error is ErrorCode.NONE


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "../etc", "a\n", "é", "a~b", "a:b", *sorted(RESERVED_TOPICS)]
)
def test_an_illegal_name(name: str) -> None:
    decision = decided(CreateTopic(name))
    assert decision.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert decision.message
    assert decision.fact is None


REFUSED: list[tuple[CreateTopic, ErrorCode]] = [
    (CreateTopic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS),
    (CreateTopic("t", has_assignments=True), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", 0), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", -2), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", MAX_PARTITIONS + 1), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", 11), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreateTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
]


@pytest.mark.parametrize(("command", "error"), REFUSED)
def test_what_a_single_node_cannot_do_is_refused_with_what_to_do(command: CreateTopic, error: ErrorCode) -> None:
    decision = decided(command, state_after(ORDERS), room=10)
    assert (decision.error, decision.fact) == (error, None)
    assert decision.message


def test_settings_that_a_topic_may_not_have_are_refused() -> None:
    decision = decided(CreateTopic("t", configs={"retention.ms": "-1", "no.such.setting": "1"}))
    assert decision == TopicDecision(ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.setting")


def test_the_state_is_the_replay_of_its_facts() -> None:
    state = state_after(ClusterCreated("abc"), ProducerIdsReserved(1000), ORDERS, ProducerIdsReserved(2000))
    assert state == ClusterState("abc", {"orders": ORDERS}, {TOPIC_ID: "orders"}, 2000)


@pytest.mark.parametrize(
    "facts",
    [
        (ClusterCreated("abc"), ClusterCreated("def")),
        (ORDERS, replace(ORDERS, topic_id=uuid.UUID(int=8))),
        (ProducerIdsReserved(1000), ProducerIdsReserved(1000)),
        (ProducerIdsReserved(1000), ProducerIdsReserved(999)),
    ],
)
def test_a_fact_that_contradicts_an_earlier_one_is_refused(facts: tuple[Any, Any]) -> None:
    first, second = facts
    state = state_after(first)
    with pytest.raises(AssertionError):
        state.apply(second)
    assert state == state_after(first)
