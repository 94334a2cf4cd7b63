"""What becomes of a row: the table's values and the record."""

import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from dualwrite.errors import InputError
from dualwrite.spark.plan.columns import REFUSED, Family, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.plan.options import options_of
from dualwrite.spark.plan.rows import RowConverter
from dualwrite.spark.plan.spark_schema import DAYS, MICROS, Field, SparkType
from tests.support.spark.expected_rows import HEADERS, KEEPS, REQUIRED, array, column, map_of, options, schema, table

UTC = timezone.utc
NOON = datetime(2024, 7, 29, 12, 0, tzinfo=UTC)


def stored(kind: Any, family: Family, value: Any, dialect: str = "postgresql", zone: str = "UTC") -> Any:
    """What the one column of a table gets."""
    plan = plan_of(schema(a=kind), options(), zone)
    target = table(column("a", family))
    (row,) = RowConverter(plan, match_columns(plan, target, options()), KEEPS[dialect]).rows([(value,)])
    return row.values[0]


def converted(columns: Any, rows: Any, **changed: Any) -> list[ConvertedRow]:
    given = options_of({**REQUIRED, "topic": "orders", **changed})
    plan = plan_of(schema(**columns), given, "UTC")
    known = {"string": Family.TEXT, "long": Family.WHOLE, "binary": Family.BYTES}
    target = table(
        *(column(name, known[kind]) for name, kind in columns.items() if isinstance(kind, str) and kind in known)
    )
    return list(RowConverter(plan, match_columns(plan, target, given), KEEPS["postgresql"]).rows(rows))


@pytest.mark.parametrize(
    ("kind", "family", "value", "expected"),
    [
        ("long", Family.WHOLE, 7, 7),
        ("string", Family.JSON, "{}", "{}"),
        ("binary", Family.BYTES, bytearray(b"\x00x"), b"\x00x"),
        ("decimal(10,2)", Family.EXACT, Decimal("1.50"), Decimal("1.50")),
        ("decimal(38,18)", Family.EXACT, Decimal("9" * 20 + "." + "9" * 18), Decimal("9" * 20 + "." + "9" * 18)),
        ("date", Family.DATE, date(2024, 2, 29), date(2024, 2, 29)),
        ("double", Family.FLOATING, math.inf, math.inf),
        ("boolean", Family.BOOLEAN, True, True),
        ("timestamp", Family.ZONED, NOON, NOON),
        ("timestamp", Family.MOMENT, NOON, datetime(2024, 7, 29, 12, 0)),
        ("timestamp_ntz", Family.MOMENT, datetime(2024, 7, 29, 12), datetime(2024, 7, 29, 12)),
        ("timestamp_ntz", Family.ZONED, datetime(2024, 7, 29, 12), NOON),
        (array("long"), Family.JSON, [1, None], "[1,null]"),
        (map_of("string", "long"), Family.TEXT, {"a": 1}, '{"a":1}'),
        (schema(x="long"), Family.JSON, (1,), '{"x":1}'),
        ("long", Family.WHOLE, None, None),
        ("void", Family.TEXT, None, None),
    ],
)
def test_a_value_is_converted_for_postgresql(kind: Any, family: Family, value: Any, expected: Any) -> None:
    got = stored(kind, family, value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("dialect", "kind", "family", "value", "expected"),
    [
        ("mysql", "boolean", Family.TINY, True, 1),
        ("mysql", "timestamp", Family.ZONED, NOON, datetime(2024, 7, 29, 12, 0)),
        ("mysql", "timestamp_ntz", Family.ZONED, datetime(2024, 7, 29, 12), datetime(2024, 7, 29, 12)),
        ("mysql", "decimal(10,2)", Family.EXACT, Decimal("1.50"), Decimal("1.50")),
        ("sqlite", "timestamp", Family.MOMENT, NOON, datetime(2024, 7, 29, 12, 0)),
        ("sqlite", "decimal(10,2)", Family.EXACT, Decimal("1.50"), 1.5),
        ("sqlite", "decimal(10,2)", Family.EXACT, Decimal("2.00"), 2),
        ("sqlite", "decimal(38,0)", Family.EXACT, Decimal(2**70), float(2**70)),
    ],
)
def test_a_value_is_converted_for_mysql_and_sqlite(
    dialect: str, kind: Any, family: Family, value: Any, expected: Any
) -> None:
    got = stored(kind, family, value, dialect)
    assert got == expected
    assert type(got) is type(expected)


def test_a_moment_without_a_zone_is_in_the_sessions_for_a_column_that_keeps_one() -> None:
    assert stored("timestamp_ntz", Family.ZONED, datetime(2024, 7, 29, 14), zone="Europe/Vienna") == NOON


def test_an_instant_comes_as_pyspark_makes_it() -> None:
    assert stored("timestamp", Family.ZONED, NOON.astimezone().replace(tzinfo=None)) == NOON


@pytest.mark.parametrize(
    ("dialect", "kind", "number", "expected"),
    [
        ("postgresql", MICROS, 1_722_254_400_000_000, NOON),
        ("mysql", MICROS, 1_722_254_400_000_000, NOON.replace(tzinfo=None)),
        ("sqlite", MICROS, -1, datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("postgresql", DAYS, -719_162, date(1, 1, 1)),
    ],
)
def test_moments_and_days_may_come_as_numbers(dialect: str, kind: str, number: int, expected: date) -> None:
    family = Family.ZONED if kind == MICROS else Family.DATE
    plan = WritePlan((Field("a", SparkType(kind, kind)),), (0,), (0,), "things", "Europe/Vienna")
    (row,) = RowConverter(plan, [column("a", family)], KEEPS[dialect]).rows([(number,)])
    assert row.values == (expected,)
    json = '"2024-07-29T14:00:00.000+02:00"' if number > 0 else '"1970-01-01T00:59:59.999+01:00"'
    assert row.value == ('{"a":%s}' % (json if kind == MICROS else '"0001-01-01"')).encode()
    with pytest.raises(InputError, match="row 1, column 'a': "):
        list(RowConverter(plan, [column("a", family)], KEEPS[dialect]).rows([(2**62,)]))


def test_a_row_weighs_as_much_as_its_texts_and_its_record() -> None:
    columns = {"a": "string", "b": "binary", "c": "long", "key": "string", "headers": HEADERS}
    rows = [
        ("xyz", b"ab", 7, "key", None),
        (None, None, None, None, [("trace", bytearray(1000)), ("n", None)]),
        (None, None, None, None, None),
    ]
    assert [row.weight - len(row.value or b"") for row in converted(columns, rows)] == [8, 1006, 0]


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_a_database_would_change_silently_is_refused(dialect: str, value: float) -> None:
    with pytest.raises(InputError, match=r"row 1, column 'a': is (nan|inf), which this database cannot hold"):
        stored("double", Family.FLOATING, value, dialect)


def test_the_record_is_kafkas_columns_and_json_of_the_rest() -> None:
    columns = {"key": "string", "id": "long", "headers": HEADERS, "partition": "integer"}
    rows = [("k", 1, [("h", bytearray(b"v")), ("n", None)], 2), (None, None, None, None), ("", 3, [], 0)]
    assert converted(columns, rows) == [
        ConvertedRow((1,), "orders", b"k", b'{"id":1}', 2, [("h", b"v"), ("n", None)], 12),
        ConvertedRow((None,), "orders", None, b"{}", -1, None, 2),
        ConvertedRow((3,), "orders", b"", b'{"id":3}', 0, None, 8),
    ]


def test_a_value_goes_as_it_is_and_none_is_a_tombstone() -> None:
    columns = {"key": "binary", "id": "long", "value": "binary", "topic": "string"}
    rows = [(b"\x00", 1, bytearray(b"\xff"), "a"), (b"\x01", 2, None, "b"), (b"", 3, b"", "c")]
    got = converted(columns, rows, topic=None)
    assert [(row.topic, row.key, row.value) for row in got] == [
        ("a", b"\x00", b"\xff"),
        ("b", b"\x01", None),
        ("c", b"", b""),
    ]


@pytest.mark.parametrize("topic", [None, "", "a b", "x" * 250])
def test_a_row_without_a_topic_is_counted(topic: str | None) -> None:
    with pytest.raises(InputError, match=r"row 2, column 'topic': .* is not a topic name"):
        converted({"id": "long", "topic": "string"}, [(1, "a"), (2, topic)], topic=None)


def test_null_where_the_table_takes_none_is_counted() -> None:
    plan = plan_of(schema(ID="long"), options(), "UTC")
    columns = match_columns(plan, table(column("id", Family.WHOLE, nullable=False)), options())
    with pytest.raises(InputError, match="row 2, column 'ID': is NULL, and 'id' in the table is NOT NULL"):
        list(RowConverter(plan, columns, KEEPS["postgresql"]).rows([(1,), (None,)]))


def test_a_row_of_another_dataframe_is_refused() -> None:
    with pytest.raises(InputError, match="row 1 has 2 values, and the DataFrame that the writer was made for 1"):
        converted({"id": "long"}, [(1, 2)])


def test_json_that_spark_has_written_goes_as_it_is_or_says_why_the_row_does_not() -> None:
    text = SparkType("string", "string")
    plan = WritePlan((Field("id", text), Field("json", text)), (0,), (), "orders", "UTC", json_at=1)
    rows = RowConverter(plan, [column("id")], KEEPS["sqlite"]).rows(
        [("a", '{"ä":1}'), ("b", f"{REFUSED}column 'at': why")]
    )
    assert next(rows).value == '{"ä":1}'.encode()
    with pytest.raises(InputError, match=r"^row 2, column 'at': why$"):
        next(rows)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"partition": -7}, "row 1, column 'partition': -7 is not a partition; NULL lets the partitioner choose"),
        ({"headers": [None]}, "row 1, column 'headers': a header, or the name of one, is NULL"),
        ({"headers": [("a", b"x"), (None, b"y")]}, "row 1, column 'headers': a header, or the name of one, is NULL"),
    ],
)
def test_a_value_that_no_record_can_have_is_refused_with_the_row(changed: dict[str, Any], why: str) -> None:
    given = {"id": 1, "partition": None, "headers": None, **changed}
    plan = plan_of(schema(id="long", partition="integer", headers=HEADERS), options(), "UTC")
    columns = match_columns(plan, table(column("id", Family.WHOLE)), options())
    with pytest.raises(InputError) as refused:
        list(RowConverter(plan, columns, KEEPS["postgresql"]).rows([tuple(given.values())]))
    assert str(refused.value) == why


def test_rows_are_read_one_by_one() -> None:
    taken: list[int] = []

    def endless() -> Any:
        while True:
            taken.append(1)
            yield (len(taken),)

    plan = plan_of(schema(id="long"), options(), "UTC")
    columns = match_columns(plan, table(column("id", Family.WHOLE)), options())
    rows = RowConverter(plan, columns, KEEPS["postgresql"]).rows(endless())
    assert [next(rows).values for _ in range(3)] == [(1,), (2,), (3,)]
    assert len(taken) == 3


LINED = WritePlan(
    (Field("key", SparkType("string", "string")), Field("line", SparkType("string", "string"))),
    (),
    (),
    "orders",
    "UTC",
    value_at=0,
    line_at=1,
)
"""Of rows of which Spark has written what goes into the table."""


def test_a_line_that_spark_has_written_is_passed_unchanged() -> None:
    (row,) = RowConverter(LINED, [column("id", nullable=False)], KEEPS["postgresql"]).rows([("vä", "1\\\\\t\\N")])
    assert row == ConvertedRow(b"1\\\\\t\\N", "orders", None, "vä".encode(), -1, None, 9)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"{REFUSED}column 'at': is NULL", "row 2, column 'at': is NULL"),
        ("1\tnote\0", "row 2: PostgreSQL's texts have no NUL characters"),
        ("\0", "row 2: PostgreSQL's texts have no NUL characters"),
    ],
)
def test_a_line_with_sparks_refusal_is_an_error(line: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        list(RowConverter(LINED, [], KEEPS["postgresql"]).rows([("v", "1"), ("v", line)]))
    assert str(refused.value) == why
