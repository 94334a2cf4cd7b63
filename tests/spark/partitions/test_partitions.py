"""One partition is one dual write, whoever writes it and however often: on real databases and a real broker, without
Spark, whose tasks are these calls (test_spark_partitions.py)."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from dualwrite.errors import (
    BatchChangedError,
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    DualWriteError,
    InputError,
    KafkaUnavailableError,
)
from dualwrite.spark.partitions import writers as partitions
from dualwrite.spark.partitions.progress import BegunBatch
from dualwrite.spark.partitions.writers import PartitionWriter, batch_writer
from dualwrite.spark.plan.columns import Family, match_columns, plan_of
from dualwrite.spark.tables.bulk_load import Loader
from dualwrite.testing.kafka import KafkaBroker
from tests.support.servers.databases import SERVERS
from tests.support.spark.attempts import begun, in_thread, is_awaited
from tests.support.spark.expected_rows import HEADERS, KEEPS, column, options, schema, table
from tests.support.spark.writing import COLUMNS, PATIENCE, SparkPlace, rows_of, values_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow_cases("mariadb")


def test_a_partition_is_in_the_table_in_the_topic_and_in_the_progress(place: SparkPlace) -> None:
    rows = rows_of(2500)
    assert place.write(rows, batchsize=1000)
    assert place.stored() == rows
    assert place.produced() == values_of(rows)
    assert place.progress() == [(0, 2500)]


def test_a_partition_is_written_once_in_whichever_order_its_rows_come_again(place: SparkPlace) -> None:
    rows = rows_of(10)
    assert place.write(rows)
    assert not place.write(rows)
    assert not place.write(rows[::-1])
    assert place.stored() == rows
    assert place.produced() == values_of(rows)


def test_another_batch_partition_or_job_is_written_too(postgresql_place: SparkPlace) -> None:
    place = postgresql_place
    for number, changed in enumerate(({}, {"batchId": 1}, {"job": "another"}, {"batchId": 2, "partition": 1})):
        assert place.write(rows_of(2, 10 * number), **changed)
    assert len(place.stored()) == len(place.produced()) == 8


def test_an_empty_partition_is_written_too(place: SparkPlace) -> None:
    assert place.write([])
    assert not place.write([])
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [(0, 0)])


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("again", "said"),
    [
        (rows_of(2), "was written with 3 rows, and has 2 now:"),
        (rows_of(3, 1), "was written with 3 rows, and has 3 now, which differ:"),
        ([*rows_of(2), (2, "another note")], "was written with 3 rows, and has 3 now, which differ:"),
        ([*rows_of(2), rows_of(2)[1]], "and has 3 now, which differ"),
    ],
)
def test_other_rows_for_a_written_partition_are_refused(postgresql_place: SparkPlace, again: Any, said: str) -> None:
    place = postgresql_place
    assert place.write(rows_of(3))
    with pytest.raises(BatchChangedError, match=f"partition 0 of batch 0 of job 'nightly' .*{said}") as raised:
        place.write(again)
    assert not raised.value.retriable
    assert place.stored() == rows_of(3)
    assert place.produced() == values_of(rows_of(3))


def test_a_bad_row_in_the_middle_leaves_nothing_and_is_counted(place: SparkPlace) -> None:
    bad = [*rows_of(25), (None, "no id"), *rows_of(5, 25)]
    with pytest.raises(InputError, match="partition 0 of batch 0 of job 'nightly': row 26, column 'id': is NULL"):
        place.write(bad, batchsize=10)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])
    assert place.write(rows_of(30), batchsize=10)
    assert place.produced() == values_of(rows_of(30))


@pytest.mark.parametrize("bad", [(3, "twice"), (99, "x" * 101)], ids=["key", "length"])
def test_a_row_that_the_database_refuses_leaves_nothing(place: SparkPlace, bad: tuple[int, str]) -> None:
    if place.engine.dialect.name == "sqlite" and bad[0] == 99:
        pytest.skip("SQLite's texts are of any length")
    with pytest.raises(
        InputError, match="partition 0 of batch 0 of job 'nightly': the database refuses a row: "
    ) as raised:
        place.write([*rows_of(25), bad, *rows_of(5, 25)], batchsize=10)
    assert "\n" not in str(raised.value)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])


@pytest.mark.postgresql
def test_a_connection_lost_in_the_middle_of_a_copy_leaves_nothing(postgresql_place: SparkPlace) -> None:
    place = postgresql_place
    asked = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()"

    def rows() -> Iterator[tuple[int, str]]:
        yield from rows_of(25)
        with place.engine.connect() as connection:
            connection.execute(text(f"{asked} AND datname = current_database()"))
        yield from rows_of(2000, 25)

    with pytest.raises(DatabaseUnavailableError, match=r"partition 0 of .*: the database was lost: .*, run it again"):
        place.write(rows(), batchsize=10)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])
    assert place.write(rows_of(3))
    assert place.produced() == values_of(rows_of(3))


@pytest.mark.postgresql
def test_a_connection_that_the_server_has_ended_for_being_idle_is_no_refused_row(postgresql_place: SparkPlace) -> None:
    """Spark may compute for longer than idle_in_transaction_session_timeout, while the partition is in progress."""
    place, name = postgresql_place, postgresql_place.engine.url.database
    idle = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )

    def is_ended() -> bool:
        with place.engine.connect() as connection:
            return connection.scalar(idle) == 0

    def rows() -> Iterator[tuple[int, str]]:
        yield from rows_of(25)
        assert eventually(is_ended)
        yield from rows_of(25, 25)

    with place.engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '3s'"))
    with pytest.raises(DatabaseUnavailableError, match="idle-in-transaction timeout"):
        place.write(rows(), batchsize=10)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])


@pytest.mark.slow_cases
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_value_that_is_too_large_for_kafka_leaves_nothing(place: SparkPlace, producer: str) -> None:
    with place.engine.begin() as connection:
        connection.execute(text("DROP TABLE things"))
        connection.execute(text("CREATE TABLE things (id INTEGER NOT NULL PRIMARY KEY)"))
    columns = {"id": "long", "value": "string"}
    rows = [(1, "a"), (2, "x" * 2_000_000), (3, "b")]
    with place.worker(producer=producer) as worker, pytest.raises(DualWriteError, match=r"(?i)size|large|bytes"):
        place.writer(columns=columns).write(worker, 0, rows)
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])


def test_keys_tombstones_headers_and_partitions_arrive_as_they_are(postgresql_place: SparkPlace) -> None:
    place = postgresql_place
    columns = {
        "id": "long",
        "note": "string",
        "key": "binary",
        "value": "binary",
        "headers": HEADERS,
        "partition": "integer",
    }
    rows = [
        (1, "a", b"\x00k", b"\xff", [("h", b"v"), ("n", None)], 1),
        (2, None, None, None, None, 0),
        (3, "c", b"", b"", [], 1),
    ]
    assert place.write(rows, columns=columns)
    got = [(record.partition, record.key, record.value, record.headers) for record in place.broker.read(place.topic)]
    assert got == [(0, None, None, ()), (1, b"\x00k", b"\xff", (("h", b"v"), ("n", None))), (1, b"", b"", ())]
    assert place.stored() == [(1, "a"), (2, None), (3, "c")]


def test_an_upsert_replaces_and_its_records_are_all_produced(place: SparkPlace) -> None:
    assert place.write([(1, "old"), (2, "stays")])
    assert place.write([(1, "a"), (3, "b"), (1, "c")], upsertKeys="id", batchId=1)
    assert place.stored() == [(1, "c"), (2, "stays"), (3, "b")]
    assert len(place.produced()) == 5


ON_SERVERS = pytest.mark.parametrize(
    "database_url",
    SERVERS,
    indirect=True,
)


@ON_SERVERS
def test_one_of_two_concurrent_attempts_writes_and_the_other_succeeds(place: SparkPlace) -> None:
    first = begun(place)
    second, done = in_thread(lambda: place.write(rows_of(5)))
    while not is_awaited(place):
        assert second.is_alive()
    assert first.end() is True
    second.join(PATIENCE)
    assert done == [False]
    assert place.stored() == rows_of(5)
    assert place.produced() == values_of(rows_of(5))


@ON_SERVERS
def test_if_the_first_of_two_attempts_fails_the_other_one_writes(place: SparkPlace) -> None:
    def fail() -> None:
        raise OSError("the executor's disk is full")

    first = begun(place, end=fail)
    second, done = in_thread(lambda: place.write(rows_of(5)))
    while not is_awaited(place):
        assert second.is_alive()
    assert isinstance(first.end(), OSError)
    second.join(PATIENCE)
    assert done == [True]
    assert place.produced() == values_of(rows_of(5))


def test_a_task_that_has_read_rows_raises_an_error_that_may_pass_and_does_not_write_the_rest_of_them(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows can be read only once, and a partition without them would count as written."""
    errors = [DatabaseBusyError("a deadlock")]
    write = Loader.write

    def fail_once(loader: Loader, rows: Any) -> None:
        if errors:
            raise errors.pop()
        write(loader, rows)

    monkeypatch.setattr(Loader, "write", fail_once)
    with pytest.raises(DatabaseBusyError, match="a deadlock"):
        place.write(rows_of(5))
    assert (place.stored(), place.progress()) == ([], [])
    assert place.write(rows_of(5))
    assert place.stored() == rows_of(5)
    assert place.produced() == values_of(rows_of(5))


@pytest.mark.mariadb
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_an_attempt_goes_on_waiting_where_the_database_does_not(place: SparkPlace) -> None:
    with place.engine.begin() as connection:
        connection.execute(text("SET GLOBAL innodb_lock_wait_timeout = 1"))
    first = begun(place)
    try:
        with place.worker() as worker:
            second, done = in_thread(lambda: place.writer(begin=False).write(worker, 0, rows_of(5)))
            while worker.dual_write.counters.rolled_back < 2:
                assert second.is_alive()
            assert first.end() is True
            second.join(PATIENCE)
    finally:
        with place.engine.begin() as connection:
            connection.execute(text("SET GLOBAL innodb_lock_wait_timeout = 50"))
    assert done == [False]
    assert place.produced() == values_of(rows_of(5))


def test_an_unreachable_broker_is_reported_as_soon_as_for_any_unit_of_work(
    place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("there is a second attempt"))
    monkeypatch.setattr(partitions, "time", clock)
    away = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.delivery.timeout.ms": "1000"}
    taken = iter(rows_of(5))
    with place.worker(**away) as worker, pytest.raises(KafkaUnavailableError):
        place.writer(**away).write(worker, 0, taken)
    assert list(taken) == rows_of(5)


class RefusingWorker:
    """A worker whose units of work all end with ``error``, and a clock for the writer."""

    def __init__(self, engine: Engine, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.dual_write = engine, self
        self.seconds = 0.0
        self.attempts: list[float] = []
        self._error = error
        monkeypatch.setattr(partitions, "manager_of", lambda _: SimpleNamespace(require_kafka=lambda: None))
        monkeypatch.setattr(partitions, "time", SimpleNamespace(monotonic=lambda: self.seconds, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def transaction(self) -> Any:
        self.attempts.append(self.seconds)
        assert len(self.attempts) < 1000, "it goes on for ever"
        raise self._error


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (DatabaseBusyError("another attempt has the row"), True),
        (OperationalError("SELECT", None, Exception("disk I/O error")), False),
    ],
    ids=["busy", "disk"],
)
def test_a_task_waits_for_another_attempt_for_as_long_as_a_run_may_take_and_for_nothing_else(
    sqlite: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, waits: bool
) -> None:
    fake: Any = RefusingWorker(sqlite, error, monkeypatch)
    given, rows = options(runTimeout=3), iter(rows_of(3))
    plan = plan_of(schema(**COLUMNS), given, "UTC")
    target = table(column("id", Family.WHOLE), column("note"))
    batch = BegunBatch("job", 0, 1, None)
    writer = PartitionWriter(given, plan, match_columns(plan, target, given), KEEPS["sqlite"], batch)
    with pytest.raises(type(error)) as raised:
        writer.write(fake, 0, rows)
    assert raised.value is error
    assert (len(fake.attempts) > 10, fake.attempts[-1] > 3) == (waits, waits)
    assert list(rows) == rows_of(3)


def refuse_partitions(engine: Engine) -> None:
    """Let the database refuse each row of dualwrite_spark_progress that is a partition's."""
    refused, partition = "dualwrite_spark_progress", engine.dialect.identifier_preparer.quote("partition")
    statements = [
        "CREATE TABLE numbers (number INTEGER NOT NULL PRIMARY KEY)",
        "INSERT INTO numbers VALUES (-1)",
        f"ALTER TABLE {refused} ADD FOREIGN KEY ({partition}) REFERENCES numbers (number)",
    ]
    if engine.dialect.name == "sqlite":
        raises = "WHEN NEW.partition >= 0 BEGIN SELECT RAISE(ABORT, 'refused'); END"
        statements = [f"CREATE TRIGGER refuses BEFORE INSERT ON {refused} {raises}"]
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_a_partition_whose_row_the_database_refuses_does_not_count_as_written(place: SparkPlace) -> None:
    refuse_partitions(place.engine)
    said = "the database refuses a row of dualwrite_spark_progress: .*: look for a constraint, a trigger or a rule"
    with pytest.raises(ConfigurationError, match=said):
        place.write(rows_of(5))
    assert (place.stored(), place.produced(), place.progress()) == ([], [], [])


def test_a_partition_whose_row_the_database_drops_is_rolled_back(
    sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str
) -> None:
    """Another attempt would write it again."""
    place = SparkPlace(sqlite, kafka_broker, dualwrite_application)
    drops = "BEFORE INSERT ON dualwrite_spark_progress WHEN NEW.partition >= 0 BEGIN SELECT RAISE(IGNORE); END"
    with sqlite.begin() as connection:
        connection.execute(text(f"CREATE TRIGGER drops {drops}"))
    with pytest.raises(ConfigurationError, match="the database has not stored a row of dualwrite_spark_progress: look"):
        place.write(rows_of(5))
    assert (place.stored(), place.produced()) == ([], [])


def test_a_partition_writer_is_refused_outside_of_a_task(postgresql_place: SparkPlace) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(ConfigurationError, match="a partition writer is called by Spark"):
        postgresql_place.writer()(rows_of(1))


def test_a_partition_that_the_batch_does_not_have_is_refused(
    sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was made for another DataFrame: the batch would be complete without all of its rows."""
    pytest.importorskip("pyspark")
    place = SparkPlace(sqlite, kafka_broker, dualwrite_application)
    writer = place.writer(1)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=lambda: 1))
    with pytest.raises(ConfigurationError, match="made for 1 partitions, and this is partition 1: make the writer for"):
        writer(rows_of(3))
    assert place.stored() == []


def test_a_row_is_not_taken_for_a_partition(
    sqlite: Engine, kafka_broker: KafkaBroker, dualwrite_application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``df.foreach`` passes it: each of its texts would be a row, if it has as many characters as the table has
    columns."""
    row = pytest.importorskip("pyspark.sql").Row("DE", "AT")
    place = SparkPlace(sqlite, kafka_broker, dualwrite_application)
    with sqlite.begin() as connection:
        connection.execute(text("DROP TABLE things"))
        connection.execute(text("CREATE TABLE things (id VARCHAR(2), note VARCHAR(2))"))
    writer = place.writer(1, columns={"id": "string", "note": "string"})
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=lambda: 0))
    with pytest.raises(ConfigurationError, match="was given one row: use df"):
        writer(row)
    assert place.stored() == []


def test_a_batch_writer_needs_a_job_and_gets_its_batches_from_spark(postgresql_place: SparkPlace) -> None:
    given = postgresql_place.keywords()
    with pytest.raises(ConfigurationError, match="option 'job' is missing"):
        batch_writer(**{**given, "job": None})
    with pytest.raises(ConfigurationError, match="option 'batchId': leave it out"):
        batch_writer(**given, batchId=1)
