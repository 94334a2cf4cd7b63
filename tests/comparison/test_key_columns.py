"""Columns of every type as keys: the records that ``dualwrite load`` writes are found, and a missing one is missed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite.comparison.column_forms import ColumnForm
from dualwrite.comparison.compare import compare
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference
from dualwrite.comparison.key_text import value_digest
from dualwrite.comparison.table import TableKeys
from dualwrite.loader.load import load
from dualwrite.schema import upgrade_engine
from dualwrite.testing.kafka import KafkaBroker
from tests.support.comparison.comparison_site import ComparisonSite, found
from tests.support.loader.input_files import FakeDualWrite, job_for, write_input
from tests.support.loader.server_table import MARIADB, POSTGRESQL, Things

SQLITE = Things(
    columns={
        "id": "INTEGER",
        "exact": "NUMERIC(10, 2)",
        "real_": "FLOAT",
        "day": "DATE",
        "clock": "TIME",
        "moment": "TIMESTAMP",
        "code": "CHAR(3)",
        "yes": "BOOLEAN",
        "doc": "JSON",
        "anything": "",
    },
    row={
        "id": "1",
        "exact": "10.50",
        "real_": "0.1",
        "day": "2013-01-31",
        "clock": "23:59:58.5",
        "moment": "2013-01-01T10:00:00+05:30",
        "code": "abc",
        "yes": "t",
        "doc": '{"a": [1, 2.5, null]}',
        "anything": "5",
    },
    stored={},
    message={},
    refused=(),
    as_text="{}",
)
EVERY_COLUMN = [
    pytest.param(
        things,
        server,
        column,
        marks=[getattr(pytest.mark, server)] if server != "sqlite" else [],
        id=f"{server}-{column}",
    )
    for server, things in (("sqlite", SQLITE), ("postgresql", POSTGRESQL), ("mariadb", MARIADB))
    for column in things.columns
]


@dataclass
class LoadedTable:
    """A table with one row, and its record as ``dualwrite load`` writes it."""

    engine: Engine
    key: str
    value: bytes

    def compare(self, broker: KafkaBroker, column: str, *records: Mapping[str, Any]) -> Comparison:
        topic = broker.create_topic()
        site = ComparisonSite(self.engine.url.render_as_string(hide_password=False), broker)
        site.topic = topic
        for record in records:
            site.produce((record["key"], record["value"]))
        site.close()
        job = ComparisonJob("things", topic, [column], values=True)
        return compare(self.engine, broker.client_config, job, wait=0)


@pytest.mark.slow_cases("postgresql", "mariadb")
@pytest.mark.parametrize(("things", "server", "column"), EVERY_COLUMN)
def test_the_records_of_a_load_are_found(
    request: pytest.FixtureRequest, tmp_path: Path, broker: KafkaBroker, things: Things, server: str, column: str
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    if server != "sqlite":
        url = str(request.getfixturevalue(f"{server}_url"))
    engine = create_engine(url)
    upgrade_engine(engine)
    things.create(engine)
    dual_write = FakeDualWrite(engine)
    path = write_input(tmp_path / "f.csv", things.as_csv(things.row))
    load(job_for(path, table="things", key=column), engine, dual_write)
    ((_, key, value),) = dual_write.topic
    assert key is not None
    table = LoadedTable(engine, key.decode(), json.dumps(value).encode())
    record = {"key": table.key, "value": table.value}
    assert found(table.compare(broker, column, record)) == {}
    assert found(table.compare(broker, column)) == {Difference.ONLY_IN_TABLE: [table.key]}
    other = {"key": "no such key", "value": table.value}
    assert found(table.compare(broker, column, record, other)) == {Difference.ONLY_IN_TOPIC: ["no such key"]}
    engine.dispose()


RAGGED = {
    "sqlite": {
        "exact NUMERIC(10, 2)": ["10.5", "7", "1e3", "-0.001", "0.125"],
        "exact_2 DECIMAL": ["10.50", "1e3", "1e-7", "-7", "12345678901234567"],
        "single REAL": ["0.123456789", "16777217", "1e-40", "-0.0", "1e300"],
        "code CHAR(5)": ["ab", "ab ", "  cd  ", "x", "y"],
        "name VARCHAR(3)": ["ab ", "ab     ", "a", "b", "abcdef"],
        "clock TIME": ["10:00", "10:00:00.7", "23:59:59.999999", "00:00", "01:00"],
        "moment DATETIME": [
            "2026-01-31",
            "2026-01-31T10:00:00.5+02:00",
            "2026-01-31 10:00",
            "1970-01-01",
            "2026-01-30",
        ],
        "yes BOOLEAN": ["t", "F", "1", "0", "true"],
    },
    "postgresql": {
        "exact NUMERIC(10, 2)": ["10.5", "7", "1e3", "-0.001", "0.125"],
        "exact_0 NUMERIC(10)": ["10.5", "7", "1e3", "-0.001", "0.125"],
        "exact_2 NUMERIC": ["10.50", "1e3", "1e-7", "-0.0", "12345678901234567890.10"],
        "single REAL": ["0.123456789", "16777217", "1e-40", "7", "3.4028235e38"],
        "double_ DOUBLE PRECISION": ["0.123456789", "1e22", "5e-324", "7", "-0.0"],
        "code CHAR(5)": ["ab", "ab ", "  cd  ", "x       ", "y"],
        "name VARCHAR(3)": ["ab ", "ab     ", "a", "b", "c"],
        "clock TIME(0)": ["10:00", "10:00:00.7", "23:59:59.999999", "00:00", "01:00"],
        "zoned TIMETZ": ["10:00", "10:00:00.7", "23:59:59.999999", "00:00", "01:00"],
        "moment TIMESTAMPTZ(3)": ["2026-01-31", "2026-01-31T10:00:00.1239+02:00", "1970-01-01", "2026-01-30", ""],
        "local TIMESTAMP(0)": ["2026-01-31", "2026-01-31T10:00:00.7+02:00", "1970-01-01", "2026-01-30", ""],
        "yes BOOLEAN": ["t", "F", "1", "0", "true"],
        "doc JSONB": ['{"a": 1.0, "b": 1e2}', "[1.50]", "null", "7", '"x"'],
    },
    "mariadb": {
        "exact DECIMAL(10, 2)": ["10.5", "7", "1e3", "-0.001", "0.125"],
        "exact_0 DECIMAL": ["10.5", "7", "1e3", "-0.001", "0.125"],
        "single FLOAT": ["0.123456789", "16777216", "1e-40", "7", "3.4028234e38"],
        "rounded FLOAT(7, 4)": ["0.123456789", "0.00005", "1e2", "7", "-0.00001"],
        "double_ DOUBLE": ["0.123456789", "1e22", "5e-324", "7", "-0.0"],
        "code CHAR(5)": ["ab", "ab ", "  cd  ", "x       ", "y"],
        "name VARCHAR(3)": ["ab ", "ab     ", "a", "b", "c"],
        "clock TIME": ["10:00", "10:00:00.7", "23:59:59.999999", "00:00", "01:00"],
        "fine TIME(3)": ["10:00", "10:00:00.7", "23:59:59.999999", "00:00", "01:00"],
        "moment DATETIME(3)": ["2026-01-31", "2026-01-31T10:00:00.1239+02:00", "1970-01-01", "2026-01-30", ""],
        "stamp TIMESTAMP NULL": ["2026-01-31", "2026-01-31T10:00:00.7+02:00", "2000-01-01", "2026-01-30", ""],
        "kind ENUM('a', 'b')": ["a", "b", "a", "b", ""],
        "kinds SET('x', 'y', 'z')": ["y,x", "z,z", "x", "x,y,z", ""],
        "yes BOOLEAN": ["t", "F", "1", "0", "true"],
    },
}
"""Values for each column that do not have all of its digits, or have more, and are stored in another form."""
RAGGED_COLUMNS = [
    pytest.param(server, columns, marks=[getattr(pytest.mark, server)] if server != "sqlite" else [], id=server)
    for server, columns in RAGGED.items()
]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("server", "columns"), RAGGED_COLUMNS)
def test_the_record_of_a_load_is_the_row_that_the_database_keeps(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker: KafkaBroker,
    server: str,
    columns: Mapping[str, Sequence[str]],
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}" if server == "sqlite" else str(request.getfixturevalue(f"{server}_url"))
    engine = create_engine(url)
    upgrade_engine(engine)
    names = ["id", *(column.partition(" ")[0] for column in columns)]
    rows = [[str(number), *values] for number, values in enumerate(zip(*columns.values(), strict=True))]
    quoted = [",".join('"' + value.replace('"', '""') + '"' if value else "" for value in row) for row in rows]
    path = write_input(tmp_path / "f.csv", "\n".join([",".join(names), *quoted]) + "\n")
    for name in names:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS things")
            connection.exec_driver_sql(f"CREATE TABLE things ({', '.join(['id INTEGER', *columns])})")
        dual_write = FakeDualWrite(engine)
        load(job_for(path, table="things", key=name, name=name), engine, dual_write)
        records = [(key, json.dumps(value).encode()) for _, key, value in dual_write.topic]
        assert sorted(kept(engine, name)) == sorted(
            (key, value_digest(value, {})) for key, value in records if key is not None
        ), name
        site = ComparisonSite(url, broker)
        site.produce(*[(key, value) for key, value in records if key is not None])
        result = compare(engine, broker.client_config, ComparisonJob("things", site.topic, [name], values=True), wait=0)
        assert found(result) == {}, name
        site.close()
    engine.dispose()


def kept(engine: Engine, key: str) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of the rows as the database keeps them, each in its one spelling."""
    table = TableKeys(engine, ComparisonJob("things", "topic", [key], values=True))
    as_it_is = {name: ColumnForm(form.read) for name, form in table.forms.items()}
    table.forms, table.key_forms = as_it_is, [as_it_is[key]]
    return [(key, digest) for batch in table.read() for key, digest in batch if key is not None]


@pytest.mark.parametrize("server", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_records_with_other_digits_are_compared_as_the_column_would_hold_them(
    postgresql_url: str, broker: KafkaBroker, server: str
) -> None:
    """As an earlier version of the loader wrote them, or a program that does not know the column."""
    site = ComparisonSite(postgresql_url, broker)
    site.create("id NUMERIC(10, 2) PRIMARY KEY, single REAL, code CHAR(5)")
    site.sql("INSERT INTO orders VALUES (10.5, 0.123456789, 'ab'), (1000, 0.1, 'c'), (7, 2, 'd')")
    site.produce(("10.5", '{"id": "10.5", "single": 0.123456789, "code": "ab "}'))
    site.produce(("1E+3", '{"id": "1E+3", "single": 0.1, "code": "c"}'))
    site.produce(("7", '{"id": "7", "single": 2.0000002, "code": "d"}'))
    assert found(site.compare()) == {}
    assert found(site.compare(values=True)) == {Difference.OTHER_VALUE: ["7.00"]}
    site.produce(("7.001", "{}"))
    assert found(site.compare()) == {Difference.ONLY_IN_TOPIC: ["7.001"]}
    site.close()


@pytest.mark.mariadb
def test_a_time_is_no_other_time_of_the_day(mariadb_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(mariadb_url, broker)
    site.create("id INTEGER, clock TIME")
    site.sql("INSERT INTO orders VALUES (1, '25:00:00'), (2, '-01:00:00'), (3, '48:00:00')")
    clocks = ["01:00:00", "23:00:00", "48:00:00"]
    site.produce(*[(f"{at}", json.dumps({"id": at, "clock": clock})) for at, clock in enumerate(clocks, 1)])
    assert found(site.compare(values=True)) == {Difference.OTHER_VALUE: ["1", "2"]}
    site.produce(*[(clock, None) for clock in ("1", "2", "3")], ("25:00:00", "{}"), ("23:00:00", "{}"))
    differences = {Difference.ONLY_IN_TABLE: ["-01:00:00", "48:00:00"], Difference.ONLY_IN_TOPIC: ["23:00:00"]}
    assert found(site.compare("clock")) == differences
    site.close()


@pytest.mark.mariadb
def test_two_floats_that_mariadb_shows_as_one_are_two(mariadb_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(mariadb_url, broker)
    site.create("id FLOAT")
    site.sql("INSERT INTO orders VALUES (16777216), (0.1)")
    site.produce(("16777200.0", "{}"), ("0.1", "{}"))
    differences = {Difference.ONLY_IN_TABLE: ["16777216.0"], Difference.ONLY_IN_TOPIC: ["16777200.0"]}
    assert found(site.compare()) == differences
    site.close()


@pytest.mark.postgresql
def test_the_order_of_fields_in_a_key_does_not_matter(postgresql_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(postgresql_url, broker)
    site.create("id JSONB PRIMARY KEY")
    site.sql("""INSERT INTO orders VALUES ('{"bb": 1, "c": 2}')""")
    site.produce(('{"bb":1,"c":2}', "{}"))
    assert found(site.compare()) == {}
    site.close()


@pytest.mark.postgresql
def test_a_number_that_is_none_equals_no_other_value(postgresql_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(postgresql_url, broker)
    site.create("id INTEGER, single FLOAT8")
    site.sql("INSERT INTO orders VALUES (1, 'NaN'), (2, 'NaN'), (3, 'NaN')")
    site.produce(("1", "garbage"), ("2", '{"id": 2, "single": NaN}'), ("3", '{"id": 3, "single": "NaN"}'))
    assert found(site.compare(values=True)) == {Difference.OTHER_VALUE: ["1"]}
    site.close()


def test_binary_columns_are_keys_as_they_are(any_site: ComparisonSite) -> None:
    kind, word = {"postgresql": ("BYTEA", "'\\x00ff'::bytea")}.get(any_site.engine.dialect.name, ("BLOB", "X'00ff'"))
    any_site.create(f"id {kind}")
    any_site.sql(f"INSERT INTO orders VALUES ({word})")
    assert found(any_site.compare()) == {Difference.ONLY_IN_TABLE: ["0x00ff"]}
    any_site.produce((b"\x00\xff", "{}"))
    assert found(any_site.compare()) == {}


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", ["VARCHAR(9)", "CHAR(9)", "TEXT"])
def test_a_text_is_compared_to_the_letter(any_site: ComparisonSite, kind: str) -> None:
    any_site.create(f"id {kind}")
    any_site.sql("INSERT INTO orders VALUES ('ab'), ('smø')")
    any_site.produce(("AB", "{}"), ("smø", "{}"))
    assert found(any_site.compare()) == {Difference.ONLY_IN_TABLE: ["ab"], Difference.ONLY_IN_TOPIC: ["AB"]}
    any_site.produce(("smö", "{}"), ("x\0", "{}"))
    assert found(any_site.compare())[Difference.ONLY_IN_TOPIC] == ["AB", "smö", "0x7800"]


@pytest.mark.slow_cases
@pytest.mark.parametrize("key", ["99999999999", "123456789012345678901234567890", "007", "-5", "1.0", "x"])
def test_a_key_that_no_integer_column_holds_is_only_in_the_topic(any_site: ComparisonSite, key: str) -> None:
    any_site.create()
    any_site.insert([1, 7])
    any_site.produce(("1", "{}"), ("7", "{}"), (key, "{}"))
    assert found(any_site.compare()) == {Difference.ONLY_IN_TOPIC: [key]}


@pytest.mark.postgresql
def test_a_moment_with_a_zone_is_compared_in_utc(postgresql_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(postgresql_url, broker)
    site.create("id TIMESTAMPTZ")
    site.sql("INSERT INTO orders VALUES ('2013-01-01 10:00:00+05:30')")
    site.sql("ALTER ROLE CURRENT_USER SET timezone = 'Japan'")
    site.engine.dispose()
    try:
        site.produce(("2013-01-01T04:30:00+00:00", "{}"))
        assert found(site.compare()) == {}
    finally:
        site.sql("ALTER ROLE CURRENT_USER RESET timezone")
        site.close()


@pytest.mark.postgresql
def test_a_column_of_uuids_is_looked_up(postgresql_url: str, broker: KafkaBroker) -> None:
    site = ComparisonSite(postgresql_url, broker)
    site.create("id UUID")
    keys = [f"5f0c9b0a-3b1e-4f7e-8f55-{number:012}" for number in range(3)]
    site.sql(f"INSERT INTO orders VALUES ('{keys[0]}'), ('{keys[1]}')")
    site.produce((keys[1], "{}"), (keys[2], "{}"), (keys[2].upper(), "{}"))
    differences = {Difference.ONLY_IN_TABLE: [keys[0]], Difference.ONLY_IN_TOPIC: [keys[2].upper(), keys[2]]}
    assert found(site.compare()) == differences
    site.close()
