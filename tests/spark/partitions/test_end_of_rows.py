"""A partition of which Spark has sent only a part is not written: the connection between them, without Spark."""

import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.errors import ConfigurationError
from dualwrite.spark.workers import close_workers
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import await_sweeps
from tests.support.spark.writing import SparkPlace, rows_of, values_of

serializers = pytest.importorskip("pyspark.serializers")

ROWS_END = struct.pack("!i", serializers.SpecialLengths.END_OF_DATA_SECTION)
STREAM_ENDS = struct.pack("!i", serializers.SpecialLengths.END_OF_STREAM)


@pytest.fixture
def place(
    sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkPlace]:
    """Where a task of Spark's writes its only partition to."""
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=lambda: 0))
    yield SparkPlace(sqlite, kafka_broker, dualwrite_application)
    close_workers()
    await_sweeps()


def main(infile: Any, write: Callable[[Any], None]) -> None:
    """As PySpark's ``main`` calls what a task is to do."""
    write(serializers.BatchedSerializer(serializers.CPickleSerializer(), 2).load_stream(infile))


def run_task(write: Callable[[Any], None], content: bytes) -> None:
    """Let a task ``write`` what Spark sends before it closes the connection."""
    spark, worker = socket.socketpair()
    with worker, worker.makefile("rb") as infile:
        with spark:
            spark.sendall(content)
        main(infile, write)


def framed(rows: list[tuple[int, str]]) -> bytes:
    """As Spark sends ``rows``."""
    batches = [serializers.CPickleSerializer().dumps(rows[begin : begin + 2]) for begin in range(0, len(rows), 2)]
    return b"".join(struct.pack("!i", len(batch)) + batch for batch in batches)


def test_a_partition_that_was_sent_to_its_end_is_written(place: SparkPlace) -> None:
    run_task(place.writer(), framed(rows_of(5)) + ROWS_END + STREAM_ENDS)
    assert place.stored() == rows_of(5)
    assert place.produced() == values_of(rows_of(5))


def test_a_writer_in_a_thread_of_its_own_is_told_the_end_too(place: SparkPlace) -> None:
    """A task may write to two places at the same time."""
    with ThreadPoolExecutor(1) as pool:
        run_task(lambda rows: pool.submit(place.writer(), rows).result(), framed(rows_of(5)) + ROWS_END + STREAM_ENDS)
    assert place.stored() == rows_of(5)


@pytest.mark.parametrize(
    "sent", [b"", framed(rows_of(4)), framed(rows_of(5))[:-1]], ids=["no row", "some rows", "a part of a row"]
)
def test_a_partition_that_is_cut_off_is_not_written_and_another_attempt_writes_it(
    place: SparkPlace, sent: bytes
) -> None:
    """Spark has ended the task, and PySpark takes the end of the connection for the end of the rows."""
    with pytest.raises(ConnectionError, match="ended this task before it has sent all rows of the partition"):
        run_task(place.writer(), sent)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])
    run_task(place.writer(), framed(rows_of(5)) + ROWS_END + STREAM_ENDS)
    assert place.stored() == rows_of(5)
    assert place.produced() == values_of(rows_of(5))


def test_a_pyspark_that_does_not_show_its_connection_is_refused(place: SparkPlace) -> None:
    with pytest.raises(ConfigurationError, match="does not show whether a partition was sent to its end"):
        place.writer()(rows_of(3))
    assert place.stored() == []
