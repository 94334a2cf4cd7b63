"""OffsetCommit and OffsetFetch in every version: what is committed is kept, through kill -9 too."""

import asyncio
import random
from pathlib import Path
from uuid import UUID

import pytest

from dualwrite.broker.api.groups import offset_commit, offset_fetch
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.broker.process.system import SystemClock
from dualwrite.broker.runtime.cluster import Cluster, TopicSettings
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.group_log import GroupLog
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import OffsetCommitRequest, OffsetFetchRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import SeededEntropy, never
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import new_topic, topic_id, unique
from tests.support.requests.offset_calls import commit, commit_request, committed, committed_by, fetch_request
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

NOTHING = (-1, -1, "")
NONE = ErrorCode.NONE


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_every_version_commits(client: RawClient, version: int) -> None:
    group, topic = unique("group"), new_topic(client, partitions=2)
    assert commit(client, group, {(topic, 0): (5, 3, "where"), (topic, 1): 7}, version) == [NONE, NONE]
    epoch = 3 if version >= 6 else -1
    assert committed(client, group, (topic, 0), (topic, 1)) == {
        (topic, 0): (5, epoch, "where"),
        (topic, 1): (7, -1, ""),
    }


@pytest.mark.parametrize("version", offset_fetch.VERSIONS)
def test_every_version_fetches(client: RawClient, version: int) -> None:
    group, topic = unique("group"), new_topic(client, partitions=2)
    commit(client, group, {(topic, 0): (5, 3, "where")})
    epoch = 3 if version >= 5 else -1
    assert committed(client, group, (topic, 0), (topic, 1), version=version) == {
        (topic, 0): (5, epoch, "where"),
        (topic, 1): NOTHING,
    }


@pytest.mark.parametrize("version", range(2, 10))
def test_every_partition_is_fetched_if_none_is_named(client: RawClient, version: int) -> None:
    group, one, other = unique("group"), new_topic(client, partitions=3), new_topic(client)
    assert committed(client, group, version=version) == {}
    commit(client, group, {(one, 0): 5, (one, 2): 6, (other, 0): 7})
    found = committed(client, group, version=version)
    assert {name: offset for name, (offset, _, _) in found.items()} == {(one, 0): 5, (one, 2): 6, (other, 0): 7}


def test_every_partition_is_fetched_by_topic_id(client: RawClient) -> None:
    group, topic = unique("group"), new_topic(client)
    commit(client, group, {(topic, 0): 5})
    answer = client.ask(fetch_request(client, {group: None}, 10), 10)
    ((found,),) = [entry.topics for entry in answer.groups]
    assert found.topic_id == topic_id(client, topic)
    assert [entry.committed_offset for entry in found.partitions] == [5]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_are_fetched_at_once(client: RawClient, version: int) -> None:
    one, other, unheard_of, topic = unique("group"), unique("group"), unique("group"), new_topic(client)
    partition = (topic, 0)
    commit(client, one, {partition: 1})
    commit(client, other, {partition: 2})
    found = committed_by(client, {one: [partition], other: [partition], unheard_of: [partition]}, version)
    assert found == {one: {partition: (1, -1, "")}, other: {partition: (2, -1, "")}, unheard_of: {partition: NOTHING}}


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_offsets_are_always_stable(client: RawClient, version: int) -> None:
    group, partition = unique("group"), (new_topic(client), 0)
    commit(client, group, {partition: 4})
    assert committed_by(client, {group: [partition]}, version, stable=True) == {group: {partition: (4, -1, "")}}


@pytest.mark.parametrize("version", [1, 8])
def test_an_unknown_topic_has_no_commits(client: RawClient, version: int) -> None:
    partition = (unique("missing"), 3)
    assert committed(client, unique("group"), partition, version=version) == {partition: NOTHING}


def test_a_later_commit_replaces_an_earlier_one_even_backwards(client: RawClient) -> None:
    group, partition = unique("group"), (new_topic(client), 0)
    for offset in (9, 3):
        commit(client, group, {partition: (offset, offset, str(offset))})
        assert committed(client, group, partition) == {partition: (offset, offset, str(offset))}


def test_metadata_may_be_null(client: RawClient) -> None:
    group, partition = unique("group"), (new_topic(client), 0)
    request = commit_request(client, group, {partition: 4})
    request.topics[0].partitions[0].committed_metadata = None
    ((answer,),) = [topic.partitions for topic in client.ask(request, 9).topics]
    assert answer.error_code == NONE
    assert committed(client, group, partition) == {partition: (4, -1, "")}


def test_each_partition_is_answered_by_itself(client: RawClient) -> None:
    group, topic = unique("group"), new_topic(client, partitions=3)
    positions = {(topic, 0): 1, (topic, 7): 1, (topic, 1): (1, -1, "m" * 4097), (topic, 2): (1, -1, "m" * 4096)}
    answers = commit(client, group, positions)
    assert answers == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_METADATA_TOO_LARGE, NONE]
    assert committed(client, group).keys() == {(topic, 0), (topic, 2)}


def test_an_unknown_topic_gets_an_error_and_is_not_created(client: RawClient) -> None:
    group, topic = unique("group"), unique("missing")
    assert commit(client, group, {(topic, 0): 1}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert commit(client, group, {(topic, 0): 1}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert committed(client, group) == {}


def test_an_unknown_topic_id_gets_its_error_beside_a_known_one(client: RawClient) -> None:
    group, topic, unknown = unique("group"), new_topic(client), UUID(int=42)
    request = commit_request(client, group, {(topic, 0): 5}, version=10)
    entry = OffsetCommitRequest.OffsetCommitRequestTopic
    index = entry.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    request.topics.append(entry(topic_id=unknown, partitions=[index]))
    committing = client.ask(request, 10)
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
    fetching = fetch_request(client, {group: [(topic, 0)]}, version=10)
    fetching.groups[0].topics.append(wanted(topic_id=unknown, partition_indexes=[0]))
    (fetched,) = client.ask(fetching, 10).groups
    expected = [(topic_id(client, topic), NONE), (unknown, ErrorCode.UNKNOWN_TOPIC_ID)]
    for topics in (committing.topics, fetched.topics):
        assert [(found.topic_id, found.partitions[0].error_code) for found in topics] == expected
    assert [found.partitions[0].committed_offset for found in fetched.topics] == [5, -1]


@pytest.mark.parametrize("version", [2, 8, 9, 10])
def test_no_client_commits_in_a_generation_of_a_group_without_members(client: RawClient, version: int) -> None:
    group, partition = unique("group"), (new_topic(client), 0)
    claim = {"generation_id_or_member_epoch": 1, "member_id": "member"}
    unheard_of = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert commit(client, group, {partition: 5}, version, **claim) == [unheard_of]
    assert commit(client, group, {partition: 3}, version) == [NONE]
    assert commit(client, group, {partition: 5}, version, **claim) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert committed(client, group, partition) == {partition: (3, -1, "")}


def test_a_group_id_too_long_for_the_disk_is_refused_and_the_broker_keeps_running(client: RawClient) -> None:
    partition = (new_topic(client), 0)
    assert commit(client, "g" * 32768, {partition: 1}) == [ErrorCode.INVALID_GROUP_ID]
    assert commit(client, "g" * 32767, {partition: 1}) == [NONE]
    assert committed(client, "g" * 32767, partition) == {partition: (1, -1, "")}


@pytest.mark.parametrize("version", [2, 9, 10])
def test_a_commit_of_nothing_is_answered_with_nothing(client: RawClient, version: int) -> None:
    assert commit(client, unique("group"), {}, version) == []


def test_acknowledged_offsets_survive_kill_9(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, partitions=2)
    for round_number in range(1, 4):
        with RawClient(broker.bootstrap_servers) as client:
            answers = commit(client, "group", {(topic, 0): (round_number, 0, f"é{round_number}"), (topic, 1): 7})
            assert answers == [NONE, NONE]
            commit(client, f"of round {round_number}", {(topic, 0): 10 * round_number})
            broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert committed(client, "group") == {
                (topic, 0): (round_number, 0, f"é{round_number}"),
                (topic, 1): (7, -1, ""),
            }
            for earlier in range(1, round_number + 1):
                assert committed(client, f"of round {earlier}") == {(topic, 0): (10 * earlier, -1, "")}


class EightDaysAgo(SystemClock):
    """A clock that is a day slower than offsets.retention.minutes is long."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 8 * 86_400_000


def commit_long_ago(data_dir: Path, group: str, topic: str) -> None:
    """Do what a broker did for OffsetCommit eight days ago."""

    async def main() -> None:
        files, flusher, clock = DiskFiles(), Flusher(durable=True, on_failure=never), EightDaysAgo()
        cluster = Cluster(files, data_dir, flusher, clock, SeededEntropy(random.Random(1)), TopicSettings())
        offsets = GroupOffsets(GroupLog(files, data_dir, cluster, flusher, clock), cluster, flusher, clock)
        errors = await offsets.commit(CommitOffsets(group, {TopicPartition(topic, 0): CommittedPosition(5)}))
        assert set(errors.values()) == {NONE}
        await flusher.close()

    asyncio.run(main())


@pytest.mark.slow
def test_offsets_of_a_group_that_is_long_gone_expire_while_the_broker_runs(tmp_path: Path) -> None:
    old, recent = unique("old"), unique("recent")
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        commit(client, recent, {(topic, 0): 7})
    commit_long_ago(tmp_path, old, topic)
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert committed(client, old) == {(topic, 0): (5, -1, "")}, "the broker has not looked yet"
    config = {"offsets.retention.check.interval.ms": "20"}
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        assert eventually(lambda: committed(client, old), lambda found: found == {}) == {}
        assert committed(client, recent) == {(topic, 0): (7, -1, "")}
