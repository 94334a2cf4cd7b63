"""The loader on database servers: their types, their refusals, a resumed load, and a position that two cannot move."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite.cli.db import upgrade
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.loader.job import Progress
from dualwrite.loader.load import load
from tests.support.loader.input_files import FakeDualWrite, KilledError, job_for, positions, write_input
from tests.support.loader.server_table import MARIADB, POSTGRESQL, Things

SERVERS = {
    "postgresql": (POSTGRESQL, {"options": "-c timezone=UTC"}, pytest.mark.postgresql),
    "mariadb": (MARIADB, {}, pytest.mark.mariadb),
}


@pytest.fixture(params=[pytest.param(name, marks=mark) for name, (_, _, mark) in SERVERS.items()])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def things(server: str) -> Things:
    return SERVERS[server][0]


@pytest.fixture
def engine(server: str, things: Things, request: pytest.FixtureRequest) -> Iterator[Engine]:
    url = request.getfixturevalue(f"{server}_url")
    upgrade(url)
    engine = create_engine(url, connect_args=SERVERS[server][1])
    things.create(engine)
    yield engine
    engine.dispose()


def test_every_type_is_the_same_in_the_table_and_the_message(engine: Engine, things: Things, tmp_path: Path) -> None:
    nothing = {**dict.fromkeys(things.row, ""), "id": "2"}
    dual_write = FakeDualWrite(engine)
    path = write_input(tmp_path / "f.csv", things.as_csv(things.row, nothing))
    load(job_for(path, table="things"), engine, dual_write)
    assert things.all_stored(engine) == [things.stored, {**dict.fromkeys(things.row), "id": "2"}]
    assert dual_write.values == [things.message, {**dict.fromkeys(things.row), "id": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("server", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True)
def test_json_lines_arrive_as_csv_does(engine: Engine, things: Things, tmp_path: Path) -> None:
    values = {**things.row, "id": 1, "small": -5, "real": 0.1, "yes": True, "doc": json.loads(things.row["doc"])}
    text = json.dumps(values).replace('"0.10000000000000000001"', "0.10000000000000000001")
    dual_write = FakeDualWrite(engine)
    load(job_for(write_input(tmp_path / "f.jsonl", text), table="public.things"), engine, dual_write)
    assert (things.all_stored(engine), dual_write.values) == ([things.stored], [things.message])


@pytest.mark.slow_cases
def test_a_row_that_the_database_refuses_keeps_its_batch_out(engine: Engine, things: Things, tmp_path: Path) -> None:
    assert len(things.refused) >= 2
    for change, message in things.refused:
        dual_write = FakeDualWrite(engine)
        path = write_input(tmp_path / "f.csv", things.as_csv(things.row, {**things.row, "id": "2", **change}))
        with pytest.raises(InputError) as refused:
            load(job_for(path, table="things"), engine, dual_write)
        assert str(refused.value).startswith("f.csv, lines 2 to 3: the database refuses a row: ")
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
        assert (things.all_stored(engine), dual_write.topic, positions(engine)) == ([], [], [])


def test_columns_take_their_last_values_and_other_rows_are_put_aside(
    engine: Engine, things: Things, tmp_path: Path
) -> None:
    changes = [*things.edges, *(change for change, _ in things.beyond)]
    rows = [{**things.row, "id": str(number), **change} for number, change in enumerate(changes)]
    path, bad = write_input(tmp_path / "f.csv", things.as_csv(*rows)), tmp_path / "bad.jsonl"
    done = load(job_for(path, table="things", bad_rows=bad), engine, FakeDualWrite(engine))
    assert (done.rows, done.bad_rows) == (len(things.edges), len(things.beyond))
    assert len(things.all_stored(engine)) == len(things.edges)
    errors = [json.loads(line)["error"] for line in bad.read_text().splitlines()]
    for error, (_, message) in zip(errors, things.beyond, strict=True):
        assert message in error


@pytest.mark.mariadb
def test_a_mariadb_that_would_change_values_is_refused(mariadb_url: str, tmp_path: Path) -> None:
    upgrade(mariadb_url)
    lax = create_engine(mariadb_url, connect_args={"init_command": "SET sql_mode = ''"})
    MARIADB.create(lax)
    path = write_input(tmp_path / "f.csv", MARIADB.as_csv({**MARIADB.row, "code": "abcd"}))
    with pytest.raises(ConfigurationError, match="add STRICT_TRANS_TABLES to sql_mode"):
        load(job_for(path, table="things"), lax, FakeDualWrite(lax))
    assert MARIADB.all_stored(lax) == []
    lax.dispose()


@pytest.mark.slow_cases
@pytest.mark.parametrize("unit", range(3))
def test_a_load_resumes_where_it_was_killed(engine: Engine, things: Things, tmp_path: Path, unit: int) -> None:
    path = write_input(tmp_path / "f.csv", things.as_csv(*things.rows(7)))
    first, second = FakeDualWrite(engine, die_before=unit), FakeDualWrite(engine)
    with pytest.raises(KilledError):
        load(job_for(path, table="things"), engine, first)
    load(job_for(path, table="things"), engine, second)
    assert [value["id"] for value in first.values + second.values] == list(range(7))
    assert (len(things.all_stored(engine)), positions(engine)) == (7, [7])


def test_two_loads_of_one_file_at_once_do_not_both_write(engine: Engine, things: Things, tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", things.as_csv(*things.rows(6)))

    def overtaken(progress: Progress) -> None:
        if progress.rows == 0:
            load(job_for(path, table="things"), engine, FakeDualWrite(engine))

    with pytest.raises(InputError, match=r"into table things by another process; .* nothing is loaded"):
        load(job_for(path, table="things"), engine, FakeDualWrite(engine), overtaken)
    assert (len(things.all_stored(engine)), positions(engine)) == (6, [6])
