"""What the functions for Spark's driver do and check, without Spark, a broker and executors."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, select, text

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.errors import BatchChangedError, ConfigurationError, KafkaUnavailableError
from dualwrite.spark.batch import write_batch as driver
from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.spark.partitions.writers import partition_writer
from dualwrite.spark.plan.options import options_of
from tests.spark.conftest import ready
from tests.support.spark.expected_rows import schema
from tests.support.spark.fake_frames import FakeFrame, let_write_batch_take_it
from tests.support.spark.writing import COLUMNS, THINGS, rows_of, url_of

pytestmark = pytest.mark.usefixtures("nothing_kept")


def keywords(engine: Engine, **changed: Any) -> dict[str, Any]:
    given = {"url": url_of(engine), "dbtable": "things", "topic": "things", "application": "a", "job": "job"}
    return {**given, "kafka.bootstrap.servers": "127.0.0.1:1", **changed}


@pytest.fixture
def sqlite(sqlite: Engine) -> Engine:
    """With the table things."""
    with sqlite.begin() as connection:
        connection.execute(text(THINGS))
    return sqlite


def know_a_batch(engine: Engine) -> None:
    """Of three rows, with the number 1."""
    values = {"job": "job", "batch_id": 1, "run_id": 1, "row_count": 3}
    with engine.begin() as connection:
        now = database_of(engine.dialect).now()
        connection.execute(insert(spark_batch).values(**values, committed_at=now))
        connection.execute(text("INSERT INTO things VALUES (0, 'note 0')"))


@pytest.mark.parametrize("streams", [True, False])
def test_a_stream_reads_the_rows_of_a_batch_that_it_skips(
    sqlite: Engine, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    """A stateful query stores its state while its rows are read."""
    let_write_batch_take_it(monkeypatch)
    know_a_batch(sqlite)
    rows = iter(rows_of(3))
    df: Any = FakeFrame(schema(**COLUMNS), rows, streams=streams)
    assert driver.write_batch(df, 1, **keywords(sqlite, knownBatch="skip")) == (False, 3, 3)
    assert list(rows) == ([] if streams else rows_of(3))


def test_a_known_batch_that_is_forgotten_before_its_rows_are_compared_is_an_error(
    sqlite: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten_meanwhile() -> Iterator[Any]:
        with sqlite.begin() as connection:
            connection.execute(delete(spark_batch))
        yield from rows_of(3)

    let_write_batch_take_it(monkeypatch)
    know_a_batch(sqlite)
    df: Any = FakeFrame(schema(**COLUMNS), forgotten_meanwhile())
    said = "batch 1 of job 'job' was committed before and is not remembered any more: write fewer batches of a job at"
    with pytest.raises(BatchChangedError, match=said):
        driver.write_batch(df, 1, **keywords(sqlite))


def test_a_job_of_sparks_that_fails_ends_its_run_at_once(sqlite: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prepared transactions would hold up readers of the topic until the next run."""

    def fail() -> Iterator[Any]:
        yield from rows_of(1)
        raise OSError("the executor's disk is full")

    let_write_batch_take_it(monkeypatch)
    df: Any = FakeFrame(schema(**COLUMNS), fail())
    with pytest.raises(OSError, match="disk is full"):
        driver.write_batch(df, 1, **keywords(sqlite))
    with sqlite.connect() as connection:
        assert connection.scalars(select(spark_run.c.state)).all() == ["aborted"]


def test_a_batch_without_the_result_of_a_task_is_rolled_back(sqlite: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads the results from a connection of its JVM's, and takes the end of that for theirs."""
    let_write_batch_take_it(monkeypatch)
    df: Any = FakeFrame(schema(**COLUMNS), rows_of(3))
    df.rdd.getNumPartitions = lambda: 2
    with pytest.raises(ConnectionError, match="the results of 1 of 2 tasks have reached the driver's"):
        driver.write_batch(df, 1, **keywords(sqlite))
    with sqlite.connect() as connection:
        assert connection.scalars(select(spark_run.c.state)).all() == ["aborted"]
        assert connection.scalars(text("SELECT id FROM things")).all() == []


def test_recover_job_raises_what_kept_a_slot_from_being_recovered(
    sqlite: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = KafkaUnavailableError("gave up")
    monkeypatch.setattr(driver, "manager_of", lambda _: SimpleNamespace(sweep=lambda: ({}, [error])))
    with pytest.raises(KafkaUnavailableError, match="gave up"):
        driver.recover_job(**keywords(sqlite))


WRITES: dict[str, Callable[..., object]] = {
    "partitions": partition_writer,
    "whole batch": lambda df, **given: driver.write_batch(df, 1, **given),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_setting_that_no_producer_knows_is_named_by_the_driver(sqlite: Engine, write: str) -> None:
    """Otherwise every task would fail with it."""
    df: Any = FakeFrame(schema(**COLUMNS), [])
    with pytest.raises(ConfigurationError, match=r"linger\.mss"):
        WRITES[write](df, **keywords(sqlite, **{"kafka.linger.mss": "5"}))


@pytest.mark.parametrize("write", WRITES)
def test_a_database_file_is_refused_on_a_cluster(sqlite: Engine, write: str) -> None:
    df: Any = FakeFrame(schema(**COLUMNS), [], master="spark://a:7077")
    with pytest.raises(ConfigurationError, match="SQLite works only with a local Spark master"):
        WRITES[write](df, **keywords(sqlite))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (partition_writer, r"every micro-batch would be batch 0 of the job: use foreachBatch\(batch_writer"),
        (driver.write_batch, r"its last batch again, which would be written twice: call write_batch\(df, batch_id"),
    ],
)
def test_a_micro_batch_without_its_number_is_refused(sqlite: Engine, write: Any, said: str) -> None:
    df: Any = FakeFrame(schema(**COLUMNS), [], streams=True)
    with pytest.raises(ConfigurationError, match=said):
        write(df, **keywords(sqlite))


@pytest.mark.parametrize(("run_timeout", "seconds"), [(10, 10.0), (3600, 54.0)])
def test_a_run_with_resume_has_both_limits(sqlite: Engine, run_timeout: int, seconds: float) -> None:
    changed = {"twoPhase": "resume", "kafka.transaction.timeout.ms": "60000", "runTimeout": run_timeout}
    assert WholeBatch(options_of(keywords(sqlite, **changed))).run_seconds == pytest.approx(seconds)


@pytest.mark.mariadb
def test_partitions_are_not_written_to_a_table_without_transactions(mariadb_url: str) -> None:
    for engine in ready(mariadb_url):
        with engine.begin() as connection:
            connection.execute(text(f"{THINGS} ENGINE = MyISAM"))
        df: Any = FakeFrame(schema(**COLUMNS), [])
        with pytest.raises(ConfigurationError, match="kept by the engine MyISAM, which has no transactions"):
            partition_writer(df, **keywords(engine))
