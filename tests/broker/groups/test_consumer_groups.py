"""Groups of the consumer protocol over sockets: what survives restarts and kill -9, timeouts, and other APIs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualwrite.broker.core.consumer_protocol import write_assignment
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.errors import ConfigurationError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiVersionsRequest, DeleteGroupsRequest, ListGroupsRequest, TxnOffsetCommitRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import delete, grow
from tests.support.requests.calls import new_producer, new_topic, topic_id, unique
from tests.support.requests.consumer_group_calls import ConsumerClient, describe
from tests.support.requests.group_calls import join, join_request, joined_member, leave, sync_request
from tests.support.requests.offset_calls import commit, committed
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

Connect = Callable[[], RawClient]


@pytest.fixture
def connect(shared_broker: EmbeddedBroker) -> Iterator[Connect]:
    """Makes connections to the shared broker."""
    made: list[RawClient] = []

    def connect() -> RawClient:
        made.append(RawClient(shared_broker.bootstrap_servers))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def group() -> str:
    return unique("group")


def state(client: RawClient, group: str) -> str:
    (described,) = describe(client, group)
    return str(described.group_state)


# --- the life of a group


def test_partitions_go_from_member_to_member_as_these_come_and_go(
    client: RawClient, connect: Connect, group: str
) -> None:
    topic = new_topic(client, 6)
    members = [ConsumerClient(connect(), group) for _ in range(3)]
    for member in members:
        member.join(topic)

    def all_settled() -> bool:
        for member in members:
            member.beat()
        return state(client, group) == "Stable"

    assert eventually(all_settled)
    assert [sum(map(len, member.owned.values())) for member in members] == [2, 2, 2]
    held = [number for member in members for numbers in member.owned.values() for number in numbers]
    assert sorted(held) == list(range(6))
    members.pop().leave()
    assert eventually(all_settled)
    assert [sum(map(len, member.owned.values())) for member in members] == [3, 3]


def test_a_topic_that_is_created_grown_or_deleted_is_noticed(client: RawClient, connect: Connect, group: str) -> None:
    kept, deleted = new_topic(client, 1), new_topic(client, 1)
    member = ConsumerClient(connect(), group)
    prefix = unique("pattern")
    member.join(kept, deleted, subscribed_topic_regex=f"{prefix}.*")
    member.settle(2)
    grow(client, kept, 3)
    member.settle(4)
    delete(client, deleted)
    member.settle(3)
    assert member.owned == {topic_id(client, kept): [0, 1, 2]}


def test_a_silent_member_is_removed_after_its_session(tmp_path: Path, group: str) -> None:
    quick = {"group.consumer.session.timeout.ms": "300", "group.consumer.heartbeat.interval.ms": "100"}
    with ForkedBroker(tmp_path / "broker", config=quick) as broker, RawClient(broker.bootstrap_servers) as client:
        member = ConsumerClient(client, group)
        assert member.join(new_topic(client)).heartbeat_interval_ms == 100
        assert eventually(lambda: state(client, group) == "Empty")
        assert member.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_up_is_removed_after_its_rebalance_timeout(
    client: RawClient, connect: Connect, group: str
) -> None:
    topic = new_topic(client, 2)
    slow, waiting = ConsumerClient(connect(), group), ConsumerClient(connect(), group)
    slow.join(topic, rebalance_timeout_ms=100)
    waiting.join(topic)
    assert slow.say(slow.epoch, owned=slow.owned).error_code == ErrorCode.NONE
    waiting.settle(2)
    assert slow.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- restarts


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_restarted_broker_continues_and_fences_where_it_was(
    broker: EmbeddedBroker, group: str, is_killed: bool
) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, 4)
        first, second = ConsumerClient(client, group), ConsumerClient(client, group)
        first.join(topic)
        second.join(topic)
        first.say(first.epoch, owned=first.owned)  # the group asks for two partitions, which the client keeps
        assert commit(client, group, {(topic, 0): 7}, generation_id_or_member_epoch=2, member_id=first.member_id) == [
            ErrorCode.NONE
        ]
        before = describe(client, group)
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        first.client = second.client = client
        assert describe(client, group) == before
        assert committed(client, group, (topic, 0))[topic, 0][0] == 7
        assert second.beat().error_code == ErrorCode.NONE
        assert second.owned == {}, "the first still holds all"
        assert first.say(first.epoch + 5).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        first.owned = {name: numbers[:2] for name, numbers in first.owned.items()}
        assert first.beat().member_epoch == second.epoch
        second.settle(2)
        assert state(client, group) == "Stable"


@pytest.mark.slow
def test_a_restarted_broker_removes_a_member_that_does_not_come_back(tmp_path: Path, group: str) -> None:
    quick = {"group.consumer.session.timeout.ms": "1000", "group.consumer.heartbeat.interval.ms": "100"}
    with ForkedBroker(tmp_path / "broker", config=quick) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            ConsumerClient(client, group).join(new_topic(client))
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert eventually(lambda: state(client, group) == "Empty")


# --- other APIs


def test_the_broker_says_that_it_has_the_protocol(client: RawClient) -> None:
    request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    answer = client.ask(request, 4)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    assert (finalized["group.version"], supported["group.version"]) == (1, (0, 1))


@pytest.mark.slow
def test_groups_of_both_types_are_listed(client: RawClient, connect: Connect) -> None:
    classic, consumer = unique("classic"), unique("consumer")
    joined_member(client, classic)
    ConsumerClient(connect(), consumer).join(new_topic(client))

    def listed(*types: str) -> set[tuple[str, str]]:
        answer = client.ask(ListGroupsRequest(states_filter=[], types_filter=list(types)), 5)
        return {(entry.group_id, entry.group_type) for entry in answer.groups}

    assert {(classic, "classic"), (consumer, "consumer")} <= listed()
    assert (classic, "classic") in listed("Classic") - listed("consumer")
    assert (consumer, "consumer") in listed("Consumer") - listed("classic")


def test_an_administrator_removes_a_member(client: RawClient, connect: Connect, group: str) -> None:
    static = ConsumerClient(connect(), group, instance_id="i")
    static.join(new_topic(client))
    assert leave(client, group, ("", "j"), ("", "i")) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert static.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.slow
def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    client: RawClient, connect: Connect, group: str
) -> None:
    topic = new_topic(client)
    member = ConsumerClient(connect(), group)
    member.join(topic)
    commit(client, group, {(topic, 0): 3}, generation_id_or_member_epoch=2, member_id=member.member_id)
    member.leave()
    classic = joined_member(client, group, topic)
    assert committed(client, group, (topic, 0))[topic, 0][0] == 3
    leave(client, group, (classic.member_id, None))
    assert member.join(topic).error_code == ErrorCode.NONE
    assert committed(client, group, (topic, 0))[topic, 0][0] == 3


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_classic_client_that_never_comes_back_with_its_member_id_disturbs_no_consumer_group(
    tmp_path: Path, group: str, is_deleted: bool
) -> None:
    config = {"group.min.session.timeout.ms": "1", "group.initial.rebalance.delay.ms": "0"}
    with ForkedBroker(tmp_path / "broker", config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic, other = new_topic(client), unique("classic")
        named = client.ask(join_request(group, "", topic, session_timeout_ms=200), 9)
        assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
        if is_deleted:
            client.ask(DeleteGroupsRequest(groups_names=[group]), 2)
        member = ConsumerClient(client, group)
        assert member.join(topic).error_code == ErrorCode.NONE
        classic = joined_member(client, other, topic)
        client.ask(join_request(other, "", topic, session_timeout_ms=200), 9)
        again = join(client, other, classic.member_id, topic)  # it waits for the client that was named last
        assert again.error_code == ErrorCode.NONE
        assert member.beat().error_code == ErrorCode.NONE
        assert state(client, group) == "Stable"
    assert "Traceback" not in (tmp_path / "broker" / "broker.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("policy", "upgrades", "joins"),
    [("bidirectional", True, True), ("Upgrade", True, True), ("downgrade", False, True), ("DISABLED", False, False)],
)
def test_the_policy_says_which_protocol_a_group_with_members_may_change_to(
    tmp_path: Path, group: str, policy: str, upgrades: bool, joins: bool
) -> None:
    config = {"group.consumer.migration.policy": policy, "group.initial.rebalance.delay.ms": "0"}
    with ForkedBroker(tmp_path / "broker", config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        member = ConsumerClient(client, group)
        member.join(topic)
        refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert join(client, group, "", topic).error_code == (ErrorCode.NONE if joins else refused)
        other = unique("classic")
        answer = join(client, other, "", topic)
        assignments = {answer.member_id: write_assignment(0, [TopicPartition(topic, 0)])}
        client.ask(sync_request(other, answer.generation_id, answer.member_id, assignments), 5)
        newer = ConsumerClient(client, other)
        assert newer.join(topic).error_code == (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)])
def test_a_transaction_commits_in_the_epoch_of_the_member(
    client: RawClient, connect: Connect, group: str, version: int, error: ErrorCode
) -> None:
    topic, transactional_id = new_topic(client), unique("id")
    member = ConsumerClient(connect(), group)
    member.join(topic)
    producer = new_producer(client, transactional_id)

    def commit_in(epoch: int) -> ErrorCode:
        entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        named = {"topic_id": topic_id(client, topic)} if version >= 6 else {"name": topic}
        position = entry.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=4, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=epoch,
            member_id=member.member_id,
            topics=[entry(partitions=[position], **named)],
        )
        return ErrorCode(client.ask(request, version).topics[0].partitions[0].error_code)

    assert commit_in(member.epoch + 1) is error
    assert commit_in(member.epoch) is ErrorCode.NONE


# --- settings


def test_only_the_assignors_of_the_settings_are_there(tmp_path: Path, group: str) -> None:
    config = {"group.consumer.assignors": "range", "group.consumer.max.size": "1"}
    with ForkedBroker(tmp_path / "broker", config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        first, second = ConsumerClient(client, group), ConsumerClient(client, group)
        assert first.join(topic, server_assignor="uniform").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert first.join(topic).error_code == ErrorCode.NONE
        assert second.join(topic).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        (described,) = describe(client, group)
        assert described.assignor_name == "range"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"group.consumer.assignors": ""}, "at least one"),
        ({"group.consumer.assignors": "sticky"}, "uniform, range"),
        ({"group.consumer.migration.policy": "both"}, "DISABLED, UPGRADE, DOWNGRADE, BIDIRECTIONAL"),
        ({"group.consumer.heartbeat.interval.ms": "45000"}, "must be less than group.consumer.session.timeout.ms"),
    ],
)
def test_settings_under_which_groups_could_not_work_are_refused(
    tmp_path: Path, config: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message), ForkedBroker(tmp_path / "broker", config=config):
        pass
