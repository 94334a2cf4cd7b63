"""Tables for staged rows of a target that has other columns by now: they are dropped, unless a run uses them."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Inspector, event, inspect, text
from sqlalchemy.exc import NoSuchTableError, OperationalError, ProgrammingError

from dualwrite.errors import DatabaseBusyError
from dualwrite.spark.batch.runs import Run
from dualwrite.spark.batch.staging import drop_outdated
from tests.support.spark.lock_waits import PATIENCE, await_waiting
from tests.support.spark.staging_place import StagingPlace

pytestmark = pytest.mark.slow_cases("mariadb")


@contextmanager
def begun_and_not_committed(place: StagingPlace) -> Iterator[None]:
    """Another thread begins a run: the block runs before the COMMIT of the run."""
    is_written, may_commit = threading.Event(), threading.Event()

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if threading.current_thread() is thread and statement.startswith("UPDATE") and "staging_table" in statement:
            is_written.set()

    def hold(_: Connection) -> None:
        if threading.current_thread() is thread and is_written.is_set():
            assert may_commit.wait(PATIENCE)

    thread = threading.Thread(target=place.runs.begin, args=("another job", None, place.run.staging, 100.0))
    event.listen(place.engine, "after_cursor_execute", note)
    event.listen(place.engine, "commit", hold)
    thread.start()
    assert is_written.wait(PATIENCE)
    try:
        yield
    finally:
        may_commit.set()
        thread.join()


@pytest.fixture
def place(engine: Engine) -> StagingPlace:
    place = StagingPlace(engine)
    change(place, "note VARCHAR(40)")
    return place


def change(place: StagingPlace, column: str) -> None:
    """What a migration does."""
    with place.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE things DROP COLUMN {column.split()[0]}"))
        connection.execute(text(f"ALTER TABLE things ADD COLUMN {column}"))


def tables(place: StagingPlace) -> set[str]:
    names = inspect(place.engine).get_table_names()
    return {name for name in names if name.startswith("dualwrite_staged")}


def drop(place: StagingPlace) -> None:
    drop_outdated(place.engine, place.dbtable, place.runs.is_staging)


def test_only_staging_tables_for_other_types_or_columns_are_dropped(place: StagingPlace) -> None:
    now = place.make()
    place.names = ["note"]
    other = place.make()
    another = StagingPlace(place.engine, "things of others")
    assert len(tables(place)) == 4
    drop(place)
    assert tables(place) == {now[1], other[1], another.run.staging[1]}
    with place.engine.begin() as connection:
        connection.execute(text("ALTER TABLE things DROP COLUMN note"))
    drop(place)
    assert tables(place) == {another.run.staging[1]}


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_a_staging_table_is_dropped_when_a_column_gets_an_unknown_type(place: StagingPlace) -> None:
    if place.engine.dialect.name != "postgresql":
        pytest.skip("the others know no such types")
    with place.engine.begin() as connection:
        connection.execute(text("ALTER TABLE things ALTER note TYPE pg_snapshot USING NULL"))
    drop(place)
    assert tables(place) == set()


def test_a_table_that_another_process_drops_during_the_inspection_is_only_logged(
    place: StagingPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    get_columns = Inspector.get_columns

    def gone(inspector: Inspector, table_name: str, *given: Any, **options: Any) -> Any:
        if table_name == place.run.staging[1]:
            raise NoSuchTableError(table_name)
        return get_columns(inspector, table_name, *given, **options)

    monkeypatch.setattr(Inspector, "get_columns", gone)
    with caplog.at_level("INFO", logger="dualwrite"):
        drop(place)
    assert f"outdated tables for staged rows of {place.dbtable} were not dropped: {place.run.staging[1]}" in caplog.text


def test_a_staging_table_stays_until_its_open_run_has_ended(place: StagingPlace) -> None:
    run = place.runs.begin("another job", None, place.run.staging, 100.0)
    assert run is not None
    drop(place)
    assert tables(place) == {place.run.staging[1]}
    place.runs.end(run)
    drop(place)
    assert tables(place) == set()


def test_a_run_whose_staging_table_is_gone_does_not_begin(place: StagingPlace) -> None:
    drop(place)
    with pytest.raises(DatabaseBusyError, match="is gone: its target was changed meanwhile; run the batch again"):
        place.runs.begin("job", None, place.run.staging, 100.0)
    assert place.runs.end_job("job") is None


def test_an_error_that_does_not_say_that_the_staging_table_is_gone_is_raised_as_it_is(place: StagingPlace) -> None:
    """Run again, such a batch would fail again."""

    @event.listens_for(place.engine, "before_cursor_execute", retval=True)
    def break_look(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        is_look = statement.startswith("SELECT") and place.run.staging[1] in statement
        return ("no statement" if is_look else statement), parameters

    with pytest.raises((OperationalError, ProgrammingError), match="syntax"):
        place.runs.begin("job", None, place.run.staging, 100.0)
    assert place.runs.end_job("job") is None


@pytest.mark.slow_cases
def test_a_beginning_run_keeps_its_staging_table_from_being_dropped(place: StagingPlace) -> None:
    """It has looked whether the table is there, and nobody sees the run yet: whoever drops is kept waiting."""
    if place.engine.dialect.name == "sqlite":
        pytest.skip("has one writer at a time")
    asked: list[tuple[str | None, str]] = []
    with begun_and_not_committed(place):
        drop_outdated(place.engine, place.dbtable, lambda name: bool(asked.append(name)))
    assert asked == [], "its patience has an end"
    assert tables(place) == {place.run.staging[1]}


def test_a_run_that_begins_during_the_drop_waits_and_is_refused(place: StagingPlace) -> None:
    if place.engine.dialect.name == "sqlite":
        pytest.skip("has one writer at a time")
    place.runs.begin("job", None, place.run.staging, 100.0)
    place.runs.end_job("job")
    with ThreadPoolExecutor(1) as threads:
        begun: list[Future[Run | None]] = []

        def begin_another(_: object) -> bool:
            begun.append(threads.submit(place.runs.begin, "job", None, place.run.staging, 100.0))
            await_waiting(place.engine, 1)
            return False

        drop_outdated(place.engine, place.dbtable, begin_another)
        with pytest.raises(DatabaseBusyError, match="is gone"):
            begun[0].result(60)
    assert tables(place) == set()


def test_a_staging_table_that_cannot_be_dropped_is_left(place: StagingPlace, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> bool:
        raise OperationalError("SELECT", None, Exception("the connection is lost"))

    with caplog.at_level(logging.INFO, "dualwrite"):
        drop_outdated(place.engine, place.dbtable, fail)
    assert "were not dropped" in caplog.text
    assert tables(place) == {place.run.staging[1]}
