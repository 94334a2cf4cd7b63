"""The archive of the classes that Spark loads.

``python -m tests.support.spark.class_archive FILE`` is a session that leaves it. It waits for its JVM, which pyspark
names in a private attribute alone.
"""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.class_archives import QUICK, archive, make_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_CLASSES = archive("spark")
_SECONDS = 600


def make_spark_classes() -> None:
    """Make SPARK_CLASSES; see make_archive."""
    make_archive(SPARK_CLASSES, __name__)


def use(session: "SparkSession", directory: Path) -> None:
    """What most tests do: rows of this process, a query, Python in the tasks, and a stream."""

    def use_batch(batch: "DataFrame", number: int) -> None:
        batch.collect()

    rows = session.createDataFrame([(number, f"name {number}") for number in range(10)], "id int, name string")
    rows.groupBy("name").count().collect()
    rows.foreachPartition(list)
    rows.rdd.map(len).collect()
    (directory / "lines").write_text("a")
    stream = session.readStream.text(str(directory))
    stream.writeStream.foreachBatch(use_batch).trigger(availableNow=True).start().awaitTermination()


def main(file: str) -> None:
    from pyspark.sql import SparkSession

    options = " ".join([*QUICK, f"-XX:ArchiveClassesAtExit={file}"])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
    gateway = session.sparkContext._gateway
    with tempfile.TemporaryDirectory() as directory:
        use(session, Path(directory))
    session.stop()
    gateway.proc.stdin.close()  # the JVM ends then, and writes the archive
    gateway.proc.wait(_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
