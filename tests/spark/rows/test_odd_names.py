"""Names with special characters for a driver, for SQL, or for the code that quotes them."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, inspect, select, text

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.spark.batch.runs import Owner, Runs
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows, staged_clause
from dualwrite.spark.plan.columns import TableColumn
from dualwrite.spark.tables.bulk_load import Loader, table_clause
from dualwrite.spark.tables.target_table import target_of

NAMES = [
    "a%b",
    "%s",
    "%(p0)s",
    "100%",
    "a:b",
    ":p0",
    'a"b',
    "a'b",
    "a`b",
    "a b",
    "a.b",
    "a?b",
    "a\\b",
    "a{b}",
    "a,b",
    "a--b",
    "a)b",
    "p0",
    "select",
    "Order",
    "Größe",
]
pytestmark = pytest.mark.slow  # for their number
Rows = Sequence[tuple[Any, ...]]


def without(dialect: str, name: str) -> None:
    """Skip what SQLAlchemy does not read, or say, as it is."""
    if (dialect, name) in (("mysql", "a`b"), ("sqlite", "%(p0)s")):
        pytest.skip(f"SQLAlchemy does not know {name} on {dialect}")


class Place:
    """A table with a key and a value, of which one or the other has the name in question."""

    def __init__(self, engine: Engine, key: str, value: str, table: str = "things") -> None:
        self.engine = engine
        quoted = table.replace("`", "``") if engine.dialect.name == "mysql" else table.replace('"', '""')
        self.dbtable = f"`{quoted}`" if engine.dialect.name == "mysql" else f'"{quoted}"'
        self.key = key
        self.table = Table(
            table,
            MetaData(),
            Column(key, Integer, primary_key=True, autoincrement=False),
            Column(value, String(20)),
            mysql_charset="utf8mb4",
        )
        self.table.create(engine)

    def columns(self) -> Sequence[TableColumn]:
        with self.engine.connect() as connection:
            return target_of(connection, self.dbtable).columns

    def load(self, connection: Connection, rows: Rows, keys: Sequence[str] = ()) -> None:
        Loader(connection, table_clause(self.dbtable, self.columns()), keys).write(rows)

    def stored(self) -> Rows:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(self.table).order_by(self.table.c[0]))]


def places(engine: Engine, name: str) -> list[Place]:
    return [Place(engine, name, "value", "keys"), Place(engine, "key", name, "values")]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_added_and_replaced_in_columns_of_any_name(engine: Engine, name: str) -> None:
    without(engine.dialect.name, name)
    for place in places(engine, name):
        for rows in ([(1, "a"), (2, "b")], [(3, "c")]):
            with engine.begin() as connection:
                place.load(connection, rows)
        for rows in ([(2, "%s"), (3, "100 %"), (4, "d"), (4, ":e")], [(1, "A")]):
            with engine.begin() as connection:
                place.load(connection, rows, [place.key])
        assert place.stored() == [(1, "A"), (2, "%s"), (3, "100 %"), (4, ":e")]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_staged_and_moved_in_columns_of_any_name(engine: Engine, name: str) -> None:
    runs = Runs(engine, Owner("driver", 100.0), SqlDecisionStore(engine))
    without(engine.dialect.name, name)
    for place in places(engine, name):
        columns = place.columns()
        staging = make_staging(engine, place.dbtable, columns).qualified_name
        assert make_staging(engine, place.dbtable, columns).is_new is False
        run = runs.begin(place.table.name, None, staging, 100.0)
        assert run is not None
        for part, note, keys in ((0, "a", ()), (1, "b", (place.key,))):
            with engine.begin() as connection:
                staged = Loader(connection, staged_clause(staging, place.dbtable, columns))
                staged.write([(run.run_id, part, part, row, row, note) for row in range(part, 3)])
            with engine.begin() as connection:
                move_rows(connection, run, place.dbtable, columns, keys, [Attempt(part, part, 3 - part)])
        runs.end(run)
        assert place.stored() == [(0, "a"), (1, "b"), (2, "b")]


@pytest.mark.parametrize("name", [*NAMES, "größe der Bestellungen, in Stück, 100 %", "ß" * 31])
def test_a_table_may_have_any_name(engine: Engine, name: str) -> None:
    runs = Runs(engine, Owner("driver", 100.0), SqlDecisionStore(engine))
    if engine.dialect.name == "sqlite":
        without("sqlite", name)
    place = Place(engine, "key", "value", name)
    with engine.begin() as connection:
        place.load(connection, [(1, "a"), (2, "b")])
        place.load(connection, [(2, "c"), (3, "d")], ["key"])
    assert place.stored() == [(1, "a"), (2, "c"), (3, "d")]
    before = make_staging(engine, place.dbtable, place.columns()).qualified_name
    run = runs.begin("job", None, before, 100.0)
    assert run is not None
    with engine.begin() as connection:
        assert move_rows(connection, run, place.dbtable, place.columns(), [], []) == 0
        quoted = connection.dialect.identifier_preparer.format_table(place.table).replace("%%", "%")
        connection.execute(text(f"ALTER TABLE {quoted} ADD COLUMN more INTEGER".replace(":", "\\:")))
        connection.execute(text(f"ALTER TABLE {quoted} DROP COLUMN value".replace(":", "\\:")))
    runs.end(run)
    drop_outdated(engine, place.dbtable, runs.is_staging)
    assert not inspect(engine).has_table(before[1])
