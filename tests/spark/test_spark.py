"""The shortest way through Spark with each of the writers, on PostgreSQL and the bundled broker.

What else may happen is in test_spark_partitions.py and test_spark_batches.py, among the slow tests.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dualwrite.errors import InputError
from dualwrite.spark import partition_writer, register, write_batch
from tests.support.spark.frames import THINGS, forget_last_commit, judge, put, save, things
from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.postgresql


@pytest.fixture
def place(postgresql_place: SparkPlace) -> SparkPlace:
    return postgresql_place


@pytest.mark.slow
def test_a_dataframe_written_twice_is_stored_once(spark: "SparkSession", place: SparkPlace) -> None:
    df = things(spark)
    for _ in range(2):
        df.foreachPartition(partition_writer(df, **place.keywords()))
    assert place.stored() == rows_of(100)
    assert place.produced() == values_of(rows_of(100))
    assert place.progress() == [(0, 25)] * 4


@pytest.mark.slow
def test_a_job_that_fails_for_good_leaves_nothing_and_says_why(spark: "SparkSession", place: SparkPlace) -> None:
    bad = things(spark).selectExpr("id", "CASE WHEN id = 60 THEN repeat('x', 101) ELSE note END AS note")
    with pytest.raises(InputError, match="value too long"):
        write_batch(bad, 0, **place.keywords())
    judge(place, [])
    write_batch(things(spark), 0, **place.keywords())
    judge(place, rows_of(100))


@pytest.mark.slow
def test_a_dataframe_is_written_once_by_the_data_source(spark: "SparkSession", place: SparkPlace) -> None:
    register(spark)
    for _ in range(2):
        save(things(spark), place, batchId="3", batchsize="7", poolSize="16", producer="librdkafka")
    judge(place, rows_of(100))


@pytest.mark.slow
def test_a_stream_is_written_once_though_its_last_batch_is_run_again(
    spark: "SparkSession", place: SparkPlace, tmp_path: Path
) -> None:
    register(spark)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        texts = {name: str(value) for name, value in place.keywords().items()}
        stream = spark.readStream.schema(THINGS).json(str(source))
        query = (
            stream.writeStream.format("dualwrite")
            .options(**texts)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    for number in range(2):
        put(source, rows_of(10, number * 10))
        run()
    forget_last_commit(checkpoint)
    run()
    judge(place, rows_of(20))
