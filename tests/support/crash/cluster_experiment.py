"""Producers on a cluster that loses chosen messages; the answers that they got are compared with the cluster's log."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import NamedTuple

from dualwrite.client.protocol.requests import GROUP
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import iterate_records
from dualwrite.records.header import iterate_batches
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.crash.broker_history import History, anomalies
from tests.support.crash.cluster_offsets import OFFSETS, OffsetWorker, offsets_seen, offsets_told
from tests.support.crash.cluster_producers import PROGRESS_SECONDS, ClusterWorker, Make, Stage, Step
from tests.support.crash.wire_tap import Asked, Fault, Lost, Tap, nothing
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import LATEST, consumed, fetch, list_offset
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

TOPICS, PARTITIONS = 2, 3

_EVERYTHING = 1 << 28


class Event(Enum):
    """What must have happened at least once, or the experiment has proved nothing."""

    LEADER_KILLED = "a leader was killed during a transaction"
    COORDINATOR_KILLED = "a coordinator was killed at EndTxn"
    COORDINATOR_MOVED = "a coordinator moved"
    LEADER_MOVED = "a leader moved by reassignment during a transaction"
    GROUP_COORDINATOR_KILLED = "a group's coordinator was killed when it had taken offsets"
    CONTROLLER_KILLED = "the controller was killed, and a leader before it came back"


class Kill(NamedTuple):
    """A node is killed when a request is lost, or its answer: the node that was asked, or another."""

    api: ApiKey
    lost: Lost
    asked: bool = True


class Experiment:
    """The workers of ``makes`` (by name) on two topics of their own.

    :param worker: what the workers are.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        tap: Tap,
        makes: Mapping[str, Make],
        seed: int = 0,
        worker: type[ClusterWorker] = ClusterWorker,
    ) -> None:
        self.cluster = cluster
        self.tap = tap
        self.history = History()
        self.stage = Stage()
        self.chance = random.Random(seed)
        self.happened: Counter[Event] = Counter()
        self.topics = [cluster.create_topic(PARTITIONS, retention_ms="-1") for _ in range(TOPICS)]
        self.places = [TopicPartition(topic, partition) for topic in self.topics for partition in range(PARTITIONS)]
        self.has_offsets = issubclass(worker, OffsetWorker)
        if self.has_offsets:
            cluster.coordinator_of("warm-up", GROUP)  # it makes the topic
        self.workers = [worker(name, make, self.places, self.history, self.stage, seed) for name, make in makes.items()]

    @contextmanager
    def running(self) -> Iterator[None]:
        """The workers work for the length of a ``with`` block; then each has ended or given up all that it began."""
        for worker in self.workers:
            worker.start()
        try:
            yield
        finally:
            with ExitStack() as stack:  # all of them, whatever becomes of the first
                for worker in self.workers:
                    stack.callback(worker.stop, PROGRESS_SECONDS)
            # for whoever looks into a failure
            print(*(f"{worker.name}: {dict(worker.troubles)}" for worker in self.workers), sep="\n")

    def everybody_gets_on(self) -> None:
        """Return once every worker has ended a unit that it began after this call."""
        names = [worker.name for worker in self.workers]
        self.history.wait_for_units_of(names, PROGRESS_SECONDS)
        self.history.wait_for_units_of(names, PROGRESS_SECONDS)

    # --- what is done to the cluster

    def loses(self, name: str, api: ApiKey, lost: Lost) -> Asked:
        """Lose one request of ``name``, or its answer, with its connection, and nothing else."""
        return self.tap.arm(Fault(api, lost, name, nothing)).wait(PROGRESS_SECONDS)

    def kills(self, name: str, kill: Kill) -> None:
        """Kill a node at an exact moment of a transaction of ``name``."""
        coordinator = self.cluster.coordinator_of(name)

        def also(asked: Asked) -> None:
            others = [node for node in self.cluster.nodes if node != asked.node]
            self.cluster.kill(asked.node if kill.asked else self.chance.choice(others))

        self.tap.arm(Fault(kill.api, kill.lost, name, also)).wait(PROGRESS_SECONDS)
        self.happened[Event.LEADER_KILLED] += kill.api is ApiKey.PRODUCE and kill.asked
        self.happened[Event.COORDINATOR_KILLED] += kill.api is ApiKey.END_TXN and kill.asked
        self.happened[Event.GROUP_COORDINATOR_KILLED] += kill.api is ApiKey.TXN_OFFSET_COMMIT and kill.asked
        self._comes_back(name, coordinator)

    def kills_a_leader_at(self, step: Step) -> None:
        """Kill a leader between two steps of a transaction in its partition."""
        with self.stage.holding(step) as unit:
            place = self.chance.choice(list(unit.writes))
            coordinator = self.cluster.coordinator_of(unit.producer)
            self.cluster.kill(self.cluster.leader_of(place.topic, place.partition))
            self.happened[Event.LEADER_KILLED] += 1
        self._comes_back(unit.producer, coordinator)

    def kills_the_coordinator_at(self, step: Step) -> None:
        """Kill the coordinator between two steps of a transaction."""
        with self.stage.holding(step) as unit:
            coordinator = self.cluster.coordinator_of(unit.producer)
            self.cluster.kill(coordinator)
        self._comes_back(unit.producer, coordinator)

    def kills_the_controller_at(self, step: Step) -> None:
        """Kill the controller between two steps of a transaction: everybody goes on without it. Then kill a leader:
        nobody succeeds it before there is a controller again."""
        with self.stage.holding(step):
            self.cluster.kill_controller()
        self.everybody_gets_on()
        with self.stage.holding(step) as unit:
            place = next(iter(unit.writes))
            coordinator = self.cluster.coordinator_of(unit.producer)
            leader = self.cluster.leader_of(place.topic, place.partition)
            self.cluster.kill(leader)
        self.cluster.restart_controller()
        self.happened[Event.CONTROLLER_KILLED] += self.cluster.leader_of(place.topic, place.partition) != leader
        self._comes_back(unit.producer, coordinator)

    def moves_a_leader_at(self, step: Step) -> None:
        """Reassign a partition between two steps of a transaction in it."""
        with self.stage.holding(step) as unit:
            place = self.chance.choice(list(unit.writes))
            leader = self.cluster.leader_of(place.topic, place.partition)
            others = [node for node in self.cluster.nodes if node != leader]
            self.cluster.move_leader(place.topic, place.partition, self.chance.choice(others))
            self.happened[Event.LEADER_MOVED] += 1
        self.everybody_gets_on()

    def _comes_back(self, name: str, coordinator: int) -> None:
        """Everybody goes on without the node that was killed, and with it again."""
        self.happened[Event.COORDINATOR_MOVED] += self.cluster.coordinator_of(name) != coordinator
        self.everybody_gets_on()
        (dead,) = set(self.cluster.nodes) - self.cluster.live
        self.cluster.restart(dead)
        self.cluster.wait_until_in_sync()

    # --- what has become of it

    def judge(self) -> list[str]:
        """Everything that contradicts what the workers were told, and every transaction that nobody ends."""
        log, visible = {}, {}
        hanging = []
        for place in [*self.places, *[OFFSETS] * self.has_offsets]:
            with self.cluster.connect(self.cluster.leader_of(place.topic, place.partition)) as client:
                ends = eventually(lambda: _ends(client, place), lambda seen: seen[0] == seen[1])  # noqa: B023
                hanging += [f"hanging transaction: {place} at {ends}"] * (ends[0] != ends[1])
                log[place], visible[place] = _read(client, place, ends[0])
        seen = {topic: consume(self.cluster.bootstrap_servers, topic, PARTITIONS) for topic in self.topics}
        released = {place: seen[place.topic][place.partition] for place in self.places}
        assert {place: visible[place] for place in self.places} == released, "librdkafka's consumer sees something else"
        if self.has_offsets:
            del log[OFFSETS]  # offsets that are sent again are there twice, which changes nothing
            visible[OFFSETS] = offsets_seen(self.cluster, self.workers)
            last = {name.decode().split()[0]: name for name in visible[OFFSETS]}
            assert offsets_told(self.cluster, self.workers) == last, "a group has come to something else"
        return hanging + anomalies(self.history.units, log, visible)


def _ends(client: RawClient, place: TopicPartition) -> tuple[int, int]:
    """The last stable offset, and the high watermark."""
    stable, high = (
        list_offset(client, place.topic, LATEST, partition=place.partition, committed=committed).offset
        for committed in (True, False)
    )
    return stable, high


def _read(client: RawClient, place: TopicPartition, end: int) -> tuple[list[tuple[int, bytes]], list[bytes]]:
    """Every record in ``place`` up to ``end``, and the values that a read_committed consumer sees."""
    records: list[tuple[int, bytes]] = []
    visible: list[bytes] = []
    offset = 0
    while offset < end:
        part = _fetch(client, place, offset)
        visible += [value or b"" for value in consumed(part, offset)]
        for header, data in iterate_batches(part.records):
            if not header.is_control:
                records += [(record.offset, record.value or b"") for record in iterate_records(data)]
            offset = header.next_offset
    return records, visible


def _fetch(client: RawClient, place: TopicPartition, offset: int) -> Message:
    more = {"partition_max_bytes": _EVERYTHING, "max_bytes": _EVERYTHING}  # no batch is cut
    part = fetch(client, place.topic, offset, partition=place.partition, committed=True, **more)
    assert part.error_code == ErrorCode.NONE, ErrorCode(part.error_code)
    return part
