"""Lines of COPY that Spark has written are in PostgreSQL what the values themselves become there."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine

from dualwrite.errors import InputError
from dualwrite.spark.batch.preparing import prepared
from dualwrite.spark.plan.columns import TableColumn, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.rows import RowConverter
from dualwrite.spark.tables.bulk_load import Loader, table_clause
from dualwrite.spark.tables.target_table import target_of
from tests.support.spark.expected_rows import KEEPS, options
from tests.support.spark.random_rows import SCHEMA, ZONES, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]

TABLE = """
    b boolean, y smallint, s smallint, i integer, l bigint, n numeric(20,6), w numeric(38), t text, x bytea,
    day date, at timestamp with time zone, plain timestamp, nothing text
"""
"""Of SCHEMA what Spark writes."""


def planned(df: "DataFrame") -> WritePlan:
    return plan_of(df.schema.jsonValue(), options(), str(df.sparkSession.conf.get("spark.sql.session.timeZone")))


def made(connection: Connection, columns: str, plan: WritePlan, name: str = "made") -> tuple[TableColumn, ...]:
    """A table of ``columns``; those of the plan, as the database describes them."""
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    connection.exec_driver_sql(f"CREATE TABLE {name} ({columns})")
    return match_columns(plan, target_of(connection, name), options())


def stored(connection: Connection, df: "DataFrame", columns: str) -> tuple[list[str], list[str], WritePlan]:
    """What the rows of ``df`` are in a table of ``columns``, by their values and as Spark has written them; and by
    which plan it has."""
    plan = planned(df)
    into = made(connection, columns, plan)
    as_values, value_plan = prepared(df, plan)  # as PySpark cannot give the first and last moments
    by_spark, its_plan = prepared(df, plan, into)
    for name, rows, each in (("by_values", as_values, value_plan), ("by_spark", by_spark, its_plan)):
        made(connection, columns, plan, name)
        loader = Loader(connection, table_clause(name, into))
        written = [row.values for row in RowConverter(each, into, KEEPS["postgresql"]).rows(rows.collect())]
        if all(isinstance(values, bytes) for values in written):
            loader.write_lines(values + b"\n" for values in written)
        else:
            loader.write([values for values in written if not isinstance(values, bytes)])
    by_values, lines = (texts(connection, name) for name in ("by_values", "by_spark"))
    return by_values, lines, its_plan


def texts(connection: Connection, name: str) -> list[str]:
    return list(connection.exec_driver_sql(f"SELECT {name}::text FROM {name} ORDER BY ctid").scalars())


@pytest.fixture
def connection(postgresql: Engine, spark: "SparkSession") -> Any:
    zone = spark.conf.get("spark.sql.session.timeZone")
    with postgresql.connect() as connection:
        yield connection
    spark.conf.set("spark.sql.session.timeZone", str(zone))


def with_nothing(df: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    names = [column.split()[0] for column in TABLE.split(",") if column.split()[0] in df.columns]
    return df.select(*names, f.lit(None).alias("nothing"))


@pytest.mark.parametrize("zone", ZONES)
def test_rows_of_every_type_are_the_same(spark: "SparkSession", connection: Connection, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    chance = random.Random(zone)
    df = with_nothing(spark.createDataFrame([some(chance) for _ in range(300)], SCHEMA))
    by_values, by_spark, plan = stored(connection, df, TABLE)
    assert by_spark == by_values
    assert (plan.line_at is not None, plan.table) == (True, ())
    assert len(set(by_spark)) == 300


def test_texts_with_characters_that_copy_escapes_arrive_unchanged(
    spark: "SparkSession", connection: Connection
) -> None:
    hard = [
        "\\",
        "\t",
        "\n",
        "\r",
        "\\N",
        "\\.",
        "",
        " ",
        "\\\\n",
        "a\tb\nc\\d\re",
        "\b\f\v\x01\x7f",
        "ä€𝄞",
        "\\x41",
        "'\"",
    ]
    df = spark.createDataFrame(
        [(text, bytearray(text.encode())) for text in [*hard, "".join(hard)]], "t string, x binary"
    )
    by_values, by_spark, plan = stored(connection, df, "t varchar(99), x bytea")
    assert by_spark == by_values
    assert plan.line_at is not None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("numeric", ["0.00000001BD", "-0.00000001BD", "0BD", "1.50BD", "12345678901234567890.12345678BD"]),
        ("double precision", ["0.00000001BD", "-0.1BD", "12345678901234567890.12345678BD"]),
        ("bigint", ["9223372036854775807BD", "-5BD"]),
        ("bigint", ["9223372036854775807L", "-9223372036854775808L", "0L"]),
        ("numeric", ["9223372036854775807L"]),
        ("real", ["16777217"]),
        ("date", ["date'0001-01-01'", "date'9999-12-31'", "date'1582-10-10'", "date'1900-02-28'"]),
        ("timestamp", ["timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"]),
        *(
            (
                kind,
                [
                    *("timestamp_micros(-1)", "timestamp'1850-02-28 12:34:56.000001Z'"),
                    *("timestamp'2024-10-27 00:30:00.5Z'", "timestamp'2024-10-27 01:30:00.5Z'"),
                    *("timestamp'2024-11-03 03:31:00Z'", "timestamp'2024-11-03 04:31:00Z'"),
                ],
            )
            for kind in ("timestamp", "timestamp with time zone")
        ),
        ("uuid", ["'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'"]),
        ("jsonb", ["""'{"a": "b\\\\tc"}'"""]),
        ("char(3)", ["'a'", "cast(null as string)"]),
        ("int", ["null"]),
        ("text", ["'A\\ta\\nÄ\\\\' COLLATE UNICODE_CI"]),
    ],
)
def test_the_smallest_and_largest_values_arrive_unchanged(
    spark: "SparkSession", connection: Connection, kind: str, values: Sequence[str]
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    df = spark.sql(f"SELECT explode(array({', '.join(values)})) AS v")
    by_values, by_spark, plan = stored(connection, df, f"v {kind}")
    assert by_spark == by_values
    assert (plan.line_at, len(by_spark)) == (0 if len(plan.fields) == 1 else 1, len(values))


@pytest.mark.parametrize("kind", ["timestamp", "timestamp with time zone"])
def test_the_first_and_the_last_moment_arrive_unchanged(
    spark: "SparkSession", connection: Connection, kind: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    ends = "timestamp_micros(-62135596800000000), timestamp_micros(253402300799999999)"
    by_values, by_spark, plan = stored(connection, spark.sql(f"SELECT explode(array({ends})) AS v"), f"v {kind}")
    assert by_spark == by_values
    assert (plan.line_at is not None, len(by_spark)) == (True, 2)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1.5D", "double precision"),
        ("1.5F", "numeric"),
        ("timestamp_ntz'2024-03-31 02:30:00'", "timestamp with time zone"),
        ("array(1)", "jsonb"),
        ("map('a', 1)", "text"),
    ],
)
def test_types_that_spark_writes_differently_are_sent_as_values(
    spark: "SparkSession", connection: Connection, value: str, kind: str
) -> None:
    df = spark.sql(f"SELECT 1 AS id, {value} AS v")
    by_values, by_spark, plan = stored(connection, df, f"id integer, v {kind}")
    assert by_spark == by_values
    assert (plan.line_at, len(plan.table)) == (None, 2)


@pytest.mark.parametrize("policy", ["LEGACY", "legacy"])
def test_a_session_with_the_legacy_time_parser_gets_values(
    spark: "SparkSession", connection: Connection, policy: str
) -> None:
    df = spark.sql("SELECT timestamp'2024-03-31 03:30:00.5' AS at")
    spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    try:
        _, _, plan = stored(connection, df, "at timestamp")
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert plan.line_at is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("timestamp_micros(-62135596800000001)", "timestamp with time zone"),
        ("timestamp_micros(253402300800000000)", "timestamp"),
        ("date_from_unix_date(9999999)", "date"),
        ("date'0000-12-31'", "date"),
    ],
)
@pytest.mark.parametrize("null", ["", " NOT NULL"])
def test_a_moment_out_of_pythons_range_is_refused_with_row_and_column(
    spark: "SparkSession", connection: Connection, value: str, kind: str, null: str
) -> None:
    df = spark.sql(f"SELECT explode(array({'' if null else 'null,'} {value})) AS v")
    plan = planned(df)
    into = made(connection, f"v {kind}{null}", plan)
    by_spark, its_plan = prepared(df, plan, into)
    with pytest.raises(InputError, match=f"^row {1 if null else 2}, column 'v': is not of the years 1 to 9999$"):
        list(RowConverter(its_plan, into, KEEPS["postgresql"]).rows(by_spark.collect()))


def test_null_where_the_table_takes_none_is_refused_in_the_same_words(
    spark: "SparkSession", connection: Connection
) -> None:
    df = spark.sql("SELECT * FROM VALUES (1, 'a', 'b'), (2, NULL, NULL) AS t(id, x, v)")
    plan = planned(df)
    into = made(connection, 'id integer NOT NULL, x text, "V" text NOT NULL', plan)
    by_spark, its_plan = prepared(df, plan, into)
    for rows, each in ((df, plan), (by_spark, its_plan)):
        with pytest.raises(InputError) as refused:
            list(RowConverter(each, into, KEEPS["postgresql"]).rows(rows.collect()))
        assert str(refused.value) == "row 2, column 'v': is NULL, and 'V' in the table is NOT NULL"


@pytest.mark.parametrize("text", ["\0", "a\0b", "\0column"])
def test_a_nul_character_is_refused_with_the_row(spark: "SparkSession", connection: Connection, text: str) -> None:
    df = spark.createDataFrame([("x", 1), (text, 2)], "v string, id int").coalesce(1)
    plan = planned(df)
    into = made(connection, "v text, id integer", plan)
    by_spark, its_plan = prepared(df, plan, into)
    with pytest.raises(InputError, match=r"^row 2: PostgreSQL's texts have no NUL characters$"):
        list(RowConverter(its_plan, into, KEEPS["postgresql"]).rows(by_spark.collect()))


def test_columns_with_odd_names_are_written_alike(spark: "SparkSession", connection: Connection) -> None:
    df = spark.createDataFrame([(1, "it's")], '`a.b` int, `x``"y` string')
    by_values, by_spark, _ = stored(connection, df, '"a.b" integer, "x`""y" text')
    assert by_spark == by_values == ["(1,it's)"]
