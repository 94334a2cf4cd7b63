"""Both sides and a process on them, for the exhaustive searches of faults around units of work."""

import sqlite3
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, insert
from sqlalchemy.orm import registry

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.errors import AnswerLostError, DualWriteError, InDoubtError
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import Crash, FakeKafka, Fault
from tests.support.exhaustive.histories import Chooser
from tests.support.user_errors import UserError


@registry().mapped
class MappedEvent:
    """A row of ``events`` as an object of a session."""

    __table__ = events

    def __init__(self, value: str) -> None:
        self.value = value


class NoBackground:
    """Instead of the thread: the next use recovers in the foreground, so that each run is deterministic."""

    is_running = closed = False
    last_error = None

    def __init__(self, runtime: object, act: Callable[[], object], name: str, when_idle: Callable[[], None]) -> None:
        """Take what Background takes."""

    def hurry(self) -> None:
        """There is nothing to hurry."""

    def start(self) -> None:
        """The next use does it."""

    def start_or_leave(self) -> None:
        """The next use does it."""

    def resume(self) -> None:
        """The next use does it."""

    def wait(self, timeout: float) -> bool:
        return True

    def close(self, timeout: float) -> bool:
        return True


class NoHeartbeat:
    """Instead of the thread that renews leases."""

    is_beating = True

    def __init__(self, runtime: object, beat: Callable[[], None], interval: float, name: str) -> None:
        """Take what Heartbeat takes."""

    def start(self) -> None:
        """No lease runs out here."""

    def stop(self, timeout: float) -> None:
        """There is nothing to stop."""


class UnitSearchWorld:
    """Both sides, and the process on them, which dies at a Crash."""

    def __init__(self, engine: Engine, completion: str) -> None:
        self.engine = engine
        self.completion = completion
        self.kafka = FakeKafka()
        self.chooser: Chooser | None = None
        self.dead = False
        self.committing = False
        self.kafka.before_effect = lambda request: self.check_alive()
        self.kafka.fault = lambda request: self.fault()
        self.kafka.is_slow = lambda: bool(self.chooser and self.chooser.choose(2))

    def check_alive(self) -> None:
        if self.dead:
            raise Crash("dead already")

    def fault(self) -> Fault:
        fault = Fault(self.chooser.choose(4)) if self.chooser else Fault.NONE
        self.dead = self.dead or fault is Fault.CRASH
        return fault

    def observe(self, step: str) -> None:
        self.check_alive()
        self.committing = step == "COMMIT_DATABASE"
        choice = self.chooser.choose(3) if self.chooser else 0
        if choice == 1:
            self.dead = True
            raise Crash(step)
        if choice == 2:
            raise DualWriteError(f"{step} failed before its effect")

    def commit(self, plain: Callable[[Any], None], connection: Any) -> None:
        """The dialect's COMMIT, of a unit of work's transaction only."""
        committing, self.committing = self.committing, False
        fault = self.fault() if committing else Fault.NONE
        if fault is Fault.BEFORE:
            raise sqlite3.OperationalError("connection lost before COMMIT")
        plain(connection)
        if fault is Fault.AFTER:
            raise sqlite3.OperationalError("connection lost after COMMIT")
        if fault is Fault.CRASH:
            raise Crash("COMMIT")


def run_unit(dual_write: DualWrite, value: str, *, in_session: bool = False) -> str:
    """Run one unit of work; what its caller learns about it.

    :param in_session: add the row as an object of a session, which is flushed at the block's end.
    """
    try:
        with dual_write.transaction() as tx:
            if in_session:
                tx.session.add(MappedEvent(value))
            else:
                tx.execute(insert(events).values(value=value))
            tx.produce("events", value)
            if value == "raises":
                raise UserError
            tx.produce("events", value)
    except InDoubtError:
        return "in doubt"
    except Crash:
        return "killed"
    except AnswerLostError as error:
        raise AssertionError(f"{value}: the lost answer of another unit reads as its own") from error
    except (DualWriteError, UserError, sqlite3.Error):
        return "rolled back"
    except Exception as error:
        if isinstance(getattr(error, "orig", None), sqlite3.Error):
            return "rolled back"
        raise
    return "succeeded"


def check(world: UnitSearchWorld, ends: dict[str, str]) -> None:
    rows = stored_values(world.engine)
    records = world.kafka.committed
    assert world.kafka.ongoing is None, "a transaction is left open"
    found = outcomes(world.engine)
    assert sorted(records) == sorted(rows * 2), f"torn: rows {rows}, records {records}, ends {ends}, {found}"
    assert found == [], f"a false alarm: {ends}, {found}"
    for value, end in ends.items():
        if end == "succeeded":
            assert value in rows, f"lost write: {value} {ends}"
        if end == "rolled back":
            assert value not in rows, f"told to run {value} again, but it is there: {ends}"
