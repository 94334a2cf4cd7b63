"""The worlds in which the cells run: one for each database, producer, mode and kind of access to the servers."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from sqlalchemy import Engine

from tests.matrix.cells import Arrangement, Cell, FaultKind, Mode
from tests.matrix.ledger import PlaceLedger, RunVerdict, audit, clear_record, count_replayed, judge_run
from tests.matrix.servers import ClusterAsBroker, MortalServer, Servers
from tests.support.apache_kafka.process import free_ports
from tests.support.crash.application import LEFT, LEFT_PARTITIONS, RIGHT, Task
from tests.support.crash.byte_cutter import ByteCutter
from tests.support.crash.losing_disk import LosingBroker
from tests.support.crash.oracle import CallerReports
from tests.support.crash.world import CONFIG, CrashWorld, MortalBroker
from tests.support.forked import ForkedBroker

TIMEOUT_MS = 120_000
"""Of transactions in the mode resume: longer than any run."""
THREADS = 4
"""Of an application on a database server: as many units are in progress when it dies. SQLite has one writer."""


class Access(Enum):
    """How the application reaches the servers, and on which disk the broker is."""

    PLAIN = "plain"
    BY_CUTTERS = "by cutters"
    LOSING_DISK = "losing disk"


@dataclass(frozen=True)
class PlaceKey:
    """Cells with the same key run in the same world, one after another."""

    database: str
    producer: str
    mode: Mode
    access: Access
    arrangement: Arrangement

    @classmethod
    def of(cls, cell: Cell) -> "PlaceKey":
        """The key of ``cell``."""
        access = {FaultKind.CUT: Access.BY_CUTTERS, FaultKind.POWER_CUT: Access.LOSING_DISK}.get(cell.kind)
        return cls(cell.database, cell.producer, cell.mode, access or Access.PLAIN, cell.arrangement)

    @property
    def name(self) -> str:
        """Of directories, databases and topics: small letters, digits and underscores."""
        words = (self.database, self.producer, self.mode.name, self.access.name, self.arrangement.name)
        return "_".join(words).lower()


class CutBroker:
    """A broker that is reached through a cutter alone.

    :param directory: of its data.
    """

    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.cutter = ByteCutter(f"tcp://127.0.0.1:{port}")
        self.bootstrap_servers = f"127.0.0.1:{self.cutter.port}"
        advertised = {"advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}"}
        self._broker = ForkedBroker(directory, listen=f"127.0.0.1:{port}", config={**CONFIG, **advertised})

    def start(self) -> None:
        """Start the broker."""
        self._broker.start()

    def stop(self) -> None:
        """Stop the broker and the cutter."""
        self.cutter.close()
        self._broker.stop()

    def kill(self) -> None:
        """SIGKILL to the broker."""
        self._broker.kill()


class MatrixPlace:
    """A world with its ledger.

    :param directory: that is its own.
    :param number: that is its own, too.
    """

    def __init__(self, key: PlaceKey, servers: Servers, directory: Path, number: int) -> None:
        self.key = key
        self._stack = ExitStack()
        directory.mkdir(parents=True)
        self.directory = directory
        self.server: MortalServer | None = None
        """Of the database; None for SQLite."""
        if key.database == "sqlite":
            url = f"sqlite:///{directory / 'items.db'}"
        else:
            self.server = servers.database(key.database)
            url = servers.new_database(key.database, f"matrix_{number}")
        is_shared = key.mode is Mode.RESUME_ON_KAFKA  # the cluster
        topics = (f"{LEFT}-{number}", f"{RIGHT}-{number}") if is_shared else (LEFT, RIGHT)
        self.broker = self._make_broker(servers, topics)
        self.world = CrashWorld(directory, url, key.producer, self.broker)
        self._stack.callback(self.world.close)
        self.database_cutter: ByteCutter | None = None
        application_url = url
        if key.access is Access.BY_CUTTERS and self.server is not None:
            self.database_cutter = ByteCutter(url)
            self._stack.callback(self.database_cutter.close)
            application_url = self.database_cutter.url
        self.world.task = replace(
            self.world.task,
            url=application_url,
            topics=topics,
            application=f"crash-{number}" if is_shared else "crash",
            timeout_ms=0 if key.mode is Mode.KEEP_PREPARED else TIMEOUT_MS,
            replay=key.mode is not Mode.KEEP_PREPARED,
            threads=1 if key.database == "sqlite" else THREADS,
            bears_database_errors=True,
        )
        self.ledger = PlaceLedger(self.broker.bootstrap_servers, topics)
        self.next_cuts: dict[tuple[str, ...], int] = {}
        """By what is cut, step and direction: after how many bytes the next cut is."""
        self._all_told = CallerReports()
        self._replayed = 0
        assert self.world.run(replace(self.task, units=3, prefix="warm")) == 0  # the topics are made
        self.close_run("warm")

    def _make_broker(self, servers: Servers, topics: tuple[str, str]) -> MortalBroker:
        directory = self.directory / "broker"
        if self.key.mode is Mode.RESUME_ON_KAFKA:
            return ClusterAsBroker(servers.cluster(), topics)
        if self.key.access is Access.BY_CUTTERS:
            return CutBroker(directory)
        kind = LosingBroker if self.key.access is Access.LOSING_DISK else ForkedBroker
        (port,) = free_ports(1)
        return kind(directory, listen=f"127.0.0.1:{port}", config={**CONFIG, "num.partitions": str(LEFT_PARTITIONS)})

    @property
    def task(self) -> Task:
        """The application's, as this place has it."""
        return self.world.task

    @property
    def told(self) -> CallerReports:
        """What the callers of the current run were told."""
        return self.world.told

    @property
    def engine(self) -> Engine:
        """Of the database itself."""
        return self.world.engine

    def close_run(self, prefix: str) -> RunVerdict:
        """Judge what has come since the last run, and begin anew. Nothing may run in the place."""
        self.engine.dispose()  # of connections to a server that was killed
        verdict = judge_run([self.engine], prefix, self.told, self.ledger.read_on(), self._replayed)
        self._replayed = count_replayed(self.engine)
        clear_record(self.engine)
        for word in ("begun", "ok", "no", "doubt"):
            getattr(self._all_told, word).update(getattr(self.told, word))
        self.world.told = CallerReports()
        return verdict

    def audit(self) -> RunVerdict:
        """Compare everything that was ever written here."""
        self.engine.dispose()
        return audit(self.engine, self.broker.bootstrap_servers, self.task.topics, self._all_told)

    def close(self) -> None:
        """Leave nothing running."""
        self._stack.close()


class Places:
    """The places of one process, which are made when a cell needs them first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers = Servers(directory)
        self._places: dict[PlaceKey, MatrixPlace] = {}
        self._made = 0

    def of(self, cell: Cell) -> MatrixPlace:
        """The place in which ``cell`` runs.

        :raises MissingServerError: if the cell needs a server that is not installed.
        """
        key = PlaceKey.of(cell)
        if key not in self._places:
            self._made += 1
            self._places[key] = MatrixPlace(key, self._servers, self._directory / str(self._made), self._made)
        place = self._places[key]
        place.engine.dispose()  # another place may have killed the server meanwhile
        return place

    def start_anew(self) -> None:
        """A run has failed in the middle, and left a place or a server as it is: the next cell gets new ones."""
        self.close()
        self._servers = Servers(self._directory / f"anew-{self._made}")

    def made(self) -> list[MatrixPlace]:
        """Those that cells have used."""
        return list(self._places.values())

    def close(self) -> None:
        """Leave nothing running."""
        places, self._places = self._places, {}
        with ExitStack() as stack:  # all of them, even if one fails
            stack.callback(self._servers.close)
            for place in places.values():
                stack.callback(place.close)
