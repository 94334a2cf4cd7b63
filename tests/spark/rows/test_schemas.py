"""A DataFrame's schema, read from its JSON."""

from typing import Any

import pytest

from dualwrite.spark.plan.spark_schema import KINDS, fields_of, type_of, unwritable
from tests.support.spark.expected_rows import HEADERS, array, map_of, schema


@pytest.mark.parametrize("said", sorted(KINDS - {"array", "map", "struct", "decimal"}))
def test_a_plain_type_is_its_own_kind(said: str) -> None:
    assert type_of(said).kind == said


@pytest.mark.parametrize(
    ("said", "kind", "scale"),
    [
        ("decimal(10,2)", "decimal", 2),
        ("decimal(38, 18)", "decimal", 18),
        ("decimal", "decimal", 0),
        ("varchar(10)", "string", 0),
        ("char(3)", "string", 0),
        ("string collate UNICODE", "string", 0),
        ("interval day to second", "interval day to second", 0),
    ],
)
def test_a_type_with_arguments(said: str, kind: str, scale: int) -> None:
    read = type_of(said)
    assert (read.kind, read.name, read.scale) == (kind, said, scale)


def test_a_nested_type_is_read_completely() -> None:
    (field,) = fields_of(schema(a=array(map_of("string", schema(x="long")))))
    assert field.type.name == "array<map<string,struct>>"
    inner = field.type.fields[0].type
    assert [each.name for each in inner.fields] == ["key", "value"]
    assert inner.fields[1].type.fields[0].type.kind == "long"


@pytest.mark.parametrize("kind", ["string", "decimal(3,1)", "void", HEADERS, map_of("long", "double"), schema()])
def test_every_type_with_an_agreed_form_can_be_written(kind: Any) -> None:
    assert unwritable(fields_of(schema(a=kind))[0]) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("variant", "is variant, which cannot be written; cast it"),
        ("interval day to second", "is interval day to second, which cannot be written"),
        ("time(6)", "is time(6), which cannot be written"),
        ({"type": "udt", "class": "x"}, "is udt, which cannot be written"),
        (array("variant"), "holds 'element', which is variant"),
        (schema(x=map_of("string", "variant")), "holds 'x', which holds 'value', which is variant"),
        (map_of("date", "long"), "is map<date,long>, whose keys have no agreed form in JSON"),
        (map_of(schema(), "long"), "is map<struct,long>, whose keys"),
    ],
)
def test_a_type_that_cannot_be_written_has_a_reason(kind: Any, reason: str) -> None:
    said = unwritable(fields_of(schema(a=kind))[0])
    assert said is not None
    assert said.startswith(reason)
