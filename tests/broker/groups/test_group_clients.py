"""Consumer groups of released clients: assignment, takeover, and what survives a broker's death."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets, sockets_are_collected_here
from tests.support.requests.calls import batch, new_topic, produce, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

__all__ = ["sockets_are_collected_here"]

pytestmark = leaves_sockets

QUICK = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
PARTITIONS = 4


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=QUICK) as running:
        yield running


@pytest.fixture
def topic(client: RawClient) -> str:
    """A topic with one record in each of its partitions."""
    return filled_topic(client)


def filled_topic(client: RawClient) -> str:
    name = new_topic(client, PARTITIONS)
    for index in range(PARTITIONS):
        write(client, name, index, b"%d/0" % index)
    return name


def write(client: RawClient, topic: str, index: int, value: bytes) -> None:
    produce(client, topic, batch([value]), partition=index)


class ConsumerMember:
    """A consumer of confluent-kafka in a group, and what it has seen."""

    def __init__(self, servers: str, group: str, topic: str, **more: object) -> None:
        settings = {key.replace("_", "."): value for key, value in more.items()}
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": -1,
                **settings,
            }
        )
        self.values: list[bytes] = []
        self.assignments = 0
        self.revocations = 0
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revocations += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is None:
            return
        if message.error() is None:
            self.values.append(message.value())
        else:
            assert message.error().code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN), message.error()

    def owned(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}


def poll_until(members: Sequence[ConsumerMember], condition: Callable[[], bool], what: str) -> None:
    """Let every member poll until ``condition`` is true."""
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {[(member.owned(), member.values) for member in members]}"
        for member in members:
            member.poll()


def shares(*members: ConsumerMember) -> bool:
    """True if every partition has exactly one owner, and all members have the same number of partitions."""
    owned = [member.owned() for member in members]
    is_all = sorted(index for each in owned for index in each) == list(range(PARTITIONS))
    return is_all and len({len(each) for each in owned}) == 1


@pytest.mark.slow_cases
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(
    shared_broker: EmbeddedBroker, client: RawClient, topic: str, strategy: str
) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    one = ConsumerMember(servers, group, topic, partition_assignment_strategy=strategy)
    poll_until([one], lambda: one.owned() == set(range(PARTITIONS)) and len(one.values) == PARTITIONS, "alone")
    two = ConsumerMember(servers, group, topic, partition_assignment_strategy=strategy)
    poll_until([one, two], lambda: shares(one, two), "two members")
    for index in range(PARTITIONS):
        write(client, topic, index, b"%d/1" % index)
    later = {b"%d/1" % index for index in range(PARTITIONS)}
    poll_until([one, two], lambda: later <= {*one.values, *two.values}, "the second records")
    assert sorted(one.values + two.values) == sorted(set(one.values + two.values)), "nothing is read twice"
    one.consumer.close()
    poll_until([two], lambda: two.owned() == set(range(PARTITIONS)), "the one that is left")
    two.consumer.close()


@pytest.mark.slow
def test_a_cooperative_member_gives_up_no_more_partitions_than_needed(
    shared_broker: EmbeddedBroker, topic: str
) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    one = ConsumerMember(servers, group, topic, partition_assignment_strategy="cooperative-sticky")
    poll_until([one], lambda: len(one.owned()) == PARTITIONS, "alone")
    two = ConsumerMember(servers, group, topic, partition_assignment_strategy="cooperative-sticky")
    owned: list[set[int]] = []

    def watch() -> bool:
        owned.append(one.owned())
        return shares(one, two)

    poll_until([one, two], watch, "two members")
    assert min(map(len, owned)) == PARTITIONS // 2, "it never gave up more than it had to"
    one.consumer.close()
    two.consumer.close()


def test_a_static_member_that_is_restarted_takes_its_place_again_without_a_rebalance(
    shared_broker: EmbeddedBroker, topic: str
) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    one = ConsumerMember(servers, group, topic, group_instance_id="one")
    two = ConsumerMember(servers, group, topic, group_instance_id="two")
    poll_until([one, two], lambda: shares(one, two), "two members")
    before, kept = two.owned(), one.revocations
    two.consumer.close()
    again = ConsumerMember(servers, group, topic, group_instance_id="two")
    poll_until([one, again], lambda: again.owned() == before, "the restarted member")
    assert (one.revocations, shares(one, again)) == (kept, True)
    one.consumer.close()
    again.consumer.close()


@pytest.mark.slow
def test_a_member_with_the_same_instance_id_fences_the_former_member(shared_broker: EmbeddedBroker, topic: str) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    first = ConsumerMember(servers, group, topic, group_instance_id="one")
    poll_until([first], lambda: len(first.owned()) == PARTITIONS, "the first")
    second = ConsumerMember(servers, group, topic, group_instance_id="one")
    poll_until([second], lambda: len(second.owned()) == PARTITIONS, "the second")
    with pytest.raises(AssertionError, match="fenced"):
        poll_until([first], lambda: False, "the first does not notice")
    first.consumer.close()
    second.consumer.close()


@pytest.mark.slow
def test_a_member_that_dies_without_a_word_is_missed_when_its_session_ends(
    shared_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    """It joins over a raw connection and never says another word."""
    from tests.support.requests.group_calls import joined_member

    group, servers = unique("group"), shared_broker.bootstrap_servers
    joined_member(client, group, topic, session_timeout_ms=1500)
    alive = ConsumerMember(servers, group, topic)
    poll_until([alive], lambda: alive.owned() == set(range(PARTITIONS)), "who is left")
    alive.consumer.close()


@pytest.mark.slow
def test_members_of_kafka_python_share_the_partitions(shared_broker: EmbeddedBroker, topic: str) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    stop = threading.Event()
    owned: dict[int, set[int]] = {}
    values: list[bytes] = []

    def member(number: int) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
        )
        consumer.partitions_for_topic(topic)  # 3.0.12 falls silent if it has to join once more when it learns this
        while not stop.is_set():
            for records in consumer.poll(timeout_ms=50).values():
                values.extend(record.value for record in records)
            owned[number] = {partition.partition for partition in consumer.assignment()}
        consumer.close()

    threads = [threading.Thread(target=member, args=(number,), daemon=True) for number in range(2)]
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    try:
        threads[0].start()
        while len(values) < PARTITIONS:
            assert time.monotonic() < deadline, (owned, values)
            time.sleep(0.02)
        threads[1].start()
        while not (
            sorted(index for each in list(owned.values()) for index in each) == list(range(PARTITIONS))
            and {len(each) for each in owned.values()} == {PARTITIONS // 2}
        ):
            assert time.monotonic() < deadline, (owned, values)
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.crash
def test_a_group_outlives_the_death_of_its_broker(tmp_path: Path) -> None:
    """Members that did not notice keep their assignment and their generation, and go on where they were."""
    listen = f"127.0.0.1:{free_port()}"
    with ForkedBroker(tmp_path / "broker", listen=listen, config=QUICK) as broker:
        with RawClient(listen) as client:
            topic = filled_topic(client)
        one, two = (ConsumerMember(listen, "g", topic, session_timeout_ms=30_000) for _ in range(2))
        poll_until([one, two], lambda: shares(one, two) and len(one.values + two.values) == PARTITIONS, "before")
        one.consumer.commit(asynchronous=False)
        two.consumer.commit(asynchronous=False)
        owned, assignments = (one.owned(), two.owned()), (one.assignments, two.assignments)
        broker.kill()
        broker.start()
        with RawClient(listen) as client:
            for index in range(PARTITIONS):
                write(client, topic, index, b"%d/1" % index)
        poll_until([one, two], lambda: len(one.values + two.values) == 2 * PARTITIONS, "after")
        assert (one.owned(), two.owned()) == owned
        assert (one.assignments, two.assignments) == assignments, "no member had to join again"
        one.consumer.commit(asynchronous=False)
        one.consumer.close()
        two.consumer.close()


def test_an_administrator_sees_groups_their_members_and_offsets_and_removes_them(
    shared_broker: EmbeddedBroker, topic: str
) -> None:
    group, servers = unique("group"), shared_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    member = ConsumerMember(servers, group, topic, client_id="who")
    poll_until([member], lambda: len(member.values) == PARTITIONS, "alone")
    member.consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    (only,) = described.members
    assert (described.state.name, described.partition_assignor, only.client_id) == ("STABLE", "range", "who")
    assert {partition.partition for partition in only.assignment.topic_partitions} == set(range(PARTITIONS))
    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS)
    assert (group, "STABLE") in [(listing.group_id, listing.state.name) for listing in listed.valid]
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    member.consumer.close()
    (found,) = [future.result(PATIENCE_SECONDS) for future in offsets_of(admin, group)]
    assert {partition.offset for partition in found.topic_partitions} == {1}
    admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    (found,) = [future.result(PATIENCE_SECONDS) for future in offsets_of(admin, group)]
    assert found.topic_partitions == []


def offsets_of(admin: AdminClient, group: str) -> list[object]:
    return list(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values())
