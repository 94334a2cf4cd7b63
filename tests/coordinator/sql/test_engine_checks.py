"""Engines that cannot have units of work: pools that share connections, and databases in memory."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import AssertionPool, Engine, SingletonThreadPool, StaticPool, create_engine, event, insert
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from dualwrite.schema import upgrade_engine
from tests.support.coordinator.aio.async_dual_writes import async_url
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka

Make = Callable[..., DualWrite]


class OurStaticPool(StaticPool):
    """A subclass, as a program might have one."""


@pytest.mark.parametrize("kind", [StaticPool, SingletonThreadPool, AssertionPool, OurStaticPool])
def test_a_pool_that_shares_a_connection_is_refused_by_name(sqlite_url: str, make_dual_write: Make, kind: Any) -> None:
    engine = create_engine(sqlite_url, poolclass=kind)
    upgrade_engine(engine)  # has no unit of work beside it
    with pytest.raises(ConfigurationError, match=f"the engine's pool is {kind.__name__}.*use QueuePool or NullPool"):
        make_dual_write(engine)
    engine.dispose()


def test_a_static_pool_of_an_async_engine_is_refused(sqlite_url: str, kafka: FakeKafka) -> None:
    async def main() -> None:
        engine = create_async_engine(async_url(sqlite_url, "aiosqlite"), poolclass=StaticPool)
        with pytest.raises(ConfigurationError, match="the engine's pool is StaticPool"):
            AsyncDualWrite(engine, CONFIG, application="orders", participant=kafka.participant)
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:Selection of the SingletonThreadPool")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        "sqlite:///file:/x?vfs=memdb&uri=true",
    ],
)
def test_a_sqlite_database_in_memory_is_refused_however_it_is_spelled(make_dual_write: Make, url: str) -> None:
    with pytest.raises(ConfigurationError, match="a SQLite database in memory forgets every decision"):
        make_dual_write(create_engine(url))


@pytest.mark.parametrize("name", ["file::memory:", "file:y?mode=memory&cache=shared", "file:/y?vfs=memdb"])
def test_a_creator_that_opens_a_database_in_memory_is_refused_at_the_first_connection(
    sqlite_url: str, make_dual_write: Make, name: str
) -> None:
    engine = create_engine(sqlite_url, creator=lambda: sqlite3.connect(name, uri=True, check_same_thread=False))
    kept = engine.raw_connection()
    upgrade_engine(engine)
    with pytest.raises(ConfigurationError, match="is in memory, and forgets every decision"):
        make_dual_write(engine).recover()
    kept.close()
    engine.dispose()


@contextmanager
def begun(engine: Engine) -> Iterator[None]:
    """Leave a transaction open on each connection that is checked out in the block."""

    def begin(connection: Any, *_: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("BEGIN" if engine.dialect.name != "postgresql" else "SELECT 1")
        cursor.close()

    event.listen(engine, "checkout", begin)
    yield
    event.remove(engine, "checkout", begin)


def test_a_connection_that_comes_with_a_transaction_is_refused(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    dual_write.recover()
    store, refused = manager_of(dual_write).store, "inside a transaction when it is checked out"
    with begun(engine):
        with pytest.raises(ConfigurationError, match=refused):
            store.note_outcome("orders-0", PreparedTxnState(), Outcome.HEURISTIC_HAZARD, "a test")
        with pytest.raises(ConfigurationError, match=refused):
            dual_write.transaction().__enter__()
    assert kafka.committed == []


def test_a_creator_that_shares_one_connection_cannot_commit_half_of_a_unit(
    sqlite_url: str, make_dual_write: Make, kafka: FakeKafka
) -> None:
    ready_engine(sqlite_url).dispose()
    shared = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), check_same_thread=False)
    engine = create_engine(sqlite_url, creator=lambda: shared)
    dual_write = make_dual_write(engine)

    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="half"))
            with pytest.raises(ConfigurationError, match="that another user has"):
                manager_of(dual_write).store.note_outcome(
                    "orders-0", PreparedTxnState(), Outcome.HEURISTIC_HAZARD, "a test"
                )

    with pytest.raises(InvalidTransactionStateError):
        unit()
    seen = create_engine(sqlite_url)
    assert stored_values(seen) == []
    seen.dispose()
    shared.close()


def test_a_connection_whose_rollback_failed_is_not_pooled_with_its_transaction(
    sqlite_url: str, make_dual_write: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's pool does not roll back what is returned to it."""
    engine = ready_engine(sqlite_url, pool_reset_on_return=None)
    dual_write, roll_back = make_dual_write(engine), engine.dialect.do_rollback
    dual_write.recover()
    failures = [sqlite3.OperationalError("a test")]

    def fail_once(connection: Any) -> None:
        if failures:
            raise failures.pop()
        roll_back(connection)

    def run_failing() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            monkeypatch.setattr(engine.dialect, "do_rollback", fail_once)
            raise LookupError

    with pytest.raises(LookupError):
        run_failing()
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="two"))
    assert (failures, stored_values(engine)) == ([], ["two"])
    engine.dispose()
