"""What Spark prepares for a whole batch is what becomes of its rows as they are, to the byte."""

import random
from typing import TYPE_CHECKING, Any

import pytest

from dualwrite.errors import InputError
from dualwrite.spark.batch.preparing import prepared
from dualwrite.spark.plan.columns import Family, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.plan.rows import RowConverter
from tests.support.spark.expected_rows import KEEPS, column, options, table
from tests.support.spark.random_rows import SCHEMA, ZONES, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # as a second JVM would be

FLOATING = ("d", "f", "m")
"""Columns of SCHEMA that are floating point numbers, or have some in them."""
FAMILIES = {
    **dict.fromkeys(["tinyint", "smallint", "int", "bigint"], Family.WHOLE),
    **dict.fromkeys(["float", "double"], Family.FLOATING),
    "boolean": Family.BOOLEAN,
    "string": Family.TEXT,
    "binary": Family.BYTES,
    "date": Family.DATE,
    "timestamp": Family.ZONED,
    "timestamp_ntz": Family.MOMENT,
}


def planned(df: "DataFrame", **changed: Any) -> WritePlan:
    zone = str(df.sparkSession.conf.get("spark.sql.session.timeZone"))
    return plan_of(df.schema.jsonValue(), options(**changed), zone)


def written(df: "DataFrame", plan: WritePlan, kinds: dict[str, str], dialect: str = "postgresql") -> list[ConvertedRow]:
    """What becomes of the rows of ``df``; the table's columns are those of ``kinds``."""
    families = {
        name: Family.EXACT if kind.startswith("decimal") else FAMILIES.get(kind, Family.JSON)
        for name, kind in kinds.items()
    }
    target = table(*(column(name, family) for name, family in families.items()))
    original = plan_of_names(plan, list(kinds))
    return list(RowConverter(plan, match_columns(original, target, options()), KEEPS[dialect]).rows(df.collect()))


def plan_of_names(plan: WritePlan, names: list[str]) -> WritePlan:
    """``plan`` with the kinds that Spark has, and names, for what only looks at the table."""
    as_it_was = {"micros": "timestamp", "days": "date"}
    fields = [
        field._replace(type=field.type._replace(kind=as_it_was.get(field.type.kind, field.type.kind)))
        for field in plan.fields
    ]
    assert [plan.fields[place].name for place in plan.table] == names
    return WritePlan(tuple(fields), plan.table, plan.json, plan.topic, plan.zone)


def both(
    df: "DataFrame", dialect: str = "postgresql", **changed: Any
) -> tuple[list[ConvertedRow], list[ConvertedRow], WritePlan]:
    """What becomes of the rows as they are and of those that are prepared, and the plan of these."""
    plan = planned(df, **changed)
    made, made_plan = prepared(df, plan)
    types = dict(df.dtypes)
    kinds = {plan.fields[place].name: types[plan.fields[place].name] for place in plan.table}
    return written(df, plan, kinds, dialect), written(made, made_plan, kinds, dialect), made_plan


@pytest.fixture(autouse=True)
def as_before(spark: "SparkSession") -> Any:
    """The session's zone after a test is that before it."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("without", [(), FLOATING])
def test_rows_of_every_type_are_the_same(spark: "SparkSession", zone: str, without: tuple[str, ...]) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    chance = random.Random(zone)
    df = spark.createDataFrame([some(chance) for _ in range(100)], SCHEMA).drop(*without)
    as_they_are, made, plan = both(df)
    assert made == as_they_are
    assert (plan.json_at is None) == (not without)
    assert len({row.value for row in made}) == 100


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_moments_are_the_same_for_databases_that_keep_no_zone(spark: "SparkSession", dialect: str) -> None:
    df = spark.sql("SELECT timestamp'1850-02-28 12:34:56.000001' AS at, date'0001-01-01' AS day, 1 AS i")
    as_they_are, made, _ = both(df, dialect)
    assert made == as_they_are
    assert made[0].values[0].tzinfo is None


def test_floating_point_numbers_are_written_here_as_an_older_java_writes_more_digits(spark: "SparkSession") -> None:
    df = spark.sql("SELECT 2.0E-3D AS d, timestamp'2024-03-31 03:30:00' AS at, date'2024-03-31' AS day")
    as_they_are, made, plan = both(df)
    assert made == as_they_are
    assert [plan.fields[place].type.kind for place in plan.json] == ["double", "micros", "days"]
    nested = spark.sql("SELECT array(struct(map('a', 1.5F) AS m)) AS a")
    assert planned(nested).json == prepared(nested, planned(nested))[1].json


def test_a_session_with_the_legacy_time_parser_gets_the_same_rows(spark: "SparkSession") -> None:
    df = spark.sql("SELECT timestamp'2024-03-31 03:30:00.5' AS at, 'x' AS t")
    _, expected, _ = both(df)
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        as_they_are, made, plan = both(df)
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert made == as_they_are == expected
    assert plan.json_at is None


def test_a_columns_default_and_the_session_change_nothing_about_null(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f

    default = {"CURRENT_DEFAULT": "42", "EXISTS_DEFAULT": "42"}
    df = spark.sql("SELECT CAST(NULL AS int) AS i, 1 AS j").select(f.col("i").alias("i", metadata=default), "j")
    spark.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    try:
        as_they_are, made, plan = both(df)
    finally:
        spark.conf.unset("spark.sql.jsonGenerator.ignoreNullFields")
    assert made == as_they_are
    assert (made[0].value, plan.json_at) == (b'{"j":1}', 2)


def test_odd_names_and_names_alike_but_for_the_case(spark: "SparkSession") -> None:
    df = spark.createDataFrame([(1, 2, 3, 4, 5)], '`a.b` int, `x``y` int, `_0` int, `Ä "q"` int, value_of int')
    as_they_are, made, _ = both(df)
    assert made == as_they_are
    assert made[0].value == '{"a.b":1,"x`y":2,"_0":3,"Ä \\"q\\"":4,"value_of":5}'.encode()
    alike = df.toDF("a", "A", "b", "B", "c")
    assert both(alike)[1][0].value == b'{"a":1,"A":2,"b":3,"B":4,"c":5}'


def test_unused_columns_are_dropped_and_kafkas_columns_stay(spark: "SparkSession") -> None:
    df = spark.sql("""
        SELECT 'not needed' AS unused, 7L AS id, CAST('k' AS binary) AS key, 'a' AS topic, 3 AS partition, 'j' AS only,
        array(named_struct('key', 'h', 'value', CAST('v' AS binary))) AS headers
    """)
    chosen = {"topic": None, "columns.table": "id", "columns.value": "only,id"}
    as_they_are, made, plan = both(df, **chosen)
    assert made == as_they_are == [ConvertedRow((7,), "a", b"k", b'{"only":"j","id":7}', 3, [("h", b"v")], 22)]
    assert [field.name for field in plan.fields] == ["id", "key", "topic", "partition", "headers", "json"]


def test_a_value_of_the_users_own_stays_and_so_does_a_tombstone(spark: "SparkSession") -> None:
    df = spark.createDataFrame([(1, "mine"), (2, None)], "id int, value string")
    as_they_are, made, _ = both(df)
    assert made == as_they_are
    assert [row.value for row in made] == [b"mine", None]


@pytest.mark.parametrize(
    ("column_of", "name"), [("timestamp_seconds(1000000000000L)", "at"), ("date_from_unix_date(9999999)", "day")]
)
def test_a_moment_out_of_pythons_range_is_an_error_with_row_and_column(
    spark: "SparkSession", column_of: str, name: str
) -> None:
    df = spark.sql(f"SELECT 1 AS id, {column_of} AS {name}")
    plan = planned(df)
    made, made_plan = prepared(df, plan)
    with pytest.raises(InputError, match=f"row 1, column '{name}': "):
        written(made, made_plan, dict(df.dtypes))


@pytest.mark.parametrize(
    "value",
    [
        "timestamp_seconds(1000000000000L)",
        "date_from_unix_date(9999999)",
        "timestamp_ntz'+10000-01-01 00:00'",
        "timestamp'9999-12-31 23:30:00Z'",  # which is another year in Vienna
        "timestamp'0000-12-31 23:59:59Z'",
    ],
)
def test_a_moment_out_of_pythons_range_is_refused_in_a_json_column(spark: "SparkSession", value: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    df = spark.sql(f"SELECT 1 AS id, {value} AS at").unionAll(spark.sql("SELECT 2, NULL")).coalesce(1).orderBy("id")
    plan = planned(df, **{"columns.table": "id", "columns.value": "id,at"})
    made, made_plan = prepared(df, plan)
    assert made_plan.json_at is not None
    with pytest.raises(InputError, match=r"^row 1, column 'at': is not of the years 1 to 9999$"):
        written(made, made_plan, {"id": "int"})
    assert written(made.where("_0 = 2"), made_plan, {"id": "int"})[0].value == b'{"id":2}'


def test_hundreds_of_moments_in_one_json_do_not_overflow_sparks_stack(spark: "SparkSession") -> None:
    df = spark.range(1).selectExpr("id", *(f"date_add(date'2024-01-01', {day}) AS day{day}" for day in range(400)))
    as_they_are, made, plan = both(df)
    assert made == as_they_are
    assert plan.json_at is not None


def test_rows_stay_in_their_partitions_and_in_their_order(spark: "SparkSession") -> None:
    df = spark.range(0, 1000, 1, 7).selectExpr("id", "id % 10 AS digit").repartition(3, "digit")
    made, _ = prepared(df, planned(df))
    ids = [[row[0] for row in part] for part in df.rdd.glom().collect()]
    assert [[row[0] for row in part] for part in made.rdd.glom().collect()] == ids
