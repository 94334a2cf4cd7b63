"""Assigns the columns of a DataFrame to the table, the record, or both. Every check of the columns is here, and runs
before anything is written.

The columns that Spark's own Kafka sink knows by name belong to the record: ``topic``, ``key``, ``value``, ``headers``,
``partition``. The others belong to the table. The record's value is the column ``value``, or else the table's columns
as JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, NamedTuple

from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.plan.spark_schema import FLOATING, NESTED, WHOLE, Field, fields_of, unwritable
from dualwrite.spark.plan.to_json import zone_of

KAFKA_COLUMNS = ("topic", "key", "value", "headers", "partition")
INDEX_FIELDS = tuple(f"{name}_at" for name in KAFKA_COLUMNS)
"""The fields of a WritePlan that hold the indexes of the record's columns."""
_BYTES = ("string", "binary")
_KAFKA_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("array<struct>",),
    "partition": ("integer",),
}

REFUSED = "\n"
"""The beginning of the line that Spark writes for a row that must be refused. The reason follows. In values, this text
is escaped."""


class Family(Enum):
    """Roughly, the values that a column of the database takes."""

    BOOLEAN = "boolean"
    WHOLE = "whole numbers"
    TINY = "tiny whole numbers, which stand for booleans"
    EXACT = "decimals"
    FLOATING = "floating point"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "dates"
    MOMENT = "timestamps without a zone"
    ZONED = "timestamps with a zone"
    JSON = "JSON"
    OTHER = "something else, written as text"


_NUMBERS = frozenset({Family.WHOLE, Family.TINY, Family.EXACT, Family.FLOATING})
_TEXTS = frozenset({Family.TEXT, Family.JSON, Family.OTHER})
_MOMENTS = frozenset({Family.MOMENT, Family.ZONED})
_FITS: Mapping[str, frozenset[Family]] = {
    **dict.fromkeys(WHOLE, _NUMBERS),
    **dict.fromkeys(FLOATING, frozenset({Family.FLOATING, Family.EXACT})),
    **dict.fromkeys(NESTED, frozenset({Family.TEXT, Family.JSON})),
    "boolean": frozenset({Family.BOOLEAN, Family.TINY}),
    "decimal": frozenset({Family.EXACT, Family.FLOATING, Family.WHOLE}),
    "string": _TEXTS,
    "binary": frozenset({Family.BYTES}),
    "date": frozenset({Family.DATE}),
    "timestamp": _MOMENTS,
    "timestamp_ntz": _MOMENTS,
    "void": frozenset(Family),
}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table.

    :param type: the type's name in the database, for messages.
    :param has_value: True if the database fills the column in: by a default, or by counting up.
    :param is_computed: True if the column is computed, so that an INSERT may not give a value for it.
    """

    name: str
    family: Family
    type: str
    nullable: bool = True
    has_value: bool = False
    is_computed: bool = False


class ValueFidelity(NamedTuple):
    """The kinds of values that a database stores unchanged: ``keeps_time_zones``, ``keeps_infinities`` and
    ``keeps_decimals`` of its Database."""

    time_zones: bool
    infinities: bool
    decimals: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The table in the database.

    :param name: its name in the options.
    :param keeps: the kinds of values that its database stores unchanged.
    :param keys: the columns of its primary key and of each unique key.
    """

    name: str
    keeps: ValueFidelity
    columns: tuple[TableColumn, ...]
    keys: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where the columns of a DataFrame go. All numbers are indexes of ``fields``.

    :param table: the columns for the table.
    :param json: the columns of the value's JSON; empty if the column ``value`` is the value.
    :param topic: the topic of all records; None if each row has its own, at ``topic_at``.
    :param zone: the session's time zone, for timestamps.
    :param line_at: the column with the line of COPY, if Spark has written it (copy_lines.py). Then ``table`` is empty.
    :param json_at: the column with the value's JSON, if Spark has written it. Then ``json`` is empty.
    :param is_packed: True if the only column is a row that Spark has packed (packed_rows.py).
    """

    fields: tuple[Field, ...]
    table: tuple[int, ...]
    json: tuple[int, ...]
    topic: str | None
    zone: str
    topic_at: int | None = None
    key_at: int | None = None
    value_at: int | None = None
    headers_at: int | None = None
    partition_at: int | None = None
    line_at: int | None = None
    json_at: int | None = None
    is_packed: bool = False

    @property
    def table_fields(self) -> tuple[Field, ...]:
        """The columns that go into the table."""
        return tuple(self.fields[index] for index in self.table)


def refusal_of_null(column: TableColumn) -> str:
    """The error message for NULL in ``column``, which is NOT NULL."""
    return f"is NULL, and {column.name!r} in the table is NOT NULL"


def plan_of(schema: Mapping[str, Any], options: WriteOptions, zone: str) -> WritePlan:
    """Decide where the columns of ``schema`` go.

    :param schema: ``df.schema.jsonValue()``.
    :param zone: ``spark.sql.session.timeZone``.
    :raises ConfigurationError: naming the first column that is missing, duplicated, or of a wrong type.
    """
    fields = fields_of(schema)
    indexes: dict[str, int] = {}
    for index, field in enumerate(fields):
        if field.name in indexes:
            raise ConfigurationError(f"the DataFrame has two columns {field.name!r}; rename one")
        indexes[field.name] = index
    record_names = [name for name in KAFKA_COLUMNS if name != "value" or options.value_columns is None]
    record_columns = {name: indexes[name] for name in record_names if name in indexes}
    if options.topic is not None:
        record_columns.pop("topic", None)
    elif "topic" not in record_columns:
        raise ConfigurationError("no topic: give the option topic, or a column topic of strings")
    for index in record_columns.values():
        _require_kafka_type(fields[index])
    table_names = [name for name in indexes if name not in record_names]
    table = _indexes("columns.table", options.table_columns, indexes, tuple(indexes[name] for name in table_names))
    json = () if "value" in record_columns else _indexes("columns.value", options.value_columns, indexes, table)
    zone_of(zone)
    if not table:
        raise ConfigurationError(
            "no column goes into the table: all columns of the DataFrame are Kafka's; set columns.table"
        )
    for index in (*table, *json):
        reason = unwritable(fields[index])
        if reason is not None:
            raise ConfigurationError(f"column {fields[index].name!r} {reason}")
    record_indexes: dict[str, Any] = {f"{name}_at": index for name, index in record_columns.items()}
    return WritePlan(fields, table, json, options.topic, zone, **record_indexes)


def _indexes(
    option: str,
    names: Sequence[str] | None,
    indexes: Mapping[str, int],
    default: tuple[int, ...],
) -> tuple[int, ...]:
    if names is None:
        return default
    for name in names:
        if name not in indexes:
            raise ConfigurationError(
                f"option {option!r}: the DataFrame has no column {name!r}{_suggestion(name, indexes)}"
            )
    return tuple(indexes[name] for name in names)


def _suggestion(name: str, names: Iterable[str]) -> str:
    candidates = list(names)
    same_but_case = [other for other in candidates if other.lower() == name.lower()]
    close = same_but_case or get_close_matches(name, candidates, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(map(repr, candidates))}"


def _require_kafka_type(field: Field) -> None:
    kinds = _KAFKA_TYPES[field.name]
    type_name = field.type.name
    if field.name == "headers":
        element = field.type.fields[0].type if field.type.kind == "array" else None
        members = [(inner.name, inner.type.kind) for inner in element.fields] if element else []
        if members == [("key", "string"), ("value", "binary")]:
            return
        raise ConfigurationError(
            f"column 'headers' is {type_name}; Kafka's are array<struct<key: string, value: binary>>: cast or rename it"
        )
    if field.type.kind not in kinds:
        hint = ", or give columns.value for JSON" if field.name == "value" else ""
        raise ConfigurationError(
            f"column {field.name!r} is {type_name}; Kafka's is {' or '.join(kinds)}: cast or rename it{hint}"
        )


def match_columns(plan: WritePlan, target: Target, options: WriteOptions) -> tuple[TableColumn, ...]:
    """The columns of the table for ``plan.table``, in that order.

    :raises ConfigurationError: naming the first column that does not fit: the table lacks it, needs it, or cannot hold
        its type. Also if ``upsert_keys`` are not a unique key of the table.
    """
    by_name = {column.name: column for column in target.columns}
    columns: list[TableColumn] = []
    for field in plan.table_fields:
        column = _column(field, by_name, target)
        if column in columns:
            raise ConfigurationError(f"two columns of the DataFrame are column {column.name!r} of table {target.name}")
        _require_fit(field, column, target)
        columns.append(column)
    written = {column.name for column in columns}
    for column in target.columns:
        if column.name not in written and not column.nullable and not column.has_value:
            raise ConfigurationError(
                f"column {column.name!r} of table {target.name} is NOT NULL, and the DataFrame has none of that name"
            )
    _require_key(options.upsert_keys, written, target)
    return tuple(columns)


def _column(field: Field, by_name: Mapping[str, TableColumn], target: Target) -> TableColumn:
    """The column with the same name, or the only one that differs just in case, as Spark compares names."""
    if field.name in by_name:
        return by_name[field.name]
    same_but_case = [column for name, column in by_name.items() if name.lower() == field.name.lower()]
    if len(same_but_case) == 1:
        return same_but_case[0]
    raise ConfigurationError(f"table {target.name} has no column {field.name!r}{_suggestion(field.name, by_name)}")


def _require_fit(field: Field, column: TableColumn, target: Target) -> None:
    where = f"column {field.name!r} is {field.type.name} in the DataFrame and {column.type} in table {target.name}"
    if column.is_computed:
        raise ConfigurationError(
            f"column {column.name!r} of table {target.name} is computed: drop it from the DataFrame"
        )
    if column.family not in _FITS[field.type.kind]:
        raise ConfigurationError(f"{where}: cast it")
    if field.type.kind == "decimal" and column.family is Family.WHOLE and field.type.scale > 0:
        raise ConfigurationError(f"{where}, which has no fraction: cast it")


def _require_key(keys: Sequence[str], written: Iterable[str], target: Target) -> None:
    for name in keys:
        if name not in written:
            raise ConfigurationError(
                f"option 'upsertKeys': {name!r} is not one of the written columns{_suggestion(name, written)}"
            )
    if keys and frozenset(keys) not in target.keys:
        unique_keys = " or ".join(f"({', '.join(sorted(key))})" for key in target.keys) or "none"
        raise ConfigurationError(
            f"option 'upsertKeys': ({', '.join(keys)}) is not a primary or unique key of table {target.name}; "
            f"it has {unique_keys}"
        )
