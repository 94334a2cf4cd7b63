"""A database server that goes silent: its backend is frozen, or the network drops everything. Each step of the
library's own ends within ``database_timeout``, and both sides end alike."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text

from dualwrite.errors import DatabaseUnavailableError, InDoubtError
from tests.support.coordinator.event_table import events, slot_rows
from tests.support.coordinator.silent_database import KNOWN_TOTAL, LIMIT, SilentDatabaseWorld, error_of, world
from tests.support.coordinator.usual_unit import write, write_unit
from tests.support.frozen import freeze
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.postgresql import PostgreSQL
from tests.support.servers.silent_proxy import COMMIT
from tests.support.waiting import eventually

__all__ = ["world"]


@pytest.mark.slow
def test_a_commit_that_never_arrives_ends_in_doubt_and_recovery_rolls_both_sides_back(
    world: SilentDatabaseWorld,
) -> None:
    dual_write = world.dual_write()
    write_unit(dual_write, "before")
    world.proxy.silence_at(COMMIT, delivers=False)
    error = error_of(lambda: write_unit(dual_write, "lost"), KNOWN_TOTAL)
    assert isinstance(error, InDoubtError)
    assert f"the database had not answered after {LIMIT:g} s (database_timeout)" in str(error)
    assert world.proxy.silenced.is_set()
    assert dual_write.pending() == 1
    write_unit(dual_write, "another")  # the slot in doubt is left to the background
    world.proxy.end_silent()
    assert eventually(lambda: dual_write.pending() == 0)
    assert world.is_alike("before", "another")


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost_is_found_and_the_unit_succeeds(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write()
    write_unit(dual_write, "before")
    world.proxy.silence_at(COMMIT, delivers=True)
    assert error_of(lambda: write_unit(dual_write, "committed"), KNOWN_TOTAL) is None
    assert world.proxy.silenced.is_set()
    assert world.is_alike("before", "committed")


@pytest.mark.slow
@pytest.mark.parametrize("delivers", [True, False])
def test_a_database_that_vanishes_at_commit_ends_in_doubt_within_twice_the_limit(
    world: SilentDatabaseWorld, delivers: bool
) -> None:
    """Nobody answers an attempt to connect either. When the network is back, both sides end alike."""
    dual_write = world.dual_write()
    write_unit(dual_write, "before")
    world.proxy.silence_at(COMMIT, delivers=delivers)
    world.proxy.lets_nobody_in = True
    with pytest.raises(InDoubtError):
        raise error_of(lambda: write_unit(dual_write, "in doubt"), KNOWN_TOTAL) or AssertionError
    world.proxy.lets_nobody_in = False
    world.proxy.end_silent()
    assert eventually(lambda: dual_write.pending() == 0)
    assert world.is_alike("before", *(["in doubt"] if delivers else []))


@pytest.mark.slow
def test_a_state_that_cannot_be_stored_in_time_rolls_both_sides_back(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write()
    write_unit(dual_write, "before")
    world.proxy.silence_at(rb"UPDATE \S*kafka_transaction_state", delivers=False)
    with pytest.raises(DatabaseUnavailableError, match="database_timeout"):
        raise error_of(lambda: write_unit(dual_write, "lost"), LIMIT) or AssertionError
    world.proxy.end_silent()
    assert eventually(lambda: world.is_alike("before"))
    write_unit(dual_write, "after")
    assert world.is_alike("before", "after")


@pytest.mark.slow
def test_a_rollback_on_a_silent_connection_gives_the_user_the_error_of_the_block(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write()
    write_unit(dual_write, "before")

    def fail() -> None:
        with dual_write.transaction() as tx:
            write(tx, "undone")
            world.proxy.silence_all()
            raise LookupError("the user's own")

    assert isinstance(error_of(fail, LIMIT), LookupError)
    assert world.is_alike("before")
    write_unit(dual_write, "after")
    assert world.is_alike("before", "after")


@pytest.mark.slow
def test_a_unit_without_records_whose_commit_is_not_answered_gets_the_drivers_error(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write()

    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="alone"))

    unit_before = error_of(lambda: write_unit(dual_write, "before"), LIMIT)
    assert unit_before is None
    world.proxy.silence_at(COMMIT, delivers=False)
    with pytest.raises(InDoubtError, match="may be in the database or not") as caught:
        raise error_of(unit, LIMIT) or AssertionError
    assert "database_timeout" in str(caught.value.__cause__)
    world.proxy.end_silent()
    assert world.is_alike("before")


@pytest.mark.slow
def test_a_pre_ping_on_a_silent_connection_fails_within_the_limit(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write({"pool_pre_ping": True})
    write_unit(dual_write, "before")
    world.proxy.silence_all()
    with pytest.raises(DatabaseUnavailableError, match=r"\(database_timeout\)"):
        raise error_of(lambda: write_unit(dual_write, "lost"), LIMIT) or AssertionError
    write_unit(dual_write, "after")
    assert world.is_alike("before", "after")


@pytest.mark.slow
def test_an_unanswered_first_connection_fails_within_the_limit(world: SilentDatabaseWorld) -> None:
    world.proxy.lets_nobody_in = True
    dual_write = world.dual_write()
    with pytest.raises(DatabaseUnavailableError, match=r"accepted no connection within 2 s \(database_timeout\)"):
        raise error_of(lambda: write_unit(dual_write, "lost"), LIMIT) or AssertionError
    world.proxy.lets_nobody_in = False
    write_unit(dual_write, "after")
    assert world.is_alike("after")


@pytest.mark.slow
def test_a_statement_of_the_users_may_take_longer_than_the_limit(world: SilentDatabaseWorld) -> None:
    dual_write = world.dual_write(database_timeout=1.5)
    pause = {"postgresql": "SELECT pg_sleep(3)", "mysql": "SELECT SLEEP(3)"}[world.seen.dialect.name]
    with dual_write.transaction() as tx:
        write(tx, "slow")
        tx.execute(text(pause))
    assert world.is_alike("slow")


@pytest.mark.slow
def test_leases_are_renewed_although_the_heartbeats_connection_goes_silent(world: SilentDatabaseWorld) -> None:
    """On a new connection, before they run out."""
    dual_write = world.dual_write(lease_timeout=18.0, database_timeout=60.0)
    write_unit(dual_write, "before")
    first = slot_rows(world.seen)["a-0"].lease_expires_at
    assert eventually(lambda: slot_rows(world.seen)["a-0"].lease_expires_at > first)
    world.proxy.silence_all()
    second = slot_rows(world.seen)["a-0"].lease_expires_at
    assert eventually(lambda: slot_rows(world.seen)["a-0"].lease_expires_at > second)
    write_unit(dual_write, "after")
    assert world.is_alike("before", "after")


class Backend:
    """The process of PostgreSQL's that serves a unit of work; it is frozen at a step."""

    def __init__(self) -> None:
        self.process = 0
        self.step = ""

    def freeze(self, step: str) -> None:
        if self.process and step == self.step:
            freeze(self.process)
            self.step = ""

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("end", ["goes on", "is killed"])
def test_a_backend_that_is_frozen_at_commit_holds_up_its_own_unit_alone(own_postgresql: PostgreSQL, end: str) -> None:
    """The unit ends in doubt; other units, and the leases of other slots, go on. When the backend goes on, it commits
    what had arrived; when it is killed, it does not."""
    world = SilentDatabaseWorld(own_postgresql.url)
    backend = Backend()
    dual_write = world.dual_write(lease_timeout=6.0, on_step=backend.freeze)
    in_block = threading.Event()
    go_on = threading.Event()

    def other_unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "beside")
            in_block.set()
            assert go_on.wait(60)

    def frozen_unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "frozen")
            backend.process = tx.scalar(select(text("pg_backend_pid()"))) or 0
            backend.step = "COMMIT_DATABASE"

    try:
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(other_unit)
            assert in_block.wait(30)
            assert isinstance(error_of(frozen_unit, KNOWN_TOTAL), InDoubtError)
            renewed = slot_rows(world.seen)["a-0"].lease_expires_at
            assert eventually(lambda: slot_rows(world.seen)["a-0"].lease_expires_at > renewed)
            go_on.set()
            beside.result(30)
            write_unit(dual_write, "another")
            if end == "goes on":
                backend.go_on()
            else:
                os.kill(backend.process, signal.SIGKILL)  # the server starts anew, and ends all connections
                world.seen.dispose()
            assert eventually(lambda: not _fails(lambda: dual_write.recover()) and dual_write.pending() == 0)
        assert eventually(lambda: world.is_alike("beside", "another", *(["frozen"] if end == "goes on" else [])))
    finally:
        go_on.set()
        backend.go_on()
        world.close()


def _fails(act: Callable[[], Any]) -> bool:
    try:
        act()
    except Exception:  # noqa: BLE001 - the server may be starting
        return True
    return False


@pytest.mark.slow
@pytest.mark.mariadb
def test_a_server_that_is_frozen_at_commit_ends_the_unit_in_doubt(own_mariadb: MariaDB) -> None:
    """All of it: it accepts connections, as the kernel does that, and says nothing on them."""
    server = create_engine(own_mariadb.url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE frozen")
    server.dispose()
    url = own_mariadb.url.replace("/?", "/frozen?")
    world = SilentDatabaseWorld(url)
    process = own_mariadb.process
    armed: list[str] = []

    def at_step(step: str) -> None:
        if step in armed:
            armed.clear()
            freeze(process)

    dual_write = world.dual_write(on_step=at_step)
    try:
        write_unit(dual_write, "before")
        armed.append("COMMIT_DATABASE")
        assert isinstance(error_of(lambda: write_unit(dual_write, "frozen"), KNOWN_TOTAL), InDoubtError)
        os.kill(process, signal.SIGCONT)
        assert eventually(lambda: dual_write.pending() == 0)
        assert eventually(lambda: world.is_alike("before", "frozen"))
        write_unit(dual_write, "after")
    finally:
        os.kill(process, signal.SIGCONT)
        world.close()
