"""Columns of every type as keys: the records that ``dualwrite load`` writes are found, and a missing one is missed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite.comparison.compare import compare
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference
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


def test_binary_columns_are_keys_as_they_are(any_site: ComparisonSite) -> None:
    kind, word = {"postgresql": ("BYTEA", "'\\x00ff'::bytea")}.get(any_site.engine.dialect.name, ("BLOB", "X'00ff'"))
    any_site.create(f"id {kind}")
    any_site.sql(f"INSERT INTO orders VALUES ({word})")
    assert found(any_site.compare()) == {Difference.ONLY_IN_TABLE: ["0x00ff"]}
    any_site.produce((b"\x00\xff", "{}"))
    assert found(any_site.compare()) == {}


@pytest.mark.parametrize("kind", ["VARCHAR(9)", "CHAR(9)", "TEXT"])
def test_a_text_is_compared_to_the_letter(any_site: ComparisonSite, kind: str) -> None:
    any_site.create(f"id {kind}")
    any_site.sql("INSERT INTO orders VALUES ('ab'), ('smø')")
    any_site.produce(("AB", "{}"), ("smø", "{}"))
    assert found(any_site.compare()) == {Difference.ONLY_IN_TABLE: ["ab"], Difference.ONLY_IN_TOPIC: ["AB"]}
    any_site.produce(("smö", "{}"), ("x\0", "{}"))
    assert found(any_site.compare())[Difference.ONLY_IN_TOPIC] == ["AB", "smö", "0x7800"]


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
