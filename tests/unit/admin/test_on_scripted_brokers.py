"""Answers that the bundled broker does not give on demand: of other brokers, of older ones, and lost ones."""

from collections.abc import Iterator

import pytest

from dualwrite.admin.acls import list_acls
from dualwrite.admin.connecting import connected, partitions_of, with_leader
from dualwrite.admin.groups import describe_group, list_groups, reset_offsets
from dualwrite.admin.open_transactions import open_transactions, transactional_ids
from dualwrite.admin.topics import describe_topic
from dualwrite.admin.views import OpenTransaction
from dualwrite.cli.kafka.group_output import paragraphs
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.scripted_answers import (
    consumer_group_described,
    group_described,
    groups_listed,
    log_directories,
    offsets,
    offsets_committed,
    settings_of,
)
from tests.support.client.scripted_broker import ScriptedBroker, described, listed, producers_of, scripted

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = offsets({T0: 5, T1: 5})
NOT_GRANTED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        running.answer(ApiKey.LIST_OFFSETS, ENDS)
        running.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({}))
        running.answer(ApiKey.LIST_TRANSACTIONS, listed())
        running.answer(ApiKey.DESCRIBE_LOG_DIRS, log_directories({0: 10, 1: 20}))
        running.answer(ApiKey.DESCRIBE_CONFIGS, settings_of(("retention.ms", "1", 1), ("cleanup.policy", "delete", 5)))
        yield running


@pytest.fixture
def kafka(broker: ScriptedBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": "5000"}


# --- topics


def test_a_partition_without_a_leader_has_no_offsets(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.leaders["t", 1] = -1
    first, second = describe_topic(kafka, "t", timeout=5).partitions
    assert (first.leader, first.high_watermark, first.open_transactions) == (1, 5, ())
    assert (second.leader, second.earliest, second.high_watermark, second.open_transactions) == (None, None, None, None)
    asked = {
        entry.partition_index
        for seen in broker.requests(ApiKey.LIST_OFFSETS)
        for entry in seen.message.topics[0].partitions
    }
    assert asked == {0}


@pytest.mark.parametrize(
    "answer",
    [
        log_directories({}, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        log_directories({}, in_directory=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_sizes_that_may_not_be_described_are_unknown(
    broker: ScriptedBroker, kafka: dict[str, str], answer: object
) -> None:
    assert [each.size for each in describe_topic(kafka, "t").partitions] == [10, 20]
    broker.answer(ApiKey.DESCRIBE_LOG_DIRS, answer)
    assert [each.size for each in describe_topic(kafka, "t").partitions] == [None, None]


def test_sizes_that_the_broker_cannot_tell_are_an_error(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.DESCRIBE_LOG_DIRS, log_directories({}, in_directory=ErrorCode.LOG_DIR_NOT_FOUND))
    with pytest.raises(KafkaRefusedError, match="DescribeLogDirs of topic t: LOG_DIR_NOT_FOUND"):
        describe_topic(kafka, "t")


def test_settings_are_known_or_not(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    settings = describe_topic(kafka, "t").settings
    assert settings is not None
    assert [(each.name, each.is_own) for each in settings] == [("cleanup.policy", False), ("retention.ms", True)]
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings_of(code=NOT_GRANTED))
    assert describe_topic(kafka, "t").settings is None
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings_of(code=int(ErrorCode.UNKNOWN_SERVER_ERROR)))
    with pytest.raises(KafkaRefusedError, match="DescribeConfigs of topic t: UNKNOWN_SERVER_ERROR"):
        describe_topic(kafka, "t")


def test_a_partition_is_chosen_by_its_number(kafka: dict[str, str]) -> None:
    with connected(kafka, 5) as cluster:
        assert partitions_of(cluster, "t") == [T0, T1]
        assert partitions_of(cluster, "t", [1]) == [T1]
        assert with_leader(cluster, [T1, TopicPartition("t", 9), TopicPartition("gone", 0)]) == [T1]
        assert with_leader(cluster, []) == []


# --- open transactions


def test_open_transactions_have_their_names_and_their_age(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 1): 3}))
    broker.answer(ApiKey.LIST_TRANSACTIONS, listed(("app-0", 7, "Ongoing")))
    broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
    with connected(kafka, 5) as cluster:
        found = open_transactions(cluster, [T0, T1])
    assert found[T0] == ()
    (transaction,) = found[T1]
    assert (transaction.name, transaction.producer, transaction.first_offset) == ("app-0", ProducerIdentity(7, 0), 3)
    assert transaction.started_at is not None
    assert transaction.started_at.timestamp() == 1700000000
    (asked,) = broker.requests(ApiKey.LIST_TRANSACTIONS)
    assert asked.message.producer_id_filters == [7]


def test_a_transaction_that_no_coordinator_knows_has_no_name(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 3}))
    with connected(kafka, 5) as cluster:
        assert open_transactions(cluster, [T0]) == {T0: (OpenTransaction(None, ProducerIdentity(7, 0), 3, None),)}


@pytest.mark.parametrize(
    "answer", [described(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), described(state="Empty")]
)
def test_a_transaction_that_may_not_be_described_has_no_age(
    broker: ScriptedBroker, kafka: dict[str, str], answer: object
) -> None:
    broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 3}))
    broker.answer(ApiKey.LIST_TRANSACTIONS, listed(("app-0", 7, "Ongoing")))
    broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, answer)
    with connected(kafka, 5) as cluster:
        ((transaction,),) = open_transactions(cluster, [T0]).values()
    assert (transaction.name, transaction.started_at) == ("app-0", None)


def test_partitions_that_may_not_be_read_are_missing(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({}, codes={("t", 0): NOT_GRANTED}))
    with connected(kafka, 5) as cluster:
        assert open_transactions(cluster, [T0, T1]) == {T1: ()}


def test_another_refusal_is_an_error(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({}, codes={("t", 0): int(ErrorCode.INVALID_TOPIC_EXCEPTION)}))
    with connected(kafka, 5) as cluster, pytest.raises(KafkaRefusedError, match="DescribeProducers of t-0"):
        open_transactions(cluster, [T0])


@pytest.mark.parametrize("missing", [ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_TRANSACTIONS])
def test_an_older_broker_tells_less(missing: ApiKey) -> None:
    with scripted(versions={missing: (0, -1)}) as older:
        older.answer(ApiKey.DESCRIBE_PRODUCERS, producers_of({("t", 0): 3}))
        with connected({"bootstrap.servers": older.bootstrap_servers}, 5) as cluster:
            found = open_transactions(cluster, [T0])
            assert transactional_ids(cluster, []) == {}
    nameless = {T0: (OpenTransaction(None, ProducerIdentity(7, 0), 3, None),)}
    assert found == ({} if missing is ApiKey.DESCRIBE_PRODUCERS else nameless)


# --- groups


def test_a_broker_that_does_not_list_states_is_described_all_the_same() -> None:
    with scripted(versions={ApiKey.LIST_GROUPS: (0, 2), ApiKey.CONSUMER_GROUP_DESCRIBE: (0, -1)}) as older:
        older.answer(ApiKey.LIST_GROUPS, groups_listed(("g", "", "")))
        older.answer(ApiKey.DESCRIBE_GROUPS, group_described())
        older.answer(ApiKey.OFFSET_FETCH, offsets_committed({}))
        kafka = {"bootstrap.servers": older.bootstrap_servers}
        assert [(group.state, group.kind) for group in list_groups(kafka)] == [("", "")]
        group = describe_group(kafka, "g")
    assert (group.state, group.assignor, group.members, group.lags) == ("Stable", "range", (), ())


NOT_FOUND = int(ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.mark.parametrize("kind", ["Share", "Streams"])
@pytest.mark.parametrize("before_v6", [False, True], ids=["not found", "Dead"])
def test_a_group_of_another_kind_is_looked_for_in_the_list(
    broker: ScriptedBroker, kafka: dict[str, str], kind: str, before_v6: bool
) -> None:
    missing = group_described(state="Dead") if before_v6 else group_described(code=NOT_FOUND)
    broker.answer(ApiKey.DESCRIBE_GROUPS, missing)
    broker.answer(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_group_described(code=NOT_FOUND))
    broker.answer(ApiKey.LIST_GROUPS, groups_listed(("a", "Empty", "Classic"), ("g", "Stable", kind)))
    broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({T0: (5, 0)}))
    group = describe_group(kafka, "g")
    assert (group.kind, group.state, group.members) == (kind.lower(), "Stable", None)
    assert [lag.lag for lag in group.lags] == [0]


def test_a_group_that_is_found_is_not_looked_for_in_the_list(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({}))
    broker.answer(ApiKey.DESCRIBE_GROUPS, group_described())
    assert describe_group(kafka, "g").kind == "classic"
    broker.answer(ApiKey.DESCRIBE_GROUPS, group_described(code=NOT_FOUND))
    broker.answer(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_group_described({"t": [1, 0]}, {}))
    group = describe_group(kafka, "g")
    assert (group.kind, group.state, group.assignor) == ("consumer", "Stable", "uniform")
    assert group.members is not None
    assert [member.partitions for member in group.members] == [(T0, T1), ()]
    assert broker.requests(ApiKey.LIST_GROUPS) == []


@pytest.mark.parametrize("is_old", [False, True], ids=["a hidden topic", "an old broker"])
def test_a_consumer_group_that_cannot_be_described_shows_its_lag(is_old: bool) -> None:
    with scripted(versions={ApiKey.CONSUMER_GROUP_DESCRIBE: (0, -1 if is_old else 1)}) as broker:
        broker.answer(ApiKey.LIST_OFFSETS, ENDS)
        broker.answer(ApiKey.DESCRIBE_GROUPS, group_described(code=NOT_FOUND))
        broker.answer(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_group_described(code=NOT_GRANTED))
        broker.answer(ApiKey.LIST_GROUPS, groups_listed(("g", "Stable", "Consumer")))
        broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({T0: (4, 0)}))
        group = describe_group({"bootstrap.servers": broker.bootstrap_servers}, "g", counts=False)
    assert (group.kind, group.state, group.members) == ("consumer", "Stable", None)
    assert [lag.lag for lag in group.lags] == [1]
    assert "members   not shown: DESCRIBE is not granted on every topic of the group" in "\n".join(paragraphs(group))


def test_an_assignment_in_another_form_is_no_assignment(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.LIST_GROUPS, groups_listed(("g", "Stable", "Classic")))
    broker.answer(ApiKey.DESCRIBE_GROUPS, group_described(b"\x00\x01", b""))
    broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({}))
    members = describe_group(kafka, "g").members
    assert members is not None
    assert [(member.member_id, member.partitions) for member in members] == [("m0", ()), ("m1", ())]


def test_pending_offsets_are_asked_for_a_second_time(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    unstable = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    broker.answer(ApiKey.LIST_GROUPS, groups_listed(("g", "Empty", "Classic")))
    broker.answer(ApiKey.DESCRIBE_GROUPS, group_described())
    pending = offsets_committed({T0: (-1, unstable), T1: (5, 0)})
    broker.answer(ApiKey.OFFSET_FETCH, pending, offsets_committed({T0: (5, 0), T1: (5, 0)}))
    lags = describe_group(kafka, "g").lags
    assert [(lag.partition, lag.committed, lag.is_pending) for lag in lags] == [(T0, 5, True), (T1, 5, False)]
    assert [seen.message.require_stable for seen in broker.requests(ApiKey.OFFSET_FETCH)] == [True, False]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (group_described(code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED)), "group 'g': GROUP_AUTHORIZATION_FAILED"),
        (group_described(code=NOT_FOUND), "the cluster has no group 'g': GROUP_ID_NOT_FOUND"),
    ],
)
def test_a_group_that_is_refused_is_named(
    broker: ScriptedBroker, kafka: dict[str, str], answer: object, message: str
) -> None:
    broker.answer(ApiKey.LIST_GROUPS, groups_listed(("other", "Empty", "Classic")))
    broker.answer(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_group_described(code=NOT_FOUND))
    broker.answer(ApiKey.DESCRIBE_GROUPS, answer)
    with pytest.raises(KafkaRefusedError, match=message):
        describe_group(kafka, "g")


def test_a_coordinator_that_has_moved_is_looked_up_again(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    broker.answer(ApiKey.LIST_GROUPS, groups_listed(("g", "Empty", "Classic")))
    moved = group_described(code=int(ErrorCode.NOT_COORDINATOR))
    broker.answer(ApiKey.DESCRIBE_GROUPS, moved, group_described())
    broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({}))
    assert describe_group(kafka, "g").state == "Stable"
    lookups = broker.requests(ApiKey.FIND_COORDINATOR)
    assert [(seen.message.key, seen.message.key_type) for seen in lookups] == [("g", 0)] * 2


def test_a_reset_that_is_refused_for_one_partition_is_an_error(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    response = APIS[ApiKey.OFFSET_COMMIT].response
    topic = response.OffsetCommitResponseTopic
    entry = topic.OffsetCommitResponsePartition
    codes = [entry(partition_index=0, error_code=0), entry(partition_index=1, error_code=NOT_GRANTED)]
    broker.answer(ApiKey.OFFSET_FETCH, offsets_committed({T0: (1, 0)}))
    broker.answer(ApiKey.OFFSET_COMMIT, response(throttle_time_ms=0, topics=[topic(name="t", partitions=codes)]))
    with pytest.raises(KafkaRefusedError, match="group 'g': TOPIC_AUTHORIZATION_FAILED"):
        reset_offsets(kafka, "g", "t", "end")
    (asked,) = broker.requests(ApiKey.OFFSET_COMMIT)
    assert asked.version == 9, "later versions name topics by id"
    assert [part.committed_offset for part in asked.message.topics[0].partitions] == [5, 5]


# --- ACLs


def test_values_of_a_later_kafka_are_unknown(broker: ScriptedBroker, kafka: dict[str, str]) -> None:
    response = APIS[ApiKey.DESCRIBE_ACLS].response
    resource = response.DescribeAclsResource
    entry = resource.AclDescription(principal="User:a", host="*", operation=99, permission_type=3)
    resources = [resource(resource_type=98, resource_name="r", pattern_type=97, acls=[entry])]
    broker.answer(
        ApiKey.DESCRIBE_ACLS, response(throttle_time_ms=0, error_code=0, error_message=None, resources=resources)
    )
    (acl,) = list_acls(kafka)
    names = acl.resource_type.name, acl.pattern_type.name, acl.operation.name, acl.permission.name
    assert names == ("UNKNOWN", "UNKNOWN", "UNKNOWN", "ALLOW")
