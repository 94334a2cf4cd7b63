"""Two releases on one database: a version only adds, the former release's code works on the next version of the tables,
and the next release's code does nothing on the former version."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, create_engine, inspect

from dualwrite import schema
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import VERSION_TABLE
from dualwrite.errors import DatabaseNotReadyError
from tests.support.coordinator.event_table import events, expire_leases, slot_rows, stored_values, user_metadata
from tests.support.coordinator.fake_kafka import FakeKafka

VERSIONS = ["0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008"]
NEIGHBOURS = list(pairwise(VERSIONS))
Tables = Mapping[str, Mapping[str, Any]]


@pytest.fixture
def bare_engine(database_url: str) -> Iterator[Engine]:
    """Of a database without the tables; the file app.db has been upgraded for others."""
    engine = create_engine(database_url.replace("app.db", "bare.db"))
    user_metadata.create_all(engine)
    yield engine
    engine.dispose()


def described(engine: Engine) -> Tables:
    """Every table as the database has it: its columns, keys and whatever else can refuse a statement."""
    looked_at = inspect(engine)
    return {
        name: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in looked_at.get_columns(name)
            },
            "key": looked_at.get_pk_constraint(name)["constrained_columns"],
            "unique": sorted(str(one) for one in looked_at.get_unique_constraints(name)),
            "checks": sorted(str(one) for one in looked_at.get_check_constraints(name)),
            "foreign": sorted(str(one) for one in looked_at.get_foreign_keys(name)),
        }
        for name in looked_at.get_table_names()
        if name not in (VERSION_TABLE, *user_metadata.tables)
    }


def broken_by(before: Tables, after: Tables) -> Iterator[str]:
    """What code that was written for ``before`` could stumble over in ``after``."""
    for name, table in before.items():
        if name not in after:
            yield f"{name} is gone"
            continue
        now = after[name]
        for column, definition in table["columns"].items():
            if now["columns"].get(column) != definition:
                yield f"{name}.{column} was {definition} and is {now['columns'].get(column)}"
        for column in now["columns"].keys() - table["columns"].keys():
            _, nullable, default = now["columns"][column]
            if not nullable and default is None:
                yield f"{name}.{column} is new, and must be given"
        for what in ("key", "unique", "checks", "foreign"):
            if now[what] != table[what]:
                yield f"{name}: its {what} changed"


def test_the_tested_versions_end_with_the_newest_one(bare_engine: Engine) -> None:
    assert schema.upgrade_engine(bare_engine) == VERSIONS[-1]


@pytest.mark.slow_cases("mariadb", "postgresql")
@pytest.mark.parametrize(("former", "following"), NEIGHBOURS)
def test_a_version_only_adds(bare_engine: Engine, former: str, following: str) -> None:
    schema.upgrade_engine(bare_engine, former)
    before = described(bare_engine)
    assert len(before) >= 2
    schema.upgrade_engine(bare_engine, following)
    assert list(broken_by(before, described(bare_engine))) == []


def test_a_version_that_does_more_than_add_would_be_noticed() -> None:
    def table(**columns: Any) -> Mapping[str, Any]:
        return {"columns": columns, "key": ["a"], "unique": [], "checks": [], "foreign": []}

    before = {"t": table(a=("INTEGER", False, None), b=("TEXT", True, None))}
    same = dict(before["t"]["columns"])
    assert list(broken_by(before, {"t": table(**same, c=("TEXT", True, None), d=("TEXT", False, "''")), "u": {}})) == []
    for after in (
        {},
        {"t": table(a=("INTEGER", False, None))},
        {"t": table(a=("INTEGER", False, None), b=("TEXT", False, None))},
        {"t": table(a=("BIGINT", False, None), b=("TEXT", True, None))},
        {"t": table(**same, c=("TEXT", False, None))},
        {"t": {**table(**same), "key": ["a", "b"]}},
        {"t": {**table(**same), "unique": ["b"]}},
    ):
        assert len(list(broken_by(before, after))) == 1


class ReleaseOf0001:
    """The statements of the release whose tables were of version 0001, as they were; none of today's code is used."""

    table = sa.Table(
        "kafka_transaction_state",
        sa.MetaData(),
        sa.Column("transactional_id", sa.String(255), primary_key=True),
        sa.Column("prepared_txn_state", sa.String(255), nullable=False, server_default=""),
        sa.Column("anchor", sa.String(255)),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(32)),
    )

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._now = datetime.now(timezone.utc)

    def first_lease(self, slot: str) -> int:
        with self._engine.begin() as connection:
            connection.execute(
                sa.insert(self.table).values(
                    transactional_id=slot,
                    prepared_txn_state="",
                    fencing_token=1,
                    owner="former",
                    lease_expires_at=self._now,
                    updated_at=self._now,
                )
            )
        return 1

    def next_lease(self, slot: str) -> int:
        columns = (self.table.c.fencing_token, self.table.c.owner, self.table.c.lease_expires_at)
        with self._engine.begin() as connection:
            row = connection.execute(
                sa.select(*columns).where(self.table.c.transactional_id == slot).with_for_update(skip_locked=True)
            ).one()
            raised = connection.execute(
                sa.update(self.table)
                .where(self.table.c.transactional_id == slot)
                .where(self.table.c.fencing_token == row.fencing_token)
                .values(
                    fencing_token=row.fencing_token + 1,
                    owner="former",
                    lease_expires_at=self._now,
                    updated_at=self._now,
                )
            )
        assert raised.rowcount == 1
        return int(row.fencing_token) + 1

    def commit_a_unit(self, slot: str, token: int, state: str, value: str) -> bool:
        with self._engine.begin() as connection:
            connection.execute(sa.insert(events).values(value=value))
            stored = connection.execute(
                sa.update(self.table)
                .where(self.table.c.transactional_id == slot)
                .where(self.table.c.fencing_token == token)
                .values(prepared_txn_state=state, anchor=None, updated_at=self._now, outcome=None)
            )
            if stored.rowcount != 1:
                connection.rollback()
        return bool(stored.rowcount == 1)

    def decision(self, slot: str) -> tuple[str, str | None, int]:
        columns = (self.table.c.prepared_txn_state, self.table.c.anchor, self.table.c.fencing_token)
        with self._engine.begin() as connection:
            row = connection.execute(
                sa.select(*columns).where(self.table.c.transactional_id == slot).with_for_update()
            ).one()
        return row.prepared_txn_state, row.anchor, row.fencing_token

    def give_back(self, slot: str, token: int) -> bool:
        with self._engine.begin() as connection:
            ended = connection.execute(
                sa.update(self.table)
                .where(self.table.c.transactional_id == slot)
                .where(self.table.c.fencing_token == token)
                .values(owner="", lease_expires_at=None)
            )
        return bool(ended.rowcount == 1)


def test_the_code_of_0001_works_on_the_newest_tables_beside_todays(
    bare_engine: Engine, make_dual_write: Callable[..., DualWrite], kafka: FakeKafka
) -> None:
    former = ReleaseOf0001(bare_engine)
    schema.upgrade_engine(bare_engine, "0001")
    token = former.first_lease("orders-0")
    assert former.commit_a_unit("orders-0", token, "7:3", "before the upgrade")
    schema.upgrade_engine(bare_engine)  # while the former release goes on
    assert former.commit_a_unit("orders-0", token, "7:4", "after the upgrade")
    assert former.decision("orders-0") == ("7:4", None, token)
    assert former.give_back("orders-0", token)

    with make_dual_write(bare_engine, pool_size=1) as todays, todays.transaction() as tx:
        tx.execute(sa.insert(events).values(value="today's"))
        tx.produce("events", b"today's")
    state, _, raised = former.decision("orders-0")
    assert (bool(state), raised) == (True, token + 1)
    assert not former.commit_a_unit("orders-0", token, "7:5", "of a zombie")

    again = former.next_lease("orders-0")  # and back
    assert former.commit_a_unit("orders-0", again, "9:0", "rolled back to the former release")
    assert stored_values(bare_engine) == [
        "before the upgrade",
        "after the upgrade",
        "today's",
        "rolled back to the former release",
    ]


@pytest.mark.slow_cases("mariadb", "postgresql")
def test_todays_code_recovers_what_the_code_of_0001_left(
    bare_engine: Engine, make_dual_write: Callable[..., DualWrite]
) -> None:
    former = ReleaseOf0001(bare_engine)
    schema.upgrade_engine(bare_engine)
    token = former.first_lease("orders-0")
    assert former.commit_a_unit("orders-0", token, "7:3", "a")
    expire_leases(bare_engine)
    dual_write = make_dual_write(bare_engine, pool_size=1)
    assert set(dual_write.recover()) == {"orders-0"}
    assert slot_rows(bare_engine)["orders-0"].fencing_token > token


def test_todays_code_says_what_to_run_on_the_former_tables_and_does_nothing_there(
    bare_engine: Engine, make_dual_write: Callable[..., DualWrite]
) -> None:
    schema.upgrade_engine(bare_engine, VERSIONS[-2])
    dual_write = make_dual_write(bare_engine)
    with pytest.raises(DatabaseNotReadyError, match="older than this release needs; run: dualwrite db upgrade --db"):
        dual_write.transaction().__enter__()
    with bare_engine.connect() as connection:  # today's columns are not all there
        assert connection.scalar(sa.text("SELECT count(*) FROM kafka_transaction_state")) == 0
    schema.upgrade_engine(bare_engine)
    with dual_write.transaction() as tx:
        tx.execute(sa.insert(events).values(value="a"))
        tx.produce("events", b"a")
    assert stored_values(bare_engine) == ["a"]
