"""Converts rows for the database and for Kafka, by a plan that fits the table.

PySpark's rows have timestamps without a zone, in the zone of this process, for the instants of Spark's column.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

from dualwrite.errors import InputError
from dualwrite.ids import is_legal_topic
from dualwrite.spark.plan.columns import REFUSED, Family, TableColumn, WritePlan, refusal_of_null
from dualwrite.spark.plan.spark_schema import DAYS, FLOATING, MICROS, NESTED, Field
from dualwrite.spark.plan.to_json import day_of, moment_of, object_writer, text_writer, with_scale, zone_of

Convert = Callable[[Any], Any]
Headers = list[tuple[str, bytes | None]]

_DIGEST_BYTES = 16
_SIZED = frozenset({"string", "binary", *NESTED})
"""Kinds whose values have a length: nested ones are texts in the table."""


class Written(NamedTuple):
    """One row: the values of the table's columns, and the record.

    :param values: the values, or a line of PostgreSQL's COPY, if Spark has written that (copy_lines.py).
    :param weight: bytes of its texts and binaries, and of the record's value.
    """

    values: tuple[Any, ...] | str
    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    headers: Headers | None
    weight: int


class RowsDigest:
    """The number of rows, and a checksum that does not depend on their order: Spark may recompute a partition's rows in
    another order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, row: Written) -> None:
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
    :param dialect: SQLAlchemy's name of the database.
    """

    def __init__(self, plan: WritePlan, columns: Sequence[TableColumn], dialect: str) -> None:
        self._plan = plan
        zone = zone_of(plan.zone)
        into = columns if plan.line_at is None else ()
        self._looked_at = [
            (at, field.name, None if column.nullable else refusal_of_null(column), convert)
            for at, (field, column) in enumerate(zip(plan.table_fields, into, strict=True))
            if (convert := _convert(field, column, dialect, zone)) is not None or not column.nullable
        ]
        """The places of table values that need a conversion or a check."""
        self._sized = [at for at, field in enumerate(plan.table_fields) if field.type.kind in _SIZED]
        self._json = object_writer([plan.fields[place] for place in plan.json], zone)

    def rows(self, given: Iterable[Sequence[Any]]) -> Iterator[Written]:
        """The converted rows, one by one.

        :raises InputError: at a row that does not fit the table or Kafka; the message counts it from 1.
        """
        for number, row in enumerate(given, 1):
            if len(row) != len(self._plan.fields):
                raise InputError(
                    f"row {number} has {len(row)} values, and the DataFrame that the writer was made for "
                    f"{len(self._plan.fields)}: make it for the DataFrame that is written"
                )
            yield self._written(tuple(row), number)  # a Row is slow to index

    def _written(self, row: Sequence[Any], number: int) -> Written:
        plan = self._plan
        values: tuple[Any, ...] | str
        if plan.line_at is None:
            values, weight = self._values(row, number)
        else:
            values = _of_spark(row[plan.line_at], number)
            if "\0" in values:
                raise InputError(f"row {number}: PostgreSQL's texts have no NUL characters")
            weight = len(values)
        content = self._value(row, number)
        if content is not None:
            weight += len(content)
        return Written(
            values,
            plan.topic or self._topic(row, number),
            _bytes(row, plan.key_at),
            content,
            -1 if plan.partition_at is None else _partition(row[plan.partition_at], number),
            None if plan.headers_at is None else _headers(row[plan.headers_at], number),
            weight,
        )

    def _values(self, row: Sequence[Any], number: int) -> tuple[tuple[Any, ...], int]:
        """The values for the table's columns, and their weight."""
        values = [row[place] for place in self._plan.table]
        for at, name, refusal, convert in self._looked_at:
            value = values[at]
            if value is None:
                if refusal is not None:
                    raise InputError(f"row {number}, column {name!r}: {refusal}")
            elif convert is not None:
                try:
                    values[at] = convert(value)
                except (ArithmeticError, ValueError) as error:
                    raise InputError(f"row {number}, column {name!r}: {error}") from None
        return tuple(values), sum(len(values[at] or "") for at in self._sized)

    def _value(self, row: Sequence[Any], number: int) -> bytes | None:
        if self._plan.value_at is not None:
            return _bytes(row, self._plan.value_at)
        if self._plan.json_at is not None:
            return _of_spark(row[self._plan.json_at], number).encode()
        try:
            return self._json(row[place] for place in self._plan.json).encode()
        except (ArithmeticError, ValueError) as error:
            raise InputError(f"row {number} as JSON: {error}") from None

    def _topic(self, row: Sequence[Any], number: int) -> str:
        topic = None if self._plan.topic_at is None else row[self._plan.topic_at]
        if not isinstance(topic, str) or not is_legal_topic(topic):
            raise InputError(f"row {number}, column 'topic': {topic!r} is no topic's name")
        return topic


def _of_spark(text: str, number: int) -> str:
    """``text`` as Spark has written it.

    :raises InputError: if it is the reason to refuse the row.
    """
    if text.startswith(REFUSED):
        raise InputError(f"row {number}, {text.removeprefix(REFUSED)}")
    return text


def _bytes(row: Sequence[Any], place: int | None) -> bytes | None:
    value = None if place is None else row[place]
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _partition(given: int | None, number: int) -> int:
    if given is not None and given < 0:
        raise InputError(f"row {number}, column 'partition': {given} is no partition; NULL lets the partitioner choose")
    return -1 if given is None else given


def _headers(given: Any, number: int) -> Headers | None:
    if not given:
        return None
    if any(header is None or header[0] is None for header in given):
        raise InputError(f"row {number}, column 'headers': a header, or the name of one, is NULL")
    return [(key, None if value is None else bytes(value)) for key, value in given]


def _convert(field: Field, column: TableColumn, dialect: str, zone: tzinfo) -> Convert | None:
    """The conversion of a value of ``field``, which is not None, for ``column``; None if none is needed."""
    kind = field.type.kind
    if kind in NESTED:
        return text_writer(field.type, zone)
    keeps_zones = dialect == "postgresql" and column.family is Family.ZONED
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
    if kind in FLOATING and dialect != "postgresql":
        return _number
    if kind == "decimal":
        return _without_decimals if dialect == "sqlite" else with_scale(field.type.scale)
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
