"""Whole batches in Spark: the function, the data source, and streams, on PostgreSQL and the bundled broker."""

import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from dualwrite.errors import ConfigurationError, FencedError
from dualwrite.spark import recover_job, register, write_batch
from tests.support.coordinator.event_table import slot_rows
from tests.support.spark.frames import THINGS, forget_last_commit, judge, put, save, things
from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]


@pytest.fixture
def place(postgresql_place: SparkPlace) -> SparkPlace:
    return postgresql_place


def failing_once(step: str) -> Callable[[str], None]:
    """Fails the first attempts of some partitions right before ``step``; elsewhere, and on the driver, nothing."""

    def observe(name: str) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and name == step and context.attemptNumber() == 0 and context.partitionId() % 2:
            raise OSError(f"the executor's disk is full before {step}")

    return observe


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_all_partitions_commit_together_and_a_second_write_has_no_effect(
    spark: "SparkSession", place: SparkPlace, producer: str
) -> None:
    for _ in range(2):
        write_batch(things(spark), 7, **place.keywords(), producer=producer, driver_bytes=0)
    judge(place, rows_of(100))


def test_rows_that_the_driver_writes_are_committed_together_with_those_of_the_tasks(
    spark: "SparkSession", place: SparkPlace
) -> None:
    from pyspark.sql import functions as f

    long = f.when(f.col("id") < 25, f.rpad("note", 90, "x")).otherwise(f.col("note"))
    options = {**place.keywords(), "driver_bytes": 4 * 25 * (256 + 2 * 60)}  # one of the four partitions has more
    for _ in range(2):
        write_batch(things(spark).select("id", long.alias("note")), 7, **options)
    judge(place, [(key, note.ljust(90, "x") if key < 25 else note) for key, note in rows_of(100)])
    assert (len(slot_rows(place.engine))) == 2, "one of the task, and one of the driver"


def test_a_task_that_is_run_again_returns_its_rows_once(spark: "SparkSession", place: SparkPlace) -> None:
    from pyspark.sql import functions as f

    def fail_once(note: str) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() % 2:
            raise OSError("the executor's disk is full")
        return note

    failing = f.udf(fail_once, useArrow=False)
    write_batch(things(spark).select("id", failing("note").alias("note")), 0, **place.keywords())
    judge(place, rows_of(100))


@pytest.mark.parametrize("step", ["STAGE_ROWS", "PREPARE_KAFKA", "TRANSFER_LEASE"])
def test_tasks_that_are_run_again_count_once(spark: "SparkSession", place: SparkPlace, step: str) -> None:
    write_batch(things(spark), 0, on_step=failing_once(step), **place.keywords(), driver_bytes=0)
    judge(place, rows_of(100))


def test_a_module_missing_on_the_executors_is_named(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(ConfigurationError, match="the executors' Python has no module sqlalchemy"):
        write_batch(things(spark), 0, **place.keywords())
    monkeypatch.undo()
    write_batch(things(spark), 0, **place.keywords())
    judge(place, rows_of(100))


def test_empty_partitions_and_batches_without_partitions_are_committed(
    spark: "SparkSession", place: SparkPlace
) -> None:
    write_batch(things(spark).where("id IN (3, 60)"), 0, **place.keywords())
    write_batch(spark.createDataFrame([], THINGS), 1, **place.keywords())
    write_batch(spark.createDataFrame(spark.sparkContext.emptyRDD(), THINGS), 2, **place.keywords())
    judge(place, [(3, "note 3"), (60, "note 60")])


@pytest.mark.parametrize("by", ["uuid()", "rand()", "a function in Python"])
def test_a_nondeterministic_value_is_the_same_on_both_sides(spark: "SparkSession", place: SparkPlace, by: str) -> None:
    """Spark evaluates nothing twice, for the table and for the JSON, though a function in Python does not say that it
    is not deterministic."""
    from pyspark.sql import functions as f

    of_python = f.udf(lambda _: str(uuid.uuid4()), useArrow=False)
    made = of_python("id") if by.startswith("a ") else f.expr(f"CAST({by} AS STRING)")
    write_batch(spark.range(0, 50, 1, 4).select("id", made.alias("note")), 0, **place.keywords())
    judge(place, [(key, note) for key, note in place.stored()])
    assert len({note for _, note in place.stored()}) == 50


def test_later_rows_win_across_partitions(spark: "SparkSession", place: SparkPlace) -> None:
    twice = things(spark, 10, 2).union(things(spark, 10, 2).selectExpr("id", "concat('later ', id) AS note"))
    write_batch(twice, 0, **place.keywords(), upsertKeys=["id"])
    assert place.stored() == [(number, f"later {number}") for number in range(10)]
    assert len(place.produced()) == 20


def test_a_later_run_fences_an_earlier_one_in_progress(spark: "SparkSession", place: SparkPlace) -> None:
    overtaken: list[str] = []

    class Overtaking:
        """On the driver, right before its decision; elsewhere nothing."""

        def __call__(self, step: str) -> None:
            if step == "DECIDE" and not overtaken:
                overtaken.append(step)
                write_batch(things(spark, begin=100), 1, **place.keywords())

        def __reduce__(self) -> Any:
            return str, ()

    with pytest.raises(FencedError, match="another run of the job has begun"):
        write_batch(things(spark), 0, on_step=Overtaking(), **place.keywords())
    judge(place, rows_of(100, 100))
    assert recover_job(**place.keywords()) == {}


class TestDataSource:
    @pytest.fixture(autouse=True)
    def registered(self, spark: "SparkSession") -> None:
        register(spark)

    def test_a_wrong_option_is_named_before_anything_is_written(self, spark: "SparkSession", place: SparkPlace) -> None:
        for options, message in (
            ({"dbtable": "thing"}, "no table 'thing'; did you mean 'things'"),
            ({"topics": "x"}, "there is no option 'topics': did you mean 'topic'"),
            ({"upsertKeys": "note"}, "is not a primary or unique key"),
            ({"mode": "overwrite"}, "cannot be overwritten"),
        ):
            with pytest.raises(Exception, match=message):
                save(things(spark), place, **options)
        judge(place, [])

    def test_a_refused_row_rolls_the_batch_back(self, spark: "SparkSession", place: SparkPlace) -> None:
        save(things(spark, 10), place)
        with pytest.raises(Exception, match="the database refuses a row: duplicate key value"):
            save(things(spark, 20, begin=5), place)
        judge(place, rows_of(10))

    def test_the_data_source_writes_the_same_rows_as_the_function(
        self, spark: "SparkSession", place: SparkPlace
    ) -> None:
        """One has them from Arrow, the other by pickle."""
        with place.engine.begin() as connection:
            connection.execute(
                text("CREATE TABLE many (n INT, at TIMESTAMPTZ, local TIMESTAMP, d DATE, price NUMERIC(10, 2), "
                     "data BYTEA, ok BOOLEAN, items TEXT, pair TEXT)")
            )  # fmt: skip
        df = spark.sql(
            "SELECT 1 AS n, TIMESTAMP '2026-03-29 01:30:00.123456' AS at, TIMESTAMP_NTZ '2026-03-29 02:30:00' AS local,"
            " DATE '2026-01-01' AS d, CAST(12.50 AS DECIMAL(10, 2)) AS price, X'00FF' AS data, true AS ok, "
            "array(1, 2) AS items, named_struct('a', 1, 'b', TIMESTAMP '2026-07-01 00:00:00') AS pair"
        )
        write_batch(df, **{**place.keywords(), "dbtable": "many"})
        save(df, place, dbtable="many")
        with place.engine.connect() as connection:
            stored = [tuple(row) for row in connection.execute(text("SELECT * FROM many"))]
        assert stored[0] == stored[1]
        first, second = place.produced()
        assert first == second
        expected = df.selectExpr("to_json(struct(*)) AS value").collect()[0].value
        assert json.loads(first or b"") == json.loads(expected)

    def test_a_stream_without_a_job_is_refused(self, spark: "SparkSession", place: SparkPlace, tmp_path: Path) -> None:
        put(tmp_path, rows_of(1))
        texts = {name: str(value) for name, value in place.keywords().items() if name != "job"}
        stream = spark.readStream.schema(THINGS).json(str(tmp_path))
        query = stream.writeStream.format("dualwrite").options(**texts)
        with pytest.raises(Exception, match="option 'job' is missing"):
            query.option("checkpointLocation", str(tmp_path / "c")).trigger(
                availableNow=True
            ).start().awaitTermination()


def test_an_aggregation_that_updates_is_exactly_once_by_foreach_batch(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    options = {**place.keywords(), "upsertKeys": "id"}

    def run() -> None:
        stream = spark.readStream.schema(THINGS).json(str(source))
        counts = stream.groupBy((stream.id % 3).alias("id")).count().selectExpr("id", "CAST(count AS STRING) AS note")
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(lambda df, number: write_batch(df, number, **options))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    put(source, rows_of(9))
    run()
    put(source, rows_of(3, 9))
    run()
    forget_last_commit(checkpoint)
    run()
    assert place.stored() == [(0, "4"), (1, "4"), (2, "4")]
    assert len(place.produced()) == 6, "three rows in each of two batches"


def test_write_batch_refuses_a_stream(spark: "SparkSession", place: SparkPlace) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="foreachBatch"):
        write_batch(stream, **place.keywords())


def test_a_stream_without_the_batchs_number_is_refused_before_anything_is_written(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    (tmp_path / "in").mkdir()
    put(tmp_path / "in", rows_of(10))
    options = place.keywords()
    stream = spark.readStream.schema(THINGS).json(str(tmp_path / "in"))
    writing = stream.writeStream.foreachBatch(lambda df, _: write_batch(df, **options))
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the number that foreachBatch passes"):
        query.awaitTermination(PATIENCE)
    judge(place, [])
