"""What the native producer knows of the cluster, and what it makes of a hint at another leader."""

import random

import pytest

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import RETRIABLE_CODES
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

ONE, TWO, THREE = Endpoint("one", 1), Endpoint("two", 2), Endpoint("three", 3)


def metadata(leader: int, epoch: int, code: int = 0) -> Message:
    response = APIS[ApiKey.METADATA].response
    topic_class = response.MetadataResponseTopic
    partition = topic_class.MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1],
        isr_nodes=[1],
        offline_replicas=[],
    )
    nodes = {1: ONE, 2: TWO}
    return response(
        throttle_time_ms=0,
        brokers=[
            response.MetadataResponseBroker(node_id=number, host=node.host, port=node.port, rack=None)
            for number, node in nodes.items()
        ],
        cluster_id="c",
        controller_id=1,
        topics=[topic_class(error_code=int(code), name="t", is_internal=False, partitions=[partition])],
    )


def hint(leader: int, epoch: int) -> Message:
    partition_class = APIS[ApiKey.PRODUCE].response.TopicProduceResponse.PartitionProduceResponse
    return partition_class.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)


def node(number: int, endpoint: Endpoint) -> Message:
    node_class = APIS[ApiKey.PRODUCE].response.NodeEndpoint
    return node_class(node_id=number, host=endpoint.host, port=endpoint.port, rack=None)


@pytest.fixture
def directory() -> ProducerMetadata:
    """Node 1 leads t-0 in epoch 5; node 2 is there too."""
    made = ProducerMetadata(ProducerSettings(ClientSettings((ONE,)), "app-0"), random.Random(0).randrange)
    made.want("t")
    made.learn(metadata(leader=1, epoch=5), 0.0)
    assert made.leader("t", 0) == ONE
    return made


@pytest.mark.parametrize(
    ("told", "nodes", "leader"),
    [
        (hint(2, 6), [node(2, TWO)], TWO),
        (hint(2, 6), [], TWO),
        (hint(3, 6), [node(3, THREE)], THREE),
        (hint(3, 6), [], None),
        (hint(-1, 6), [], None),
        (hint(1, 5), [], ONE),
    ],
    ids=["known", "without its address", "new", "of nobody knows where", "nobody", "no news"],
)
def test_a_hint_that_is_not_older_than_what_is_known_is_taken(
    directory: ProducerMetadata, told: Message, nodes: list[Message], leader: Endpoint | None
) -> None:
    assert directory.hear("t", 0, told, nodes) == leader
    assert directory.leader("t", 0) == leader


def test_an_older_hint_is_passed_over(directory: ProducerMetadata) -> None:
    assert directory.hear("t", 0, hint(2, 4), [node(2, TWO)]) is None
    assert directory.leader("t", 0) == ONE
    directory.hear("t", 0, hint(2, 7), [node(2, TWO)])
    assert directory.hear("t", 0, hint(1, 6), [node(1, ONE)]) is None
    assert directory.leader("t", 0) == TWO


@pytest.mark.parametrize(("topic", "partition"), [("t", 1), ("unknown", 0)])
def test_a_hint_about_an_unknown_partition_is_ignored(directory: ProducerMetadata, topic: str, partition: int) -> None:
    assert directory.hear(topic, partition, hint(2, 9), [node(2, TWO)]) is None
    assert directory.hear("t", 0, None, []) is None
    assert directory.leader("t", 0) == ONE


def test_metadata_is_taken_whatever_its_epoch_as_a_topic_that_is_made_anew_begins_again(
    directory: ProducerMetadata,
) -> None:
    directory.hear("t", 0, hint(2, 9), [node(2, TWO)])
    directory.learn(metadata(leader=1, epoch=0), 1.0)
    assert directory.leader("t", 0) == ONE


@pytest.mark.parametrize("code", sorted({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *RETRIABLE_CODES}))
def test_a_topic_that_may_come_is_asked_for_again(directory: ProducerMetadata, code: int) -> None:
    """One that is unknown may be being created; all others are those that the control plane repeats as well."""
    assert directory.learn(metadata(1, 5, code), 1.0) == {}
    assert directory.is_stale


def test_a_topic_that_waiting_will_not_bring_is_refused(directory: ProducerMetadata) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert directory.learn(metadata(1, 5, code), 1.0) == {"t": code}
    assert not directory.is_stale


def test_a_partition_that_the_topic_has_no_more_has_no_leader(directory: ProducerMetadata) -> None:
    assert directory.leader("t", 1) is None


def test_partitions_are_known_by_their_index_whatever_the_answer_leaves_out(directory: ProducerMetadata) -> None:
    answer = metadata(leader=2, epoch=6)
    answer.topics[0].partitions[0].partition_index = 2
    directory.learn(answer, 1.0)
    assert [directory.leader("t", partition) for partition in range(4)] == [None, None, TWO, None]


def test_a_topic_without_partitions_is_not_there_yet(directory: ProducerMetadata) -> None:
    directory.want("u")
    answer = metadata(leader=1, epoch=5)
    answer.topics[0].name, answer.topics[0].partitions = "u", []
    assert directory.learn(answer, 1.0) == {}
    assert directory.is_stale
    assert "u" not in directory.topics


def test_a_topic_that_was_missing_and_has_come_is_not_forgotten(directory: ProducerMetadata) -> None:
    directory.learn(metadata(1, 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 1.0)
    directory.learn(metadata(1, 5), 2.0)
    directory.forget_unused()
    assert directory.leader("t", 0) == ONE
