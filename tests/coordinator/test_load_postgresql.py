"""The loader on PostgreSQL: its types, its refusals, and a position that two loads cannot both move."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite.coordinator.tables import metadata as state_tables
from dualwrite.errors import InputError
from dualwrite.loader.job import Progress
from dualwrite.loader.load import load
from tests.coordinator.loading import FakeDualWrite, job_for, positions, write_input

pytestmark = pytest.mark.postgresql

COLUMNS = {
    "id": "BIGINT PRIMARY KEY",
    "small": "SMALLINT",
    "real": "DOUBLE PRECISION",
    "exact": "NUMERIC(30, 20)",
    "yes": "BOOLEAN",
    "day": "DATE",
    "clock": "TIME",
    "moment": "TIMESTAMPTZ",
    "local": "TIMESTAMP",
    "uid": "UUID",
    "doc": "JSONB",
    "code": "VARCHAR(3)",
}
ROW = {
    "id": "1",
    "small": "-5",
    "real": "0.1",
    "exact": "0.10000000000000000001",
    "yes": "t",
    "day": "2013-01-31",
    "clock": "23:59:58.5",
    "moment": "2013-01-01T10:00:00+05:30",
    "local": "2013-01-01T10:00:00+05:30",
    "uid": "5f0c9b0a-3b1e-4f7e-8f55-0123456789ab",
    "doc": '{"a": [1, 2.5, null]}',
    "code": "abc",
}
STORED = {
    **ROW,
    "yes": "true",
    "moment": "2013-01-01 04:30:00+00",
    "local": "2013-01-01 04:30:00",
}
MESSAGE = {
    **ROW,
    "id": 1,
    "small": -5,
    "real": 0.1,
    "yes": True,
    "clock": "23:59:58.500000",
    "moment": "2013-01-01T04:30:00+00:00",
    "local": "2013-01-01T04:30:00",
    "doc": {"a": [1, 2.5, None]},
}


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = create_engine(postgresql_url, connect_args={"options": "-c timezone=UTC"})
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE things ({columns})")
    state_tables.create_all(engine)
    yield engine
    engine.dispose()


def stored(engine: Engine) -> list[dict[str, Any]]:
    """The rows of the table, every value as PostgreSQL writes it."""
    texts = ", ".join(f"{name}::text" for name in COLUMNS)
    with engine.connect() as connection:
        return [dict(row) for row in connection.exec_driver_sql(f"SELECT {texts} FROM things ORDER BY id").mappings()]


def as_csv(*rows: dict[str, str]) -> str:
    quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in rows]
    return "\n".join([",".join(ROW), *quoted]) + "\n"


def test_every_type_is_stored_and_told_alike(engine: Engine, tmp_path: Path) -> None:
    nothing = {**dict.fromkeys(ROW, ""), "id": "2"}
    dual_write = FakeDualWrite(engine)
    load(job_for(write_input(tmp_path / "f.csv", as_csv(ROW, nothing)), table="things"), engine, dual_write)
    assert stored(engine) == [STORED, {**dict.fromkeys(ROW), "id": "2"}]
    assert dual_write.values == [MESSAGE, {**dict.fromkeys(ROW), "id": 2}]


def test_json_lines_arrive_as_csv_does(engine: Engine, tmp_path: Path) -> None:
    values = {**ROW, "id": 1, "small": -5, "real": 0.1, "yes": True, "doc": json.loads(ROW["doc"])}
    text = json.dumps(values).replace('"0.10000000000000000001"', "0.10000000000000000001")
    dual_write = FakeDualWrite(engine)
    load(job_for(write_input(tmp_path / "f.jsonl", text), table="public.things"), engine, dual_write)
    assert (stored(engine), dual_write.values) == ([STORED], [MESSAGE])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": "abcd"}, "value too long for type character varying(3)"),
        ({"small": "40000"}, "smallint out of range"),
        ({"id": "1"}, "duplicate key value violates unique constraint"),
    ],
)
def test_a_row_that_the_database_refuses_keeps_its_batch_out(
    engine: Engine, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    dual_write = FakeDualWrite(engine)
    path = write_input(tmp_path / "f.csv", as_csv(ROW, {**ROW, "id": "2", **change}))
    with pytest.raises(InputError) as refused:
        load(job_for(path, table="things"), engine, dual_write)
    assert str(refused.value).startswith("f.csv, lines 2 to 3: the database refuses a row: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (stored(engine), dual_write.topic, positions(engine)) == ([], [], [])


def test_two_loads_of_one_file_at_once_do_not_both_write(engine: Engine, tmp_path: Path) -> None:
    rows = [{**ROW, "id": str(number)} for number in range(6)]
    path = write_input(tmp_path / "f.csv", as_csv(*rows))

    def overtaken(progress: Progress) -> None:
        if progress.rows == 0:
            load(job_for(path, table="things"), engine, FakeDualWrite(engine))

    with pytest.raises(InputError, match=r"into table things by another process; .* nothing is loaded"):
        load(job_for(path, table="things"), engine, FakeDualWrite(engine), overtaken)
    assert (len(stored(engine)), positions(engine)) == (6, [6])
