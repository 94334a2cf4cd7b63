"""Airflow as processes of its own (``airflow standalone``: scheduler with LocalExecutor, API server, DAG processor)."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.crash.world import free_port
from tests.support.examples import programs
from tests.support.waiting import eventually

PAUSE = 1.0  # between two looks: an answer of the API costs it a tenth of a second
START_SECONDS = 300.0
RUN_SECONDS = 600.0


class TaskInstance(NamedTuple):
    """One task instance as Airflow's API shows it."""

    state: str | None
    tries: int


class Airflow:
    """``with Airflow(programs, home, metadata_url, environment) as airflow:`` its DAGs are in ``home / "dags"``.

    :param executables: the directory of the programs of Airflow's environment.
    :param metadata_url: an empty database for Airflow's own tables.
    :param environment: variables that the tasks see.
    """

    def __init__(self, executables: Path, home: Path, metadata_url: str, environment: Mapping[str, str]) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._home = home
        self._program = str(executables / "airflow")
        self._environment = programs.environment(
            AIRFLOW_HOME=str(home),
            AIRFLOW__API__HOST="127.0.0.1",
            AIRFLOW__API__PORT=str(port),
            AIRFLOW__API__WORKERS="1",
            AIRFLOW__CORE__DAGS_FOLDER=str(home / "dags"),
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"{self._url}/execution/",
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__CORE__PARALLELISM="8",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=metadata_url,
            AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="20",  # a lost worker is noticed this late
            AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="2",
            AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT="120",
            PATH=f"{executables}{os.pathsep}{os.environ['PATH']}",
            **environment,
        )
        self._token = ""
        self._process: subprocess.Popen[bytes] | None = None

    def trigger(self, dag: str, run: str, orders: list[dict[str, Any]] | None = None) -> None:
        """Begin a run."""
        body = {"dag_run_id": run, "logical_date": None, "conf": {} if orders is None else {"orders": orders}}
        self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)

    def await_end(self, dag: str, run: str) -> str:
        """Wait for the end of a run; returns its state."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}"
        ends = ("success", "failed")
        return str(eventually(lambda: self.ask("GET", path)["state"], lambda state: state in ends, RUN_SECONDS, PAUSE))

    def task_instances(self, dag: str, run: str, task: str) -> dict[int, TaskInstance]:
        """The instances of ``task`` by their map index."""
        found = self.ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        wanted = [each for each in found if each["task_id"] == task]
        return {each["map_index"]: TaskInstance(each["state"], each["try_number"]) for each in wanted}

    def clear(self, dag: str, run: str, task: str) -> None:
        """Let all instances of ``task`` run again; those that run are ended first."""
        body = {"dag_run_id": run, "task_ids": [task], "dry_run": False, "only_failed": False}
        self.ask("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)

    def log(self, dag: str, run: str, task: str) -> str:
        """The logs of all attempts of all instances of ``task``."""
        folder = self._home / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id={task}"
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.log")))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to the API; returns its answer."""
        if not self._token:
            self._token = self._send(urllib.request.Request(f"{self._url}/auth/token"))["access_token"]
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return self._send(urllib.request.Request(self._url + path, data, headers, method=method))

    def _send(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                error.add_note(error.read().decode(errors="replace"))
            raise

    def _knows(self, dag: str) -> bool:
        try:
            return bool(self.ask("GET", f"/api/v2/dags/{dag}"))
        except OSError:  # not there yet: the server, or the DAG
            return False

    def await_dag(self, dag: str) -> None:
        """Wait until the server answers and the DAG processor has seen ``dag``."""
        assert eventually(lambda: self._knows(dag), patience=START_SECONDS, pause=PAUSE), self._home

    def __enter__(self) -> "Airflow":
        with (self._home / "standalone.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "standalone"],
                env=self._environment,
                cwd=self._home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        with suppress(ProcessLookupError):  # what standalone has left of its processes
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
