"""An archive of the classes that Spark loads (JEP 350): a JVM that maps it starts a session in half the processor time.

It is made once, in this interpreter's environment. A JVM that finds none, or one of another Java or of other jars,
starts without. ``python -m tests.support.spark.class_archive FILE`` is a session that leaves an archive. It waits for
its JVM, which pyspark names in a private attribute alone.
"""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of each JVM: they live shortly, and there are more of them than processors. The compiler that takes its time
and the collector that works beside the program would cost more than half of what a session takes to start."""

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_HOME = Path(__file__).parents[3]
_SECONDS = 600


def make_archive() -> None:
    """Make ARCHIVE, unless it is there, or another process makes it."""
    if ARCHIVE.exists():
        return
    new = ARCHIVE.with_suffix(".new")
    try:
        lock = ARCHIVE.with_suffix(".lock").open("w")
    except PermissionError:
        return  # not this user's environment
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not ARCHIVE.exists():
            command = [sys.executable, "-m", __name__, str(new)]
            subprocess.run(command, cwd=_HOME, check=True, capture_output=True, timeout=_SECONDS)
            new.rename(ARCHIVE)


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

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.extraJavaOptions", f"{QUICK} -XX:ArchiveClassesAtExit={file}").getOrCreate()
    gateway = session.sparkContext._gateway
    with tempfile.TemporaryDirectory() as directory:
        use(session, Path(directory))
    session.stop()
    gateway.proc.stdin.close()  # the JVM ends then, and writes the archive
    gateway.proc.wait(_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
