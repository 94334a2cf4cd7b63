"""foreachPartition and foreachBatch in Spark, on PostgreSQL and the bundled broker."""

import gc
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from dualwrite.coordinator.sql.tables import spark_progress, spark_run
from dualwrite.errors import (
    BatchChangedError,
    ConfigurationError,
    DatabaseNotReadyError,
    InputError,
    KafkaUnavailableError,
)
from dualwrite.spark import batch_writer, partition_writer, write_batch
from dualwrite.spark.workers import FIRST_ANSWER, engine_of
from tests.support.spark.expected_rows import options
from tests.support.spark.frames import things
from tests.support.spark.writing import SparkPlace, rows_of, url_of, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]


@pytest.fixture
def place(postgresql_place: SparkPlace) -> SparkPlace:
    return postgresql_place


class Failing:
    """A writer that fails after what it has written, or before, at a task's first attempts."""

    def __init__(self, writer: Any, *, after: bool) -> None:
        self._writer, self._after = writer, after

    def __call__(self, rows: Iterable[Any]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        fails = context.attemptNumber() < 2 and context.partitionId() % 2 == 0
        if self._after:
            self._writer(rows)
        if fails:
            raise OSError("the executor's disk is full")
        if not self._after:
            self._writer(rows)


@pytest.mark.parametrize("after", [True, False])
def test_tasks_that_are_run_again_have_no_second_effect(spark: "SparkSession", place: SparkPlace, after: bool) -> None:
    df = things(spark)
    df.foreachPartition(Failing(partition_writer(df, **place.keywords()), after=after))
    assert place.stored() == rows_of(100)
    assert place.produced() == values_of(rows_of(100))


def test_a_task_that_spark_ends_in_the_middle_of_its_partition_writes_nothing(
    spark: "SparkSession", place: SparkPlace
) -> None:
    """What comes before the writer fails. PySpark lets the writer go on, as if its rows had ended."""
    from pyspark.sql import functions as f

    def fail_once(number: int) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and number % 1000 == 999:
            raise OSError("the executor's disk is full")
        return number

    rows = things(spark, 2000, 2)
    df = rows.select(f.udf(fail_once, "bigint", useArrow=False)("id").alias("id"), "note")
    df.foreachPartition(partition_writer(df, **place.keywords()))
    assert place.stored() == rows_of(2000)
    assert place.produced() == values_of(rows_of(2000))


def test_pythons_collector_does_not_look_at_everything_after_each_task(
    spark: "SparkSession", place: SparkPlace
) -> None:
    def spared(_: Iterable[Any]) -> list[int]:
        return [gc.get_freeze_count()]

    df = things(spark)
    df.foreachPartition(partition_writer(df, **place.keywords()))
    assert min(spark.sparkContext.parallelize(range(2), 2).mapPartitions(spared).collect()) > 10_000


def test_without_the_progress_a_task_that_is_run_again_would_be_noticed(
    spark: "SparkSession", place: SparkPlace
) -> None:
    """The negative control: the row of each partition is taken away before its second attempt."""
    df = things(spark, partitions=1)
    writer = partition_writer(df, **place.keywords(), upsertKeys="id")
    df.foreachPartition(writer)
    with place.engine.begin() as connection:
        connection.execute(text("DELETE FROM dualwrite_spark_progress WHERE partition = 0"))
    df.foreachPartition(writer)
    assert place.produced() != values_of(rows_of(100))


def test_a_batch_with_another_number_of_partitions_is_refused(spark: "SparkSession", place: SparkPlace) -> None:
    write = batch_writer(**place.keywords())
    write(things(spark), 5)
    with pytest.raises(BatchChangedError, match="batch 5 of job 'nightly' has 3 partitions now and had 4 when"):
        write(things(spark, partitions=3), 5)
    write(things(spark), 5)
    assert place.produced() == values_of(rows_of(100))


def test_dates_are_numbers_of_batches_too(spark: "SparkSession", place: SparkPlace) -> None:
    write = batch_writer(**place.keywords(), keepBatches=2)
    write(things(spark), 20261122)
    for _ in range(2):
        write(things(spark, begin=100), 20261001)  # a backfill, and again
    with pytest.raises(BatchChangedError, match=r"batch 20260901 of job 'nightly' is older .*: raise keepBatches"):
        write(things(spark, begin=200), 20260901)
    write(things(spark, begin=200), 20261123)
    with pytest.raises(BatchChangedError, match=r"batch 20261001 of job 'nightly' .*not known whether it was written"):
        write(things(spark, begin=100), 20261001)
    assert place.produced() == values_of(rows_of(300))


def test_a_written_batch_is_not_taken_for_that_of_another_table_unless_it_is_skipped(
    spark: "SparkSession", place: SparkPlace
) -> None:
    with place.engine.begin() as connection:
        connection.execute(text("CREATE TABLE others (LIKE things)"))
    batch_writer(**place.keywords())(things(spark), 5)
    elsewhere = {**place.keywords(), "dbtable": "others"}
    said = r"batch 5 of job 'nightly' was written to table public\.things, and not to public\.others: give other rows"
    with pytest.raises(BatchChangedError, match=said):
        batch_writer(**elsewhere)(things(spark), 5)
    batch_writer(**elsewhere, knownBatch="skip")(things(spark), 5)
    with place.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM others")) == 0
    assert place.produced() == values_of(rows_of(100))


def test_rows_that_change_from_run_to_run_are_an_error_of_the_driver(spark: "SparkSession", place: SparkPlace) -> None:
    write = batch_writer(**place.keywords(), upsertKeys="id")
    write(things(spark), 0)
    changed = things(spark).selectExpr("id", "CASE WHEN id = 60 THEN 'changed' ELSE note END AS note")
    with pytest.raises(BatchChangedError, match="partition 2 of batch 0 of job 'nightly' was written with 25 rows"):
        write(changed, 0)
    assert place.produced() == values_of(rows_of(100))


def test_a_bad_row_fails_the_batch_which_continues_once_it_is_right(spark: "SparkSession", place: SparkPlace) -> None:
    write = batch_writer(**place.keywords())
    bad = things(spark).selectExpr("id", "CASE WHEN id = 60 THEN repeat('x', 101) ELSE note END AS note")
    said = r"partition 2 of batch 0 .*: the database refuses a row: value too long"
    with pytest.raises(InputError, match=said) as raised:
        write(bad, 0)
    assert "\n" not in str(raised.value)
    write(things(spark), 0)
    assert place.stored() == rows_of(100)
    assert place.produced() == values_of(rows_of(100))


def test_a_partition_after_a_shuffle_is_the_same_in_another_order(spark: "SparkSession", place: SparkPlace) -> None:
    for _ in range(2):
        df = things(spark).repartition(3, "id")
        batch_writer(**place.keywords())(df, 0)
    assert place.produced() == values_of(rows_of(100))


def test_a_cluster_that_does_not_answer_is_found_by_the_driver_once_and_soon(
    spark: "SparkSession", place: SparkPlace
) -> None:
    options = {**place.keywords(), "kafka.bootstrap.servers": "127.0.0.1:1"}
    for write in (batch_writer(**options), lambda df, number: write_batch(df, number, **options)):
        begun = time.monotonic()
        with pytest.raises(KafkaUnavailableError, match=r"nothing was begun: broker 127\.0\.0\.1:1"):
            write(things(spark), 0)
        assert time.monotonic() - begun < 3 * FIRST_ANSWER
    with place.engine.connect() as connection:
        assert connection.execute(select(spark_progress)).all() == []
        assert connection.execute(select(spark_run)).all() == []


def test_a_module_missing_on_the_executors_is_explained_to_foreach_partition(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    writer = partition_writer(things(spark), **place.keywords())
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(Exception, match="No module named 'sqlalchemy' on the executors: install the driver's packages"):
        things(spark).foreachPartition(writer)
    with pytest.raises(ConfigurationError, match="the executors' Python has no module sqlalchemy: install"):
        batch_writer(**place.keywords())(things(spark), 0)


def test_a_writer_of_another_dataframe_is_noticed(spark: "SparkSession", place: SparkPlace) -> None:
    writer = partition_writer(things(spark, partitions=2), **place.keywords())
    with pytest.raises(Exception, match=r"made for 2 partitions, and this is partition [23]: make the writer for the"):
        things(spark, partitions=4).foreachPartition(writer)


def test_an_empty_dataframe_and_one_without_partitions(spark: "SparkSession", place: SparkPlace) -> None:
    write = batch_writer(**place.keywords())
    write(things(spark, 0), 0)
    write(spark.createDataFrame([], "id long, note string"), 1)
    write(things(spark, 3, 1), 2)
    assert place.produced() == values_of(rows_of(3))


@pytest.mark.parametrize(
    ("query", "changed", "said"),
    [
        ("SELECT 1L AS id, 'a' AS nota", {}, "table things has no column 'nota'; did you mean 'note'"),
        ("SELECT 'a' AS note", {}, "column 'id' of table things is NOT NULL, and the DataFrame has none of that name"),
        ("SELECT '1' AS id, 'a' AS note", {}, "column 'id' is string in the DataFrame and INTEGER in table things"),
        ("SELECT 1L AS id, 2 AS key", {}, "column 'key' is integer; Kafka's is string or binary: cast or rename it"),
        ("SELECT 1L AS id, INTERVAL 1 DAY AS note", {}, "column 'note' is interval day, which cannot be written; cast"),
        ("SELECT 1L AS id", {"topic": None}, "no topic: give the option topic, or a column topic of strings"),
        ("SELECT 1L AS id", {"dbtable": "thing"}, "the database has no table 'thing'; did you mean 'things'?"),
        ("SELECT 1L AS id, 'a' AS note", {"upsertKeys": "note"}, r"\(note\) is not a primary or unique key of"),
        ("SELECT 1L AS id", {"kafka.transactional.id": "x"}, r"transactional\.id"),
    ],
)  # fmt: skip
def test_a_wrong_column_is_named_before_anything_is_written(
    spark: "SparkSession", place: SparkPlace, query: str, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        partition_writer(spark.sql(query), **{**place.keywords(), **changed})
    assert "\n" not in str(raised.value)
    with place.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dualwrite_spark_progress")) == 0


def test_a_stream_and_missing_tables_are_named(spark: "SparkSession", place: SparkPlace) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match=r"is a stream: use df\.writeStream\.foreachBatch"):
        partition_writer(stream, **place.keywords())
    with place.engine.begin() as connection:
        connection.execute(text("DROP TABLE dualwrite_spark_progress"))
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        partition_writer(things(spark), **place.keywords())


EVERY_TYPE = """
    SELECT 1 AS id, 'tab\\tx' AS t, X'00ff' AS b, CAST('12.30' AS decimal(10,2)) AS n, true AS f,
    date'2024-02-29' AS day, timestamp'2024-07-29 12:00:00.123456' AS at,
    timestamp_ntz'2024-07-29 12:00:00.5' AS plain, array(1, NULL) AS a,
    map('k', 1.5D) AS m, struct('x' AS p, NULL AS q) AS st, 1.5D AS `Double`, 'k' AS key
"""


def test_every_type_is_in_the_table_as_it_is_in_the_json(
    spark: "SparkSession", place: SparkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    with place.engine.begin() as connection:
        connection.execute(
            text(
                'CREATE TABLE kinds (id int PRIMARY KEY, t text, b bytea, n numeric(10,2), f boolean, day date, "at" '
                'timestamptz, plain timestamp, a jsonb, m json, st text, "Double" double precision)'
            )
        )
    df = spark.sql(EVERY_TYPE)
    batch_writer(**{**place.keywords(), "dbtable": "kinds"})(df, 0)
    (record,) = place.broker.read(place.topic)
    assert (record.key, record.value) == (
        b"k",
        df.drop("key").selectExpr("to_json(struct(*)) AS j").head()[0].encode(),  # type: ignore[index]
    )
    with place.engine.connect() as connection:
        row = connection.execute(
            text("""
                SELECT t, b, n::text, f, day::text, "at" AT TIME ZONE 'UTC', plain::text, a, m, st, "Double" FROM kinds
            """)
        ).one()
    assert [str(value) if not isinstance(value, bytes) else value for value in row] == [
        "tab\tx",
        b"\x00\xff",
        "12.30",
        "True",
        "2024-02-29",
        "2024-07-29 10:00:00.123456",
        "2024-07-29 12:00:00.5",
        "[1, None]",
        "{'k': 1.5}",
        '{"p":"x"}',
        "1.5",
    ]


def test_sqlite_serves_a_local_master(spark: "SparkSession", place: SparkPlace, tmp_path: Path) -> None:
    from dualwrite.schema import upgrade_engine

    url = f"sqlite:///{tmp_path / 'local.db'}"
    engine = engine_of(options(url=url))
    upgrade_engine(engine)
    sqlite = SparkPlace(engine, place.broker, "on-sqlite")
    batch_writer(**sqlite.keywords())(things(spark), 0)
    batch_writer(**sqlite.keywords())(things(spark), 0)
    assert sqlite.stored() == rows_of(100)
    assert sqlite.produced() == values_of(rows_of(100))
    assert url_of(engine) == url
    engine.dispose()


def test_a_streams_batches_are_written_and_its_end_is_noticed(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    stream = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).json(str(source))
    for batch in range(3):
        lines = [f'{{"id":{key},"note":"{note}"}}' for key, note in rows_of(10, 10 * batch)]
        partial = source / f".{batch}.json"
        partial.write_text("\n".join(lines))
        os.rename(partial, source / f"{batch}.json")
    write = stream.writeStream.foreachBatch(batch_writer(**place.keywords()))
    query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert place.produced() == values_of(rows_of(30))
    assert place.progress() == [(0, 10), (1, 10), (2, 10)]
