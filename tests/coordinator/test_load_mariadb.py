"""The loader on MariaDB: its types, its refusals, what it would change without a word, and a resumed load."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from dualwrite.cli.db import upgrade
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.loader.job import Progress
from dualwrite.loader.load import load
from tests.coordinator.loading import FakeDualWrite, KilledError, job_for, positions, write_input

pytestmark = pytest.mark.mariadb

COLUMNS = {
    "id": "BIGINT PRIMARY KEY",
    "small": "SMALLINT",
    "big": "BIGINT UNSIGNED",
    "real_": "DOUBLE",
    "exact": "DECIMAL(30, 20)",
    "money": "DECIMAL(10, 2)",
    "yes": "BOOLEAN",
    "day": "DATE",
    "clock": "TIME",
    "moment": "DATETIME",
    "fine": "DATETIME(6)",
    "code": "VARCHAR(3)",
    "kind": "ENUM('a', 'b')",
    "note": "TEXT",
}
ROW = {
    "id": "1",
    "small": "-5",
    "big": "9223372036854775807",
    "real_": "0.1",
    "exact": "0.10000000000000000001",
    "money": "9.995",
    "yes": "true",
    "day": "2013-01-31",
    "clock": "23:59:58.9",
    "moment": "2013-01-01T10:00:00.75+05:30",
    "fine": "2013-01-01T10:00:00.75+05:30",
    "code": "abc",
    "kind": "b",
    "note": "smørrebrød 🍞",
}
STORED = {
    **ROW,
    "money": "10.00",
    "yes": "1",
    "clock": "23:59:58",
    "moment": "2013-01-01 04:30:00",
    "fine": "2013-01-01 04:30:00.750000",
}
MESSAGE = {
    **ROW,
    "id": 1,
    "small": -5,
    "big": 9223372036854775807,
    "real_": 0.1,
    "money": "10.00",
    "yes": 1,
    "clock": "23:59:58",
    "moment": "2013-01-01T04:30:00",
    "fine": "2013-01-01T04:30:00.750000",
}


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[Engine]:
    upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE things ({columns}) CHARACTER SET utf8mb4"))
    yield engine
    engine.dispose()


def stored(engine: Engine) -> list[dict[str, Any]]:
    """The rows of the table, every value as MariaDB writes it."""
    texts = ", ".join(f"CAST({name} AS CHAR) AS {name}" for name in COLUMNS)
    with engine.connect() as connection:
        return [
            dict(row) for row in connection.execute(text(f"SELECT {texts} FROM things ORDER BY things.id")).mappings()
        ]


def as_csv(*rows: dict[str, str]) -> str:
    quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in rows]
    return "\n".join([",".join(ROW), *quoted]) + "\n"


def test_every_type_is_stored_and_told_alike(engine: Engine, tmp_path: Path) -> None:
    nothing = {**dict.fromkeys(ROW, ""), "id": "2"}
    dual_write = FakeDualWrite(engine)
    load(job_for(write_input(tmp_path / "f.csv", as_csv(ROW, nothing)), table="things"), engine, dual_write)
    assert stored(engine) == [STORED, {**dict.fromkeys(ROW), "id": "2"}]
    assert dual_write.values == [MESSAGE, {**dict.fromkeys(ROW), "id": 2}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": "abcd"}, "Data too long for column 'code'"),
        ({"small": "40000"}, "Out of range value for column 'small'"),
        ({"money": "123456789"}, "Out of range value for column 'money'"),
        ({"kind": "c"}, "Data truncated for column 'kind'"),
        ({"id": "1"}, "Duplicate entry '1' for key 'PRIMARY'"),
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
    assert (stored(engine), dual_write.topic, positions(engine)) == ([], [], [])


def test_a_database_that_would_change_values_is_refused(engine: Engine, mariadb_url: str, tmp_path: Path) -> None:
    lax = create_engine(mariadb_url, connect_args={"init_command": "SET sql_mode = ''"})
    path = write_input(tmp_path / "f.csv", as_csv({**ROW, "code": "abcd"}))
    with pytest.raises(ConfigurationError, match="add STRICT_TRANS_TABLES to sql_mode"):
        load(job_for(path, table="things"), lax, FakeDualWrite(lax))
    assert stored(engine) == []
    lax.dispose()


@pytest.mark.parametrize("unit", range(3))
def test_a_load_resumes_where_it_was_killed(engine: Engine, tmp_path: Path, unit: int) -> None:
    path = write_input(tmp_path / "f.csv", as_csv(*({**ROW, "id": str(number)} for number in range(7))))
    first, second = FakeDualWrite(engine, die_before=unit), FakeDualWrite(engine)
    with pytest.raises(KilledError):
        load(job_for(path, table="things"), engine, first)
    load(job_for(path, table="things"), engine, second)
    assert [value["id"] for value in first.values + second.values] == list(range(7))
    assert (len(stored(engine)), positions(engine)) == (7, [7])


def test_two_loads_of_one_file_at_once_do_not_both_write(engine: Engine, tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.csv", as_csv(*({**ROW, "id": str(number)} for number in range(6))))

    def overtaken(progress: Progress) -> None:
        if progress.rows == 0:
            load(job_for(path, table="things"), engine, FakeDualWrite(engine))

    with pytest.raises(InputError, match=r"into table things by another process; .* nothing is loaded"):
        load(job_for(path, table="things"), engine, FakeDualWrite(engine), overtaken)
    assert (len(stored(engine)), positions(engine)) == (6, [6])
