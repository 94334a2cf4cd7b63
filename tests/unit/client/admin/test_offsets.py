"""ListOffsets at the leaders: what is asked of whom, and what each answer means."""

from collections.abc import Iterator

import pytest

from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.admin.offsets import by_leader, listed_offsets
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.protocol.requests import EARLIEST, LATEST
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.scripted_answers import offsets
from tests.support.client.scripted_broker import FakeClock, ScriptedBroker, scripted

T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        yield running


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[ClusterClient]:
    clock = FakeClock()
    settings = ClientSettings((broker.endpoint,), connect_timeout=5, request_timeout=5)
    made = ClusterClient(settings, timeout=5, clock=clock.monotonic, sleep=clock.sleep)
    yield made
    made.close()


@pytest.mark.parametrize(("committed", "isolation"), [(True, 1), (False, 0)])
def test_each_leader_is_asked_once_for_all_its_partitions(
    broker: ScriptedBroker, cluster: ClusterClient, committed: bool, isolation: int
) -> None:
    broker.answer(ApiKey.LIST_OFFSETS, offsets({T0: 5, T1: 7}))
    assert listed_offsets(cluster, [T1, T0, T0], LATEST, committed=committed) == {T0: 5, T1: 7}
    (asked,) = broker.requests(ApiKey.LIST_OFFSETS)
    assert asked.message.isolation_level == isolation
    assert [[entry.timestamp for entry in topic.partitions] for topic in asked.message.topics] == [[LATEST, LATEST]]


def test_nobody_is_asked_about_nothing(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    assert listed_offsets(cluster, [], EARLIEST) == {}
    assert broker.seen == []


def test_an_answer_that_passes_is_asked_for_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    moved = offsets({}, {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    broker.answer(ApiKey.LIST_OFFSETS, moved, offsets({}), offsets({T0: 5}))
    assert listed_offsets(cluster, [T0], EARLIEST) == {T0: 5}
    assert len(broker.requests(ApiKey.LIST_OFFSETS)) == 3


def test_a_partition_that_the_answer_leaves_out_is_named(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answer(ApiKey.LIST_OFFSETS, offsets({T0: 5}))
    with pytest.raises(KafkaUnavailableError, match="ListOffsets: no answer about t-1"):
        listed_offsets(cluster, [T0, T1], EARLIEST)


def test_a_refusal_names_the_partition(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answer(ApiKey.LIST_OFFSETS, offsets({}, {T0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}))
    with pytest.raises(KafkaRefusedError, match=r"ListOffsets of t-0: TOPIC_AUTHORIZATION_FAILED \(29\)"):
        listed_offsets(cluster, [T0], EARLIEST)
    assert len(broker.requests(ApiKey.LIST_OFFSETS)) == 1


def test_partitions_of_a_deleted_topic_are_an_error_or_left_out(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    broker.answer(ApiKey.LIST_OFFSETS, offsets({T0: 5}))
    assert listed_offsets(cluster, [T0, GONE], LATEST, deleted_too=True) == {T0: 5}
    with pytest.raises(KafkaRefusedError, match="topic gone: UNKNOWN_TOPIC_OR_PARTITION"):
        listed_offsets(cluster, [T0, GONE], LATEST)


def test_partitions_are_grouped_by_leader() -> None:
    one, two = Endpoint("a", 1), Endpoint("b", 1)
    assert by_leader({T0: one, GONE: two, T1: one}) == {one: [T0, T1], two: [GONE]}
