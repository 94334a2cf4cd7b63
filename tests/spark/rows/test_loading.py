"""Rows in bulk into every database: added, replaced, of every type, and undone with the transaction."""

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, select
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DataError, DBAPIError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.tables import bulk_load as loading
from dualwrite.spark.tables.bulk_load import Loader, chunks, table_clause
from dualwrite.spark.tables.target_table import target_of
from dualwrite.spark.workers import engine_of
from tests.support.spark.expected_rows import options

pytestmark = pytest.mark.slow_cases("mariadb")

UTC = timezone.utc


def make(engine: Engine, *columns: Any, name: str = "things", schema: str | None = None) -> Table:
    table = Table(name, MetaData(), *columns, schema=schema, mysql_charset="utf8mb4")
    table.create(engine)
    return table


@pytest.fixture
def things(engine: Engine) -> Table:
    return make(engine, Column("id", Integer, primary_key=True), Column("note", String(100)), Column("n", Integer))


def loader(connection: Connection, dbtable: str = "things", upsert_keys: Sequence[str] = ()) -> Loader:
    return Loader(connection, table_clause(dbtable, target_of(connection, dbtable).columns), upsert_keys)


def load(adding: Loader, rows: Sequence[Any], batchsize: int = 1000) -> None:
    """All of ``rows``, in chunks."""
    for begin in range(0, len(rows), batchsize):
        adding.write(rows[begin : begin + batchsize])


def stored(engine: Engine, table: Table) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(table).order_by(table.c[0]))]


def counted(number: int) -> list[tuple[int, str, int]]:
    return [(each, f"note {each}", each % 7) for each in range(number)]


def weighing(*weights: int) -> list[ConvertedRow]:
    return [ConvertedRow((number,), "things", None, None, -1, None, weight) for number, weight in enumerate(weights)]


@pytest.mark.parametrize("batchsize", [1, 10, 1000])
def test_rows_are_added_in_chunks_and_all_of_them(engine: Engine, things: Table, batchsize: int) -> None:
    with engine.begin() as connection:
        load(loader(connection), counted(95), batchsize)
    assert stored(engine, things) == counted(95)


def test_chunks_have_all_rows_in_their_order() -> None:
    rows = weighing(*[1] * 25)
    assert [len(chunk) for chunk in chunks(rows, 10)] == [10, 10, 5]
    assert [row for chunk in chunks(rows, 10) for row in chunk] == rows
    assert [len(chunk) for chunk in chunks(rows[:20], 10)] == [10, 10]
    assert list(chunks([], 10)) == []


def test_no_more_rows_are_taken_than_a_chunk_has() -> None:
    rows = iter(weighing(*[1] * 25))
    next(chunks(rows, 10))
    assert len(list(rows)) == 15


def test_large_rows_make_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGEST_CHUNK", 100)
    assert [len(chunk) for chunk in chunks(weighing(40, 40, 40, 250, 0, 99, 1, 0), 1000)] == [3, 1, 3, 1]


def test_a_duplicate_key_refuses_the_chunk(engine: Engine, things: Table) -> None:
    with engine.connect() as connection, pytest.raises(DBAPIError) as raised:
        loader(connection).write([(1, "a", 0), (2, "secret", 0), (1, "b", 0)])
    assert "secret" not in str(raised.value).partition("[SQL")[2] or engine.dialect.driver != "psycopg"
    assert stored(engine, things) == []


def test_loaded_rows_are_rolled_back_with_the_transaction(engine: Engine, things: Table) -> None:
    with engine.connect() as connection:
        load(loader(connection), counted(5), 2)
        connection.rollback()
    assert stored(engine, things) == []


@pytest.mark.parametrize("batchsize", [1, 2, 1000])
def test_an_upsert_replaces_and_of_equal_keys_the_last_row_counts(
    engine: Engine, things: Table, batchsize: int
) -> None:
    with engine.begin() as connection:
        loader(connection).write([(1, "old", 1), (2, "stays", 2)])
        rows = [(1, "a", 3), (3, "b", 4), (1, "c", None), (3, "d", 5), (4, None, 6)]
        load(loader(connection, upsert_keys=["id"]), rows, batchsize)
    assert stored(engine, things) == [(1, "c", None), (2, "stays", 2), (3, "d", 5), (4, None, 6)]


@pytest.mark.parametrize("batchsize", [1, 1000])
def test_rows_without_a_key_replace_none(engine: Engine, batchsize: int) -> None:
    """NULL in a unique key is equal to nothing, in whichever insert the rows are."""
    codes = make(engine, Column("n", Integer), Column("code", String(9), unique=True), name="codes")
    with engine.begin() as connection:
        load(loader(connection, "codes", upsert_keys=["code"]), [(1, None), (2, "a"), (3, None), (4, "a")], batchsize)
    assert stored(engine, codes) == [(1, None), (3, None), (4, "a")]


def test_a_second_upsert_in_one_transaction_replaces_the_first(engine: Engine, things: Table) -> None:
    with engine.begin() as connection:
        for note in ("first", "second"):
            loader(connection, upsert_keys=["id"]).write([(1, note, 0)])
    assert stored(engine, things) == [(1, "second", 0)]


def test_an_upsert_by_all_columns_leaves_existing_rows(engine: Engine) -> None:
    pairs = make(engine, Column("a", Integer, primary_key=True), Column("b", Integer, primary_key=True), name="pairs")
    with engine.begin() as connection:
        for _ in range(2):
            loader(connection, "pairs", upsert_keys=["a", "b"]).write([(1, 2), (1, 3), (1, 2)])
    assert stored(engine, pairs) == [(1, 2), (1, 3)]


UUIDS = ("c0ffee00-0000-4000-8000-00000000000a", "C0FFEE00-0000-4000-8000-00000000000A")


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (sqltypes.Uuid(as_uuid=False), UUIDS),
        (sqltypes.CHAR(3), ("a", "a  ")),
        (sqltypes.Numeric(9, 1), (Decimal("1.01"), Decimal("1.02"))),
        (sqltypes.Double(), (float("nan"), float("nan"))),
    ],
    ids=["uuid", "char", "numeric", "nan"],
)
def test_of_keys_that_are_one_in_the_column_alone_the_last_row_counts(
    postgresql: Engine, kind: Any, keys: tuple[Any, Any]
) -> None:
    number = Column("dualwrite_row", Integer, key="n")  # the library's own column gets another name then
    codes = make(postgresql, Column("code", kind, unique=True), number, name="codes")
    with postgresql.begin() as connection:
        adding = loader(connection, "codes", upsert_keys=["code"])
        adding.write([(keys[0], 1), (None, 2), (keys[1], 3), (keys[0], 4), (None, 5)])
        assert counts(connection, codes) == [2, 4, 5]
        adding.write([(keys[0], 6), (keys[1], 7)])
        assert counts(connection, codes) == [2, 5, 7]


def counts(connection: Connection, codes: Table) -> list[int]:
    return sorted(connection.scalars(select(codes.c.n)))


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_of_keys_that_differ_just_in_case_the_last_row_counts(engine: Engine) -> None:
    """If the column takes them for one."""
    collation = "NOCASE" if engine.dialect.name == "sqlite" else "utf8mb4_general_ci"
    code = Column("code", String(9, collation=collation), unique=True)
    codes = make(engine, code, Column("n", Integer), name="codes")
    with engine.begin() as connection:
        loader(connection, "codes", upsert_keys=["code"]).write([("a", 1), ("A", 2), ("a", 3)])
        assert counts(connection, codes) == [3]


AWKWARD = 'tab\there, newline\nhere, "quotes", \\backslash\\N, 100 %s and :colon é 😀'


def test_every_type_comes_back_as_it_was(engine: Engine) -> None:
    is_sqlite = engine.dialect.name == "sqlite"
    moment = sqltypes.DateTime(timezone=True).with_variant(mysql.TIMESTAMP(fsp=6), "mysql")
    kinds = make(
        engine,
        Column("id", Integer, primary_key=True),
        Column("text", sqltypes.Text),
        Column("bytes", sqltypes.LargeBinary),
        Column("number", sqltypes.Numeric(20, 5, asdecimal=not is_sqlite)),
        Column("double", sqltypes.Double),
        Column("day", sqltypes.Date),
        Column("plain", sqltypes.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")),
        Column("zoned", moment),
        Column("document", sqltypes.JSON),
        Column("flag", sqltypes.Boolean),
        Column("long", sqltypes.BigInteger),
        name="kinds",
    )
    at = datetime(2024, 7, 29, 12, 34, 56, 123456)
    row = (
        1,
        AWKWARD,
        b"\x00\xff\\x",
        0.5 if is_sqlite else Decimal("123456789012345.12345"),
        0.1,
        date(2024, 2, 29),
        at,
        at.replace(tzinfo=UTC) if engine.dialect.name == "postgresql" else at,
        '{"a":[1,"é\\"",null]}',
        True,
        2**62,
    )
    empty = (2, *(None,) * 10)
    with engine.begin() as connection:
        loader(connection, "kinds").write([row, empty])
        if engine.dialect.name == "mysql":
            connection.exec_driver_sql("SET time_zone = '+00:00'")
    read = stored(engine, kinds)
    assert read[0] == (*row[:8], {"a": [1, 'é"', None]}, True, 2**62)
    assert read[1] == empty


def test_names_are_quoted(engine: Engine) -> None:
    odd = make(
        engine,
        Column("Order", Integer, primary_key=True),
        Column("per cent" if engine.dialect.name == "mysql" else "per cent %", Integer),
        Column("a:b", Integer),
        Column("(x)", Integer),
        name="Select From",
    )
    with engine.begin() as connection:
        loader(connection, '"Select From"').write([(1, 2, 3, 4)])
        loader(connection, '"Select From"', upsert_keys=["Order"]).write([(1, 5, 6, 7)])
    assert stored(engine, odd) == [(1, 5, 6, 7)]


@pytest.mark.postgresql
def test_rows_are_loaded_into_another_schema(postgresql: Engine) -> None:
    with postgresql.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Shop"')
    orders = make(postgresql, Column("id", Integer, primary_key=True), Column("n", Integer), schema="Shop")
    with postgresql.begin() as connection:
        loader(connection, '"Shop".things').write([(1, 2)])
        loader(connection, '"Shop".things', upsert_keys=["id"]).write([(1, 3)])
    assert stored(postgresql, orders) == [(1, 3)]


@pytest.mark.postgresql
def test_a_text_that_postgresql_cannot_hold_is_an_error_of_sqlalchemys(postgresql: Engine) -> None:
    make(postgresql, Column("id", Integer, primary_key=True), Column("note", String(5)))
    for note in ("a\0b", "too long"):
        with postgresql.connect() as connection, pytest.raises(DBAPIError) as raised:
            loader(connection).write([(1, note)])
        assert raised.value.orig is not None
        assert not raised.value.connection_invalidated


@pytest.mark.postgresql
def test_a_connection_that_is_lost_in_a_copy_is_known_to_be_lost(postgresql: Engine) -> None:
    make(postgresql, Column("id", Integer, primary_key=True))
    with postgresql.connect() as connection, postgresql.connect() as other:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        adding = loader(connection)
        other.exec_driver_sql(f"SELECT pg_terminate_backend({backend})")
        with pytest.raises(DBAPIError) as raised:
            adding.write([(number,) for number in range(5000)])
        assert raised.value.connection_invalidated
        assert connection.invalidated


def test_lines_of_copy_are_added_as_they_are(engine: Engine, things: Table) -> None:
    with engine.begin() as connection:
        if not database_of(engine.dialect).takes_lines(engine.dialect):
            with pytest.raises(NotImplementedError):
                loader(connection).write_lines([])
            return
        loader(connection).write_lines(f"{number}\ta\\tb \\\\ {number}\t\\N\n".encode() for number in range(3))
    assert stored(engine, things) == [(number, f"a\tb \\ {number}", None) for number in range(3)]


@pytest.mark.postgresql
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "SJIS", "UTF8"])
def test_a_line_is_the_same_in_every_encoding(postgresql: Engine, encoding: str) -> None:
    """In SJIS the yen sign's byte is the backslash's."""
    things = make(postgresql, Column("id", Integer, primary_key=True), Column("note", String(20)))
    with postgresql.begin() as connection:
        adding = loader(connection)
        connection.exec_driver_sql(f"SET client_encoding = '{encoding}'")
        adding.write_lines(line.encode() for line in ["1\täß\n", "2\t¥N\n", "3\t¥100\n"])
        connection.exec_driver_sql("SET client_encoding = 'UTF8'")
    assert stored(postgresql, things) == [(1, "äß"), (2, "¥N"), (3, "¥100")]


@pytest.mark.postgresql
@pytest.mark.parametrize("as_lines", [False, True])
def test_a_character_that_the_database_lacks_is_refused_and_no_other_taken(postgresql: Engine, as_lines: bool) -> None:
    name = f"jp{as_lines}".lower()
    with postgresql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        settings = "ENCODING EUC_JP LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        connection.exec_driver_sql(f"CREATE DATABASE {name} {settings}")
    url = postgresql.url.set(database=name).render_as_string(hide_password=False)
    japanese = engine_of(options(url=url))
    things = make(japanese, Column("id", Integer, primary_key=True), Column("note", String(20)))

    def write(number: int, note: str) -> None:
        with japanese.begin() as connection:
            adding = loader(connection)
            if as_lines:
                adding.write_lines([f"{number}\t{note}\n".encode()])
            else:
                adding.write([(number, note)])

    write(1, "漢")
    with pytest.raises(DBAPIError, match="EUC_JP"):
        write(2, "¥")
    assert stored(japanese, things) == [(1, "漢")]
    japanese.dispose()


@pytest.mark.postgresql
def test_a_line_that_the_database_refuses_is_the_databases_error(postgresql: Engine) -> None:
    things = make(postgresql, Column("id", Integer, primary_key=True))
    with (
        pytest.raises(DBAPIError, match="invalid input syntax for type integer") as refused,
        postgresql.begin() as made,
    ):
        loader(made).write_lines([b"1\n", b"x\n"])
    assert isinstance(refused.value, DataError)
    assert stored(postgresql, things) == []
