"""A Spark driver in a process of its own, which does what it is told in lines of JSON and answers each with a line: a
test may kill it, and have another session in it than the tests' shared one.

``python -m tests.support.spark.driver`` is started by Driver.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from dualwrite.spark.partitions.writers import batch_writer, partition_writer
from tests.support.spark.sessions import HOME, spark_session

PATIENCE = 120.0


class Held:
    """A writer whose first attempt of partition 0 stops after its first row until the file ``go`` is there; another
    one, which may be quicker to start, begins after that row. Each attempt notes its process in
    ``begun-PARTITION-ATTEMPT``, and its end in ``ended-PARTITION-ATTEMPT``."""

    def __init__(self, writer: Any, directory: str) -> None:
        self._writer, self._directory = writer, directory

    def __call__(self, rows: Iterable[Any]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"{context.partitionId()}-{context.attemptNumber()}"
        if context.partitionId() == 0 and context.attemptNumber():
            await_file(Path(self._directory, "begun-0-0"))
        self._writer(self._held(rows, name))
        self._note(f"ended-{name}")

    def _held(self, rows: Iterable[Any], name: str) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if number == 0:
                self._note(f"begun-{name}")
            if number == 1 and name == "0-0":
                await_file(Path(self._directory, "go"))
            yield row

    def _note(self, name: str) -> None:
        note = Path(self._directory, f".{name}")
        note.write_text(str(os.getpid()))
        note.rename(Path(self._directory, name))


class HangingOnce:
    """A function for foreachBatch that never comes back from batch ``at``, after it is written; it notes that."""

    def __init__(self, write: Any, at: int, directory: str) -> None:
        self._write, self._at, self._directory = write, at, directory

    def __call__(self, df: Any, batch_id: int) -> None:
        self._write(df, batch_id)
        if batch_id == self._at:
            Path(self._directory, "hanging").touch()
            time.sleep(PATIENCE)


def await_file(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def things(session: Any, number: int, partitions: int) -> Any:
    return session.range(0, number, 1, partitions).selectExpr("id", "concat('note ', id) AS note")


def run(session: Any, told: dict[str, Any]) -> None:
    """Carry out one order."""
    options = told["options"]
    if told["what"] == "partitions":
        df = things(session, told["rows"], told["partitions"])
        df.foreachPartition(Held(partition_writer(df, **options), told["directory"]))
    elif told["what"] == "batch":
        batch_writer(**options)(things(session, told["rows"], told["partitions"]), 0)
    else:
        source = session.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).json(told["source"])
        write = HangingOnce(batch_writer(**options), told.get("hangs_at", -1), told["directory"])
        query = source.writeStream.foreachBatch(write).option("checkpointLocation", told["checkpoint"])
        query.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    first = json.loads(sys.stdin.readline())
    with spark_session(first["master"], **first["settings"]) as session:
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                run(session, json.loads(line))
                print("done", flush=True)
            except Exception as error:  # noqa: BLE001  told to the test
                print(f"failed: {type(error).__name__}: {str(error)[-2000:]!r}", flush=True)


class Driver:
    """Such a process; ``with Driver(master, **settings) as driver``."""

    def __init__(self, master: str, **settings: str) -> None:
        environment = {"spark.executorEnv.PYTHONPATH": str(HOME), **settings}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HOME,
            env={**os.environ, "PYTHONPATH": str(HOME)},
            start_new_session=True,
        )
        self._tell({"master": master, "settings": environment})

    def __enter__(self) -> "Driver":
        assert self.end() == "ready"
        return self

    def begin(self, what: str, **told: Any) -> None:
        """Let it do something; :meth:`end` waits for it."""
        self._tell({"what": what, **told})

    def end(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL, to its JVM and its Python workers as well."""
        os.killpg(self._process.pid, 9)
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None and kind is None:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
        elif self._process.poll() is None:
            self.kill()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.stdout.close()

    def _tell(self, told: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()


if __name__ == "__main__":
    main()
