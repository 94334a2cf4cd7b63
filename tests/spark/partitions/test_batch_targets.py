"""A batch of partitions that is run again is compared with what was written under its number: its table, its topic."""

from typing import Any

import pytest
from sqlalchemy import text, update

from dualwrite.coordinator.sql.tables import spark_progress
from dualwrite.errors import BatchChangedError
from tests.support.servers.databases import SERVERS
from tests.support.spark.attempts import begun, in_thread, is_awaited
from tests.support.spark.writing import PATIENCE, THINGS, SparkPlace, rows_of, values_of

pytestmark = pytest.mark.slow_cases("mariadb")


@pytest.fixture
def place(place: SparkPlace) -> SparkPlace:
    """With a second table."""
    run(place, THINGS.replace("things", "others"))
    return place


def run(place: SparkPlace, statement: str) -> None:
    with place.engine.begin() as connection:
        connection.execute(text(statement))


UNFINISHED = "write the rest of the batch there; if that is gone, or was wrong, begin the batch under another job"


@pytest.mark.slow_cases
@pytest.mark.parametrize(("partitions", "advice"), [(1, "give other rows another number, or"), (2, UNFINISHED)])
def test_a_written_batch_with_another_table_is_refused(place: SparkPlace, partitions: int, advice: str) -> None:
    with place.worker() as worker:
        assert place.writer(partitions).write(worker, 0, rows_of(3))
    said = rf"batch 0 of job 'nightly' was written to table (\S*\.)?things, and not to (\S*\.)?others: {advice}"
    with pytest.raises(BatchChangedError, match=said) as raised:
        place.writer(partitions, dbtable="others")
    assert not raised.value.retriable
    with place.worker() as worker:
        assert not place.writer(partitions).write(worker, 0, rows_of(3))
    assert place.produced() == values_of(rows_of(3))


def test_a_written_batch_with_another_topic_is_refused_before_its_rows_are_read(place: SparkPlace) -> None:
    assert place.write(rows_of(3))
    other = place.broker.create_topic(partitions=2)
    with pytest.raises(BatchChangedError, match=f"was written to topic {place.topic}, and not to topic {other}: give"):
        place.writer(topic=other)
    with pytest.raises(BatchChangedError, match=f"was written to topic {place.topic}, and not to a topic for each row"):
        place.writer(topic=None, columns={"id": "long", "note": "string", "topic": "string"})


def test_another_job_writes_the_same_number_elsewhere(place: SparkPlace) -> None:
    assert place.write(rows_of(3))
    assert place.write(rows_of(3), dbtable="others", job="another")
    assert len(place.produced()) == 6


def test_the_target_may_change_before_the_first_partition_is_written(place: SparkPlace) -> None:
    zombie = place.writer(dbtable="others")
    assert place.write(rows_of(3))
    said = r"goes to table \S*things and topic \S+ in another run, and this task .* that writes to table \S*others and "
    with place.worker() as worker, pytest.raises(BatchChangedError, match=said):
        zombie.write(worker, 0, rows_of(3))
    assert place.produced() == values_of(rows_of(3))


@pytest.mark.parametrize("database_url", SERVERS, indirect=True)
def test_a_change_of_the_target_waits_for_writing_tasks(place: SparkPlace) -> None:
    task = begun(place)

    def change() -> Any:
        try:
            return place.begin(place.options(dbtable="others"), 1)
        except BatchChangedError as error:
            return str(error)

    driver, done = in_thread(change)
    while not is_awaited(place):
        assert driver.is_alive()
    assert task.end() is True
    driver.join(PATIENCE)
    assert "was written to table" in done[0]


def test_a_written_batch_whose_table_was_emptied_is_refused(place: SparkPlace) -> None:
    assert place.write([], batchId=1)
    assert place.write(rows_of(3))
    run(place, "DELETE FROM things")
    with pytest.raises(BatchChangedError, match="was written with 3 rows, and table things is empty: give"):
        place.writer()
    assert not place.write([], batchId=1)


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_table_that_was_created_again_is_told_from_one_that_was_renamed(place: SparkPlace) -> None:
    assert place.write(rows_of(3))
    run(place, "ALTER TABLE things RENAME TO former")
    assert not place.write(rows_of(3), dbtable="former")
    run(place, THINGS)
    assert place.write(rows_of(3, 5), batchId=1)
    with pytest.raises(BatchChangedError, match=r"was written to a table public\.things that is gone"):
        place.writer()


def test_skip_reads_a_complete_batch_and_compares_nothing(place: SparkPlace) -> None:
    assert place.write(rows_of(3))
    run(place, "DELETE FROM things")
    given = iter(rows_of(5, 7))
    assert not place.write(given, dbtable="others", knownBatch="skip")
    assert list(given) == []
    assert place.write(rows_of(2, 7), batchId=1, knownBatch="skip")
    assert place.produced() == values_of([*rows_of(3), *rows_of(2, 7)])


def test_skip_compares_a_batch_that_is_not_complete(place: SparkPlace) -> None:
    skip = {"knownBatch": "skip"}
    with place.worker() as worker:
        assert place.writer(2).write(worker, 0, rows_of(3))
        with pytest.raises(BatchChangedError, match=rf"was written to table .*others: {UNFINISHED}"):
            place.writer(2, dbtable="others", **skip)
        with pytest.raises(BatchChangedError, match="partition 0 of batch 0 of job 'nightly' was written with 3 rows"):
            place.writer(2, **skip).write(worker, 0, rows_of(4))
        assert place.writer(2, **skip).write(worker, 1, rows_of(2, 5))
    assert place.produced() == values_of([*rows_of(3), *rows_of(2, 5)])


def test_a_batch_that_an_earlier_release_has_begun_goes_on(place: SparkPlace) -> None:
    """Its target is not known."""
    with place.worker() as worker:
        place.writer(2).write(worker, 0, rows_of(3))
        with place.engine.begin() as connection:
            connection.execute(update(spark_progress).values(table_name=None, table_id=None, topic=None))
        assert not place.writer(2).write(worker, 0, rows_of(3))
        assert place.writer(2).write(worker, 1, rows_of(2, 5))
    assert place.produced() == values_of([*rows_of(3), *rows_of(2, 5)])
