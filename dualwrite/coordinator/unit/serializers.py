"""The serializers of a DualWrite, which turn keys and values into bytes, as confluent-kafka's SerializingProducer does.

``key.serializer`` and ``value.serializer`` are callables: ``serializer(content, context)`` returns bytes or None. Those
of ``confluent_kafka.schema_registry`` fit (JSON, Avro, Protobuf), and so do their twins for asyncio in an
AsyncDualWrite. A serializer may add to the headers (``context.headers``).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dualwrite.errors import ConfigurationError
from dualwrite.records.outgoing import HeadersGiven, OnDelivery, OutgoingRecord

KEY, VALUE = "key.serializer", "value.serializer"
"""Their keys in the configuration (confluent_kafka.SerializingProducer)."""
Serializer = Callable[[Any, Any], Any]


class RecordGiven(NamedTuple):
    """The arguments of produce()."""

    topic: str
    value: Any
    key: Any
    partition: int
    timestamp: int
    headers: HeadersGiven | None
    on_delivery: OnDelivery | None


class Serializers(NamedTuple):
    """What serializes the keys and the values; None for keys or values that are bytes or text already."""

    key: Serializer | None
    value: Serializer | None

    def record(self, given: RecordGiven) -> OutgoingRecord:
        """The record of ``given``.

        Raises what a serializer raises: the record is no part of the unit then.

        :raises TypeError: if a serializer is one for asyncio.
        """
        headers = _checked_headers(given)
        key = _serialized(self.key, given.key, given.topic, "KEY", headers)
        value = _serialized(self.value, given.value, given.topic, "VALUE", headers)
        for made in (key, value):
            if inspect.isawaitable(made):
                made.close() if inspect.iscoroutine(made) else None
                raise TypeError("a serializer for asyncio: use it with an AsyncDualWrite")
        return OutgoingRecord(*given._replace(key=key, value=value, headers=headers))

    async def awaited_record(self, given: RecordGiven) -> OutgoingRecord:
        """As :meth:`record`, for serializers that may have to be awaited."""
        headers = _checked_headers(given)
        key = _serialized(self.key, given.key, given.topic, "KEY", headers)
        key = await key if inspect.isawaitable(key) else key
        value = _serialized(self.value, given.value, given.topic, "VALUE", headers)
        value = await value if inspect.isawaitable(value) else value
        return OutgoingRecord(*given._replace(key=key, value=value, headers=headers))


def serializers_of(config: Mapping[str, Any]) -> tuple[Serializers | None, dict[str, Any]]:
    """The serializers in ``config``, None if there are none; and the rest of it.

    :raises ConfigurationError: if a serializer cannot be called.
    """
    rest = dict(config)
    found = Serializers(rest.pop(KEY, None), rest.pop(VALUE, None))
    for name, serializer in zip((KEY, VALUE), found, strict=True):
        if serializer is not None and not callable(serializer):
            raise ConfigurationError(f"{name} {serializer!r:.100}: give a callable of the content and its context")
    return (None if found == (None, None) else found), rest


def _checked_headers(given: RecordGiven) -> list[Any]:
    """The headers that a serializer may add to. All arguments but the key and the value are checked."""
    return list(OutgoingRecord(*given._replace(key=None, value=None)).headers)


def _serialized(serializer: Serializer | None, content: Any, topic: str, field: str, headers: list[Any]) -> Any:
    if serializer is None:
        return content
    from confluent_kafka.serialization import MessageField, SerializationContext  # loads librdkafka

    return serializer(content, SerializationContext(topic, getattr(MessageField, field), headers))
