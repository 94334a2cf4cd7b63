"""What the native producer batches, every client reads: codecs, headers, null keys and null values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.records.compression import Codec
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import warm_up
from tests.support.peer_clients.client import Got, Receiver
from tests.support.peer_clients.confluent import Confluent
from tests.support.peer_clients.native_batches import ENTRIES, check, committed
from tests.support.peer_clients.reading import read
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient


def read_committed(consumer: Receiver, topic: str) -> list[Got]:
    """What is in partition 0; Apache Kafka writes markers after it has answered EndTxn."""
    consumer.assign([(topic, 0)])
    return read(consumer, len(ENTRIES))


@pytest.mark.slow_cases
@pytest.mark.parametrize("codec", Codec)
def test_batches_of_every_codec_are_read(servers: str, consumer: Callable[..., Receiver], codec: Codec) -> None:
    with RawClient(servers) as client:
        topic = new_topic(client)
        committed(client, topic, codec)
    check(read_committed(consumer(committed_only=True), topic))


@pytest.mark.slow
@pytest.mark.jvm
def test_apache_kafka_takes_batches_of_every_codec_and_gives_them_back(tmp_path: Path) -> None:
    """It opens each batch that is compressed, and looks at every record (LogValidator)."""
    with ApacheKafka(tmp_path / "kafka") as kafka, RawClient(kafka.bootstrap_servers) as client:
        warm_up(kafka.bootstrap_servers)
        for codec in Codec:
            topic = new_topic(client)
            committed(client, topic, codec, version=5)
            consumer = Confluent().consumer(kafka.bootstrap_servers, committed_only=True)
            try:
                check(read_committed(consumer, topic))
            finally:
                consumer.close()
