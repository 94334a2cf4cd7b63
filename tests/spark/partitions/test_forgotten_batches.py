"""Which batches of partitions are remembered, and that no number is written twice, whatever is forgotten."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select, update

from dualwrite.coordinator.sql.tables import spark_progress
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import BatchChangedError
from dualwrite.spark.known.targets import BatchTarget
from dualwrite.spark.partitions.batches import begin_batch
from dualwrite.spark.partitions.progress import BatchPartition, BegunBatch, claim, require_same
from dualwrite.spark.plan.rows import RowsDigest
from dualwrite.spark.workers import engine_of
from tests.support.coordinator.event_table import make_tables
from tests.support.spark.expected_rows import options
from tests.support.spark.writing import SparkPlace, rows_of, values_of

pytestmark = pytest.mark.slow_cases("mariadb")


@pytest.mark.slow_cases
def test_old_batches_are_forgotten_and_not_written_again(place: SparkPlace) -> None:
    for batch in range(4):
        assert place.write(rows_of(1, batch), batchId=batch, keepBatches=2)
    assert place.progress() == [(2, 1), (3, 1)]
    assert not place.write(rows_of(1, 2), batchId=2, keepBatches=2)
    said = "batch 1 of job 'nightly' is older than the 2 batches that are .* so it is not known whether it was written"
    with pytest.raises(BatchChangedError, match=said):
        place.write(rows_of(1, 1), batchId=1, keepBatches=2)
    with pytest.raises(BatchChangedError, match=r"batch 1 of job 'nightly' is older than the 100 .* it is not known"):
        place.write(rows_of(1, 1), batchId=1)
    assert len(place.produced()) == 4


@pytest.mark.slow_cases
def test_the_distance_of_numbers_does_not_count(place: SparkPlace) -> None:
    keep = {"keepBatches": 2}
    assert place.write(rows_of(1, 0), batchId=20261122, **keep)
    assert place.write(rows_of(1, 1), batchId=20261001, **keep)
    assert not place.write(rows_of(1, 1), batchId=20261001, **keep)
    with pytest.raises(BatchChangedError, match=r"batch 20260901 .* so it would be forgotten at once: raise keep"):
        place.write(rows_of(1, 2), batchId=20260901, **keep)
    assert place.write(rows_of(1, 2), batchId=20260901)
    assert place.write(rows_of(1, 3), batchId=20261002, **keep)
    for forgotten in (20261001, 20260901, 20260801):
        with pytest.raises(BatchChangedError, match=f"batch {forgotten} .* so it is not known whether it was written"):
            place.write(rows_of(1, 1), batchId=forgotten)
    assert place.produced() == values_of(rows_of(4))


@pytest.mark.slow_cases
def test_a_batch_is_remembered_until_all_of_its_partitions_are_written(place: SparkPlace) -> None:
    """Its driver may have been killed. It can be run again, however many batches come before that."""
    with place.worker() as worker:
        assert place.writer(2, keepBatches=1).write(worker, 0, rows_of(3))
        for number in range(1, 4):
            assert place.writer(batchId=number, keepBatches=1).write(worker, 0, rows_of(1, 10 * number))
        again = place.writer(2, keepBatches=1)
        assert not again.write(worker, 0, rows_of(3))
        assert again.write(worker, 1, rows_of(2, 5))
    assert place.write(rows_of(1, 40), batchId=4, keepBatches=1)
    with pytest.raises(BatchChangedError, match=r"batch 0 .* not known whether it was written"):
        place.writer(2, keepBatches=1)
    assert len(place.produced()) == 9


def test_a_low_batch_that_is_forgotten_late_makes_no_higher_number_known(place: SparkPlace) -> None:
    with place.worker() as worker:
        assert place.writer(2, keepBatches=1).write(worker, 0, rows_of(3))
        for number in (1, 2):
            assert place.writer(batchId=number, keepBatches=1).write(worker, 0, rows_of(1, 10 * number))
        place.writer(batchId=3, keepBatches=1)  # forgets 2, and is never written
        assert place.writer(2).write(worker, 1, rows_of(2, 5))
        place.writer(batchId=4, keepBatches=1)  # forgets 0
        for number in (0, 1, 2):
            with pytest.raises(BatchChangedError, match=f"batch {number} .*not known whether it was written"):
                place.writer(batchId=number)
        assert place.writer(batchId=3).write(worker, 0, rows_of(1, 30))
    assert len(place.produced()) == 8


def test_a_job_that_forgets_batches_changes_nothing_for_another_job(place: SparkPlace) -> None:
    assert place.write(rows_of(2), job="other", batchId=1)
    for batch_id in (1, 2):
        assert place.write(rows_of(2, first=10 * batch_id), batchId=batch_id, keepBatches=1)
    assert place.progress() == [(1, 2), (2, 2)], "of the other job, and the latest of this one"
    assert not place.write(rows_of(2), job="other", batchId=1)


def test_a_task_of_a_batch_that_is_forgotten_writes_nothing(place: SparkPlace) -> None:
    zombie = place.writer()
    assert place.write(rows_of(1))
    place.begin(place.options(batchId=200, keepBatches=1), 1)
    with (
        place.worker() as worker,
        pytest.raises(BatchChangedError, match="batch 0 of job 'nightly' is not remembered any more, and"),
    ):
        zombie.write(worker, 0, rows_of(1))
    assert place.produced() == values_of(rows_of(1))


def test_a_batch_that_is_forgotten_while_its_driver_waits_for_it_is_refused(sqlite: Engine) -> None:
    batch = BegunBatch("job", 1, 2, BatchTarget("t", None, "t"))
    begin_batch(sqlite, batch, "t", 1)
    looks: list[str] = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def forget_at_the_second_look(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("SELECT dualwrite_spark_progress.partitions"):
            looks.append(statement)
            if len(looks) == 2:  # under the lock
                cursor.execute("DELETE FROM dualwrite_spark_progress WHERE batch_id = 1")

    with pytest.raises(BatchChangedError, match="batch 1 of job 'job' was forgotten just now: raise keepBatches, or"):
        begin_batch(sqlite, batch._replace(partitions=3), "t", 1)


def test_a_partition_that_is_forgotten_before_its_rows_are_compared_passes(sqlite: Engine) -> None:
    batch = BegunBatch("job", 1, 1, None)
    with sqlite.connect() as connection:
        require_same(connection, BatchPartition(batch, 0), RowsDigest())


def as_an_earlier_release_left_it(place: SparkPlace) -> None:
    with place.engine.begin() as connection:
        connection.execute(update(spark_progress).values(table_name=None, table_id=None, topic=None))


@pytest.mark.slow_cases
@pytest.mark.parametrize("keep", [1, 5, 1000])
def test_what_an_earlier_release_may_have_forgotten_is_refused_with_any_keep_batches(
    place: SparkPlace, keep: int
) -> None:
    assert place.write(rows_of(1), batchId=20, keepBatches=5)
    as_an_earlier_release_left_it(place)
    with pytest.raises(BatchChangedError, match=r"batch 16 of job 'nightly' is older than .* it is not known whether"):
        place.write(rows_of(1, 1), batchId=16, keepBatches=keep)
    assert place.write(rows_of(1, 1), batchId=21, keepBatches=keep)


def test_a_begun_batch_of_an_earlier_release_tells_what_it_may_have_forgotten_when_it_is_written_too(
    place: SparkPlace,
) -> None:
    place.begin(place.options(batchId=20), 1)
    as_an_earlier_release_left_it(place)
    assert place.write(rows_of(1), batchId=20)
    with pytest.raises(BatchChangedError, match=r"batch 16 of job 'nightly' is older than .* it is not known whether"):
        place.write(rows_of(1, 1), batchId=16)


@pytest.fixture(scope="module")
def engine_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Of one database, in which each example of Hypothesis has a job of its own."""
    engine = engine_of(options(url=f"sqlite:///{tmp_path_factory.mktemp('jobs') / 'app.db'}"))
    make_tables(engine)
    yield engine
    engine.dispose()


_numbers = count()


class Job:
    """A job, and what it has done: the oracle beside the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._name = engine, f"job {next(_numbers)}"
        self.partitions: dict[int, int] = {}
        """Of each batch that has begun."""
        self.written: dict[int, set[int]] = defaultdict(set)

    def is_complete(self, number: int) -> bool:
        return len(self.written[number]) == self.partitions[number]

    def remembered(self) -> set[int]:
        """The numbers in the database."""
        of_job = (spark_progress.c.job == self._name, spark_progress.c.batch_id >= 0)
        with self._engine.connect() as connection:
            return set(connection.scalars(select(spark_progress.c.batch_id).where(*of_job)))

    def run(self, number: int, partitions: int, dies_after: int, keep: int) -> None:
        """Run a batch; its driver dies after some partitions. A partition counts once."""
        batch = BegunBatch(self._name, number, self.partitions.get(number, partitions), BatchTarget("t", None, "t"))
        begin_batch(self._engine, batch, "dualwrite_spark_run", keep)
        self.partitions[number] = batch.partitions
        for partition in range(min(dies_after, batch.partitions)):
            with self._engine.begin() as connection:
                begin_writing(connection)
                is_ours = claim(connection, BatchPartition(batch, partition))
            assert is_ours is (partition not in self.written[number]), "written twice, or not at all"
            self.written[number].add(partition)


RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 2)), max_size=25)


@pytest.mark.slow
@settings(deadline=None)
@given(RUNS, st.integers(1, 3))
def test_no_partition_is_written_twice_and_only_unknown_or_low_numbers_are_refused(
    engine_of_jobs: Engine, runs: list[tuple[int, int, int]], keep: int
) -> None:
    job = Job(engine_of_jobs)
    for number, partitions, dies_after in runs:
        before = job.remembered()
        forgotten = set(job.partitions) - before
        try:
            job.run(number, partitions, dies_after, keep)
        except BatchChangedError:
            higher = [each for each in before if each > number]
            assert number not in before
            assert len(higher) >= keep or number <= max(forgotten, default=-1)
            assert job.remembered() == before
        now = job.remembered()
        assert now >= set(sorted(job.partitions, reverse=True)[:keep])
        assert all(job.is_complete(each) for each in set(job.partitions) - now)
