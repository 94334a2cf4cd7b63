"""The Avro example: a record that does not fit its schema, or finds no registry, leaves nothing on either side."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.avro_orders import TOPIC, metadata, open_dual_write, orders, place, read_back
from tests.support.examples.programs import EXAMPLES, environment

TEA = {"item": "tea", "quantity": 2}


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def engine(dualwrite_engine: Engine) -> Engine:
    metadata.create_all(dualwrite_engine)
    return dualwrite_engine


@pytest.fixture
def registry() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


def rows(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        found = connection.execute(select(orders.c.item, orders.c.quantity).order_by(orders.c.id))
        return [dict(row._mapping) for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("refused", [{**TEA, "quantity": "two"}, {**TEA, "item": 7}], ids=["quantity", "item"])
def test_a_record_that_the_schema_refuses_leaves_no_row(
    engine: Engine, broker: KafkaBroker, registry: SchemaRegistryClient, refused: dict[str, Any]
) -> None:
    more = {**TEA, "quantity": 3}
    with open_dual_write(engine, broker.bootstrap_servers, registry) as dual_write:
        place(dual_write, TEA)
        with pytest.raises(TypeError, match="on field"):  # SQLite took the row
            place(dual_write, refused)
        place(dual_write, more)
    assert rows(engine) == read_back(broker.bootstrap_servers, registry) == [TEA, more]


def test_the_registry_has_the_schema_and_the_record_its_id(
    engine: Engine, broker: KafkaBroker, registry: SchemaRegistryClient
) -> None:
    with open_dual_write(engine, broker.bootstrap_servers, registry) as dual_write:
        place(dual_write, TEA)
    (record,) = broker.read(TOPIC)
    latest = registry.get_latest_version(f"{TOPIC}-value")
    assert (record.value or b"")[:5] == b"\0" + latest.schema_id.to_bytes(4, "big")
    assert '"name": "Order"' in str(latest.schema.schema_str)
    assert record.key == b"tea"


def test_a_registry_out_of_reach_leaves_nothing_on_either_side(engine: Engine, broker: KafkaBroker) -> None:
    nowhere = SchemaRegistryClient.new_client({"url": "http://127.0.0.1:1", "max.retries": 0})
    with open_dual_write(engine, broker.bootstrap_servers, nowhere) as dual_write:
        with pytest.raises(Exception, match="refused"):
            place(dual_write, TEA)
        assert dual_write.counters.committed == 0
    broker.create_topic(TOPIC)
    assert (rows(engine), broker.read(TOPIC)) == ([], [])


@pytest.mark.slow
def test_the_program_runs_twice_and_says_what_each_side_has(tmp_path: Path) -> None:
    for run in (1, 2):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "avro_orders.py")],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "rolled back on both sides: TypeError: an integer is required on field quantity",
            f"items in the table: {['tea'] * run}",
            *[f"record in the topic: {TEA}"] * run,
        ]
