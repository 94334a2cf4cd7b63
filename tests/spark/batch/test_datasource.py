"""The parts of the data source that Spark calls in processes of their own, called here by hand, each from what was sent
to it."""

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from sqlalchemy import Engine, select

from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.errors import BatchChangedError, ConfigurationError
from dualwrite.spark.batch import datasource
from dualwrite.spark.batch.datasource import DualWriteDataSource, Message, WholeBatchStreamWriter, register
from dualwrite.spark.batch.runs import Run
from dualwrite.spark.batch.task_input import TaskInput
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.plan.columns import Family, match_columns, plan_of
from dualwrite.spark.workers import close_workers
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import await_sweeps
from tests.support.spark.batches import open_slots, staged_rows
from tests.support.spark.expected_rows import KEEPS, column, options, schema, table
from tests.support.spark.writing import THINGS, SparkPlace, rows_of, url_of, values_of

SCHEMA = StructType([StructField("id", LongType()), StructField("note", StringType())])


@pytest.fixture
def place(sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str) -> Iterator[SparkPlace]:
    yield SparkPlace(sqlite, kafka_broker, dualwrite_application)
    close_workers()
    await_sweeps()


def source(place: SparkPlace, **options: str) -> DualWriteDataSource:
    texts = {name: str(value) for name, value in place.keywords().items()}
    return DualWriteDataSource({**texts, **options})


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def written(writer: Any, rows: Any, part: int, attempt: int) -> Message:
    """A task's message. TaskContext, which the data source asks, is only in tasks."""
    side = writer.work.write(rows, part, attempt)
    return Message(side)


def runs(place: SparkPlace) -> list[tuple[int, str]]:
    with place.engine.connect() as connection:
        return [(row.run_id, row.state) for row in connection.execute(select(spark_run))]


def batches(place: SparkPlace) -> list[int]:
    with place.engine.connect() as connection:
        return list(connection.scalars(select(spark_batch.c.batch_id)))


def judge(place: SparkPlace, rows: Any) -> None:
    assert place.stored() == rows
    assert place.produced() == values_of(rows)
    assert (staged_rows(place.engine), open_slots(place.engine)) == (0, [])


def test_a_dataframe_is_written_by_writers_that_were_sent(place: SparkPlace) -> None:
    writer = source(place, batchId="1").writer(SCHEMA, False)
    messages = [written(sent(writer), rows_of(5, 5 * part), part, part) for part in range(2)]
    sent(writer).commit([sent(message) for message in messages])
    judge(place, rows_of(10))
    assert batches(place) == [1]


def test_a_tasks_message_survives_pickling(place: SparkPlace) -> None:
    writer = source(place).writer(SCHEMA, False)
    message = written(writer, rows_of(5), 0, 0)
    assert message.task is not None
    assert message.task.state is not None
    assert sent(message) == message
    assert sent(message).task.state.first_record == message.task.state.first_record is not None
    writer.abort([message])
    judge(place, [])


def test_a_micro_batch_is_committed_by_a_source_that_was_sent_and_begins_no_run(place: SparkPlace) -> None:
    query = sent(source(place))
    writer = sent(source(place).streamWriter(SCHEMA, False))
    (run,) = runs(place)
    messages = [written(writer, rows_of(5), 0, 0), None]
    query.streamWriter(SCHEMA, False).commit(messages, 7)
    assert runs(place) == [(run[0], "committed")]
    judge(place, rows_of(5))
    assert batches(place) == [7]


def test_a_micro_batch_without_partitions_is_remembered(place: SparkPlace) -> None:
    query = sent(source(place))
    source(place).streamWriter(SCHEMA, False)
    query.streamWriter(SCHEMA, False).commit([], 7)
    assert [state for _, state in runs(place)] == ["committed"]
    assert batches(place) == [7]
    judge(place, [])


def test_a_micro_batch_that_is_run_again_is_not_written_again(place: SparkPlace) -> None:
    query = sent(source(place))
    for _ in range(2):
        writer: WholeBatchStreamWriter = sent(source(place).streamWriter(SCHEMA, False))
        message = Message(writer.work.write(rows_of(5), 0, 0, batch_id=7))
        query.streamWriter(SCHEMA, False).commit([message], 7)
    assert message.task is not None
    assert (message.task.attempt.rows, message.task.lease) == (0, None), "its task has seen it"
    judge(place, rows_of(5))


class GivenContext:
    """In place of TaskContext: what Spark gives the third partition of micro-batch 7."""

    @classmethod
    def get(cls) -> "GivenContext":
        return cls()

    def partitionId(self) -> int:  # noqa: N802 - PySpark's name
        return 2

    def taskAttemptId(self) -> int:  # noqa: N802 - PySpark's name
        return 17

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - PySpark's name
        return {"spark.sql.session.timeZone": "Asia/Tokyo", "streaming.sql.batchId": "7"}.get(name)


def test_a_task_writes_as_the_attempt_and_in_the_time_zone_that_spark_gives_it(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sent(source(place).streamWriter(SCHEMA, False))
    given: list[Any] = []
    own = TaskInput.write

    def write(self: TaskInput, *arguments: Any, **named: Any) -> PreparedTask:
        given.append((self, named))
        return own(self, *arguments, **named)

    monkeypatch.setattr(datasource, "TaskContext", GivenContext)
    monkeypatch.setattr(TaskInput, "write", write)
    message = writer.write(iter(rows_of(5)))
    assert given == [(writer.work.returning(None), {"zone": "Asia/Tokyo", "batch_id": 7})]
    assert message.task is not None
    assert message.task.attempt == (2, 17, 5)
    writer.abort([message], 7)


def test_a_batch_in_foreach_batch_has_the_number_of_its_option_and_not_that_of_the_micro_batch(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job knows a batch with the number of the micro-batch: it would take these rows for written."""
    monkeypatch.setattr(datasource, "TaskContext", GivenContext)
    for number, first in ((7, 0), (1007, 5)):
        writer = source(place, batchId=str(number), driverBytes="0").writer(SCHEMA, False)
        sent(writer).commit([sent(writer).write(iter(rows_of(5, first)))])
    judge(place, rows_of(10))
    assert batches(place) == [7, 1007]


def test_a_batch_without_a_number_is_refused_in_foreach_batch(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = source(place).writer(SCHEMA, False)
    monkeypatch.setattr(datasource, "TaskContext", GivenContext)
    with pytest.raises(ConfigurationError, match="would be written twice: give the option batchId the number that"):
        sent(writer).write(iter(rows_of(5)))
    writer.abort([])
    judge(place, [])


def writer_of(kind: str, family: Family) -> WholeBatchStreamWriter:
    """A writer of one column, whose tasks return their rows and so need no database and no broker."""
    given = options(application="batches", job="job")
    plan = plan_of(schema(at=kind), given, "UTC")
    columns = match_columns(plan, table(column("at", family)), given)
    return WholeBatchStreamWriter(given, TaskInput(given, plan, columns, KEEPS["mysql"], Run("job", 1, (None, "none"))))


def test_both_of_two_equal_hours_of_a_clock_change_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark reads timestamps from Arrow into this process's local time, without saying which of the two it is."""
    monkeypatch.setattr(datasource, "TaskContext", GivenContext)
    moments = [datetime(2024, 10, 27, hour, 30, tzinfo=timezone.utc) for hour in range(3)]
    rows: Any = ((moment.astimezone().replace(tzinfo=None),) for moment in moments)
    with in_zone("Europe/Vienna"):
        task = writer_of("timestamp", Family.MOMENT).write(rows).task
        assert datetime(2024, 7, 1).astimezone().utcoffset() == timedelta(hours=2), "the zone is as it was"
    assert task is not None
    assert [row.values for row in task.rows] == [(moment.replace(tzinfo=None),) for moment in moments]
    said = [b'{"at":"2024-10-27T%02d:30:00.000+09:00"}' % hour for hour in (9, 10, 11)]
    assert [row.value for row in task.rows] == said


@contextmanager
def in_zone(name: str) -> Iterator[None]:
    """In the block, the time zone of this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("name", "zone"), [("Europe/Vienna", "Europe/Vienna"), (":Asia/Tokyo", "Asia/Tokyo"), ("<+03>-3", "+0300")]
)
def test_the_zone_of_a_session_that_sets_none_is_the_drivers_own(sqlite: Engine, name: str, zone: str) -> None:
    """Then it is Spark's default, and Spark does not tell it to a task."""
    with sqlite.begin() as connection:
        connection.exec_driver_sql(THINGS)
    given = {"url": url_of(sqlite), "dbtable": "things", "topic": "things", "application": "a", "job": "job"}
    with in_zone(name):
        committing = sent(DualWriteDataSource({**given, "kafka.bootstrap.servers": "nobody:1"}))
        assert committing.streamWriter(SCHEMA, False).work.plan.zone == zone
    close_workers()


class SessionOfAnotherZone:
    """A session whose JVM has another time zone than this process, and which sets none."""

    def __init__(self) -> None:
        self.conf = self.dataSource = self
        self.calls: list[tuple[object, ...]] = []

    def get(self, name: str) -> str:
        assert name == "spark.sql.session.timeZone"
        return "Asia/Tokyo"

    def set(self, name: str, value: str) -> None:
        self.calls.append((name, value))

    def register(self, source: type) -> None:
        self.calls.append((source,))


def test_a_session_that_sets_no_zone_sets_that_of_its_jvm_so_that_spark_tells_it_to_the_tasks() -> None:
    session: Any = SessionOfAnotherZone()
    register(session)
    assert session.calls == [(DualWriteDataSource,), ("spark.sql.session.timeZone", "Asia/Tokyo")]


def test_a_micro_batch_that_has_other_rows_now_is_refused(place: SparkPlace) -> None:
    query = sent(source(place))
    for rows in (rows_of(5), rows_of(5, 1)):
        writer: WholeBatchStreamWriter = sent(source(place).streamWriter(SCHEMA, False))
        messages = [
            Message(writer.work.write(part, number, number, batch_id=7)) for number, part in enumerate((rows, []))
        ]
        if rows == rows_of(5):
            query.streamWriter(SCHEMA, False).commit(messages, 7)
    with pytest.raises(BatchChangedError, match="was written with 5 rows, and some of them differ now"):
        query.streamWriter(SCHEMA, False).commit(messages, 7)
    judge(place, rows_of(5))


def test_a_dataframe_under_a_known_number_is_compared(place: SparkPlace) -> None:
    for number, rows in enumerate((rows_of(5), rows_of(5), rows_of(5, 1))):
        writer = source(place, batchId="1").writer(SCHEMA, False)
        messages = [sent(written(sent(writer), rows, 0, number))]
        if number < 2:
            sent(writer).commit(messages)
    with pytest.raises(BatchChangedError, match="some of them differ now"):
        sent(writer).commit(messages)
    judge(place, rows_of(5))


def test_an_abort_ends_the_run_that_a_task_has_named(place: SparkPlace) -> None:
    query = sent(source(place))
    writer = source(place).streamWriter(SCHEMA, False)
    message = written(writer, rows_of(5), 0, 0)
    query.streamWriter(SCHEMA, False).abort([None, message], 7)
    assert [state for _, state in runs(place)] == ["aborted"]
    judge(place, [])


def test_an_abort_without_a_task_is_left_to_the_next_run(place: SparkPlace) -> None:
    query = sent(source(place))
    source(place).streamWriter(SCHEMA, False)
    query.streamWriter(SCHEMA, False).abort([None], 7)
    assert [state for _, state in runs(place)] == ["open"]


@pytest.mark.parametrize(
    ("kind", "options", "overwrite", "message"),
    [
        ("writer", {}, True, "cannot be overwritten"),
        ("streamWriter", {}, True, "cannot be overwritten"),
        ("streamWriter", {"batchId": "1"}, False, "numbers its batches itself"),
        ("writer", {"topics": "x"}, False, "did you mean 'topic'"),
        ("writer", {"dbtable": "thing"}, False, "did you mean 'things'"),
    ],
)
def test_a_wrong_option_or_column_is_named_and_no_run_begins(
    place: SparkPlace, kind: str, options: dict[str, str], overwrite: bool, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        getattr(source(place, **options), kind)(SCHEMA, overwrite)
    assert runs(place) == []
