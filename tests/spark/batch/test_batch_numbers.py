"""What a batch's number is worth: what was written under it is known, for as long as it is said to be."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, select, update

from dualwrite import EmbeddedBroker
from dualwrite.coordinator.sql.tables import spark_batch, spark_progress, spark_run
from dualwrite.errors import BatchChangedError, ConfigurationError, FencedError
from dualwrite.spark.batch import whole_batch
from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.testing.kafka import KafkaBroker
from tests.support.spark.batch_place import BatchPlace, batch_place_on, broker
from tests.support.spark.batches import begun, open_slots, rows, staged_rows, write
from tests.support.spark.writing import SparkPlace, rows_of

__all__ = ["broker"]


@pytest.fixture
def place(sqlite: Engine, broker: EmbeddedBroker) -> Iterator[BatchPlace]:
    yield from batch_place_on(sqlite, broker)


@pytest.mark.slow
def test_a_batch_that_is_forgotten_is_not_written_again(place: BatchPlace) -> None:
    remembering = place.options(keepBatches=2)
    for number in range(4):
        write(remembering, [rows(number * 5, number * 5 + 5)], number)
    with pytest.raises(BatchChangedError, match=r"batch 1 of job 'job' is older than the 2 .* the latest is 3"):
        write(remembering, [rows(20, 25)], 1)
    place.judge(rows(0, 20))
    write(remembering, [rows(10, 15)], 2)  # that one is known
    write(remembering, [rows(20, 25)], None)  # and this one has no number
    write(remembering, [rows(25, 30)], 4)
    place.judge(rows(0, 30))


def test_the_distance_of_numbers_does_not_count(place: BatchPlace) -> None:
    write(place.options(keepBatches=2), [rows(0, 5)], 20261122)
    assert write(place.options(keepBatches=2), [rows(5, 10)], 20261001).is_written
    assert not write(place.options(keepBatches=2), [rows(5, 10)], 20261001).is_written
    with pytest.raises(BatchChangedError, match="batch 20260901 of job 'job' is older than the 2"):  # it would be third
        write(place.options(keepBatches=2), [rows(10, 15)], 20260901)
    assert write(place.options(keepBatches=2), [rows(10, 15)], 20261002).is_written
    with pytest.raises(BatchChangedError, match="batch 20261001 of job 'job' is older"):
        write(place.options(keepBatches=2), [rows(5, 10)], 20261001)
    place.judge(rows(0, 15))


@pytest.mark.slow
def test_a_forgotten_batch_stays_forgotten_if_more_are_remembered_later(place: BatchPlace) -> None:
    for number in range(4):
        write(place.options(keepBatches=2), [rows(number * 5, number * 5 + 5)], number)
    with pytest.raises(BatchChangedError, match="batch 1 of job 'job' is older than the 100"):
        write(place.options(), [rows(5, 10)], 1)
    place.judge(rows(0, 20))


@pytest.mark.parametrize("keep", [1, 5, 1000])
def test_what_an_earlier_release_may_have_forgotten_is_refused_with_any_keep_batches(
    place: BatchPlace, keep: int
) -> None:
    write(place.options(keepBatches=5), [rows(0, 5)], 20)
    with place.engine.begin() as connection:
        connection.execute(update(spark_batch).values(table_name=None))
    with pytest.raises(BatchChangedError, match=r"batch 16 of job 'job' is older than .* it is not known whether"):
        write(place.options(keepBatches=keep), [rows(5, 10)], 16)
    assert write(place.options(keepBatches=keep), [rows(5, 10)], 21).is_written


def test_a_task_that_knows_its_batch_to_be_committed_writes_nothing(place: BatchPlace) -> None:
    """The driver of a stream that is a data source does not know the number when the run begins."""
    write(place.options(), [rows(0, 5)], 1)
    _, work = begun(place.options(), None)
    given = iter(rows(0, 5))
    side = work.write(given, 0, 1, batch_id=1)
    assert side is not None
    assert (side.lease, side.attempt.rows, list(given)) == (None, 0, [])
    assert (staged_rows(place.engine), open_slots(place.engine)) == (0, [])


def test_a_number_that_was_left_out_may_be_written_later(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 5)], 7)
    write(place.options(), [rows(5, 10)], 3)
    place.judge(rows(0, 10))


def test_a_number_belongs_to_a_job(place: BatchPlace) -> None:
    """Two tables of an application that are written under one number would pass for one batch."""
    with pytest.raises(ConfigurationError, match="option 'job' is missing"):
        WholeBatch(place.options(job=None, batchId=1))
    write(place.options(job=None), [rows(0, 5)])
    place.judge(rows(0, 5))


def test_a_batch_counts_as_written_only_once_its_commit_is_on_disk(place: BatchPlace) -> None:
    """MariaDB shows a commit before that; a commit that comes after it puts it there, if it changes anything."""
    write(place.options(), [rows(0, 5)], 1)
    forget_when(place.engine, spark_run)
    assert begun(place.options(), 1)[1].run is None
    assert was_changed(place.engine, spark_run)


def test_a_partition_counts_as_written_only_once_its_commit_is_on_disk(
    sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str
) -> None:
    place = SparkPlace(sqlite, kafka_broker, dualwrite_application)
    assert place.write(rows_of(3))
    forget_when(sqlite, spark_progress)
    assert not place.write(rows_of(3))
    assert was_changed(sqlite, spark_progress)


LONG_AGO = datetime(2000, 1, 1, tzinfo=timezone.utc)


def forget_when(engine: Engine, table: Table) -> None:
    """Rows of ``table`` were changed last."""
    with engine.begin() as connection:
        connection.execute(update(table).values(updated_at=LONG_AGO))


def was_changed(engine: Engine, table: Table) -> bool:
    with engine.connect() as connection:
        return any(when.year > LONG_AGO.year for when in connection.scalars(select(table.c.updated_at)))


def test_a_run_whose_time_is_over_while_rows_are_moved_decides_nothing(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With twoPhase=resume Kafka has aborted what was prepared by then."""
    move = whole_batch.move_rows

    def move_slowly(connection: Connection, *given: Any) -> int:
        connection.execute(update(spark_run).values(expires_at=spark_run.c.updated_at))
        return move(connection, *given)

    monkeypatch.setattr(whole_batch, "move_rows", move_slowly)
    with pytest.raises(FencedError, match="longer than its runTimeout"):
        write(place.options(), [rows(0, 10)], 1)
    place.judge([])
