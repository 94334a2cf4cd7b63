"""In Spark, on PostgreSQL: a batch that is run again is compared with what was committed under its number."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dualwrite.errors import BatchChangedError
from dualwrite.spark import BatchResult, register, write_batch
from tests.support.spark.frames import THINGS, forget_last_commit, judge, put, save, things
from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]
WRITTEN, KNOWN = BatchResult(True, 100, 100), BatchResult(False, 100, 100)


@pytest.fixture
def place(postgresql_place: SparkPlace) -> SparkPlace:
    return postgresql_place


def in_another_form(df: "DataFrame", form: str) -> "DataFrame":
    """``packed``: each row is one binary value; ``lines``: Spark writes the line and the JSON; ``values``: neither."""
    if form == "packed":
        return df
    if form == "lines":
        return df.selectExpr("id", "note", "CAST(0 AS INT) AS partition")
    return df.selectExpr("id", "note", "CAST(id % 3 AS DOUBLE) AS share")


@pytest.mark.parametrize("form", ["packed", "lines", "values"])
def test_the_same_rows_are_known_and_other_rows_are_refused(
    spark: "SparkSession", place: SparkPlace, form: str
) -> None:
    options = {**place.keywords(), "driver_bytes": 0, "table_columns": ["id", "note"]}
    first = in_another_form(things(spark), form)
    assert write_batch(first, 7, **options) == WRITTEN
    assert write_batch(first, 7, **options) == KNOWN
    assert write_batch(first.repartition(3, "note"), 7, **options) == KNOWN
    with pytest.raises(BatchChangedError, match="was written with 100 rows, and some of them differ now"):
        write_batch(in_another_form(things(spark, begin=1), form), 7, **options)
    with pytest.raises(BatchChangedError, match="was written with 100 rows, and has 99 now"):
        write_batch(first.where("id > 0"), 7, **options)
    assert place.stored() == rows_of(100)
    assert len(place.produced()) == 100


def test_skip_runs_no_job_of_spark(spark: "SparkSession", place: SparkPlace) -> None:
    from pyspark.sql import functions as f

    def fail(_: int) -> str:
        raise OSError("a row was computed")

    write_batch(things(spark), 7, **place.keywords())
    never = things(spark).select("id", f.udf(fail, useArrow=False)("id").alias("note"))
    assert write_batch(never, 7, known_batch="skip", **place.keywords()) == KNOWN


def test_the_data_source_refuses_other_rows(spark: "SparkSession", place: SparkPlace) -> None:
    register(spark)
    for _ in range(2):
        save(things(spark).repartition(3), place, batchId="7")
    with pytest.raises(Exception, match=r"dualwrite\.errors\.BatchChangedError: batch 7 of job .* differ now"):
        save(things(spark, begin=1), place, batchId="7")
    judge(place, rows_of(100))


@pytest.mark.parametrize("way", ["foreachBatch", "format"])
def test_a_micro_batch_that_spark_runs_again_in_another_order_is_known(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path, way: str
) -> None:
    register(spark)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    texts = {name: str(value) for name, value in place.keywords().items()}

    def run(partitions: int, note: str = "note") -> None:
        stream = spark.readStream.schema(THINGS).json(str(source)).selectExpr("id", f"{note} AS note")
        writing = stream.repartition(partitions).writeStream
        if way == "format":
            writing = writing.format("dualwrite").options(**texts)
        else:
            writing = writing.foreachBatch(
                lambda df, number: write_batch(df.orderBy(df.id.desc()), number, **place.keywords())
            )
        query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    put(source, rows_of(9))
    run(2)
    forget_last_commit(checkpoint)
    run(5)
    judge(place, rows_of(9))
    forget_last_commit(checkpoint)
    with pytest.raises(Exception, match="was written with 9 rows, and some of them differ now"):
        run(2, "upper(note)")
    judge(place, rows_of(9))
