"""A driver program of Spark's for tests that kill it or its executors.

``python -m tests.support.spark.batch_program JSON``
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dualwrite.spark import DualWriteDataSource, write_batch
from tests.support.spark.sessions import spark_session
from tests.support.spark.writing import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, PARTITIONS = 40, 4
"""Of a batch."""


@dataclass(frozen=True)
class Fate:
    """What happens to somebody, once: right before ``step``.

    :param whose: "driver"; "executor", of the first attempt at partition 1; or "speculation": that attempt waits there
        until another one has come as far.
    """

    whose: str = ""
    step: str = ""


@dataclass(frozen=True)
class Told:
    """What a program is to do: write batches, each with its fate.

    :param way: "function", "source", or "stream", which has its batches from ``directory``/in.
    :param batches: each with its fate: whose, and the step.
    :param group: of processes that are the driver; 0 for its own.
    """

    master: str
    options: dict[str, Any]
    directory: str
    batches: dict[int, tuple[str, str]]
    way: str = "function"
    settings: dict[str, str] = field(default_factory=dict)


class Executioner:
    """An observer that sees to ``fate``, wherever it was sent."""

    def __init__(self, fate: Fate, directory: Path) -> None:
        self._fate = fate
        self._done = directory / f"{fate.whose}-{fate.step}-{time.monotonic_ns()}"
        self._group = os.getpgid(0)

    def __call__(self, step: str) -> None:
        if step != self._fate.step:
            return
        from pyspark import TaskContext

        context = TaskContext.get()
        if self._fate.whose == "driver":
            with suppress(FileExistsError):
                self._done.touch(exist_ok=False)
                os.killpg(self._group, signal.SIGKILL)
        elif context is not None and context.partitionId() == 1:
            if context.attemptNumber() > 0:
                self._done.touch()
            elif self._fate.whose == "executor":
                kill_executor()
            elif self._fate.whose == "speculation":
                wait_for(self._done)


def kill_executor() -> None:
    """SIGKILL to the JVM whose Python worker this is, and to the worker."""
    process = os.getpid()
    while "java" not in Path(f"/proc/{process}/comm").read_text():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        assert process > 1
    os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody has made {path}"
        time.sleep(0.05)


def rows_of(spark: "SparkSession", number: int) -> "DataFrame":
    return spark.range(number * ROWS, (number + 1) * ROWS, 1, PARTITIONS).selectExpr(
        "id", "concat('note ', id) AS note"
    )


def source_with(observe: Any) -> type[DualWriteDataSource]:
    """The data source, observed; sent by value, as a class of this function's."""

    class Observed(DualWriteDataSource):
        on_step: ClassVar[Any] = staticmethod(observe)

    return Observed


def write(spark: "SparkSession", told: Told, number: int, observe: Any) -> None:
    if told.way == "function":
        write_batch(rows_of(spark, number), number, on_step=observe, **told.options)
        return
    spark.dataSource.register(source_with(observe))
    texts = {name: str(value) for name, value in told.options.items()}
    if told.way == "source":
        frame = rows_of(spark, number).write.format("dualwrite").options(**texts, batchId=str(number))
        frame.mode("append").save()
        return
    source = Path(told.directory) / "in"
    stream = spark.readStream.schema("id BIGINT, note STRING").json(str(source)).repartition(PARTITIONS)
    query = stream.writeStream.format("dualwrite").options(**texts)
    query = query.option("checkpointLocation", str(Path(told.directory) / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(3 * PATIENCE)


def main(told: Told) -> None:
    with spark_session(told.master, **told.settings) as spark:
        for number, fate in told.batches.items():
            write(spark, told, int(number), Executioner(Fate(*fate), Path(told.directory)))
    print("done", flush=True)


def run(told: Told) -> tuple[int, str]:
    """Such a program, to its end: exit code, and what it said."""
    command = [sys.executable, "-m", "tests.support.spark.batch_program", json.dumps(asdict(told))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=480)
            return process.returncode, said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(Told(**json.loads(sys.argv[1])))
