"""Rolling upgrades and downgrades with librdkafka: members of both protocols in one group, while records are written.

Always: no partition is read by two members at once, and no record is skipped or used twice. A member uses a record when
it has committed the offset behind it: it reads on only after that, so a record that two members read at once would be
committed twice.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import new_topic, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

PARTITIONS = 6
QUICK = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "200",
}


class PartitionUsage:
    """Who holds which partition, and which records were used, as the members themselves know it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owners: dict[int, str] = {}
        self.used: Counter[tuple[int, int]] = Counter()
        self.conflicts: list[str] = []

    def take(self, name: str, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                owner = self.owners.setdefault(partition.partition, name)
                if owner != name:
                    self.conflicts.append(f"{name} was given {partition.partition}, which {owner} has")

    def give_up(self, name: str, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                if self.owners.get(partition.partition) == name:
                    del self.owners[partition.partition]

    def use(self, partition: int, offset: int) -> None:
        with self._lock:
            self.used[partition, offset] += 1


class UsingMember:
    """A consumer in a thread of its own, which commits each record that it has read."""

    def __init__(self, servers: str, group: str, topic: str, usage: PartitionUsage, **settings: object) -> None:
        self.name = unique("member")
        self.usage = usage
        self.errors: list[str] = []
        self.lost: list[str] = []
        self._is_over = threading.Event()
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                "fetch.wait.max.ms": 20,
                **settings,
            }
        )
        self.is_eager = settings.get("partition.assignment.strategy") == "range"
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def held(self) -> int:
        """How many partitions it has."""
        return sum(owner == self.name for owner in list(self.usage.owners.values()))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.usage.take(self.name, partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.usage.give_up(self.name, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += [str(partition.partition) for partition in partitions]
        self.usage.give_up(self.name, partitions)

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            try:
                self.consumer.commit(message, asynchronous=False)
            except KafkaException as error:
                self.errors.append(str(error))  # not used: the record is read again after the rebalance
                self._seek_back(message)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.usage.use(partition, offset)

    def _seek_back(self, message: object) -> None:
        position = TopicPartition(message.topic(), message.partition(), message.offset())  # type: ignore[attr-defined]
        try:
            self.consumer.seek(position)
        except KafkaException as error:
            self.errors.append(str(error))  # it was taken away meanwhile

    def stop(self) -> None:
        """Leave the group."""
        self._is_over.set()
        self._thread.join()
        self.consumer.close()


class Writing:
    """Writes records to all partitions, all the time."""

    def __init__(self, servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> "Writing":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            self._producer.produce(self._topic, b"x", partition=self.count % PARTITIONS)
            self._producer.poll(0)
            self.count += 1


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=QUICK) as running:
        yield running


def settled(servers: str, group: str, members: list[UsingMember]) -> ConsumerGroupType:
    """Wait until the members share all partitions evenly, and all of them know it. Return the type of the group."""
    wanted = sorted(PARTITIONS // len(members) for _ in members)
    administrator = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def is_settled() -> bool:
        if sorted(member.held for member in members) != wanted:
            return False
        state: ConsumerGroupState = administrator.describe_consumer_groups([group])[group].result().state
        return state is ConsumerGroupState.STABLE

    assert eventually(is_settled), [(member.held, member.errors, member.lost) for member in members]
    kind: ConsumerGroupType = administrator.describe_consumer_groups([group])[group].result().type
    return kind


def protocol(name: str, assignor: str) -> dict[str, object]:
    """The settings of a member of the protocol ``name``."""
    if name == "consumer":
        return {"group.protocol": "consumer"}
    return {"group.protocol": "classic", "partition.assignment.strategy": assignor, "heartbeat.interval.ms": 100}


def every_partition_has_an_offset(usage: PartitionUsage) -> None:
    """Wait until a record of each partition was committed.

    Without a committed offset librdkafka 2.16 looks for the beginning. If a new assignment overtakes that search, its
    retry is not called off, and the consumer goes back to the beginning half a second later.
    """
    assert eventually(lambda: len({partition for partition, _ in list(usage.used)}) == PARTITIONS), usage.used


def all_used(usage: PartitionUsage, count: int) -> None:
    """Wait until all records were used, each of them once."""
    assert eventually(lambda: len(usage.used) == count), (len(usage.used), count)
    assert usage.conflicts == []
    assert [place for place, times in usage.used.items() if times > 1] == []
    ends = Counter(partition for partition, _ in usage.used)
    assert all((partition, offset) in usage.used for partition, end in ends.items() for offset in range(end))


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_is_rolled_from_one_protocol_to_the_other_and_back(quick_broker: EmbeddedBroker, assignor: str) -> None:
    servers, group, usage = quick_broker.bootstrap_servers, unique("group"), PartitionUsage()
    with RawClient(servers) as client:
        topic = new_topic(client, PARTITIONS)
    members: list[UsingMember] = []

    def start(name: str) -> None:
        members.append(UsingMember(servers, group, topic, usage, **protocol(name, assignor)))

    try:
        for _ in range(3):
            start("classic")
        assert settled(servers, group, members) is ConsumerGroupType.CLASSIC
        with Writing(servers, topic) as writing:
            every_partition_has_an_offset(usage)
            for name in ("consumer", "classic"):
                kinds = []
                for _ in range(3):
                    members.pop(0).stop()
                    start(name)
                    kinds.append(settled(servers, group, members))
                assert kinds == [*[ConsumerGroupType.CONSUMER] * 2, ConsumerGroupType[name.upper()]]
        all_used(usage, writing.count)
        assert [member.lost for member in members] == [[]] * 3
    finally:
        for member in members:
            member.stop()


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_of_both_protocols_outlive_the_brokers_death(tmp_path: Path, assignor: str) -> None:
    group, listen, usage = unique("group"), f"127.0.0.1:{free_port()}", PartitionUsage()
    with ForkedBroker(tmp_path / "broker", listen=listen, config=QUICK) as broker:
        servers = broker.bootstrap_servers
        with RawClient(servers) as client:
            topic = new_topic(client, PARTITIONS)
        members = [
            UsingMember(servers, group, topic, usage, **protocol(name, assignor))
            for name in ("classic", "consumer", "classic")
        ]
        try:
            assert settled(servers, group, members) is ConsumerGroupType.CONSUMER
            with Writing(servers, topic) as writing:
                broker.kill()
                broker.start()
                members.pop(1).stop()  # the last one of the consumer protocol: the group is a classic one
                broker.kill()
                broker.start()
                members.append(UsingMember(servers, group, topic, usage, **protocol("classic", assignor)))
                assert settled(servers, group, members) is ConsumerGroupType.CLASSIC
            assert eventually(lambda: len(usage.used) == writing.count), (len(usage.used), writing.count)
            assert usage.conflicts == []
        finally:
            for member in members:
                member.stop()
