"""What the tests of the pure parts are given: options, schemas and tables, each with what matters changed."""

from typing import Any

from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.spark.plan.columns import Family, TableColumn, Target
from dualwrite.spark.plan.options import WriteOptions, options_of
from dualwrite.spark.tables.target_table import value_fidelity_of

REQUIRED: dict[str, Any] = {
    "url": "postgresql+psycopg://me:secret@db/orders",
    "dbtable": "orders",
    "application": "nightly",
    "kafka.bootstrap.servers": "broker:9092",
}


def options(**changed: Any) -> WriteOptions:
    """Options that are complete, with a topic."""
    return options_of({**REQUIRED, "topic": "orders", **changed})


def schema(**columns: Any) -> dict[str, Any]:
    """``df.schema.jsonValue()`` of columns, given with their types as that gives them."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return {"type": "struct", "fields": fields}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


HEADERS = array(schema(key="string", value="binary"))


KEEPS = {name: value_fidelity_of(database) for name, database in SUPPORTED.items()}


def table(*columns: TableColumn, keys: tuple[frozenset[str], ...] = ()) -> Target:
    return Target("orders", KEEPS["postgresql"], columns, keys)


def column(name: str, family: Family = Family.TEXT, **changed: Any) -> TableColumn:
    return TableColumn(name, family, family.name, **changed)
