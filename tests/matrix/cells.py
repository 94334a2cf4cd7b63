"""The axes of the matrix, the cells that there are, and the reasons for those that there are not."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from tests.support.crash.kills import PRODUCERS, RECOVERY_STEPS, STEPS

DATABASES = ("sqlite", "postgresql", "mariadb")


class Victim(Enum):
    """What the fault strikes."""

    APPLICATION = "application"
    """The only process of the application."""
    WORKER = "one worker of many"
    """A process beside others of the same application, which recover its slots."""
    BROKER = "broker"
    DATABASE = "database"
    APPLICATION_AND_BROKER = "application and broker"
    APPLICATION_AND_DATABASE = "application and database"


class FaultKind(Enum):
    """What happens to the victim."""

    SIGKILL = "SIGKILL"
    SIGKILL_AND_TIMEOUT = "SIGKILL, and the transaction's timeout before recovery"
    SIGSTOP = "SIGSTOP past the lease"
    CUT = "connection cut at a byte"
    FULL_DISK = "full disk"
    POWER_CUT = "power cut that loses unsynced pages"


class Mode(Enum):
    """The mode of the application, and the cluster that it has."""

    KEEP_PREPARED = "keep-prepared, bundled broker"
    RESUME = "resume, bundled broker"
    RESUME_ON_KAFKA = "resume, Apache Kafka of three nodes"


class Arrangement(Enum):
    """What there is beside the application."""

    ALONE = "one application"
    TWO_APPLICATIONS = "two applications on one cluster"
    TWO_DATABASES = "one application name on two databases"
    TWO_CLUSTERS = "one application name on two clusters"


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix.

    :param step: the step of a unit of work, or of recovery, right before which the fault strikes.
    """

    step: str
    victim: Victim
    kind: FaultKind
    database: str
    producer: str
    mode: Mode
    arrangement: Arrangement = Arrangement.ALONE

    def as_json(self) -> dict[str, str]:
        """The cell in a line of the run's log."""
        return {
            "step": self.step,
            "victim": self.victim.value,
            "kind": self.kind.value,
            "database": self.database,
            "producer": self.producer,
            "mode": self.mode.value,
            "arrangement": self.arrangement.value,
        }


_OF_UNITS = tuple(STEPS)
_OF_BOTH = (*STEPS, *RECOVERY_STEPS)
_UNLOCKED = ("RECOVER_TAKE_OVER", "BEGIN_DATABASE", "BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE")
"""Steps at which a stopped process does not lock its state row on PostgreSQL, so that another can take its slot."""
_UNLOCKED_EVERYWHERE = ("RECOVER_TAKE_OVER", "BEGIN_DATABASE")
"""The process is in no database transaction. SQLite locks its file in one, MariaDB at REPEATABLE READ the row."""
_TALKING_TO_BROKER = ("PREPARE_KAFKA", "COMMIT_KAFKA")
_TALKING_TO_DATABASE = ("BEGIN_DATABASE", "STORE_STATE", "COMMIT_DATABASE")
"""Steps that begin with bytes to that side."""

SHAPES: tuple[tuple[Victim, FaultKind, tuple[str, ...]], ...] = (
    (Victim.APPLICATION, FaultKind.SIGKILL, _OF_BOTH),
    (Victim.APPLICATION, FaultKind.SIGKILL_AND_TIMEOUT, _OF_UNITS),
    (Victim.WORKER, FaultKind.SIGKILL, _OF_UNITS),
    (Victim.WORKER, FaultKind.SIGSTOP, _UNLOCKED),
    (Victim.BROKER, FaultKind.SIGKILL, _OF_UNITS),
    (Victim.BROKER, FaultKind.CUT, _TALKING_TO_BROKER),
    (Victim.BROKER, FaultKind.FULL_DISK, _OF_UNITS),
    (Victim.BROKER, FaultKind.POWER_CUT, _OF_UNITS),
    (Victim.DATABASE, FaultKind.SIGKILL, _OF_UNITS),
    (Victim.DATABASE, FaultKind.CUT, _TALKING_TO_DATABASE),
    (Victim.DATABASE, FaultKind.FULL_DISK, _OF_UNITS),
    (Victim.APPLICATION_AND_BROKER, FaultKind.SIGKILL, _OF_BOTH),
    (Victim.APPLICATION_AND_BROKER, FaultKind.POWER_CUT, _OF_UNITS),
    (Victim.APPLICATION_AND_DATABASE, FaultKind.SIGKILL, _OF_BOTH),
)
"""Each victim and kind with its steps."""

NOT_RUN: tuple[tuple[str, str], ...] = (
    ("MySQL", "the tests run on MariaDB, which has the same dialect here"),
    (
        "database: SIGKILL and cut, on SQLite",
        "SQLite has no process and no connection of its own: its code runs in the application, and dies with it",
    ),
    (
        "database: full disk, on PostgreSQL and MariaDB",
        "the limit of the size of files that stands for the disk stops these servers at their preallocated logs, "
        "before a table is full; a small file system of their own needs the rights of root",
    ),
    (
        "database: full disk, on SQLite with Apache Kafka",
        "the fault and the application's steps are those beside the bundled broker, where the run has them",
    ),
    (
        "database: power cut",
        "the run drops unsynced pages where the broker writes its files; the databases' own writes would need a file "
        "system in user space, which the tests do not have. The databases run without fsync",
    ),
    (
        "application: full disk, power cut, cut",
        "the application keeps no file but SQLite's, which is the database; its connections are those to the broker "
        "and to the database",
    ),
    (
        "broker and database: SIGSTOP past the lease",
        "neither holds a lease: a stopped server is silent, and its clients wait up to their own limits",
    ),
    (
        "one worker of many: SIGSTOP at COMMIT_DATABASE and COMMIT_KAFKA, and on SQLite and MariaDB in a transaction",
        "the stopped process locks its row, or all of SQLite's file, so no other takes its slot; at COMMIT_KAFKA the "
        "unit is decided, and only its recovery by another process is left, which SIGKILL has",
    ),
    (
        "broker: cut at BEGIN_KAFKA, STORE_STATE, COMMIT_DATABASE; database: cut at BEGIN_KAFKA, PREPARE_KAFKA, "
        "COMMIT_KAFKA",
        "the step sends that side nothing",
    ),
    (
        "broker: cut, full disk, power cut, on Apache Kafka",
        "Apache Kafka syncs no file by default and relies on its replicas; its answers that are lost at exact moments "
        "are in tests/crash/test_cluster_kill.py",
    ),
    (
        "the timeout before recovery, with keep-prepared, and on Apache Kafka",
        "with keep-prepared a prepared transaction has no timeout. Released Apache Kafka looks for expired "
        "transactions every ten seconds; the bundled broker and a plain InitProducerId have the same effect",
    ),
)
"""What the published matrix lacks, with the reason."""


def all_cells() -> Iterator[Cell]:
    """Every cell, in order."""
    for mode, database, producer in product(Mode, DATABASES, PRODUCERS):
        for victim, kind, steps in SHAPES:
            for step in steps:
                cell = Cell(step, victim, kind, database, producer, mode)
                if is_there(cell):
                    yield cell
    for producer, step in product(PRODUCERS, _OF_UNITS):
        for arrangement in (Arrangement.TWO_APPLICATIONS, Arrangement.TWO_DATABASES, Arrangement.TWO_CLUSTERS):
            yield Cell(step, Victim.APPLICATION, FaultKind.SIGKILL, "sqlite", producer, Mode.KEEP_PREPARED, arrangement)


def is_there(cell: Cell) -> bool:
    """Whether the run has ``cell``; :data:`NOT_RUN` has the reasons."""
    is_server = cell.database != "sqlite"
    on_kafka = cell.mode is Mode.RESUME_ON_KAFKA
    if cell.kind is FaultKind.SIGKILL_AND_TIMEOUT:
        return cell.mode is Mode.RESUME
    if on_kafka and cell.kind not in (FaultKind.SIGKILL, FaultKind.SIGSTOP):
        return cell.victim is Victim.DATABASE and cell.kind is FaultKind.CUT and is_server
    if cell.kind is FaultKind.SIGSTOP:
        return cell.database == "postgresql" or cell.step in _UNLOCKED_EVERYWHERE
    if cell.victim is Victim.DATABASE and cell.kind is FaultKind.FULL_DISK:
        return not is_server
    if cell.victim in (Victim.DATABASE, Victim.APPLICATION_AND_DATABASE):
        return is_server
    return True
