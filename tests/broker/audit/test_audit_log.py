"""Each administrative act is one line: who, from where, what, with which outcome; and so is what was refused."""

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.wire.apis import (
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    AlterUserScramCredentialsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    ElectLeadersRequest,
    Message,
    OffsetDeleteRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.monitoring.measured import MeasuredBroker, measured_broker
from tests.support.requests import acl_calls, admin_calls, calls, marker_calls
from tests.support.requests.admin_calls import BROKER, GROUP, TOPIC
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, add_users, log_in

SECRETS = (b"the salted password", b"the salt of it")
Line = dict[str, str]


@dataclass
class Audited:
    """A broker with an authorizer, whose administrator is alice, and its audit log."""

    broker: MeasuredBroker
    path: Path
    seen: int = 0
    alice: RawClient = field(init=False)

    def __post_init__(self) -> None:
        self.alice = RawClient(self.broker.secure_address, client_id="console")
        assert log_in(self.alice).error_code == ErrorCode.NONE

    def news(self) -> list[Line]:
        """The lines since the last call, without their times; an answer comes after its line."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        first, self.seen = self.seen, len(lines)
        return lines[first:]

    def acts(self) -> list[tuple[str, str, str, str]]:
        """Action, resource, outcome and detail of each new line."""
        return [(line["action"], line["resource"], line["outcome"], line["detail"]) for line in self.news()]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    scratch = tmp_path_factory.mktemp("audited")
    add_users(scratch / "data")
    path = scratch / "audit.log"
    settings = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        f"super.users=User:{ALICE}",
    )
    options = ("--log-format", "json", "--audit-log", str(path))
    with measured_broker(scratch, *settings, options=options) as broker:
        audited = Audited(broker, path)
        yield audited
        audited.alice.close()


@pytest.fixture
def alice(audited: Audited) -> RawClient:
    audited.news()
    return audited.alice


@pytest.fixture
def stranger(audited: Audited) -> Iterator[RawClient]:
    audited.news()
    with RawClient(audited.broker.address, client_id="stranger") as client:
        yield client


def scram(user: str, mechanism: int = 1, *, deletes: bool = False) -> Message:
    if deletes:
        deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)
        return AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[])
    salted, salt = SECRETS
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=4096, salt=salt, salted_password=salted
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])


def records_before(topic: str, offset: int) -> Message:
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [entry.DeleteRecordsPartition(partition_index=index, offset=offset) for index in (0, 1, 7)]
    return DeleteRecordsRequest(topics=[entry(name=topic, partitions=partitions)], timeout_ms=1000)


def offsets_of(group: str, topic: str) -> Message:
    entry = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [entry.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
    return OffsetDeleteRequest(group_id=group, topics=[entry(name=topic, partitions=partitions)])


def test_a_line_says_who_did_what_from_where(audited: Audited, alice: RawClient) -> None:
    calls.ask_for_topics(alice, calls.wanted_topic("who", partitions=3))
    (line,) = audited.news()
    assert line.pop("time").endswith("Z")
    message = line.pop("message")
    assert line == {
        "level": "INFO",
        "logger": "dualwrite.broker.audit",
        "principal": f"User:{ALICE}",
        "address": "127.0.0.1",
        "client_id": "console",
        "action": "create topic",
        "resource_type": "topic",
        "resource": "who",
        "outcome": "NONE",
        "detail": "partitions=3",
    }
    assert message.startswith(f"principal='User:{ALICE}' address='127.0.0.1' client_id='console' action='create topic'")


def test_the_life_of_a_topic_is_audited(audited: Audited, alice: RawClient) -> None:
    topic = calls.new_topic(alice, 1, **{"retention.ms": "5000"})
    admin_calls.grow(alice, topic, 2)
    admin_calls.grow(alice, topic, 1)
    calls.produce(alice, topic, calls.batch([b"v"] * 3))
    alice.ask(records_before(topic, 1), 2)
    admin_calls.change(alice, TOPIC, topic, ("retention.ms", ConfigOperation.SET, "7000"))
    admin_calls.change(alice, TOPIC, topic, ("retention.ms", ConfigOperation.DELETE, None))
    admin_calls.replace_configs(alice, TOPIC, topic, {"segment.bytes": "2000000"})
    admin_calls.replace_configs(alice, TOPIC, topic, {})
    admin_calls.delete(alice, topic)
    admin_calls.delete(alice, topic)
    assert audited.acts() == [
        ("create topic", topic, "NONE", "partitions=1 retention.ms=5000"),
        ("add partitions", topic, "NONE", "partitions=2"),
        ("add partitions", topic, "INVALID_PARTITIONS", "partitions=1"),
        ("delete records", topic, "NONE", "partitions=0 before=1"),
        ("delete records", topic, "OFFSET_OUT_OF_RANGE", "partitions=1"),
        ("delete records", topic, "UNKNOWN_TOPIC_OR_PARTITION", "partitions=7"),
        ("alter configs", topic, "NONE", "set retention.ms=7000"),
        ("alter configs", topic, "NONE", "delete retention.ms"),
        ("replace configs", topic, "NONE", "segment.bytes=2000000"),
        ("replace configs", topic, "NONE", ""),
        ("delete topic", topic, "NONE", ""),
        ("delete topic", topic, "UNKNOWN_TOPIC_OR_PARTITION", ""),
    ]


def test_a_topic_that_metadata_creates_is_audited(audited: Audited, alice: RawClient) -> None:
    calls.metadata(alice, "by-itself", create=True)
    calls.metadata(alice, "by-itself", create=True)
    assert audited.acts() == [("create topic", "by-itself", "NONE", "auto.create.topics.enable")]


def test_what_is_only_validated_is_no_act(audited: Audited, alice: RawClient) -> None:
    topic = calls.new_topic(alice)
    audited.news()
    calls.ask_for_topics(alice, calls.wanted_topic("not-created"), validate_only=True)
    admin_calls.grow(alice, topic, 5, validate_only=True)
    admin_calls.change(alice, TOPIC, topic, ("retention.ms", ConfigOperation.SET, "1"), validate_only=True)
    assert audited.acts() == []


def test_rights_and_users_are_audited_without_a_secret(audited: Audited, alice: RawClient) -> None:
    right = acl_calls.acl(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, "orders", principal="User:carl")
    acl_calls.create(alice, [right])
    acl_calls.delete(alice, acl_calls.EVERY_ACL)
    alice.ask(scram("carl"), 0)
    alice.ask(scram("carl", 2), 0)
    alice.ask(scram("carl", deletes=True), 0)
    alice.ask(scram("nobody", 9), 0)
    entry = "ALLOW TWO_PHASE_COMMIT to User:carl from * LITERAL"
    assert audited.acts() == [
        ("create ACL", "orders", "NONE", entry),
        ("delete ACL", "orders", "NONE", entry),
        ("alter credentials", "carl", "NONE", "set SCRAM-SHA-256"),
        ("alter credentials", "carl", "NONE", "set SCRAM-SHA-512"),
        ("alter credentials", "carl", "NONE", "delete SCRAM-SHA-256"),
        ("alter credentials", "nobody", "UNSUPPORTED_SASL_MECHANISM", "set 9"),
    ]
    text = audited.path.read_text() + audited.broker.log.read_text()
    assert not any(secret.decode() in text or repr(secret) in text for secret in SECRETS)


def test_groups_and_offsets_are_audited(audited: Audited, alice: RawClient) -> None:
    topic, group = calls.new_topic(alice, 2), calls.unique("group")
    commit(alice, group, {(topic, 0): 0, (topic, 1): 0})
    audited.news()
    alice.ask(offsets_of(group, topic), 0)
    alice.ask(offsets_of("no-group", topic), 0)
    alice.ask(DeleteGroupsRequest(groups_names=[group, "no-group"]), 2)
    assert audited.acts() == [
        ("delete offsets", group, "NONE", f"topic={topic} partitions=0-1"),
        ("delete offsets", "no-group", "GROUP_ID_NOT_FOUND", f"topics={topic}"),
        ("delete group", group, "NONE", ""),
        ("delete group", "no-group", "GROUP_ID_NOT_FOUND", ""),
    ]


def test_settings_of_groups_are_audited(audited: Audited, alice: RawClient) -> None:
    group, session = calls.unique("group"), "consumer.session.timeout.ms"
    admin_calls.change(alice, GROUP, group, (session, ConfigOperation.SET, "50000"), validate_only=True)
    admin_calls.change(alice, GROUP, group, (session, ConfigOperation.SET, "50000"))
    admin_calls.change(alice, GROUP, group, (session, ConfigOperation.SET, "1"))
    admin_calls.change(alice, GROUP, group, (session, ConfigOperation.DELETE, None))
    admin_calls.replace_configs(alice, GROUP, group, {session: "51000"})
    lines = audited.news()
    assert {(line["principal"], line["resource_type"], line["resource"]) for line in lines} == {
        (f"User:{ALICE}", "group", group)
    }
    assert [(line["action"], line["outcome"], line["detail"]) for line in lines] == [
        ("alter configs", "NONE", f"set {session}=50000"),
        ("alter configs", "INVALID_CONFIG", f"set {session}"),
        ("alter configs", "NONE", f"delete {session}"),
        ("replace configs", "NONE", f"{session}=51000"),
    ]


def test_markers_by_hand_are_audited(audited: Audited, alice: RawClient) -> None:
    topic, name = calls.new_topic(alice), calls.unique("tx")
    producer = calls.new_producer(alice, name)
    calls.open_transaction(alice, name, producer, {(topic, 0): [b"v"]})
    audited.news()
    marker_calls.write(alice, marker_calls.marker(producer, (topic, 0)))
    marker_calls.write(alice, marker_calls.marker(producer, ("no-topic", 0), commit=True))
    who = f"producer id={producer.producer_id} partitions=0"
    assert audited.acts() == [
        ("abort transaction", topic, "NONE", who),
        ("commit transaction", "no-topic", "UNKNOWN_TOPIC_OR_PARTITION", who),
    ]


def test_a_partition_with_two_markers_of_one_producer_gets_none(audited: Audited, alice: RawClient) -> None:
    """The answer has one error for both: a refused marker would hide the one that was written."""
    topic, name = calls.new_topic(alice), calls.unique("tx")
    producer = calls.new_producer(alice, name)
    calls.open_transaction(alice, name, producer, {(topic, 0): [b"v"]})
    audited.news()
    right, wrong = (marker_calls.marker(producer, (topic, 0), epoch=epoch) for epoch in (0, -1))
    answer = marker_calls.write(alice, right, wrong)
    assert set(answer.values()) == {ErrorCode.INVALID_REQUEST}
    assert calls.end(alice, name, producer).error_code == ErrorCode.NONE
    assert calls.read_all(alice, topic) == [b"v"]
    assert [outcome for _, _, outcome, _ in audited.acts()] == ["INVALID_REQUEST"]


def cluster_requests() -> list[tuple[Message, int]]:
    """One of each API that administers a cluster, with its version."""
    election, moved = ElectLeadersRequest.TopicPartitions, AlterReplicaLogDirsRequest.AlterReplicaLogDir
    reassigned, feature = AlterPartitionReassignmentsRequest.ReassignableTopic, UpdateFeaturesRequest.FeatureUpdateKey
    partition = reassigned.ReassignablePartition(partition_index=0, replicas=[1])
    directory = moved(path="/tmp", topics=[moved.AlterReplicaLogDirTopic(name="where", partitions=[0])])
    level = feature(feature="metadata.version", max_version_level=25, upgrade_type=1)
    quota = AlterClientQuotasRequest.EntryData
    entry = quota(
        entity=[quota.EntityData(entity_type="user", entity_name="carl")],
        ops=[quota.OpData(key="consumer_byte_rate", value=5.0, remove=False)],
    )
    one = [election(topic="where", partitions=[0])]
    return [
        (ElectLeadersRequest(election_type=1, topic_partitions=one, timeout_ms=1000), 2),
        (ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000), 2),
        (
            AlterPartitionReassignmentsRequest(
                timeout_ms=1000, topics=[reassigned(name="where", partitions=[partition])]
            ),
            1,
        ),
        (AlterReplicaLogDirsRequest(dirs=[directory]), 2),
        (UpdateFeaturesRequest(timeout_ms=1000, feature_updates=[level], validate_only=False), 2),
        (UpdateFeaturesRequest(timeout_ms=1000, feature_updates=[level], validate_only=True), 2),
        (UnregisterBrokerRequest(broker_id=0), 0),
        (AlterClientQuotasRequest(entries=[entry], validate_only=False), 1),
        (AlterClientQuotasRequest(entries=[entry], validate_only=True), 1),
    ]


def test_acts_of_clusters_are_audited_though_they_change_nothing(audited: Audited, alice: RawClient) -> None:
    for request, version in cluster_requests():
        alice.ask(request, version)
    missing = "UNKNOWN_TOPIC_OR_PARTITION"
    assert audited.acts() == [
        ("elect leaders", "where", missing, "unclean; partitions=0"),
        ("elect leaders", "kafka-cluster", "NONE", "preferred; all partitions"),
        ("reassign partitions", "where", missing, "partitions=0"),
        ("move partitions", "where", "LOG_DIR_NOT_FOUND", "partitions=0"),
        ("update features", "kafka-cluster", "INVALID_UPDATE_VERSION", "metadata.version=25"),
        ("unregister broker", "0", "INVALID_REQUEST", ""),
        ("alter quotas", "user=carl", "INVALID_REQUEST", "set consumer_byte_rate=5"),
    ]


def test_a_stranger_who_tries_acts_of_clusters_is_audited(audited: Audited, stranger: RawClient) -> None:
    for request, version in cluster_requests():
        stranger.ask(request, version)
    lines = audited.news()
    assert len(lines) == 7
    assert {(line["outcome"], line["client_id"]) for line in lines} == {("CLUSTER_AUTHORIZATION_FAILED", "stranger")}


def test_values_that_may_be_secret_are_hidden(audited: Audited, alice: RawClient) -> None:
    """A client that confuses names sends a password as the value of a setting that is none, and is refused."""
    admin_calls.change(alice, BROKER, "0", ("ssl.key.pasword", ConfigOperation.SET, "hunter2"))
    admin_calls.change(alice, BROKER, "0", ("ssl.key.password", ConfigOperation.SET, "hunter2"))
    admin_calls.change(alice, BROKER, "0", ("log.retention.ms", ConfigOperation.SET, "-hunter2"))
    acts = audited.acts()
    assert [detail for *_, detail in acts] == ["set ssl.key.pasword", "set ssl.key.password", "set log.retention.ms"]
    assert "NONE" not in [outcome for *_, outcome, _ in acts]
    assert "hunter2" not in audited.path.read_text() + audited.broker.log.read_text()


def test_refusals_are_audited_and_counted(audited: Audited, stranger: RawClient) -> None:
    before = audited.broker.scrape().get("authorization_refusals_total", {})
    calls.ask_for_topics(stranger, *(calls.wanted_topic(f"mine-{number}") for number in range(40)))
    stranger.ask(scram("mallory"), 0)
    acl_calls.create(stranger, [acl_calls.acl(AclOperation.ALL, ResourceType.CLUSTER, "kafka-cluster")])
    acl_calls.delete(stranger, acl_calls.EVERY_ACL)
    admin_calls.change(stranger, TOPIC, "who", ("retention.ms", ConfigOperation.SET, "1"))
    admin_calls.delete(stranger, "who")
    lines = audited.news()
    assert {(line["principal"], line["client_id"], line["level"]) for line in lines} == {
        ("User:ANONYMOUS", "stranger", "WARNING")
    }
    shown = ", ".join(f"mine-{number}" for number in range(10))
    assert [(line["action"], line["resource"], line["outcome"]) for line in lines] == [
        ("create topic", f"{shown} and 30 more", "TOPIC_AUTHORIZATION_FAILED"),
        ("alter credentials", "mallory", "CLUSTER_AUTHORIZATION_FAILED"),
        ("create ACL", "kafka-cluster", "CLUSTER_AUTHORIZATION_FAILED"),
        ("delete ACL", "*", "CLUSTER_AUTHORIZATION_FAILED"),
        ("alter configs", "who", "TOPIC_AUTHORIZATION_FAILED"),
        ("delete topic", "who", "TOPIC_AUTHORIZATION_FAILED"),
    ]
    after = audited.broker.scrape().get("authorization_refusals_total", {})
    counted = {key: count - before.get(key, 0) for key, count in after.items()}
    assert {key: count for key, count in counted.items() if count} == {
        ("CREATE", "TOPIC"): 40,
        ("ALTER", "CLUSTER"): 3,
        ("ALTER_CONFIGS", "TOPIC"): 1,
        ("DESCRIBE", "TOPIC"): 1,
    }


def test_an_answer_that_leaves_out_topics_is_no_refusal(audited: Audited, stranger: RawClient) -> None:
    before = audited.broker.scrape().get("authorization_refusals_total", {})
    assert stranger.ask(calls.all_topics(), 12).topics == []
    assert audited.broker.scrape().get("authorization_refusals_total", {}) == before


def test_the_audit_log_is_for_the_brokers_user_alone_and_not_in_the_log(audited: Audited, alice: RawClient) -> None:
    calls.new_topic(alice)
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600
    assert "dualwrite.broker.audit" not in audited.broker.log.read_text()


def test_a_renamed_audit_log_is_opened_again(audited: Audited, alice: RawClient) -> None:
    renamed = audited.path.with_suffix(".1")
    audited.path.rename(renamed)
    audited.seen = 0
    topic = calls.new_topic(alice)
    assert [act[1] for act in audited.acts()] == [topic]
    assert topic not in renamed.read_text()
