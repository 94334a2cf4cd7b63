"""The cluster's own rules: which topics can be made, and what its journal may say."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash
from dualwrite.broker.core.cluster import (
    MAX_PARTITIONS,
    ClusterState,
    CreateTopic,
    TopicDecision,
    TopicDefaults,
)
from dualwrite.broker.facts.cluster import (
    BrokerConfigured,
    ClusterCreated,
    ClusterFact,
    GroupConfigured,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from dualwrite.broker.facts.credentials import DecoySecretCreated, ScramCredentialDeleted, ScramCredentialSet
from dualwrite.wire.error_codes import ErrorCode

SHA_256 = ScramHash.SHA_256
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


def test_an_unset_value_is_the_brokers_default() -> None:
    assert decided(CreateTopic("orders")) == TopicDecision(fact=replace(ORDERS, partitions=4))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_a_legal_topic_name_is_accepted(name: str) -> None:
    assert decided(CreateTopic(name)).error is ErrorCode.NONE


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "../etc", "a\n", "é", "a~b", "a:b"])
def test_an_illegal_topic_name_is_refused(name: str) -> None:
    decision = decided(CreateTopic(name))
    assert decision.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert decision.message
    assert decision.fact is None


REFUSED: list[tuple[CreateTopic, ErrorCode]] = [
    (CreateTopic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS),
    (CreateTopic("a.b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreateTopic("t", 1, assignments=[(0, (0,))]), ErrorCode.INVALID_REQUEST),
    (CreateTopic("t", -1, 1, assignments=[(0, (0,))]), ErrorCode.INVALID_REQUEST),
    (CreateTopic("t", assignments=[(0, (1,))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", assignments=[(0, (0, 1))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", assignments=[(0, ())]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", assignments=[(0, (0,)), (0, (0,))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", assignments=[(1, (0,))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreateTopic("t", assignments=[(index, (0,)) for index in range(11)]), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", 0), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", -2), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", MAX_PARTITIONS + 1), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", 11), ErrorCode.INVALID_PARTITIONS),
    (CreateTopic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreateTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
]


@pytest.mark.parametrize(("command", "error"), REFUSED)
def test_requests_impossible_on_one_node_are_refused_with_advice(command: CreateTopic, error: ErrorCode) -> None:
    decision = decided(command, state_after(ORDERS, TopicCreated("a_b", uuid.UUID(int=6), 1)), room=10)
    assert (decision.error, decision.fact) == (error, None)
    assert decision.message


def test_settings_that_a_topic_may_not_have_are_refused() -> None:
    decision = decided(CreateTopic("t", configs={"retention.ms": "-1", "no.such.setting": "1"}))
    assert decision == TopicDecision(ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.setting")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("__cluster_metadata", ErrorCode.INVALID_REQUEST),
        ("__consumer_offsets", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("__transaction_state", ErrorCode.TOPIC_ALREADY_EXISTS),
    ],
)
def test_the_brokers_own_names_are_refused_as_kafka_does(name: str, error: ErrorCode) -> None:
    assert decided(CreateTopic(name)).error is error


def test_a_topic_may_be_assigned_to_the_one_node() -> None:
    command = CreateTopic("orders", assignments=[(1, (0,)), (0, (0,)), (2, (0,))])
    assert decided(command) == TopicDecision(fact=ORDERS)


def test_a_name_is_free_again_for_those_like_it_once_its_topic_is_deleted() -> None:
    state = state_after(TopicCreated("a_b", uuid.UUID(int=6), 1))
    assert decided(CreateTopic("a.b"), state).message == "Topic 'a.b' collides with existing topic: a_b"
    state.apply(TopicDeleted("a_b"))
    assert decided(CreateTopic("a.b"), state).error is ErrorCode.NONE


def test_a_later_fact_changes_a_topic() -> None:
    grown = replace(ORDERS, partitions=5, configs={"retention.ms": "1"})
    assert state_after(ORDERS, grown).topics == {"orders": grown}


def test_a_deleted_topics_partitions_are_remembered_until_it_is_created_again() -> None:
    state = state_after(ORDERS, TopicDeleted("orders"))
    assert (state.topics, state.topic_names, state.deleted) == ({}, {}, {"orders": 3})
    anew = TopicCreated("orders", uuid.UUID(int=8), 1)
    state.apply(anew)
    assert (state.topics, state.topic_names, state.deleted) == ({"orders": anew}, {anew.topic_id: "orders"}, {})


def test_the_last_dynamic_settings_apply_to_each_node() -> None:
    state = state_after(
        BrokerConfigured("", {"a": "1"}), BrokerConfigured("0", {"b": "2"}), BrokerConfigured("", {"c": "3"})
    )
    assert state.broker_configs == {"": {"c": "3"}, "0": {"b": "2"}}


def test_the_last_settings_of_a_group_apply_and_none_are_none() -> None:
    set_, other = GroupConfigured("g", {"a": "1", "b": "2"}), GroupConfigured("other", {"a": "1"})
    changed, deleted = GroupConfigured("g", {"c": "3"}), GroupConfigured("g", {})
    assert state_after(set_, other, changed).group_configs == {"g": {"c": "3"}, "other": {"a": "1"}}
    assert state_after(set_, other, deleted).group_configs == {"other": {"a": "1"}}
    assert state_after(deleted).group_configs == {}
    assert state_after(set_).version == 0, "no group looks at the topics again"


def test_the_last_credential_of_a_user_and_a_mechanism_counts() -> None:
    one, two, other = (
        ScramCredential(scram, iterations, b"salt", b"stored", b"server")
        for scram, iterations in ((SHA_256, 4096), (SHA_256, 8192), (ScramHash.SHA_512, 4096))
    )
    state = state_after(
        DecoySecretCreated(b"secret"), *(ScramCredentialSet("ann", credential) for credential in (one, other, two))
    )
    assert state.credentials.of("ann") == {SHA_256: two, ScramHash.SHA_512: other}
    state.apply(ScramCredentialDeleted("ann", SHA_256))
    assert state.credentials.of("ann") == {ScramHash.SHA_512: other}
    assert state.credentials.decoy_secret == b"secret"
    assert "secret" not in repr(state)


def test_the_state_is_the_replay_of_its_facts() -> None:
    state = state_after(ClusterCreated("abc"), ProducerIdsReserved(1000), ORDERS, ProducerIdsReserved(2000))
    assert state == ClusterState("abc", {"orders": ORDERS}, {TOPIC_ID: "orders"}, 2000)


@pytest.mark.parametrize(
    "facts",
    [
        (ClusterCreated("abc"), ClusterCreated("def")),
        (ORDERS, replace(ORDERS, topic_id=uuid.UUID(int=8))),
        (ORDERS, replace(ORDERS, partitions=2)),
        (ORDERS, replace(ORDERS, name="returns")),
        (ORDERS, TopicDeleted("returns")),
        (ProducerIdsReserved(1000), ProducerIdsReserved(1000)),
        (ProducerIdsReserved(1000), ProducerIdsReserved(999)),
        (DecoySecretCreated(b"one"), DecoySecretCreated(b"other")),
        (DecoySecretCreated(b"one"), ScramCredentialDeleted("ann", SHA_256)),
    ],
)
def test_a_fact_that_contradicts_an_earlier_one_is_refused(facts: tuple[Any, Any]) -> None:
    first, second = facts
    state = state_after(first)
    with pytest.raises(AssertionError):
        state.apply(second)
    assert state == state_after(first)
