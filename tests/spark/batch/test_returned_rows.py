"""Partitions with few rows: their tasks return them, and the driver writes the rows of all of them as one more task."""

import pickle
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from dualwrite import EmbeddedBroker
from dualwrite.errors import FencedError, InputError
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.spark.batch.task_input import MOST_RETURNED
from dualwrite.spark.batch.tasks import Portion, RunWriter, few_rows, portions_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.workers import close_workers
from tests.support.coordinator.event_table import slot_rows
from tests.support.peer_clients.kafka_helpers import visible
from tests.support.spark.batch_place import BatchPlace, batch_place_on, broker
from tests.support.spark.batches import (
    begun,
    failing_at,
    json_of,
    open_slots,
    rows,
    staged_rows,
    stored,
    write,
    written,
)
from tests.support.spark.lock_waits import AT_ONCE, PATIENCE

__all__ = ["broker"]

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

ALL = 2**20
"""The option driverBytes with which the driver writes all rows."""


@pytest.fixture
def place(engine: Engine, broker: EmbeddedBroker) -> Iterator[BatchPlace]:
    yield from batch_place_on(engine, broker)


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_tasks_with_few_rows_touch_neither_side_and_the_driver_uses_one_slot(place: BatchPlace, producer: str) -> None:
    batch, work = begun(place.options(producer=producer, driverBytes=ALL), 1)
    tasks = pickle.loads(pickle.dumps(written(work, [rows(0, 20), rows(20, 21), [], rows(21, 40)])))
    assert (staged_rows(place.engine), open_slots(place.engine)) == (0, [])
    batch.commit(work, tasks, 1)
    place.judge(rows(0, 40))
    assert len(slot_rows(place.engine)) == 1


def test_partitions_with_many_rows_are_staged_and_all_of_them_commit_together(place: BatchPlace) -> None:
    batch, work = begun(place.options(driverBytes=6_000), 1)
    tasks = written(work, [rows(0, 10), rows(10, 50), rows(50, 60)])
    assert [len(task.rows) for task in tasks if task is not None] == [10, 0, 10]
    assert staged_rows(place.engine) == 40
    batch.commit(work, tasks, 1)
    place.judge(rows(0, 60))


def test_the_last_row_with_a_key_counts_whoever_writes_it(place: BatchPlace) -> None:
    batch, work = begun(place.options(driverBytes=6_000, upsertKeys="id"), 1)
    partitions = [rows(0, 3, "first"), rows(1, 41, "second"), rows(2, 4, "third"), rows(3, 43, "fourth")]
    batch.commit(work, written(work, partitions), 1)
    notes = {0: "first", 1: "second", 2: "third", **dict.fromkeys(range(3, 43), "fourth")}
    assert stored(place.engine) == notes
    assert place.seen() == sorted(json_of([row for part in partitions for row in part]).elements())


def test_the_records_of_returned_rows_are_produced_in_the_order_of_the_partitions(place: BatchPlace) -> None:
    """The last record of a key is the row that the table has."""
    batch, work = begun(place.options(driverBytes=ALL, upsertKeys="id"), 1)
    notes = ["first", "second", "third"]
    tasks = written(work, [rows(0, 1, note) for note in notes])
    batch.commit(work, tasks[::-1], 1)
    assert visible(place.servers, place.topic) == [b'{"id":0,"note":"%s"}' % note.encode() for note in notes]
    assert stored(place.engine) == {0: "third"}


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "step", ["BEGIN_KAFKA", "STAGE_ROWS", "PREPARE_KAFKA", "TRANSFER_LEASE", "DECIDE", "MOVE_ROWS", "COMMIT_DATABASE"]
)
def test_a_failure_of_the_driver_before_the_decision_rolls_both_sides_back(place: BatchPlace, step: str) -> None:
    with pytest.raises(RuntimeError, match=step):
        write(place.options(driverBytes=ALL), [rows(0, 10), rows(10, 20)], 1, failing_at(step))
    close_workers()  # a slot whose lease was not transferred is kept for the next unit
    place.judge([])
    write(place.options(driverBytes=ALL), [rows(0, 10), rows(10, 20)], 1)
    place.judge(rows(0, 20))


def test_a_driver_whose_run_was_ended_writes_nothing(place: BatchPlace) -> None:
    zombie, old = begun(place.options(driverBytes=ALL), 1, failing_at("BEGIN_KAFKA"))
    tasks = written(old, [rows(0, 10)])
    write(place.options(driverBytes=ALL), [rows(10, 20)], 2)
    with pytest.raises(FencedError, match="another run of the job has begun"):
        zombie.commit(old, tasks, 1)
    place.judge(rows(10, 20))


def test_a_run_that_is_ended_while_the_driver_writes_is_rolled_back(place: BatchPlace) -> None:
    def end(step: str) -> None:
        if step == "STAGE_ROWS":
            batch.runs.end_job("job")

    batch, work = begun(place.options(driverBytes=ALL), 1, end)
    with pytest.raises(FencedError, match="has ended"):
        batch.commit(work, written(work, [rows(0, 10)]), 1)
    close_workers()
    place.recover()  # of the slot whose use failed
    place.judge([])


@pytest.mark.slow
def test_a_batch_that_was_committed_before_is_not_written_and_a_second_commit_is_harmless(place: BatchPlace) -> None:
    write(place.options(driverBytes=ALL), [rows(0, 5)], 1)
    batch, work = begun(place.options(driverBytes=ALL), None, failing_at("BEGIN_KAFKA"))  # a stream names it later
    batch.commit(work, written(work, [rows(0, 5)]), 1)
    place.judge(rows(0, 5))
    batch, work = begun(place.options(driverBytes=ALL), 2)
    tasks = written(work, [rows(5, 9)])
    batch.commit(work, tasks, 2)
    batch.commit(work, tasks, 2)
    place.judge(rows(0, 9))


def test_a_second_commit_of_a_batch_without_a_number_writes_no_returned_row_again(place: BatchPlace) -> None:
    batch, work = begun(place.options(driverBytes=ALL))
    tasks = written(work, [rows(0, 5)])
    first = batch.commit(work, tasks, None)
    assert batch.commit(work, tasks, None) == first
    place.judge(rows(0, 5))


def test_a_row_that_cannot_be_written_is_an_input_error_of_its_partition_or_of_the_batch(place: BatchPlace) -> None:
    options = place.options(driverBytes=ALL)
    batch, work = begun(options, 1)
    with pytest.raises(InputError, match=r"^partition 3 of job 'job': row 1 has 2 values"):
        work.write([(1, "short")], 3, 1)
    batch.abort(work.run, 1)
    with pytest.raises(InputError, match=r"^job 'job': the database refuses a row"):
        write(options, [rows(0, 10), rows(9, 12)], 1)
    place.judge([])


def test_an_error_of_the_last_rows_that_a_task_stages_is_raised_before_the_transfer(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are staged in a thread, while the records are prepared."""

    def refuse(writer: RunWriter, connection: Connection, portion: Portion) -> None:
        if portion[0].first:
            raise InputError("the last row")
        stage(writer, connection, portion)

    steps: list[str] = []
    batch, work = begun(place.options(), 1, steps.append)
    stage = RunWriter.stage
    monkeypatch.setattr(RunWriter, "stage", refuse)
    with pytest.raises(InputError, match="the last row"):
        work.write(rows(0, 8), 0, 1)  # in portions of seven
    assert "PREPARE_KAFKA" in steps
    assert "TRANSFER_LEASE" not in steps
    batch.abort(work.run, 1)
    close_workers()
    place.judge([])


@pytest.mark.parametrize("first", [0, 7])
def test_a_task_raises_the_error_of_a_portion_although_later_portions_could_be_staged(
    place: BatchPlace, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Otherwise the records of these rows would be in Kafka, and the rows missing in the table."""

    def refuse(writer: RunWriter, connection: Connection, portion: Portion) -> None:
        if portion[0].first == first:
            raise InputError("one of the first rows")
        stage(writer, connection, portion)

    batch, work = begun(place.options(), 1)
    stage = RunWriter.stage
    monkeypatch.setattr(RunWriter, "stage", refuse)
    with pytest.raises(InputError, match="one of the first rows"):
        work.write(rows(0, 20), 0, 1)  # in portions of seven
    batch.abort(work.run, 1)
    close_workers()
    place.judge([])


def test_a_task_that_fails_waits_for_the_portion_that_is_being_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot and its connections are the next task's."""
    has_failed, has_ended, steps = threading.Event(), threading.Event(), list[str]()

    def produce_many(records: Iterable[OutgoingRecord]) -> None:
        if steps:
            has_failed.set()
            raise InputError("the second portion")
        steps.append("first portion produced")

    @contextmanager
    def branch(_: object) -> Iterator[Any]:
        try:
            yield SimpleNamespace(produce_many=produce_many)
        finally:
            steps.append("branch ended")
            has_ended.set()

    @contextmanager
    def writing(_: object) -> Iterator[None]:
        assert has_failed.wait(PATIENCE)
        has_ended.wait(AT_ONCE)
        yield
        steps.append("first portion staged")

    monkeypatch.setattr(RunWriter, "stage", lambda *_: None)
    runs: Any = SimpleNamespace(require_still_open=lambda _: None, writing=writing)
    nothing: Any = None
    portions = portions_of([ConvertedRow((n,), "topic", None, b"", -1, None, 1) for n in range(2)], 0, 1, 1)
    branches: Any = SimpleNamespace(branch=branch)
    with pytest.raises(InputError, match="the second portion"):
        RunWriter(runs, nothing, nothing, lambda _: None, overlaps=True).write(branches, portions)
    assert steps == ["first portion produced", "first portion staged", "branch ended"]


def test_the_share_of_a_task_depends_on_their_number(place: BatchPlace) -> None:
    _, work = begun(place.options(driverBytes=2**24))
    assert work.returning(1000).returned_bytes == 2**24 // 1000
    assert work.returning(1).returned_bytes == MOST_RETURNED
    assert work.returning(0).returned_bytes == MOST_RETURNED
    assert work.returning(None).returned_bytes == 2**14, "a data source does not know the number"
    no_bytes = replace(work, options=replace(work.options, driver_bytes=0))
    assert no_bytes.returning(1).returned_bytes == 0


def test_a_task_reads_no_more_rows_than_it_may_return_before_it_writes() -> None:
    def read() -> Iterator[ConvertedRow]:
        for number in range(100):
            taken.append(number)
            yield ConvertedRow((number,), "topic", None, b"", -1, None, 744)

    taken: list[int] = []
    few, all_rows = few_rows(read(), 10_000)
    assert few is None
    assert len(taken) == 11, "each counts for 1,000 bytes"
    assert [row.values for row in all_rows] == [(number,) for number in range(100)]
    few, _ = few_rows(read(), 100_000)
    assert few is not None
    assert len(few) == 100
    assert few_rows(iter(()), 0)[0] == ()
