"""The load: each batch in both places or in neither, resumed after any end, and mistakes found before it writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.sql.tables import load_position
from dualwrite.errors import ConfigurationError, DatabaseNotReadyError, DualWriteError, InputError
from dualwrite.loader.job import LoadJob, Progress
from dualwrite.loader.load import load
from tests.support.coordinator.event_table import refuse_inserts
from tests.support.loader.input_files import (
    TOPIC,
    FakeDualWrite,
    KilledError,
    csv_text,
    job_for,
    make_database,
    pairs,
    positions,
    table_rows,
    write_input,
)

SEVEN = [(number, f"name {number}") for number in range(1, 8)]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_database(tmp_path)


@pytest.fixture
def seven(tmp_path: Path) -> Path:
    """A file of seven rows: two whole batches and one row."""
    return write_input(tmp_path / "f.csv", "id,name\n" + csv_text(7))


def refused(job: LoadJob, engine: Engine, dual_write: FakeDualWrite | None = None) -> str:
    """The message with which ``job`` is refused."""
    with pytest.raises(DualWriteError) as error:
        load(job, engine, dual_write or FakeDualWrite(engine))
    return str(error.value)


def test_a_file_is_loaded_into_both_places_batch_by_batch(engine: Engine, seven: Path) -> None:
    dual_write = FakeDualWrite(engine)
    done = load(job_for(seven, key="id"), engine, dual_write)
    assert done == Progress(7, 0, 1.0)
    assert table_rows(engine) == pairs(dual_write.values) == SEVEN
    assert [(topic, key) for topic, key, _ in dual_write.topic] == [(TOPIC, str(n).encode()) for n, _ in SEVEN]
    assert (dual_write.units, positions(engine)) == (3, [7])


def test_records_have_no_key_unless_one_is_asked_for(engine: Engine, seven: Path) -> None:
    dual_write = FakeDualWrite(engine)
    load(job_for(seven), engine, dual_write)
    assert {key for _, key, _ in dual_write.topic} == {None}


def test_a_finished_load_run_again_does_nothing_but_recover(engine: Engine, seven: Path) -> None:
    load(job_for(seven), engine, FakeDualWrite(engine))
    again = FakeDualWrite(engine)
    assert load(job_for(seven), engine, again) == Progress(7, 7, 1.0)
    assert (again.units, again.recoveries, again.topic) == (0, 1, [])


@dataclass
class LateCommit(FakeDualWrite):
    """Recovery waits for the database, which is still in the COMMIT of a process that was killed."""

    late: Callable[[], object] = lambda: None

    def recover(self) -> None:
        super().recover()
        self.late()


def test_a_batch_whose_commit_ends_during_recovery_is_not_loaded_again(engine: Engine, seven: Path) -> None:
    killed = FakeDualWrite(engine)
    second = LateCommit(engine, late=lambda: load(job_for(seven, batch_size=7), engine, killed))
    assert load(job_for(seven), engine, second) == Progress(7, 7, 1.0)
    assert table_rows(engine) == pairs(killed.values + second.values) == SEVEN


@pytest.mark.parametrize("die_before", range(3))
def test_a_load_resumes_where_it_was_killed(engine: Engine, seven: Path, die_before: int) -> None:
    first = FakeDualWrite(engine, die_before=die_before)
    with pytest.raises(KilledError):
        load(job_for(seven), engine, first)
    assert table_rows(engine) == pairs(first.values) == SEVEN[: 3 * die_before]
    second = FakeDualWrite(engine)
    assert load(job_for(seven), engine, second) == Progress(7, 3 * die_before, 1.0)
    assert table_rows(engine) == pairs(first.values + second.values) == SEVEN


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(kills=st.lists(st.integers(0, 3), max_size=4), sizes=st.lists(st.integers(1, 9), min_size=5, max_size=5))
def test_any_kills_and_batch_sizes_leave_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], sizes: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("load")
    engine = make_database(directory)
    path = write_input(directory / "f.csv.gz", 'id,name\r\n1,"name 1"\r\n\r\n' + csv_text(6, first=2) + "\n\n")
    topic: list[Any] = []
    for kill, size in zip([*kills, -1], sizes, strict=False):
        dual_write = FakeDualWrite(engine, die_before=kill)
        try:
            load(job_for(path, batch_size=size), engine, dual_write)
        except KilledError:
            assert table_rows(engine) == pairs(topic + dual_write.values)
        topic += dual_write.values
    assert table_rows(engine) == pairs(topic) == SEVEN
    engine.dispose()


def test_rows_that_a_file_gained_are_loaded(engine: Engine, seven: Path) -> None:
    load(job_for(seven), engine, FakeDualWrite(engine))
    with seven.open("a") as file:
        file.write(csv_text(2, first=8))
    more = FakeDualWrite(engine)
    assert load(job_for(seven), engine, more) == Progress(9, 7, 1.0)
    assert [value["id"] for value in more.values] == [8, 9]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("name 2", "name B"),
        lambda text: text.replace("id,name", "name,id"),
        lambda text: "".join(text.splitlines(keepends=True)[:-1]),
        lambda text: text.replace("1,name 1\n", ""),
    ],
    ids=["a value", "the header", "a row less", "the first row gone"],
)
def test_a_file_that_changed_where_it_was_loaded_is_refused(
    engine: Engine, seven: Path, change: Callable[[str], str]
) -> None:
    load(job_for(seven), engine, FakeDualWrite(engine))
    seven.write_text(change(seven.read_text()))
    again = FakeDualWrite(engine)
    assert refused(job_for(seven), engine, again).startswith("f.csv has changed in the 7 rows that were loaded from it")
    assert again.units == 0


def test_a_malformed_row_keeps_its_whole_batch_out_and_leaves_earlier_ones(engine: Engine, seven: Path) -> None:
    seven.write_text(seven.read_text().replace("5,name 5", "five,name 5"))
    dual_write = FakeDualWrite(engine)
    assert refused(job_for(seven), engine, dual_write) == (
        "f.csv, line 6: column 'id': expected an integer, not 'five'; "
        "the 3 rows before this batch are loaded, this batch is not"
    )
    assert table_rows(engine) == pairs(dual_write.values) == SEVEN[:3]


def test_a_load_continues_once_the_malformed_row_is_corrected(engine: Engine, seven: Path) -> None:
    good = seven.read_text()
    seven.write_text(good.replace("5,name 5", "5"))
    first = FakeDualWrite(engine)
    assert "f.csv, line 6: 1 fields where" in refused(job_for(seven), engine, first)
    seven.write_text(good)
    second = FakeDualWrite(engine)
    load(job_for(seven), engine, second)
    assert table_rows(engine) == pairs(first.values + second.values) == SEVEN


def test_a_row_that_the_database_refuses_keeps_its_batch_out(engine: Engine, seven: Path) -> None:
    seven.write_text(seven.read_text().replace("2,name 2", "1,name 2"))
    dual_write = FakeDualWrite(engine)
    assert refused(job_for(seven), engine, dual_write) == (
        "f.csv, lines 2 to 4: the database refuses a row: UNIQUE constraint failed: flights.id; nothing is loaded"
    )
    assert (table_rows(engine), dual_write.topic, positions(engine)) == ([], [], [])
    alone = refused(job_for(seven, batch_size=1), engine, dual_write)
    assert alone.startswith("f.csv, line 3: the database refuses a row: ")


class LostConnection(FakeDualWrite):
    """Its database goes away in the first unit of work."""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        raise OperationalError("COMMIT", {}, Exception("the server closed the connection"))
        yield


def test_a_lost_connection_is_not_called_a_row_that_is_to_be_corrected(engine: Engine, seven: Path) -> None:
    with pytest.raises(OperationalError):
        load(job_for(seven), engine, LostConnection(engine))


def test_two_loads_of_one_file_at_once_do_not_both_write(engine: Engine, seven: Path) -> None:
    def overtaken(progress: Progress) -> None:
        if progress.rows == 3:
            load(job_for(seven), engine, FakeDualWrite(engine))

    with pytest.raises(InputError, match="is being loaded into table flights by another process"):
        load(job_for(seven, batch_size=3), engine, FakeDualWrite(engine), overtaken)
    assert table_rows(engine) == SEVEN


def test_a_position_that_the_database_refuses_is_not_taken_for_that_of_another_process(
    engine: Engine, seven: Path
) -> None:
    refuse_inserts(engine, load_position.name)
    with pytest.raises(ConfigurationError, match=f"^the database refuses a row of {load_position.name}: refused: look"):
        load(job_for(seven), engine, FakeDualWrite(engine))
    assert table_rows(engine) == []


def test_json_lines_may_leave_columns_out(engine: Engine, tmp_path: Path) -> None:
    lines = ['{"id": 1, "name": "a"}', '{"note": "n", "name": "b", "id": 2}', '{"id": 3, "name": "c"}']
    dual_write = FakeDualWrite(engine)
    load(job_for(write_input(tmp_path / "f.jsonl", "\n".join(lines)), key="name"), engine, dual_write)
    assert table_rows(engine) == [(1, "a"), (2, "b"), (3, "c")]
    assert [list(value) for value in dual_write.values] == [["id", "name"], ["id", "name", "note"], ["id", "name"]]
    assert [key for _, key, _ in dual_write.topic] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 2, "nam": "b"}', "f.jsonl, line 2: table flights has no column 'nam'; it has id, name, note"),
        ('{"id": 2, "name": "b"}', "f.jsonl, line 2: key column 'note' is missing"),
        ('{"id": 2, "name": "\\ud800", "note": ""}', "f.jsonl, line 2: 'utf-8' codec can't encode"),
        ('{"id": 2, "name": null, "note": ""}', "f.jsonl, line 2: column 'name': is NOT NULL and has no value"),
    ],
)
def test_a_json_line_that_does_not_fit_is_refused(engine: Engine, tmp_path: Path, line: str, message: str) -> None:
    path = write_input(tmp_path / "f.jsonl", f'{{"id": 1, "name": "a", "note": "n"}}\n{line}\n')
    assert refused(job_for(path, key="note"), engine).startswith(message)
    assert table_rows(engine) == []


def test_the_null_text_is_null(engine: Engine, tmp_path: Path) -> None:
    dual_write = FakeDualWrite(engine)
    path = write_input(tmp_path / "f.csv", "id,name,note\n1,a,NA\n2,b,\n")
    load(job_for(path, null="NA"), engine, dual_write)
    assert [value["note"] for value in dual_write.values] == [None, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "fights"}, "the database has no table 'fights'; create it before loading into it"),
        ({"table": "main.fights"}, "the database has no table 'main.fights'; create it before loading into it"),
        ({"key": "nam"}, "key column 'nam' is not in table flights"),
        ({"key": "note"}, "key column 'note' is not in f.csv"),
        ({"batch_size": 0}, "batch size 0: use 1 or more"),
        ({"batch_size": 10**30}, f"batch size {10**30}: use 2147483647 at most"),
        ({"topic": "my topic"}, "topic 'my topic': use 1 to 249 letters, digits, dots, underscores and hyphens"),
        ({"topic": ".."}, "topic '..': use 1 to 249 letters, digits, dots, underscores and hyphens"),
    ],
)
def test_a_mistake_is_found_before_anything_is_done(
    engine: Engine, seven: Path, changes: dict[str, Any], message: str
) -> None:
    dual_write = FakeDualWrite(engine)
    assert refused(job_for(seven, **changes), engine, dual_write) == message
    assert (dual_write.recoveries, dual_write.units) == (0, 0)


def test_a_column_that_the_table_lacks_is_found_before_anything_is_done(engine: Engine, tmp_path: Path) -> None:
    dual_write = FakeDualWrite(engine)
    path = write_input(tmp_path / "f.csv", "id,nam\n1,a\n")
    assert (
        refused(job_for(path), engine, dual_write) == "f.csv: table flights has no column 'nam'; it has id, name, note"
    )
    assert dual_write.recoveries == 0


def test_a_missing_state_table_is_found_before_anything_is_done(tmp_path: Path, seven: Path) -> None:
    engine = make_database(tmp_path, ready=False)
    dual_write = FakeDualWrite(engine)
    with pytest.raises(DatabaseNotReadyError, match="run: dualwrite db upgrade --db sqlite:///"):
        load(job_for(seven), engine, dual_write)
    assert dual_write.recoveries == 0


def test_a_schema_may_be_named(engine: Engine, seven: Path) -> None:
    assert load(job_for(seven, table="main.flights"), engine, FakeDualWrite(engine)).rows == 7


def test_an_empty_json_file_is_loaded_already(engine: Engine, tmp_path: Path) -> None:
    dual_write = FakeDualWrite(engine)
    assert load(job_for(write_input(tmp_path / "f.jsonl", "")), engine, dual_write) == Progress(0, 0, 1.0)
    assert (dual_write.units, positions(engine)) == (0, [])


def test_progress_is_reported_before_and_after_each_batch_and_at_the_end(engine: Engine, seven: Path) -> None:
    told: list[Progress] = []
    load(job_for(seven), engine, FakeDualWrite(engine), told.append)
    assert [progress.rows for progress in told] == [0, 3, 6, 7, 7]
    assert told[-1].fraction == 1


def test_a_batch_size_below_one_is_the_callers_setting(engine: Engine, seven: Path) -> None:
    with pytest.raises(ConfigurationError):
        load(job_for(seven, batch_size=-1), engine, FakeDualWrite(engine))
