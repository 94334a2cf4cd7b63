"""A DataFrame's schema as data, read from ``StructType.jsonValue()`` without Spark."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

WHOLE = ("byte", "short", "integer", "long")
FLOATING = ("float", "double")
NESTED = ("array", "map", "struct")
MICROS, DAYS = "micros", "days"
"""Kinds that only this library has: a timestamp and a date as whole numbers since 1970 (preparing.py)."""
KINDS = frozenset(
    (*WHOLE, *FLOATING, *NESTED, "boolean", "decimal", "string", "binary", "date", "timestamp", "timestamp_ntz", "void")
)
"""The kinds that can be written. Spark's other types (intervals, variants, times, geometries, user-defined ones) have
no agreed form in a database and in JSON."""

_TEXTUAL = re.compile(r"string collate .*|(var)?char\(\d+\)")
_DECIMAL = re.compile(r"decimal(\((\d+),\s*(-?\d+)\))?")


class SparkType(NamedTuple):
    """The type of a column, or of a part of a nested column.

    :param kind: one of KINDS, MICROS, DAYS, or Spark's name of a type that cannot be written.
    :param name: Spark's name of the type, for messages.
    :param scale: the scale of a decimal.
    :param fields: the fields of a struct, the element of an array, or the key and the value of a map.
    """

    kind: str
    name: str
    scale: int = 0
    fields: tuple["Field", ...] = ()


class Field(NamedTuple):
    """A column, or a field of a struct."""

    name: str
    type: SparkType
    nullable: bool = True


def fields_of(schema: Mapping[str, Any]) -> tuple[Field, ...]:
    """The columns of a schema.

    :param schema: ``df.schema.jsonValue()``.
    """
    return tuple(
        Field(field["name"], type_of(field["type"]), bool(field.get("nullable", True))) for field in schema["fields"]
    )


def type_of(json_type: Any) -> SparkType:
    """Parse a type of ``jsonValue()``."""
    if isinstance(json_type, str):
        return _atomic(json_type)
    kind = str(json_type["type"])
    if kind == "struct":
        return SparkType(kind, kind, fields=fields_of(json_type))
    if kind == "array":
        element = type_of(json_type["elementType"])
        return SparkType(kind, f"array<{element.name}>", fields=(Field("element", element),))
    if kind == "map":
        key, value = type_of(json_type["keyType"]), type_of(json_type["valueType"])
        return SparkType(kind, f"map<{key.name},{value.name}>", fields=(Field("key", key), Field("value", value)))
    return SparkType(kind, kind)


def _atomic(name: str) -> SparkType:
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return SparkType("decimal", name, scale=int(decimal[3] or 0))
    return SparkType("string" if _TEXTUAL.fullmatch(name) else name, name)


def unwritable(field: Field) -> str | None:
    """The reason why ``field`` cannot be written: its type, or a type inside of it, has no agreed form. None if it can
    be written."""
    if field.type.kind not in KINDS:
        return f"is {field.type.name}, which cannot be written; cast it, to a string for example"
    for inner in field.type.fields:
        reason = unwritable(inner)
        if reason is not None:
            return f"holds {inner.name!r}, which {reason}"
    if field.type.kind == "map" and field.type.fields[0].type.kind not in _MAP_KEYS:
        return f"is {field.type.name}, whose keys have no agreed form in JSON; cast them to a string"
    return None


_MAP_KEYS = frozenset((*WHOLE, *FLOATING, "boolean", "decimal", "string"))
"""Spark's to_json writes other key types in its internal form: a date as a number of days."""
