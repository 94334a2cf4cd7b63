"""The table as the checks see it, on every database."""

from typing import Any

import pytest
from sqlalchemy import Column, Computed, Engine, Identity, Index, Integer, MetaData, Table, UniqueConstraint, text
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql, postgresql

from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.columns import Family, Target
from dualwrite.spark.tables.target_table import family_of, parse_table_name, target_of
from tests.support.spark.expected_rows import KEEPS

pytestmark = pytest.mark.slow_cases("mariadb")


def reflected(engine: Engine, name: str, *columns: Any) -> Target:
    """The table ``name``, made of ``columns``."""
    Table(name, MetaData(), *columns).create(engine)
    with engine.connect() as connection:
        return target_of(connection, f'"{name}"')


@pytest.mark.parametrize(
    ("dbtable", "place"),
    [
        ("orders", (None, "orders")),
        ("shop.orders", ("shop", "orders")),
        ('"Shop"."Orders 2026"', ("Shop", "Orders 2026")),
        ('"a.b"', (None, "a.b")),
        ('"say ""hi"""', (None, 'say "hi"')),
        ("`shop`.orders", ("shop", "orders")),
    ],
)
def test_a_table_is_named_with_its_schema_or_without(dbtable: str, place: Any) -> None:
    assert parse_table_name(dbtable) == place


@pytest.mark.parametrize("dbtable", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b"', "a..b", "a`b"])
def test_an_invalid_table_name_is_refused(dbtable: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use table or schema\.table; quote names with dots"):
        parse_table_name(dbtable)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (sqltypes.Boolean(), Family.BOOLEAN),
        (sqltypes.BigInteger(), Family.WHOLE),
        (mysql.TINYINT(display_width=1), Family.TINY),
        (mysql.TINYINT(), Family.WHOLE),
        (sqltypes.Numeric(10, 2), Family.EXACT),
        (sqltypes.Float(), Family.FLOATING),
        (sqltypes.Double(), Family.FLOATING),
        (sqltypes.DateTime(), Family.MOMENT),
        (postgresql.TIMESTAMP(timezone=True), Family.ZONED),
        (mysql.TIMESTAMP(), Family.ZONED),
        (mysql.DATETIME(fsp=6), Family.MOMENT),
        (sqltypes.Date(), Family.DATE),
        (postgresql.JSONB(), Family.JSON),
        (postgresql.BYTEA(), Family.BYTES),
        (mysql.LONGBLOB(), Family.BYTES),
        (mysql.VARBINARY(10), Family.BYTES),
        (sqltypes.Text(), Family.TEXT),
        (sqltypes.Enum("a", "b", name="e"), Family.TEXT),
        (sqltypes.Uuid(), Family.OTHER),
        (sqltypes.Time(), Family.OTHER),
        (postgresql.ARRAY(Integer), Family.OTHER),
        (sqltypes.NullType(), Family.OTHER),
    ],
    ids=lambda value: str(value),
)
def test_the_family_of_a_type(kind: Any, family: Family) -> None:
    room = type(kind).__module__.split(".")
    database = SUPPORTED[room[2] if room[1] == "dialects" else "postgresql"]
    assert family_of(kind, database) is family


def test_columns_and_keys(engine: Engine) -> None:
    target = reflected(
        engine,
        "Mixed",
        Column("Id", Integer, primary_key=True),
        Column("code", sqltypes.String(10), nullable=False, unique=True),
        Column("a", Integer),
        Column("b", Integer, nullable=False, server_default="7"),
        Column("flag", sqltypes.Boolean),
        UniqueConstraint("a", "b"),
    )
    by_name = {column.name: column for column in target.columns}
    assert list(by_name) == ["Id", "code", "a", "b", "flag"]
    assert by_name["Id"].has_value
    assert [by_name[name].nullable for name in ("code", "a", "b")] == [False, True, False]
    assert [by_name[name].has_value for name in ("code", "a", "b")] == [False, False, True]
    assert by_name["flag"].family is (Family.TINY if engine.dialect.name == "mysql" else Family.BOOLEAN)
    assert set(target.keys) == {frozenset({"Id"}), frozenset({"code"}), frozenset({"a", "b"})}
    assert target.keeps == KEEPS[engine.dialect.name]


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
def test_a_unique_index_is_a_key_unless_it_is_of_some_rows_only(engine: Engine) -> None:
    target = reflected(
        engine,
        "indexed",
        Column("a", Integer),
        Column("b", Integer),
        Column("c", Integer),
        Index("whole", "a", unique=True),
        Index("plain", "b"),
        Index("partial", "c", unique=True, postgresql_where=text("c > 0"), sqlite_where=text("c > 0")),
    )
    assert target.keys == (frozenset({"a"}),)


@pytest.mark.postgresql
def test_a_column_that_the_database_computes_is_recognised(postgresql: Engine) -> None:
    target = reflected(
        postgresql,
        "made",
        Column("id", Integer, Identity(always=True), primary_key=True),
        Column("other", Integer, Identity(always=False)),
        Column("twice", Integer, Computed("id * 2", persisted=True)),
    )
    assert [(column.is_computed, column.has_value) for column in target.columns] == [(1, 1), (0, 1), (1, 1)]


def test_a_key_of_two_columns_is_not_filled_in(sqlite: Engine) -> None:
    target = reflected(sqlite, "pair", Column("a", Integer, primary_key=True), Column("b", Integer, primary_key=True))
    assert [column.has_value for column in target.columns] == [False, False]


@pytest.mark.postgresql
def test_another_schemas_table(postgresql: Engine) -> None:
    with postgresql.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Shop"')
        connection.exec_driver_sql('CREATE TABLE "Shop".orders (id int PRIMARY KEY)')
        assert target_of(connection, '"Shop".orders').keys == (frozenset({"id"}),)


def test_a_table_that_is_missing_is_named_with_the_nearest(engine: Engine) -> None:
    reflected(engine, "customer_orders", Column("id", Integer, primary_key=True))
    with engine.connect() as connection:
        with pytest.raises(ConfigurationError, match="has no table 'customer_order'; did you mean 'customer_orders'"):
            target_of(connection, "customer_order")
        with pytest.raises(ConfigurationError, match="has no table 'zebra'; create it first"):
            target_of(connection, "zebra")
