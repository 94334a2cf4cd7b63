"""The metric of the bytes on disk agrees with the files after everything that removes records."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.wire.apis import DeleteRecordsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.monitoring.measured import MeasuredBroker, measured_broker
from tests.support.requests import admin_calls
from tests.support.requests.admin_calls import TOPIC
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SETTINGS = ("log.cleaner.backoff.ms=20", "log.retention.check.interval.ms=20", "log.segment.bytes=1048576")
RECORDS, BYTES = 60, 100_000


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    with measured_broker(tmp_path_factory.mktemp("bytes"), *SETTINGS) as broker:
        yield broker


def delete_records(client: RawClient, topic: str) -> None:
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [entry.DeleteRecordsPartition(partition_index=0, offset=RECORDS - 5)]
    request = DeleteRecordsRequest(topics=[entry(name=topic, partitions=partitions)], timeout_ms=1000)
    assert client.ask(request, 2).topics[0].partitions[0].error_code == ErrorCode.NONE


def keep_little(client: RawClient, topic: str) -> None:
    admin_calls.change(client, TOPIC, topic, ("retention.bytes", ConfigOperation.SET, "1"))


def compact(client: RawClient, topic: str) -> None:
    changes = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    admin_calls.change(client, TOPIC, topic, *((name, ConfigOperation.SET, text) for name, text in changes.items()))


@pytest.mark.slow_cases
@pytest.mark.parametrize("remove", [delete_records, keep_little, compact])
def test_bytes_agree_with_the_files(measured: MeasuredBroker, remove: Callable[[RawClient, str], None]) -> None:
    directory = measured.log.parent / "data"

    def files(topic: str) -> int:
        return sum(path.stat().st_size for path in Path(directory, f"{topic}-0").glob("*.log"))

    with RawClient(measured.address) as client:
        topic = new_topic(client)
        producer = Producer({"bootstrap.servers": measured.address, "batch.size": BYTES})
        for _ in range(RECORDS):
            producer.produce(topic, key=b"same", value=b"v" * BYTES)
        assert producer.flush(60) == 0
        before = measured.scrape()["topic_bytes"][(topic,)]
        assert before == files(topic) > RECORDS * BYTES
        remove(client, topic)
        after = eventually(
            lambda: (measured.scrape()["topic_bytes"][(topic,)], files(topic)),
            lambda seen: seen[0] == seen[1] < before / 3,
        )
        assert after[0] == after[1] < before / 3
        admin_calls.delete(client, topic)
        assert (topic,) not in measured.scrape()["topic_bytes"]
