"""A target table, and the rows of a run that are staged for it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Numeric, String, Table, UniqueConstraint, select

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.spark.batch.runs import Owner, Run, Runs
from dualwrite.spark.batch.staging import Attempt, make_staging, move_rows, staged_clause
from dualwrite.spark.tables.bulk_load import Loader
from dualwrite.spark.tables.target_table import target_of

Rows = Sequence[tuple[Any, ...]]


class StagingPlace:
    """A target, and the rows of a run that are staged for it."""

    def __init__(self, engine: Engine, name: str = "things") -> None:
        self.engine = engine
        self.name = name
        self.dbtable = f'"{name}"' if engine.dialect.name != "mysql" else f"`{name}`"
        self.table = Table(
            name,
            MetaData(),
            Column("seq", Integer, primary_key=True, autoincrement=True),
            Column("order", Integer),  # a word of SQL's
            Column("note", String(20)),
            Column("price", Numeric(10, 2)),
            UniqueConstraint("order"),
            mysql_charset="utf8mb4",
        )
        self.table.create(engine)
        self.names = ["order", "note"]
        self.run = Run("job", 7, self.make())
        self.runs = Runs(engine, Owner("driver", 100.0), SqlDecisionStore(engine))

    @property
    def columns(self) -> list[Any]:
        with self.engine.connect() as connection:
            by_name = {column.name: column for column in target_of(connection, self.dbtable).columns}
        return [by_name[name] for name in self.names]

    def make(self) -> tuple[str | None, str]:
        return make_staging(self.engine, self.dbtable, self.columns).qualified_name

    def stage(self, part: int, attempt: int, rows: Rows, run: int = 7) -> Attempt:
        with self.engine.begin() as connection:
            loader = Loader(connection, staged_clause(self.run.staging, self.dbtable, self.columns))
            loader.write([(run, part, attempt, number, *row) for number, row in enumerate(rows)])
        return Attempt(part, attempt, len(rows))

    def move(self, attempts: Sequence[Attempt], keys: Sequence[str] = ()) -> int:
        with self.engine.begin() as connection:
            return move_rows(connection, self.run, self.dbtable, self.columns, keys, attempts)

    def stored(self) -> Rows:
        with self.engine.connect() as connection:
            columns = (self.table.c.order, self.table.c.note)
            return [tuple(row) for row in connection.execute(select(*columns).order_by(self.table.c.seq))]
