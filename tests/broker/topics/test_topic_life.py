"""DeleteTopics and CreatePartitions: deleted topics are gone for all clients and for good; new ones start afresh."""

import uuid
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import ApiKey, CreatePartitionsRequest, DeleteTopicsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.admin_calls import delete, delete_by_id, grow
from tests.support.requests.calls import (
    ask_for_topics,
    batch,
    end,
    fetch,
    fetch_request,
    metadata,
    new_producer,
    new_topic,
    only_partition,
    open_transaction,
    produce,
    read_all,
    topic_id,
    tx_batch,
    unique,
    wanted_topic,
)
from tests.support.requests.offset_calls import commit, committed
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_in_every_version(client: RawClient, version: int) -> None:
    name = new_topic(client, 2)
    produce(client, name, batch([b"v"]))
    assert delete(client, name, version=version) == {name: ErrorCode.NONE}
    assert metadata(client, name).topics[0].error_code == UNKNOWN
    assert produce(client, name, batch([b"v"])).error_code == UNKNOWN
    assert fetch(client, name).error_code == UNKNOWN


def test_a_topic_is_deleted_by_its_id(client: RawClient) -> None:
    name = new_topic(client)
    known = topic_id(client, name)
    assert delete_by_id(client, known) == {name: ErrorCode.NONE}
    assert delete_by_id(client, known) == {None: ErrorCode.UNKNOWN_TOPIC_ID}


def test_invalid_names_and_ids_are_refused_and_the_other_topics_deleted(client: RawClient) -> None:
    twice, both, once, twofold = (new_topic(client) for _ in range(4))
    state = DeleteTopicsRequest.DeleteTopicState
    wanted = [
        state(name=twice, topic_id=None),
        state(name=twice, topic_id=None),
        state(name=both, topic_id=topic_id(client, both)),
        state(name=None, topic_id=None),
        state(name=twofold, topic_id=None),
        state(name=None, topic_id=topic_id(client, twofold)),
        state(name=once, topic_id=None),
    ]
    answer = client.ask(DeleteTopicsRequest(topics=wanted, topic_names=[], timeout_ms=1000), 6)
    assert {
        response.name: (ErrorCode(response.error_code), response.error_message) for response in answer.responses
    } == {
        twice: (ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        both: (ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."),
        None: (ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."),
        twofold: (
            ErrorCode.INVALID_REQUEST,
            "The provided topic name maps to an ID that was already supplied.",
        ),
        once: (ErrorCode.NONE, None),
    }


def test_unknown_and_internal_topics_are_not_deleted(client: RawClient) -> None:
    missing = unique("missing")
    assert delete(client, missing, "__consumer_offsets", "__transaction_state") == {
        missing: UNKNOWN,
        "__consumer_offsets": ErrorCode.INVALID_REQUEST,
        "__transaction_state": ErrorCode.INVALID_REQUEST,
    }
    assert delete_by_id(client, uuid.UUID(int=9)) == {None: ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_topic_of_the_same_name_begins_anew_with_an_id_of_its_own(client: RawClient) -> None:
    name = new_topic(client, 2)
    before = topic_id(client, name)
    producer = new_producer(client)
    assert produce(client, name, batch([b"old"], producer, 0)).base_offset == 0
    delete(client, name)
    assert ask_for_topics(client, wanted_topic(name, 1))[0].error_code == ErrorCode.NONE
    assert topic_id(client, name) != before
    assert read_all(client, name) == []
    assert fetch(client, name, partition=1).error_code == UNKNOWN
    again = produce(
        client, name, batch([b"new"], producer, 0)
    )  # a duplicate for a broker that remembered the old topic
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
    assert read_all(client, name) == [b"new"]
    by_old_id = client.ask(fetch_request(name, by_id=before), 13)
    assert only_partition(by_old_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_continues_without_the_deleted_topic(client: RawClient, commit: bool) -> None:
    stays, goes, anew = new_topic(client), new_topic(client), new_topic(client)
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(name, 0): [b"v"] for name in (stays, goes, anew)})
    delete(client, goes, anew)
    ask_for_topics(client, wanted_topic(anew))
    assert end(client, transactional_id, producer, commit).error_code == ErrorCode.NONE
    assert read_all(client, stays) == ([b"v"] if commit else [])
    assert read_all(client, anew) == []
    assert metadata(client, goes).topics[0].error_code == UNKNOWN
    following = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    answer = produce(client, anew, tx_batch([b"w"], following), transactional_id, version=12)
    assert answer.error_code == ErrorCode.NONE
    assert end(client, transactional_id, following).error_code == ErrorCode.NONE
    assert read_all(client, anew) == [b"w"]


@pytest.mark.parametrize("version", [12, 13])
def test_a_waiting_fetch_is_answered_at_once_when_its_topic_is_deleted(
    client: RawClient, shared_broker: EmbeddedBroker, version: int
) -> None:
    name = new_topic(client)
    longer_than_the_client = int(2000 * PATIENCE_SECONDS)
    request = fetch_request(name, by_id=topic_id(client, name), max_wait_ms=longer_than_the_client)
    with RawClient(shared_broker.bootstrap_servers) as waiting:
        correlation = waiting.send(request, version)
        delete(client, name)
        answer = only_partition(waiting.receive(ApiKey.FETCH, version, correlation))
    expected = UNKNOWN if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.error_code == expected


@pytest.mark.slow
def test_a_deletion_by_id_spares_the_topic_that_has_taken_the_name_meanwhile(
    client: RawClient, shared_broker: EmbeddedBroker
) -> None:
    ids = [topic_id(client, new_topic(client)) for _ in range(200)]
    name = new_topic(client)
    old = topic_id(client, name)
    with RawClient(shared_broker.bootstrap_servers) as other:
        topics = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=each) for each in (*ids, old)]
        correlation = client.send(DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6)
        assert delete(other, name) == {name: ErrorCode.NONE}
        assert ask_for_topics(other, wanted_topic(name))[0].error_code == ErrorCode.NONE
        new = topic_id(other, name)
        results = client.receive(ApiKey.DELETE_TOPICS, 6, correlation).responses
    assert {result.topic_id: result.error_code for result in results}[old] == ErrorCode.UNKNOWN_TOPIC_ID
    assert topic_id(client, name) == new != old


def test_a_deleted_topic_stays_deleted_and_its_files_go(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        goes, anew, stays = (new_topic(client, 2) for _ in range(3))
        for name in (goes, anew, stays):
            produce(client, name, batch([b"old"]), partition=1)
        delete(client, goes, anew)
        ask_for_topics(client, wanted_topic(anew, 2))
        produce(client, anew, batch([b"new"]), partition=1)
    directories = {path.name for path in (tmp_path / "broker").iterdir() if path.is_dir()}
    assert not {f"{goes}-0", f"{goes}-1"} & directories
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert metadata(client, goes).topics[0].error_code == UNKNOWN
        assert read_all(client, anew, partition=1) == [b"new"]
        assert read_all(client, stays, partition=1) == [b"old"]


def test_a_group_has_no_offsets_in_a_deleted_topic_nor_in_a_new_one_of_its_name(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        goes, stays = new_topic(client, 2), new_topic(client)
        commit(client, "g", {(goes, 0): 3, (goes, 1): 4, (stays, 0): 5})
        delete(client, goes)
        assert committed(client, "g") == {(stays, 0): (5, -1, "")}
        ask_for_topics(client, wanted_topic(goes, 2))
        assert committed(client, "g", (goes, 1)) == {(goes, 1): (-1, -1, "")}
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert committed(client, "g") == {(stays, 0): (5, -1, "")}


# --- CreatePartitions


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions_in_every_version(client: RawClient, version: int) -> None:
    name = new_topic(client, 2, max_message_bytes="200")
    produce(client, name, batch([b"first"]), partition=1)
    assert grow(client, name, 4, version=version).error == ErrorCode.NONE
    assert len(metadata(client, name).topics[0].partitions) == 4
    assert produce(client, name, batch([b"last"]), partition=3).error_code == ErrorCode.NONE
    assert produce(client, name, batch([b"x" * 200]), partition=3).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert read_all(client, name, partition=1) == [b"first"]
    assert read_all(client, name, partition=3) == [b"last"]


def test_a_refused_number_of_partitions_has_a_reason(client: RawClient) -> None:
    name = new_topic(client, 2)
    assert grow(client, name, 2) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s).")
    assert grow(client, name, 1).error == ErrorCode.INVALID_PARTITIONS
    assert grow(client, name, 3, [[1]]).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(client, name, 3, [[0], [0]]).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(client, unique("missing"), 3).error == UNKNOWN
    assert grow(client, "__consumer_offsets", 3).error == ErrorCode.INVALID_PARTITIONS
    assert len(metadata(client, name).topics[0].partitions) == 2


def test_new_partitions_can_be_assigned_to_the_one_node(client: RawClient) -> None:
    name = new_topic(client)
    assert grow(client, name, 3, [[0], [0]]).error == ErrorCode.NONE
    assert len(metadata(client, name).topics[0].partitions) == 3


def test_a_topic_that_occurs_twice_does_not_grow(client: RawClient) -> None:
    name = new_topic(client)
    topics = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None) for count in (2, 3)
    ]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)
    (result,) = client.ask(request, 3).results
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def test_validation_alone_adds_no_partition(client: RawClient) -> None:
    name = new_topic(client)
    assert grow(client, name, 2, validate_only=True).error == ErrorCode.NONE
    assert grow(client, name, 1, validate_only=True).error == ErrorCode.INVALID_PARTITIONS
    assert len(metadata(client, name).topics[0].partitions) == 1


def test_new_partitions_survive_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client)
        grow(client, name, 3)
        produce(client, name, batch([b"v"]), partition=2)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert len(metadata(client, name).topics[0].partitions) == 3
        assert read_all(client, name, partition=2) == [b"v"]
