"""A power cut right after the COMMIT: SQLite has its decision on disk, or the log has said that it may not."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.dialects.supported import database_of
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, async_url, run
from tests.support.coordinator.event_table import ready_engine
from tests.support.coordinator.usual_unit import write

Make = Callable[..., DualWrite]

OFF, NORMAL, FULL, EXTRA = range(4)
SYNCHRONOUS = text("PRAGMA synchronous")


def engine_with(url: str, *statements: str) -> Engine:
    """An engine whose connections begin with ``statements``, as an application's listener may let them."""
    ready_engine(url).dispose()
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def set_up(driver: Any, _: object) -> None:
        for statement in statements:
            driver.execute(statement)

    return engine


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("statements", [(), ("PRAGMA synchronous = FULL",), ("PRAGMA synchronous = EXTRA",)])
def test_a_commit_syncs_the_directory_from_which_it_has_removed_the_journal(
    make_dual_write: Make, sqlite_url: str, statements: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """At FULL, the default, SQLite does not: the journal may come back, and SQLite then rolls the transaction back."""
    engine = engine_with(sqlite_url, *statements)
    dual_write = make_dual_write(engine)
    for value in ("one", "two"):
        with dual_write.transaction() as tx:
            write(tx, value)
            assert tx.scalar(SYNCHRONOUS) == EXTRA
    with manager_of(dual_write).store.transaction(commit=False) as connection:
        assert connection.scalar(SYNCHRONOUS) == EXTRA
    assert warned(caplog) == []
    engine.dispose()


def test_a_commit_of_a_task_syncs_the_directory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    seen = ready_engine(url)
    place = AsyncPlace("aiosqlite", async_url(url, "aiosqlite"), seen)

    async def main() -> None:
        async with place.engine() as engine, place.dual_write(engine) as dual_write, dual_write.transaction() as tx:
            assert await tx.scalar(SYNCHRONOUS) == EXTRA

    run(main())
    seen.dispose()


@pytest.mark.parametrize(
    ("statement", "value", "said"),
    [
        ("PRAGMA synchronous = NORMAL", NORMAL, "synchronous = NORMAL: a crash of the machine can undo a decision"),
        ("PRAGMA synchronous = OFF", OFF, "synchronous = OFF: a crash of the machine can undo a decision"),
        ("PRAGMA journal_mode = MEMORY", EXTRA, "journal_mode = MEMORY: a crash during a commit leaves a part of it"),
    ],
)
def test_a_weaker_setting_of_the_users_stays_and_the_log_says_once_what_it_means(
    make_dual_write: Make,
    sqlite_url: str,
    statement: str,
    value: int,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The doctor cannot: its connections have none of the application's listeners."""
    engine = engine_with(sqlite_url, statement)
    dual_write = make_dual_write(engine)
    for name in ("one", "two"):
        with dual_write.transaction() as tx:
            write(tx, name)
            assert tx.scalar(SYNCHRONOUS) == value
    (line,) = warned(caplog)
    assert line.startswith(f"the connection to the database has {said}")
    assert [record.args for record in caplog.records if record.getMessage() == line] == [
        (line.removeprefix("the connection to the database has "),)
    ], "logging would swallow a time limit that strikes while it formats anything else than a text"
    engine.dispose()


def test_a_driver_that_is_always_in_a_transaction_keeps_its_setting_which_is_named(sqlite_url: str) -> None:
    """SQLite changes the setting outside of transactions only."""
    engine = engine_with(sqlite_url)
    database = database_of(engine.dialect)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        database.make_durable(connection)
        assert connection.scalar(SYNCHRONOUS) == FULL
        (gap,) = database.durability_gaps(connection)
    assert str(gap).startswith("synchronous = FULL, journal_mode = DELETE: a power cut right after a COMMIT can undo")
    engine.dispose()
