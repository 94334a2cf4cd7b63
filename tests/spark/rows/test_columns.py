"""Which columns go where, and every mistake that is found before anything is written."""

import pickle
from typing import Any

import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.columns import Family, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.options import options_of
from tests.support.spark.expected_rows import HEADERS, REQUIRED, array, column, map_of, options, schema, table


def names(plan: WritePlan, places: tuple[int, ...]) -> list[str]:
    return [plan.fields[place].name for place in places]


def test_without_kafkas_columns_all_are_the_tables_and_the_value_is_their_json() -> None:
    plan = plan_of(schema(id="long", note="string"), options(), "UTC")
    assert names(plan, plan.table) == names(plan, plan.json) == ["id", "note"]
    assert (plan.topic, plan.key_at, plan.value_at, plan.headers_at, plan.partition_at) == ("orders",) + (None,) * 4


def test_columns_of_sparks_kafka_sink_belong_to_the_record() -> None:
    given = schema(key="string", id="long", value="binary", headers=HEADERS, partition="integer", topic="string")
    plan = plan_of(given, options_of(REQUIRED), "UTC")
    assert names(plan, plan.table) == ["id"]
    assert plan.json == ()
    assert (plan.topic, plan.topic_at) == (None, 5)
    assert (plan.key_at, plan.value_at, plan.headers_at, plan.partition_at) == (0, 2, 3, 4)


def test_the_option_topic_is_the_topic_of_all_records() -> None:
    plan = plan_of(schema(id="long", topic="long"), options(), "UTC")
    assert (plan.topic, plan.topic_at, names(plan, plan.table)) == ("orders", None, ["id"])


def test_columns_may_be_chosen_for_either_side_and_for_both() -> None:
    chosen = options(**{"columns.table": "id,key", "columns.value": "value,id"})
    plan = plan_of(schema(id="long", key="string", value="double", note="string"), chosen, "UTC")
    assert names(plan, plan.table) == ["id", "key"]
    assert names(plan, plan.json) == ["value", "id"]
    assert (plan.key_at, plan.value_at) == (1, None)


def test_a_value_that_is_json_leaves_the_column_of_that_name_to_the_table() -> None:
    plan = plan_of(schema(id="long", value="double"), options(**{"columns.value": "id"}), "UTC")
    assert names(plan, plan.table) == ["id", "value"]


@pytest.mark.parametrize(
    ("columns", "changed", "said"),
    [
        ({"id": "long"}, {"topic": None}, "no topic: give the option topic, or a column topic of strings"),
        ({"id": "long", "topic": "long"}, {"topic": None}, "column 'topic' is long; Kafka's is string: cast or rename"),
        ({"id": "long", "key": "long"}, {}, "column 'key' is long; Kafka's is string or binary: cast or rename it"),
        ({"id": "long", "value": "double"}, {}, "column 'value' is double; Kafka's is string or binary: cast or rename "
         "it, or give columns.value for JSON"),
        ({"id": "long", "partition": "long"}, {}, "column 'partition' is long; Kafka's is integer"),
        ({"id": "long", "headers": array("string")}, {}, "column 'headers' is array<string>; Kafka's are arr"),
        ({"id": "long", "headers": "string"}, {}, "column 'headers' is string; Kafka's are array<struct<key: string"),
        ({"id": "long", "headers": array(schema(key="string", value="string"))}, {}, "column 'headers' is array<"),
        ({"key": "string", "value": "string"}, {}, "no column goes into the table: all columns of the DataFrame are"),
        ({"id": "long", "v": "variant"}, {}, "column 'v' is variant, which cannot be written; cast it"),
        ({"id": "long", "v": array("variant")}, {"columns.table": "id"}, None),
        ({"id": "long", "v": "variant"}, {"columns.table": "id", "columns.value": "v"}, "column 'v' is variant"),
        ({"id": "long"}, {"columns.table": "ID"}, "option 'columns.table': the DataFrame has no column 'ID'; did you "
         "mean 'id'?"),
        ({"id": "long"}, {"columns.value": "zzz"}, "option 'columns.value': the DataFrame has no column 'zzz'; it has "
         "'id'"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_fit_kafka_is_named(columns: Any, changed: Any, said: str | None) -> None:
    given = options(**changed)
    if said is None:
        plan_of(schema(**columns), given, "UTC")
        return
    with pytest.raises(ConfigurationError) as raised:
        plan_of(schema(**columns), given, "UTC")
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_two_columns_of_one_name_and_an_unknown_zone_are_refused() -> None:
    twice = schema(id="long")
    twice["fields"] *= 2
    with pytest.raises(ConfigurationError, match="the DataFrame has two columns 'id'; rename one"):
        plan_of(twice, options(), "UTC")
    with pytest.raises(ConfigurationError, match="'Mars/Olympus' is not known to Python: use a region"):
        plan_of(schema(id="long"), options(), "Mars/Olympus")


def test_a_plan_reaches_an_executor() -> None:
    plan = plan_of(schema(id="long", key="string", m=map_of("string", "long")), options(), "UTC")
    assert pickle.loads(pickle.dumps(plan)) == plan


FITTING = [
    ("byte", Family.WHOLE),
    ("long", Family.EXACT),
    ("integer", Family.FLOATING),
    ("short", Family.TINY),
    ("double", Family.FLOATING),
    ("float", Family.EXACT),
    ("boolean", Family.BOOLEAN),
    ("boolean", Family.TINY),
    ("decimal(10,2)", Family.EXACT),
    ("decimal(10,0)", Family.WHOLE),
    ("string", Family.TEXT),
    ("string", Family.JSON),
    ("string", Family.OTHER),
    ("binary", Family.BYTES),
    ("date", Family.DATE),
    ("timestamp", Family.ZONED),
    ("timestamp", Family.MOMENT),
    ("timestamp_ntz", Family.MOMENT),
    ("timestamp_ntz", Family.ZONED),
    (array("long"), Family.JSON),
    (map_of("string", "long"), Family.TEXT),
    ("void", Family.BYTES),
]
WRONG = [
    ("long", Family.TEXT),
    ("long", Family.BOOLEAN),
    ("double", Family.WHOLE),
    ("boolean", Family.WHOLE),
    ("decimal(10,2)", Family.WHOLE),
    ("string", Family.WHOLE),
    ("string", Family.ZONED),
    ("binary", Family.TEXT),
    ("date", Family.MOMENT),
    ("timestamp", Family.DATE),
    (array("long"), Family.OTHER),
]


@pytest.mark.parametrize(("kind", "family"), FITTING)
def test_a_type_that_fits_is_accepted(kind: Any, family: Family) -> None:
    target = table(column("a", family))
    assert match_columns(plan_of(schema(a=kind), options(), "UTC"), target, options()) == target.columns


@pytest.mark.parametrize(("kind", "family"), WRONG)
def test_a_type_that_does_not_fit_is_named(kind: Any, family: Family) -> None:
    plan = plan_of(schema(a=kind), options(), "UTC")
    with pytest.raises(ConfigurationError) as raised:
        match_columns(plan, table(column("a", family)), options())
    type_name = plan.fields[0].type.name
    assert str(raised.value).startswith(f"column 'a' is {type_name} in the DataFrame and {family.name} in table orders")
    assert str(raised.value).endswith(": cast it")


def test_columns_are_found_as_they_are_spelled_and_else_without_case() -> None:
    plan = plan_of(schema(Id="string", NOTE="string"), options(), "UTC")
    found = match_columns(plan, table(column("note"), column("id"), column("Id"), column("extra")), options())
    assert [each.name for each in found] == ["Id", "note"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([column("id"), column("nota")], "table orders has no column 'note'; did you mean 'nota'?"),
        ([column("NOTE"), column("Note"), column("id")], "table orders has no column 'note'; did you mean 'NOTE'?"),
        ([column("id"), column("note"), column("must", nullable=False)], "column 'must' of table orders is NOT NULL, "
         "and the DataFrame has none of that name"),
        ([column("id"), column("note", is_computed=True)], "column 'note' of table orders is computed: drop it from"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_named(columns: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        match_columns(plan_of(schema(id="string", note="string"), options(), "UTC"), table(*columns), options())
    assert str(raised.value).startswith(said)


def test_a_column_that_the_database_fills_in_may_be_missing() -> None:
    target = table(column("id"), column("at", nullable=False, has_value=True), column("note"))
    assert match_columns(plan_of(schema(id="string"), options(), "UTC"), target, options()) == target.columns[:1]


def test_two_columns_for_one_table_column_are_refused() -> None:
    plan = plan_of(schema(id="string", ID="string"), options(), "UTC")
    with pytest.raises(ConfigurationError, match="two columns of the DataFrame are column 'id' of table orders"):
        match_columns(plan, table(column("id")), options())


def test_the_keys_of_an_upsert_must_be_a_unique_key() -> None:
    plan = plan_of(schema(id="string", line="string", note="string"), options(), "UTC")
    target = table(column("id"), column("line"), column("note"), keys=(frozenset({"id", "line"}), frozenset({"note"})))
    for keys in ("id,line", "line,id", "note"):
        match_columns(plan, target, options(upsertKeys=keys))
    with pytest.raises(
        ConfigurationError, match=r"\(id\) is not a primary or unique key of table orders; it has \(id, l"
    ):
        match_columns(plan, target, options(upsertKeys="id"))
    with pytest.raises(ConfigurationError, match="'lime' is not one of the written columns; did you mean 'line'"):
        match_columns(plan, target, options(upsertKeys="id,lime"))
    with pytest.raises(ConfigurationError, match="it has none"):
        match_columns(plan, table(column("id"), column("line"), column("note")), options(upsertKeys="id"))
