"""Orders as Avro: confluent-kafka's own serializer and a Schema Registry, in units of work.

    python examples/avro_orders.py
    python examples/avro_orders.py avro-example http://127.0.0.1:8081

The arguments are a directory for the files and the URL of the Schema Registry. The default ``mock://`` is
confluent-kafka's stand-in for demos and tests: it forgets its schemas with the process.

The first order is a row and an Avro record. The second order does not fit the schema, so its unit of work is rolled
back. A schema that the serializer registers is no part of the unit: it stays in the registry.
"""

import json
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select

from dualwrite import DualWrite, EmbeddedBroker
from dualwrite.schema import upgrade_engine

TOPIC = "avro-orders"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "quantity", "type": "int"},
    ],
}

metadata = MetaData()
orders = Table(
    "orders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("item", String(80), nullable=False),
    Column("quantity", Integer, nullable=False),
)


def open_dual_write(engine: Engine, bootstrap_servers: str, registry: SchemaRegistryClient) -> DualWrite:
    """A DualWrite whose records have Avro values; their keys are text."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "value.serializer": AvroSerializer(registry, json.dumps(SCHEMA)),
    }
    return DualWrite(engine, config, application="avro-orders")


def place(dual_write: DualWrite, order: dict[str, Any]) -> None:
    """One unit of work: the row of ``order``, and its record."""
    with dual_write.transaction() as tx:
        tx.execute(insert(orders).values(order))
        tx.produce(TOPIC, order, key=order["item"])  # raises if the order does not fit: let that leave the block


def read_back(bootstrap_servers: str, registry: SchemaRegistryClient) -> list[Any]:
    """The orders in the topic, as a read_committed consumer sees them."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "avro-example",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    deserializer, context = AvroDeserializer(registry), SerializationContext(TOPIC, MessageField.VALUE)
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(deserializer(message.value(), context))
    consumer.close()
    return found


def main(directory: Path, registry_url: str) -> None:
    """Place an order that fits the schema and one that does not, and show both sides."""
    directory.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{directory / 'orders.db'}")
    metadata.create_all(engine)
    upgrade_engine(engine)
    registry = SchemaRegistryClient.new_client({"url": registry_url})

    with (
        EmbeddedBroker(directory / "broker") as broker,
        open_dual_write(engine, broker.bootstrap_servers, registry) as dual_write,
    ):
        place(dual_write, {"item": "tea", "quantity": 2})
        try:
            place(dual_write, {"item": "coffee", "quantity": "two"})
        except (TypeError, ValueError) as error:
            print(f"rolled back on both sides: {type(error).__name__}: {error}")

        with engine.connect() as connection:
            print(f"items in the table: {list(connection.scalars(select(orders.c.item)))}")
        for order in read_back(broker.bootstrap_servers, registry):
            print(f"record in the topic: {order}")
    engine.dispose()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "avro-example"), sys.argv[2] if len(sys.argv) > 2 else "mock://")
