"""Converts rows for the database and for Kafka, by a plan that fits the table.

PySpark passes the values of a TIMESTAMP column as datetimes without a zone, in the time zone of this process.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from typing import Any

from dualwrite.errors import InputError
from dualwrite.ids import is_legal_topic
from dualwrite.spark.plan.columns import REFUSED, Family, TableColumn, ValueFidelity, WritePlan, refusal_of_null
from dualwrite.spark.plan.converted_row import ConvertedRow, Headers, require_no_nul
from dualwrite.spark.plan.packed_rows import unpacked
from dualwrite.spark.plan.spark_schema import DAYS, FLOATING, MICROS, NESTED, Field
from dualwrite.spark.plan.to_json import day_of, moment_of, object_writer, text_writer, with_scale, zone_of

Convert = Callable[[Any], Any]
_DIGEST_BYTES = 16
_SIZED = frozenset({"string", "binary", *NESTED})
"""Kinds whose values have a length: nested ones are texts in the table."""


class RowsDigest:
    """The number of rows, and a checksum that does not depend on their order: Spark may recompute a partition's rows in
    another order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, row: ConvertedRow) -> None:
        """Add a row."""
        self.count += 1
        self._sum += int.from_bytes(hashlib.blake2b(repr(row[:-1]).encode(), digest_size=_DIGEST_BYTES).digest(), "big")

    @property
    def checksum(self) -> str:
        """The checksum of the rows so far, in hexadecimal digits."""
        return f"{self._sum % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"


class RowConverter:
    """Converts each row to its values for the table and its record.

    :param columns: the table's columns for ``plan.table``.
    :param keeps: the kinds of values that the database stores unchanged.
    """

    def __init__(self, plan: WritePlan, columns: Sequence[TableColumn], keeps: ValueFidelity) -> None:
        self._plan = plan
        zone = zone_of(plan.zone)
        table_columns = columns if plan.line_at is None and not plan.is_packed else ()
        self._checked_values = [
            (position, field.name, None if column.nullable else refusal_of_null(column), convert)
            for position, (field, column) in enumerate(zip(plan.table_fields, table_columns, strict=True))
            if (convert := _convert(field, column, keeps, zone)) is not None or not column.nullable
        ]
        """The positions of table values that need a conversion or a check."""
        kinds = [field.type.kind for field in plan.table_fields]
        self._sized_positions = [position for position, kind in enumerate(kinds) if kind in _SIZED]
        self._json = object_writer([plan.fields[index] for index in plan.json], zone)

    def rows(self, rows: Iterable[Any]) -> Iterator[ConvertedRow]:
        """The converted rows, one by one.

        :param rows: sequences of values; bytes if Spark has packed them (packed_rows.py).
        :raises InputError: at a row that does not fit the table or Kafka. The message has its number, counted from 1.
        """
        if self._plan.is_packed:
            assert self._plan.topic is not None
            return unpacked(rows, self._plan.topic)
        return self._converted_rows(rows)

    def _converted_rows(self, rows: Iterable[Sequence[Any]]) -> Iterator[ConvertedRow]:
        for number, row in enumerate(rows, 1):
            if len(row) != len(self._plan.fields):
                raise InputError(
                    f"row {number} has {len(row)} values, and the DataFrame that the writer was made for "
                    f"{len(self._plan.fields)}: make it for the DataFrame that is written"
                )
            yield self._converted_row(tuple(row), number)  # a Row is slow to index

    def _converted_row(self, row: Sequence[Any], number: int) -> ConvertedRow:
        plan = self._plan
        values: tuple[Any, ...] | bytes
        if plan.line_at is None:
            values, weight = self._values(row, number)
        else:
            values = _of_spark(row[plan.line_at], number).encode()
            require_no_nul(values, number)
            weight = len(values)
        content = self._value(row, number)
        key = _bytes(row, plan.key_at)
        headers = None if plan.headers_at is None else _headers(row[plan.headers_at], number)
        weight += len(content or b"") + len(key or b"")
        if headers is not None:
            weight += sum(len(name) + len(value or b"") for name, value in headers)
        return ConvertedRow(
            values,
            plan.topic or self._topic(row, number),
            key,
            content,
            -1 if plan.partition_at is None else _partition(row[plan.partition_at], number),
            headers,
            weight,
        )

    def _values(self, row: Sequence[Any], number: int) -> tuple[tuple[Any, ...], int]:
        """The values for the table's columns, and their weight."""
        values = [row[index] for index in self._plan.table]
        for position, name, refusal, convert in self._checked_values:
            value = values[position]
            if value is None:
                if refusal is not None:
                    raise InputError(f"row {number}, column {name!r}: {refusal}")
            elif convert is not None:
                try:
                    values[position] = convert(value)
                except (ArithmeticError, ValueError) as error:
                    raise InputError(f"row {number}, column {name!r}: {error}") from None
        return tuple(values), sum(len(values[position] or "") for position in self._sized_positions)

    def _value(self, row: Sequence[Any], number: int) -> bytes | None:
        if self._plan.value_at is not None:
            return _bytes(row, self._plan.value_at)
        if self._plan.json_at is not None:
            return _of_spark(row[self._plan.json_at], number).encode()
        try:
            return self._json(row[index] for index in self._plan.json).encode()
        except (ArithmeticError, ValueError) as error:
            raise InputError(f"row {number} as JSON: {error}") from None

    def _topic(self, row: Sequence[Any], number: int) -> str:
        topic = None if self._plan.topic_at is None else row[self._plan.topic_at]
        if not isinstance(topic, str) or not is_legal_topic(topic):
            raise InputError(f"row {number}, column 'topic': {topic!r} is not a topic name")
        return topic


def _of_spark(text: str, number: int) -> str:
    """Pass ``text`` unless Spark has refused the row.

    :raises InputError: with Spark's reason.
    """
    if text.startswith(REFUSED):
        raise InputError(f"row {number}, {text.removeprefix(REFUSED)}")
    return text


def _bytes(row: Sequence[Any], index: int | None) -> bytes | None:
    value = None if index is None else row[index]
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _partition(partition: int | None, number: int) -> int:
    if partition is not None and partition < 0:
        raise InputError(
            f"row {number}, column 'partition': {partition} is not a partition; NULL lets the partitioner choose"
        )
    return -1 if partition is None else partition


def _headers(headers: Any, number: int) -> Headers | None:
    if not headers:
        return None
    if any(header is None or header[0] is None for header in headers):
        raise InputError(f"row {number}, column 'headers': a header, or the name of one, is NULL")
    return [(key, None if value is None else bytes(value)) for key, value in headers]


def _convert(field: Field, column: TableColumn, keeps: ValueFidelity, zone: tzinfo) -> Convert | None:
    """The conversion of a value of ``field``, other than None, for ``column``. None if no conversion is needed."""
    kind = field.type.kind
    if kind in NESTED:
        return text_writer(field.type, zone)
    keeps_zones = keeps.time_zones and column.family is Family.ZONED
    if kind == "timestamp":
        return _instant if keeps_zones else _instant_as_utc
    if kind == MICROS:
        return moment_of if keeps_zones else lambda micros: moment_of(micros).replace(tzinfo=None)
    if kind == DAYS:
        return day_of
    if kind == "timestamp_ntz" and column.family is Family.ZONED:
        as_instant = _instant if keeps_zones else _instant_as_utc
        return lambda value: as_instant(value.replace(tzinfo=zone))
    if kind == "boolean" and column.family is Family.TINY:
        return int
    if kind in FLOATING and not keeps.infinities:
        return _number
    if kind == "decimal":
        return with_scale(field.type.scale) if keeps.decimals else _without_decimals
    return bytes if kind == "binary" else None


def _instant(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)


def _instant_as_utc(value: datetime) -> datetime:
    """For a database without time zones: the instant in UTC, without a zone."""
    return value.astimezone(timezone.utc).replace(tzinfo=None)


def _number(value: float) -> float:
    """MariaDB and MySQL have no infinities and no NaN, and SQLite would store NaN as NULL."""
    if not math.isfinite(value):
        raise ValueError(f"is {value}, which this database cannot hold")
    return value


def _without_decimals(value: Decimal) -> float | int:
    """For SQLite, whose NUMERIC is floating point except for whole numbers."""
    whole = int(value)
    return whole if whole == value and abs(whole) < 2**63 else float(value)
