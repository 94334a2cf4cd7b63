"""Offsets in transactions: pending until the marker, fenced by generation, and exactly once through kill -9."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import (
    AddOffsetsToTxnRequest,
    DescribeProducersRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import delete
from tests.support.requests.calls import (
    ask_for_topics,
    end,
    identity,
    init,
    new_producer,
    new_topic,
    unique,
    wanted_topic,
)
from tests.support.requests.group_calls import joined_member
from tests.support.requests.offset_calls import Partition, commit, committed, fetch_request, txn_commit
from tests.support.requests.raw_client import RawClient

NOTHING = (-1, -1, "")
NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    config = {"group.initial.rebalance.delay.ms": "0"}
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=config) as running:
        yield running


def add_offsets(
    client: RawClient, transactional_id: str, producer: ProducerIdentity, group: str, version: int = 4
) -> ErrorCode:
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    return ErrorCode(client.ask(request, version).error_code)


def stable_errors(client: RawClient, group: str, *partitions: Partition, version: int = 9) -> list[ErrorCode]:
    """What OffsetFetch with RequireStable answers for each partition; for all of them if none is named."""
    answer = client.ask(fetch_request(client, {group: partitions or None}, version, stable=True), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return [ErrorCode(partition.error_code) for topic in topics for partition in topic.partitions]


def begun(client: RawClient) -> tuple[str, ProducerIdentity, str, Partition]:
    """A transactional id, its producer, a group and a partition."""
    transactional_id = unique("txn")
    return transactional_id, new_producer(client, transactional_id), unique("group"), (new_topic(client), 0)


def test_topics_are_named_by_their_ids_from_the_sixth_version_on(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    assert txn_commit(client, transactional_id, producer, group, {partition: 5}, 6) == [NONE]
    entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    place = entry.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
        topics=[entry(topic_id=uuid.UUID(int=9), partitions=[place])],
    )
    (answer,) = client.ask(request, 6).topics
    assert (answer.topic_id, answer.partitions[0].error_code) == (uuid.UUID(int=9), ErrorCode.UNKNOWN_TOPIC_ID)
    end(client, transactional_id, producer)
    assert committed(client, group) == {partition: (5, 3, "m")}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_an_offset_is_pending_until_the_transaction_ends_and_then_valid_or_gone(
    client: RawClient, commits: bool, version: int
) -> None:
    transactional_id, producer, group, partition = begun(client)
    other = (partition[0], 0)
    assert commit(client, group, {partition: 1}) == [NONE]
    assert txn_commit(client, transactional_id, producer, group, {partition: 5}) == [NONE]
    assert committed(client, group, partition, version=version) == {partition: (1, -1, "")}
    assert stable_errors(client, group, other, version=version) == [UNSTABLE]
    answer = end(client, transactional_id, producer, commits)
    assert answer.error_code == NONE
    assert stable_errors(client, group, partition, version=version) == [NONE]
    expected = (5, 3, "m") if commits else (1, -1, "")
    assert committed(client, group, partition, version=version) == {partition: expected}


@pytest.mark.parametrize("version", range(1, 7))
def test_a_client_that_knows_no_unstable_offsets_gets_the_last_committed_one(client: RawClient, version: int) -> None:
    """KIP-447's draft sends it COORDINATOR_LOAD_IN_PROGRESS; the final KIP, as Kafka, an answer as before."""
    transactional_id, producer, group, partition = begun(client)
    assert commit(client, group, {partition: 1}) == [NONE]
    assert txn_commit(client, transactional_id, producer, group, {partition: 5}) == [NONE]
    assert stable_errors(client, group, partition) == [UNSTABLE], "a client that knows them is told to ask again"
    assert committed(client, group, partition, version=version)[partition][0] == 1
    assert end(client, transactional_id, producer).error_code == NONE
    assert committed(client, group, partition, version=version)[partition][0] == 5


def test_all_partitions_of_a_group_can_be_asked_for_stably(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    other = (new_topic(client), 0)
    commit(client, group, {partition: 1, other: 1})
    txn_commit(client, transactional_id, producer, group, {partition: 5})
    assert sorted(stable_errors(client, group)) == [NONE, UNSTABLE]
    end(client, transactional_id, producer)
    assert stable_errors(client, group) == [NONE, NONE]


@pytest.mark.parametrize("version", range(5))
def test_a_client_of_the_first_kind_adds_the_offsets_to_its_transaction_first(client: RawClient, version: int) -> None:
    transactional_id, producer, group, partition = begun(client)
    error = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert txn_commit(client, transactional_id, producer, group, {partition: 5}, version) == [error]
    assert add_offsets(client, transactional_id, producer, group, version) is NONE
    assert txn_commit(client, transactional_id, producer, group, {partition: 5}, version) == [NONE]
    assert committed(client, group, partition) == {partition: NOTHING}
    assert end(client, transactional_id, producer, version=3).error_code == NONE
    assert committed(client, group, partition)[partition][0] == 5


def test_a_plain_commit_that_came_later_is_not_undone_by_the_marker(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    txn_commit(client, transactional_id, producer, group, {partition: 5})
    commit(client, group, {partition: 9})
    end(client, transactional_id, producer)
    assert committed(client, group, partition) == {partition: (9, -1, "")}


def test_one_producer_commits_for_many_groups_and_partitions_at_once(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    other_group, other = unique("group"), (new_topic(client), 0)
    for each in (group, other_group):
        assert txn_commit(client, transactional_id, producer, each, {partition: 5, other: 6}) == [NONE, NONE]
    assert committed(client, group, partition) == {partition: NOTHING}
    end(client, transactional_id, producer)
    for each in (group, other_group):
        offsets = {name: found[0] for name, found in committed(client, each, partition, other).items()}
        assert offsets == {partition: 5, other: 6}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_member_of_an_earlier_generation_cannot_commit(client: RawClient, version: int) -> None:
    """KIP-447: what fenced a zombie was its transactional id; now it is its place in the group."""
    transactional_id, producer, group, partition = begun(client)
    member = joined_member(client, group, partition[0], instance_id="static")
    add_offsets(client, transactional_id, producer, group)
    present, me = member.generation_id, member.member_id
    for fields, error in (
        ({"generation_id": present - 1, "member_id": me}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": present + 1, "member_id": me}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": present, "member_id": "zombie"}, ErrorCode.UNKNOWN_MEMBER_ID),
        (
            {"generation_id": present, "member_id": "zombie", "group_instance_id": "static"},
            ErrorCode.FENCED_INSTANCE_ID,
        ),
        ({"generation_id": present, "member_id": me, "group_instance_id": "static"}, NONE),
    ):
        found = txn_commit(client, transactional_id, producer, group, {partition: 5}, version, **fields)
        assert found == [error], fields
    end(client, transactional_id, producer)
    assert committed(client, group, partition)[partition][0] == 5


def test_a_generation_of_an_unknown_group_is_illegal(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    for version, error in ((5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        member = {"generation_id": 1, "member_id": "m"}
        found = txn_commit(client, transactional_id, producer, group, {partition: 5}, version, **member)
        assert found == [error]
    assert txn_commit(client, transactional_id, producer, "", {partition: 5}) == [ErrorCode.INVALID_GROUP_ID]


def test_a_producer_that_was_fenced_commits_nothing(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    new_producer(client, transactional_id)
    found = txn_commit(client, transactional_id, producer, group, {partition: 5})
    assert found == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert add_offsets(client, transactional_id, producer, group, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert add_offsets(client, transactional_id, producer, group, 2) is ErrorCode.PRODUCER_FENCED
    assert add_offsets(client, "nobody's", producer, group) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_zombie_joins_no_transaction_of_its_successor_even_without_verification(tmp_path: Path) -> None:
    """As in Kafka, where the log compares epochs whether the coordinator was asked or not."""
    config = {"transaction.partition.verification.enable": "false"}
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        transactional_id, zombie, group, partition = begun(client)
        producer = new_producer(client, transactional_id)
        add_offsets(client, transactional_id, producer, group)
        assert txn_commit(client, transactional_id, producer, group, {partition: 5}, 4) == [NONE]
        found = txn_commit(client, transactional_id, zombie, group, {partition: 99}, 4)
        assert found == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert end(client, transactional_id, producer, version=3).error_code == NONE
        assert committed(client, group, partition)[partition][0] == 5


def test_each_partition_is_answered_by_itself(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    found = txn_commit(client, transactional_id, producer, group, {partition: 5, ("missing", 0): 5})
    assert found == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_the_offsets_partition_has_an_open_transaction_as_any_other_has(client: RawClient) -> None:
    transactional_id, producer, group, partition = begun(client)
    txn_commit(client, transactional_id, producer, group, {partition: 5})
    wanted = DescribeProducersRequest.TopicRequest(name="__consumer_offsets", partition_indexes=[0])

    def start() -> int:
        ((found,),) = [topic.partitions for topic in client.ask(DescribeProducersRequest(topics=[wanted]), 0).topics]
        (mine,) = [
            active_producer
            for active_producer in found.active_producers
            if active_producer.producer_id == producer.producer_id
        ]
        offset: int = mine.current_txn_start_offset
        return offset

    assert start() >= 0
    end(client, transactional_id, producer)
    assert start() == -1


@pytest.mark.slow_cases
@pytest.mark.crash
@pytest.mark.parametrize("commits", [True, False])
def test_pending_offsets_outlive_the_broker(broker: EmbeddedBroker, commits: bool) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        transactional_id, group, partition = "txn", "group", (new_topic(client), 0)
        producer = identity(init(client, transactional_id, two_phase=True))
        commit(client, group, {partition: 1})
        txn_commit(client, transactional_id, producer, group, {partition: 5})
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert stable_errors(client, group, partition) == [UNSTABLE]
        answer = init(client, transactional_id, two_phase=True, keep=True)
        end(client, transactional_id, identity(answer), commits)
        assert stable_errors(client, group, partition) == [NONE]
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert committed(client, group, partition)[partition][0] == (5 if commits else 1)


@pytest.mark.crash
def test_a_deleted_topics_pending_offsets_do_not_pass_to_a_new_topic_of_its_name(broker: EmbeddedBroker) -> None:
    """A power cut keeps the topic's deletion, and takes that of its offsets."""
    with RawClient(broker.bootstrap_servers) as client:
        transactional_id, producer, group, partition = begun(client)
        txn_commit(client, transactional_id, producer, group, {partition: 5})
        (log,) = (broker.data_dir / "__consumer_offsets-0").glob("*.log")
        before = log.read_bytes()
        assert delete(client, partition[0]) == {partition[0]: NONE}
        assert log.stat().st_size > len(before)
    broker.kill()
    log.write_bytes(before)
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        ask_for_topics(client, wanted_topic(partition[0]))
        assert end(client, transactional_id, producer).error_code == NONE
        assert committed(client, group, partition) == {partition: NOTHING}


def test_an_empty_list_of_groups_is_answered(client: RawClient) -> None:
    assert client.ask(OffsetFetchRequest(groups=[], require_stable=True), 9).groups == []
