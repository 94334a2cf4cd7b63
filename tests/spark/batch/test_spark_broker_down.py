"""The broker is killed right after the decision, before any Kafka transaction is completed, and stays down for a while:
the batch has happened, nobody is told to write it again, and the next start or batch completes it."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine

from dualwrite.spark import register, write_batch
from dualwrite.spark.batch.datasource import DualWriteDataSource
from dualwrite.spark.workers import close_workers
from dualwrite.testing.kafka import KafkaBroker
from tests.support.spark.batches import open_slots, staged_rows
from tests.support.spark.frames import THINGS, judge, put, save, things
from tests.support.spark.writing import SparkPlace, rows_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.crash]


PATIENCE = 240.0
"""Seconds that a test waits for what must come: who completes is patient with a broker that is down."""


class Killing:
    """SIGKILL to the broker, right before the first Kafka transaction is completed, in whatever process that is."""

    def __init__(self, broker: KafkaBroker) -> None:
        assert broker.pid is not None
        self._process = broker.pid  # a child of the test's: nobody else has the number before it is awaited

    def __call__(self, step: str) -> None:
        if step == "COMPLETE_KAFKA":
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)


def ended_by(pid: int) -> int | None:
    """The signal that has ended the child ``pid``, which stays to be awaited; None while it runs."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    return None if ended is None else ended.si_status


class MortalBrokerPlace(SparkPlace):
    """A broker of its own, which may be killed, and is waited for once (batch.PATIENCE): for less than by default."""

    def keywords(self) -> dict[str, Any]:
        return {**super().keywords(), "kafka.delivery.timeout.ms": "12000", "driverBytes": "0"}

    def down(self) -> None:
        """The broker was killed by now; the batch is in the database, and prepared in Kafka."""
        pid = self.broker.pid
        assert pid is not None
        assert eventually(lambda: ended_by(pid) == signal.SIGKILL)
        self.broker.kill()
        assert self.stored() == rows_of(100)
        assert staged_rows(self.engine) == 0
        assert len(open_slots(self.engine)) >= 4, "what is prepared has an owner, who completes it"

    def await_completion(self) -> None:
        """A living process of the application may be completing it just now: the write leaves it to that process."""
        assert eventually(lambda: not open_slots(self.engine), patience=PATIENCE), "no process completes it"


@pytest.fixture
def world(postgresql: Engine, tmp_path: Path, dualwrite_application: str) -> Iterator[MortalBrokerPlace]:
    with KafkaBroker(tmp_path / "broker") as broker:  # a child of this process, to see how it ends
        yield MortalBrokerPlace(postgresql, broker, dualwrite_application)
        broker.start()
        close_workers()


def doomed(spark: "SparkSession", broker: KafkaBroker) -> str:
    """The name of the data source, with a broker that dies."""

    class Doomed(DualWriteDataSource):
        on_step = Killing(broker)

        @classmethod
        def name(cls) -> str:
            return "doomed"

    spark.dataSource.register(Doomed)
    return "doomed"


def texts(place: SparkPlace) -> dict[str, str]:
    return {name: str(value) for name, value in place.keywords().items()}


def test_a_function_returns_and_the_next_batch_completes_the_one_before(
    spark: "SparkSession", world: MortalBrokerPlace, caplog: pytest.LogCaptureFixture
) -> None:
    write_batch(things(spark), 0, on_step=Killing(world.broker), **world.keywords())
    assert "decided transactions are not complete in Kafka; recovery will end them later" in caplog.text
    world.down()
    world.broker.start()
    write_batch(things(spark, 50, begin=100), 1, **world.keywords())
    world.await_completion()
    judge(world, rows_of(150))


def test_a_data_source_succeeds_and_the_same_batch_again_completes_it(
    spark: "SparkSession", world: MortalBrokerPlace
) -> None:
    format_name = doomed(spark, world.broker)
    things(spark).write.format(format_name).options(**texts(world), batchId="0").mode("append").save()
    world.down()
    world.broker.start()
    register(spark)
    save(things(spark), world, batchId="0")
    world.await_completion()
    judge(world, rows_of(100))


def test_a_stream_ends_well_and_its_next_start_completes_the_batch(
    spark: "SparkSession", world: MortalBrokerPlace, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(format_name: str) -> None:
        stream: Any = spark.readStream.schema(THINGS).json(str(source)).repartition(4)
        query = stream.writeStream.format(format_name).options(**texts(world))
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    put(source, rows_of(100))
    run(doomed(spark, world.broker))
    world.down()
    world.broker.start()
    put(source, rows_of(20, 100))
    register(spark)
    run("dualwrite")
    world.await_completion()
    judge(world, rows_of(120))
