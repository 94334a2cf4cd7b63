"""Facts about the cluster, to JSON and back."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash
from dualwrite.broker.facts.cluster import (
    BrokerConfigured,
    ClusterCreated,
    ClusterFact,
    GroupConfigured,
    InternalTopicCreated,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
    decode_fact,
    encode_fact,
)
from dualwrite.broker.facts.credentials import DecoySecretCreated, ScramCredentialDeleted, ScramCredentialSet

topics = st.builds(
    TopicCreated,
    st.text("abcXYZ09._-", min_size=1, max_size=249),
    st.uuids(),
    st.integers(1, 10_000),
    st.dictionaries(st.sampled_from(["cleanup.policy", "segment.bytes"]), st.text(max_size=20)),
)
configured = st.builds(
    BrokerConfigured, st.sampled_from(["", "0"]), st.dictionaries(st.text(max_size=9), st.text(max_size=9))
)
of_groups = st.builds(
    GroupConfigured, st.text(min_size=1, max_size=20), st.dictionaries(st.text(max_size=9), st.text(max_size=9))
)
credentials = st.builds(
    ScramCredential, st.sampled_from(ScramHash), st.integers(4096, 16384), st.binary(), st.binary(), st.binary()
)
users = st.builds(ScramCredentialSet, st.text(min_size=1, max_size=20), credentials)
deleted = topics.map(lambda topic: TopicDeleted(topic.name))
facts = (
    st.builds(ClusterCreated, st.text(max_size=32))
    | st.builds(ProducerIdsReserved, st.integers(0))
    | topics
    | deleted
    | configured
    | of_groups
    | users
    | users.map(lambda fact: ScramCredentialDeleted(fact.user, fact.credential.scram))
    | st.builds(DecoySecretCreated, st.binary())
    | st.builds(InternalTopicCreated, st.sampled_from(["__consumer_offsets", "__transaction_state"]))
)


@pytest.mark.slow
@given(facts)
def test_every_fact_comes_back_as_it_was(fact: ClusterFact) -> None:
    assert decode_fact(*encode_fact(fact)) == fact


@given(topics, topics)
def test_each_topic_has_a_key_of_its_own(one: TopicCreated, other: TopicCreated) -> None:
    assert (encode_fact(one)[0] == encode_fact(other)[0]) == (one.name == other.name)


def test_the_form_on_disk_is_fixed() -> None:
    topic = TopicCreated("orders", uuid.UUID(int=7), 3, {"segment.bytes": "1048576"})
    assert encode_fact(topic) == (
        b"topic:orders",
        b'{"configs":{"segment.bytes":"1048576"},"partitions":3,"topic_id":"00000000-0000-0000-0000-000000000007"}',
    )
    assert encode_fact(TopicDeleted("orders")) == (b"topic:orders", None)
    assert encode_fact(BrokerConfigured("0", {"log.retention.ms": "5"})) == (
        b"broker:0",
        b'{"configs":{"log.retention.ms":"5"}}',
    )
    assert encode_fact(GroupConfigured("a:g", {"consumer.session.timeout.ms": "50000"})) == (
        b"group:a:g",
        b'{"configs":{"consumer.session.timeout.ms":"50000"}}',
    )
    assert encode_fact(GroupConfigured("a:g", {})) == (b"group:a:g", None)
    assert encode_fact(ClusterCreated("abc")) == (b"cluster", b'{"cluster_id":"abc"}')
    assert encode_fact(ProducerIdsReserved(1000)) == (b"producer-ids", b'{"before":1000}')
    credential = ScramCredential(ScramHash.SHA_512, 4096, b"salt", b"stored", b"server")
    assert encode_fact(ScramCredentialSet("a:n", credential)) == (
        b"scram:2:a:n",
        b'{"iterations":4096,"salt":"c2FsdA==","server_key":"c2VydmVy","stored_key":"c3RvcmVk"}',
    )
    assert encode_fact(ScramCredentialDeleted("a:n", ScramHash.SHA_512)) == (b"scram:2:a:n", None)
    assert encode_fact(DecoySecretCreated(b"salt")) == (b"decoy-secret", b'{"secret":"c2FsdA=="}')


@given(users, users)
def test_each_credential_has_a_key_of_its_own(one: ScramCredentialSet, other: ScramCredentialSet) -> None:
    is_same = (one.user, one.credential.scram) == (other.user, other.credential.scram)
    assert (encode_fact(one)[0] == encode_fact(other)[0]) == is_same


@given(users)
def test_a_fact_shows_no_secret(fact: ScramCredentialSet) -> None:
    shown = ScramCredentialSet("ann", ScramCredential(fact.credential.scram, 4096, b"salt", b"stored", b"server"))
    assert not any(secret in repr(shown) for secret in ("salt", "stored", "server"))
    assert "secret=" not in repr(DecoySecretCreated(b"x"))


@pytest.mark.parametrize(
    ("key", "body", "message"),
    [
        (b"quota:x", {}, "unknown kind 'quota'"),
        (b"cluster", {}, "lacks 'cluster_id'"),
        (b"producer-ids", {"after": 1}, "lacks 'before'"),
        (b"topic:t", {"topic_id": str(uuid.UUID(int=1))}, "lacks 'partitions'"),
        (b"topic:t", [], "lacks"),
        (b"scram:1:ann", {"iterations": 4096}, "lacks 'salt'"),
        (b"scram:9:ann", {}, "9 is not a valid ScramHash"),
        (b"scram:x:ann", {}, "invalid literal"),
        (b"decoy-secret", {}, "lacks 'secret'"),
    ],
)
def test_a_fact_that_this_release_does_not_know_is_refused(key: bytes, body: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_fact(key, json.dumps(body).encode())


@pytest.mark.parametrize("key", [b"cluster", b"producer-ids", b"broker:0", b"internal:t", b"decoy-secret"])
def test_only_topics_acls_and_credentials_can_be_deleted(key: bytes) -> None:
    with pytest.raises(ValueError, match="has no value"):
        decode_fact(key, None)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff"])
def test_a_value_that_is_not_json_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the message is the JSON reader's
        decode_fact(b"cluster", value)
