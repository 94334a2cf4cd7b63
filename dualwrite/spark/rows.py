"""Rows as the database and Kafka take them, made by a plan that fits the table.

PySpark's rows have moments without a zone, in the zone of this process, where Spark's column has instants.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

from dualwrite.errors import InputError
from dualwrite.ids import is_legal_topic
from dualwrite.spark.columns import Family, Plan, TableColumn
from dualwrite.spark.schemas import FLOATING, NESTED, Field
from dualwrite.spark.to_json import object_writer, text_writer, with_scale, zone_of

Convert = Callable[[Any], Any]
Headers = list[tuple[str, bytes | None]]

_DIGEST_BYTES = 16


class Written(NamedTuple):
    """One row: the values of the table's columns, and the record."""

    values: tuple[Any, ...]
    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    headers: Headers | None


class RowsDigest:
    """How many rows there were, and a checksum of them that does not depend on their order: Spark may shuffle a
    partition's rows in another one when it makes them again."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, row: Written) -> None:
        """Add a row."""
        self.count += 1
        self._sum += int.from_bytes(hashlib.blake2b(repr((*row,)).encode(), digest_size=_DIGEST_BYTES).digest(), "big")

    @property
    def checksum(self) -> str:
        """Of the rows so far, in hexadecimal digits."""
        return f"{self._sum % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"


class RowConverter:
    """Makes of each row what goes into the table and into the topic.

    :param columns: the table's, for ``plan.table``.
    :param dialect: SQLAlchemy's name of the database.
    """

    def __init__(self, plan: Plan, columns: Sequence[TableColumn], dialect: str) -> None:
        self._plan = plan
        zone = zone_of(plan.zone)
        self._columns = [
            (field.name, place, None if column.nullable else column.name, _convert(field, column, dialect, zone))
            for field, place, column in zip(plan.table_fields, plan.table, columns, strict=True)
        ]
        self._json = object_writer([plan.fields[place] for place in plan.json], zone)

    def rows(self, given: Iterable[Sequence[Any]]) -> Iterator[Written]:
        """The rows that follow, one by one.

        :raises InputError: at a row that fits neither the table nor Kafka; the message counts it from 1.
        """
        for number, row in enumerate(given, 1):
            if len(row) != len(self._plan.fields):
                raise InputError(
                    f"row {number} has {len(row)} values, and the DataFrame that the writer was made for "
                    f"{len(self._plan.fields)}: make it for the DataFrame that is written"
                )
            yield self._written(tuple(row), number)  # looking into a Row is slow

    def _written(self, row: Sequence[Any], number: int) -> Written:
        plan = self._plan
        values = []
        for name, place, required, convert in self._columns:
            value = row[place]
            if value is not None:
                try:
                    value = convert(value)
                except (ArithmeticError, ValueError) as error:
                    raise InputError(f"row {number}, column {name!r}: {error}") from None
            elif required is not None:
                raise InputError(f"row {number}, column {name!r}: is NULL, and {required!r} in the table is NOT NULL")
            values.append(value)
        partition = -1 if plan.partition_at is None else row[plan.partition_at]
        return Written(
            tuple(values),
            plan.topic or self._topic(row, number),
            _bytes(row, plan.key_at),
            self._value(row, number),
            -1 if partition is None else partition,
            _headers(row, plan.headers_at),
        )

    def _value(self, row: Sequence[Any], number: int) -> bytes | None:
        if self._plan.value_at is not None:
            return _bytes(row, self._plan.value_at)
        try:
            return self._json(row[place] for place in self._plan.json).encode()
        except (ArithmeticError, ValueError) as error:
            raise InputError(f"row {number} as JSON: {error}") from None

    def _topic(self, row: Sequence[Any], number: int) -> str:
        topic = None if self._plan.topic_at is None else row[self._plan.topic_at]
        if not isinstance(topic, str) or not is_legal_topic(topic):
            raise InputError(f"row {number}, column 'topic': {topic!r} is no topic's name")
        return topic


def _bytes(row: Sequence[Any], place: int | None) -> bytes | None:
    value = None if place is None else row[place]
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _headers(row: Sequence[Any], place: int | None) -> Headers | None:
    given = None if place is None else row[place]
    if not given:
        return None
    return [(key, None if value is None else bytes(value)) for key, value in given]


def _convert(field: Field, column: TableColumn, dialect: str, zone: tzinfo) -> Convert:
    """What becomes of a value of ``field``, which is not None, for ``column``."""
    kind = field.type.kind
    if kind in NESTED:
        return text_writer(field.type, zone)
    if kind == "timestamp":
        keeps_zones = dialect == "postgresql" and column.family is Family.ZONED
        return _instant if keeps_zones else _instant_as_utc
    if kind == "timestamp_ntz" and column.family is Family.ZONED:
        as_instant = _instant if dialect == "postgresql" else _instant_as_utc
        return lambda value: as_instant(value.replace(tzinfo=zone))
    if kind == "boolean" and column.family is Family.TINY:
        return int
    if kind in FLOATING and dialect != "postgresql":
        return _number
    if kind == "decimal":
        return _without_decimals if dialect == "sqlite" else with_scale(field.type.scale)
    return bytes if kind == "binary" else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _instant(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)


def _instant_as_utc(value: datetime) -> datetime:
    """For a database that keeps no zone: in UTC, without saying so."""
    return value.astimezone(timezone.utc).replace(tzinfo=None)


def _number(value: float) -> float:
    """MariaDB and MySQL have nothing else, and SQLite would make NULL of NaN."""
    if not math.isfinite(value):
        raise ValueError(f"is {value}, which this database cannot hold")
    return value


def _without_decimals(value: Decimal) -> float | int:
    """SQLite's NUMERIC is floating point, but for whole numbers."""
    whole = int(value)
    return whole if whole == value and abs(whole) < 2**63 else float(value)
