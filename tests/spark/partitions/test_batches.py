"""A batch begins before its tasks: on real databases and a real broker, with drivers and tasks at the same time."""

import threading
from typing import Any

import pytest
from sqlalchemy import event, select

from dualwrite.coordinator.sql.tables import spark_progress
from dualwrite.errors import BatchChangedError
from dualwrite.spark.partitions import batches
from tests.support.servers.databases import SERVERS
from tests.support.spark.attempts import begun, in_thread, is_awaited
from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of, values_of

pytestmark = pytest.mark.slow_cases("mariadb")
ON_SERVERS = pytest.mark.parametrize("database_url", SERVERS, indirect=True)


def error_of(place: SparkPlace, partitions: int = 1, **changed: Any) -> BatchChangedError | None:
    """The error with which a driver begins a batch; None if it begins it."""
    try:
        place.begin(place.options(**changed), partitions)
    except BatchChangedError as error:
        return error
    return None


@pytest.mark.slow_cases
def test_another_number_of_partitions_is_refused_once_one_is_written(place: SparkPlace) -> None:
    assert place.write(rows_of(3))
    with pytest.raises(BatchChangedError, match="has 2 partitions now and had 1 when 1 of them were written"):
        place.writer(2)
    assert not place.write(rows_of(3))


def test_the_number_of_partitions_may_change_before_the_first_write(place: SparkPlace) -> None:
    zombie = place.writer(2)
    assert place.write(rows_of(3))
    with (
        place.worker() as worker,
        pytest.raises(BatchChangedError, match="has 1 partitions in another run"),
    ):
        zombie.write(worker, 0, rows_of(2))
    assert place.produced() == values_of(rows_of(3))


@ON_SERVERS
def test_a_change_of_the_number_of_partitions_waits_for_writing_tasks(place: SparkPlace) -> None:
    first = begun(place)

    def change() -> Any:
        try:
            place.writer(2)
        except BatchChangedError as error:
            return error
        return None

    other, done = in_thread(change)
    while not is_awaited(place):
        assert other.is_alive()
    assert first.end() is True
    other.join(PATIENCE)
    assert isinstance(done[0], BatchChangedError)


@ON_SERVERS
def test_a_driver_that_waited_for_the_row_of_a_batch_sees_what_another_driver_has_changed(place: SparkPlace) -> None:
    assert place.begin(place.options(), 1)
    rivals = iter(["a rival"])

    @event.listens_for(place.engine, "before_cursor_execute")
    def overtake(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if "FOR UPDATE" in statement:
            for _rival in rivals:
                with place.worker() as worker:
                    assert place.writer(2).write(worker, 0, rows_of(3))

    assert error_of(place, partitions=2) is None, "the batch has two partitions by now, and one is written"
    assert next(rivals, None) is None
    assert place.write(rows_of(3, first=3), partition=1)
    assert place.stored() == rows_of(6)


def test_the_same_batch_may_be_begun_by_many(place: SparkPlace) -> None:
    for _ in range(3):
        place.begin(place.options(batchId=7), 4)
    with place.engine.connect() as connection:
        numbers = connection.scalars(select(spark_progress.c.batch_id).order_by(spark_progress.c.batch_id)).all()
    assert numbers == [-1, 7]  # the job's row, and the batch's


class HeldDriver:
    """A driver in a thread, which stops while it begins its batch."""

    def __init__(self, place: SparkPlace, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
        self._holds, self._go_on = threading.Event(), threading.Event()
        self._require = batches.require_remembered
        monkeypatch.setattr(batches, "require_remembered", self._hold)
        self._thread, self.done = in_thread(lambda: error_of(place, **changed))
        assert self._holds.wait(PATIENCE)
        monkeypatch.setattr(batches, "require_remembered", self._require)

    def _hold(self, *given: Any) -> None:
        self._holds.set()
        assert self._go_on.wait(PATIENCE)
        self._require(*given)

    def end(self) -> Any:
        self._go_on.set()
        self._thread.join(PATIENCE)
        return self.done[0]


@ON_SERVERS
def test_drivers_that_begin_batches_of_a_job_take_turns(place: SparkPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second driver would not be refused if it looked before the first has forgotten a batch."""
    assert place.write(rows_of(1), batchId=3, keepBatches=1)
    first = HeldDriver(place, monkeypatch, batchId=5, keepBatches=1)
    second, done = in_thread(lambda: error_of(place, batchId=2, keepBatches=1))
    while not is_awaited(place):
        assert second.is_alive()
    assert first.end() is None
    second.join(PATIENCE)
    assert "the latest is 5), so it is not known whether it was written" in str(done[0])


@ON_SERVERS
@pytest.mark.parametrize("partitions", [1, 2], ids=["the same partitions", "other partitions"])
def test_of_two_drivers_that_begin_one_batch_the_second_goes_on(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    first = HeldDriver(place, monkeypatch)
    second, done = in_thread(lambda: error_of(place, partitions))
    while not is_awaited(place):
        assert second.is_alive()
    assert first.end() is None
    second.join(PATIENCE)
    assert done == [None]
    with place.worker() as worker:
        assert place.writer(partitions, begin=False).write(worker, 0, rows_of(3))
    assert place.produced() == values_of(rows_of(3))


@ON_SERVERS
def test_a_batch_that_a_task_is_writing_is_not_forgotten_and_no_driver_waits_for_it(place: SparkPlace) -> None:
    task = begun(place)
    for number in (1, 2):
        assert place.write(rows_of(1, 10 * number), batchId=number, keepBatches=1)
    assert task.end() is True
    assert not place.write(rows_of(5), keepBatches=1)
    assert place.write(rows_of(1, 30), batchId=3, keepBatches=1)
    assert "not known whether it was written" in str(error_of(place, keepBatches=1))
    assert place.produced() == values_of([*rows_of(5), *rows_of(1, 10), *rows_of(1, 20), *rows_of(1, 30)])
