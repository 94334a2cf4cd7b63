"""What a soak runs: a broker, a PostgreSQL, and worker processes of one application, some of which get killed."""

import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from dualwrite.cli.db import upgrade
from tests.matrix.servers import Servers
from tests.support.apache_kafka.process import free_ports
from tests.support.crash.application import LEFT_PARTITIONS, Task, items
from tests.support.crash.byte_cutter import ByteCutter
from tests.support.forked import ForkedBroker, Piped

LEASE_SECONDS = 3.0
STOP_SECONDS = 4.5
"""How long a worker is stopped: longer than its lease."""
LIVING = 2
"""Workers that nothing kills: their memory and their descriptors are measured."""
_CONFIG = {
    "num.partitions": str(LEFT_PARTITIONS),
    "log.segment.bytes": str(1 << 20),
    "log.retention.bytes": str(1 << 20),
    "log.retention.check.interval.ms": "2000",
    "transaction.state.log.segment.bytes": str(1 << 18),
}
"""Segments that are full are deleted or compacted, so that the data of a broker that keeps nothing for ever is flat."""
_REST_SECONDS = 0.02
_NAPTIME = "5s"
"""Between two looks of autovacuum. At PostgreSQL's own minute, dead rows fill the tables throughout a short soak."""
_END_ONE_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 1) AS chosen"
)


class SoakWorker:
    """A process of the application; what it says is counted and forgotten."""

    def __init__(self, task: Task, said: Counter[str]) -> None:
        self._process: Piped = task.start()
        self._said = said
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended: by itself, unless :meth:`end` was called."""
        return self._process.poll() is not None

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """SIGKILL, unless it has ended."""
        self._process.kill()
        self._reading.join()
        self._process.__exit__(None, None, None)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._said[line.partition(" ")[0].strip()] += 1


class SoakStage:
    """Everything that runs during the ``with`` block.

    :param workers: how many processes.
    :param seed: of the faults.
    """

    def __init__(self, directory: Path, workers: int, seed: int) -> None:
        self._stack = ExitStack()
        self._chance = random.Random(seed)
        self.said: Counter[str] = Counter()
        """What callers were told, by the first word."""
        self.faults: Counter[str] = Counter()
        self.ended = 0
        """Workers that have ended by themselves."""
        servers = Servers(directory)
        self._stack.callback(servers.close)
        url = servers.new_database("postgresql", "soak")
        self.engine = create_engine(url)
        self._stack.callback(self.engine.dispose)
        _set_naptime(self.engine)
        items.create(self.engine)
        upgrade(url)
        (port,) = free_ports(1)
        self._cutter = ByteCutter(f"tcp://127.0.0.1:{port}")
        self._stack.callback(self._cutter.close)
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._cutter.port}"}
        self.broker = ForkedBroker(directory / "broker", listen=f"127.0.0.1:{port}", config={**_CONFIG, **advertised})
        self.broker.start()
        self._stack.callback(self.broker.stop)
        self.bootstrap_servers = f"127.0.0.1:{self._cutter.port}"
        self._task = Task(
            url,
            self.bootstrap_servers,
            units=10**9,
            lease_timeout=LEASE_SECONDS,
            bears_database_errors=True,
            rest_seconds=_REST_SECONDS,
        )
        assert self._run(replace(self._task, units=1)) == 0  # the topics are made
        self._workers = [self._start(number) for number in range(workers)]
        self._stack.callback(self._end_workers)
        self._stopped: list[tuple[float, SoakWorker]] = []

    @property
    def living(self) -> list[int]:
        """The process ids of the workers that nothing kills."""
        return [worker.pid for worker in self._workers[:LIVING]]

    def replace_ended(self) -> None:
        """A worker that has ended by itself is an anomaly; another takes its place."""
        for number, worker in enumerate(self._workers):
            if worker.has_ended:
                worker.end()
                self.ended += 1
                self._workers[number] = self._start(number)

    def strike(self, now: float) -> str:
        """One fault, at random; its name.

        :param now: seconds since the beginning.
        """
        fault = self._chance.choice((self._kill, self._stop, self._cut, self._end_session))
        name = fault(now)
        self.faults[name] += 1
        return name

    def wake(self, now: float) -> None:
        """Let those go on that were stopped for long enough."""
        due = [each for each in self._stopped if each[0] <= now]
        for each in due:
            self._stopped.remove(each)
            each[1].send(signal.SIGCONT)

    def end(self) -> int:
        """Kill every worker, and recover what they leave; the exit code of the recovery."""
        self._end_workers()
        return self._run(replace(self._task, units=0))

    def close(self) -> None:
        """Leave nothing running."""
        self._stack.close()

    def _run(self, task: Task) -> int:
        with task.start() as process:
            for line in process.stdout:
                self.said[line.partition(" ")[0].strip()] += 1
            return process.wait()

    def _start(self, number: int) -> SoakWorker:
        return SoakWorker(replace(self._task, seed=self._chance.randrange(10**6), prefix=f"w{number}."), self.said)

    def _mortal(self) -> int:
        return self._chance.randrange(LIVING, len(self._workers))

    def _kill(self, now: float) -> str:
        number = self._mortal()
        self._stopped = [each for each in self._stopped if each[1] is not self._workers[number]]
        self._workers[number].end()
        self._workers[number] = self._start(number)
        return "worker killed"

    def _stop(self, now: float) -> str:
        worker = self._workers[self._mortal()]
        worker.send(signal.SIGSTOP)
        self._stopped.append((now + STOP_SECONDS, worker))
        return "worker stopped past its lease"

    def _cut(self, now: float) -> str:
        self._cutter.cut_all()
        return "connections to the broker cut"

    def _end_session(self, now: float) -> str:
        with self.engine.connect() as connection:
            connection.execute(text(_END_ONE_SESSION))
        return "session of the database ended"

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._stopped = []


def _set_naptime(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER SYSTEM SET autovacuum_naptime = '{_NAPTIME}'"))
        connection.execute(text("SELECT pg_reload_conf()"))
