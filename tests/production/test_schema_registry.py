"""confluent-kafka's serializers of the three formats: what a unit of work produces, its deserializers read."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, DualWrite
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.aio.async_dual_writes import run
from tests.support.coordinator.event_table import events, ready_engine, stored_values

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "cups", "type": "int"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"cups": {"type": "integer"}}})
GOOD, BAD = {"cups": 2}, {"cups": "two"}


def protobuf_order() -> Any:
    """The class that protoc would make of ``message Order { int32 cups = 1; }``."""
    kinds = FieldDescriptorProto
    field = kinds(name="cups", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    file = FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", message_type=[DescriptorProto(name="Order", field=[field])]
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ProtobufOrder = protobuf_order()


class Format(NamedTuple):
    """One format: its two directions, content that fits its schema, content that does not, and the latter's error."""

    serializer: Callable[[SchemaRegistryClient], Any]
    deserializer: Callable[[SchemaRegistryClient], Any]
    good: Any
    bad: Any
    error: type[Exception]


FORMATS = {
    "avro": Format(lambda client: AvroSerializer(client, AVRO), AvroDeserializer, GOOD, BAD, TypeError),
    "json": Format(
        lambda client: JSONSerializer(JSON, client),
        lambda client: JSONDeserializer(JSON, schema_registry_client=client),
        GOOD,
        BAD,
        SerializationError,
    ),
    "protobuf": Format(
        lambda client: ProtobufSerializer(ProtobufOrder, client),
        lambda client: ProtobufDeserializer(ProtobufOrder, schema_registry_client=client),
        ProtobufOrder(cups=2),
        "two cups",
        ValueError,
    ),
}


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    engine = ready_engine(sqlite_url)
    yield engine
    engine.dispose()


def read_value(broker: KafkaBroker, topic: str, deserializer: Any) -> Any:
    """The content of the one record in ``topic``."""
    (record,) = broker.read(topic)
    return deserializer(record.value, SerializationContext(topic, MessageField.VALUE))


def test_what_a_unit_produces_is_read_back_and_what_the_schema_refuses_leaves_no_row(
    engine: Engine, broker: KafkaBroker, format_: Format
) -> None:
    registry, topic = SchemaRegistryClient.new_client({"url": "mock://"}), broker.create_topic()
    config = {**broker.client_config, "value.serializer": format_.serializer(registry)}

    def write(dual_write: DualWrite, content: Any) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=str(content)))
            tx.produce(topic, content)

    with DualWrite(engine, config, application=topic) as dual_write:
        with pytest.raises(format_.error):
            write(dual_write, format_.bad)
        write(dual_write, format_.good)
    assert stored_values(engine) == [str(format_.good)]
    assert read_value(broker, topic, format_.deserializer(registry)) == format_.good


def test_an_async_unit_awaits_confluents_serializer(engine: Engine, broker: KafkaBroker) -> None:
    topic = broker.create_topic()

    async def write(dual_write: AsyncDualWrite, content: Any) -> None:
        async with dual_write.transaction() as tx:
            await tx.execute(insert(events).values(value=str(content)))
            await tx.produce(topic, content)

    async def main() -> None:
        registry = AsyncSchemaRegistryClient.new_client({"url": "mock://"})
        async_engine = create_async_engine(f"sqlite+aiosqlite:///{engine.url.database}")
        config = {**broker.client_config, "value.serializer": await AsyncAvroSerializer(registry, AVRO)}
        async with AsyncDualWrite(async_engine, config, application=topic) as dual_write:
            with pytest.raises(TypeError, match="an integer is required on field cups"):
                await write(dual_write, BAD)
            await write(dual_write, GOOD)
        await async_engine.dispose()

    run(main())
    assert stored_values(engine) == [str(GOOD)]
    (record,) = broker.read(topic)
    assert (record.value or b"") == b"\0\0\0\0\1\4", "the first schema of the registry, and 2 as Avro has it"
