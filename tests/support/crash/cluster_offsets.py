"""Workers whose transactions hold offsets of a consumer group too, and what a cluster has of these.

To the oracle an offset is one more thing that a unit has written: it has the unit's value for its metadata.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from dualwrite.broker.facts.offsets import OffsetCommitted, decode_fact
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.ids import TopicPartition
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.crash.broker_history import Unit
from tests.support.crash.cluster_producers import ClusterWorker
from tests.support.peer_clients.consumers import consume_records
from tests.support.requests.offset_calls import committed

LIBRDKAFKA = "librdkafka"
OFFSETS = TopicPartition("__consumer_offsets", 0)


class OffsetWorker(ClusterWorker):
    """Its own group, of which no member reads anything, commits where it is in most of the units.

    Not with librdkafka 2.16: after its coordinator was killed, send_offsets_to_transaction may wait for ever, whatever
    its timeout.
    """

    def __init__(self, name: str, *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self.has_group = name != LIBRDKAFKA
        self.source = self._places[0]
        """Where the group is supposed to read."""
        self.group = f"{self.name} of {self.source.topic}"
        consumer = Consumer({"group.id": self.group, "log_level": 0})
        self._member = consumer.consumer_group_metadata()
        consumer.close()

    def some_places(self) -> list[Any]:
        return [*super().some_places(), *[OFFSETS] * (self.has_group and self.chance.random() < 0.7)]

    def writes(self, participant: KafkaParticipant, unit: Unit, place: TopicPartition, value: bytes) -> None:
        if place != OFFSETS:
            super().writes(participant, unit, place, value)
            return
        positions = [Position(self.source.topic, self.source.partition, self._count, metadata=value.decode())]
        producer: Any = participant._producer if isinstance(participant, NativeProducer) else participant
        producer.send_offsets_to_transaction(positions, self._member)


def offsets_seen(cluster: KafkaCluster, workers: Iterable[OffsetWorker]) -> list[bytes]:
    """The metadata of every offset that a read_committed consumer sees, in their order."""
    groups = {worker.group for worker in workers}
    (records,) = consume_records(cluster.bootstrap_servers, OFFSETS.topic).values()
    facts = [decode_fact(key, value) for key, value in records]
    return [fact.metadata.encode() for fact in facts if isinstance(fact, OffsetCommitted) and fact.group in groups]


def offsets_told(cluster: KafkaCluster, workers: Iterable[OffsetWorker]) -> Mapping[str, bytes]:
    """By worker, the metadata of the offset that the coordinator says its group has come to; nothing if it has none."""
    found: dict[str, bytes] = {}
    with cluster.connect(cluster.leader_of(OFFSETS.topic, OFFSETS.partition)) as client:
        for worker in workers:
            source = worker.source.topic, worker.source.partition
            _, _, metadata = committed(client, worker.group, source)[source]
            if metadata:
                found[worker.name] = metadata.encode()
    return found
