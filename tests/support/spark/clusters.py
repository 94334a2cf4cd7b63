"""A standalone cluster of Spark."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.support.spark.sessions import HOME, JAVA, require_spark
from tests.support.spark.writing import PATIENCE
from tests.support.waiting import eventually


class Daemon:
    """A master or a worker of a standalone cluster."""

    def __init__(self, log: Path, host: str, *command: str) -> None:
        spark = importlib.util.find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "PYTHONPATH": str(HOME)}
        self._log = log
        self._output: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *command],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_JAVA_OPTS": JAVA},
            start_new_session=True,
        )

    def said(self, pattern: str) -> str:
        """What it logs sooner or later."""

        def found() -> "re.Match[str] | None":
            assert self._process.poll() is None, self._log.read_text(errors="replace")
            return re.search(pattern, self._log.read_text(errors="replace"))

        assert eventually(found, patience=PATIENCE), self._log.read_text(errors="replace")
        return re.findall(pattern, self._log.read_text(errors="replace"))[0]

    def stop(self) -> None:
        for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
            os.kill(process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a standalone cluster of two workers, on two hosts, as Spark runs no copy of a task where it runs."""
    require_spark()
    logs = tmp_path_factory.mktemp("cluster")
    package, ports = "org.apache.spark.deploy", ("--port", "0", "--webui-port", "0")
    with ExitStack() as stopping:
        master = Daemon(logs / "master", "127.0.0.1", f"{package}.master.Master", "--host", "127.0.0.1", *ports)
        stopping.callback(master.stop)
        url = master.said(r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.1", "127.0.0.2"):
            size = ("--cores", "2", "--memory", "2g", "--work-dir", str(logs / f"work-{host}"))
            worker = Daemon(logs / host, host, f"{package}.worker.Worker", url, "--host", host, *ports, *size)
            stopping.callback(worker.stop)
            assert worker.said(r"(Successfully registered with master)")
        yield url
