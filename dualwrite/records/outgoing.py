"""One record on its way from produce() to its batch. Its arguments are checked once, where it is made.

Every produce() makes one, so this is written for speed: the usual arguments are checked without a call.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from operator import index
from typing import Any, NamedTuple, cast

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values, in order; a name may come twice."""
HeadersGiven = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None]
"""Headers as produce() takes them."""
OnDelivery = Callable[[Any, Any], None]
"""A delivery callback: called with an error or None, and with the record as a message."""

_MAX_TIMESTAMP = 2**63 - 1
_MAX_PARTITION = 2**31 - 1


class _RecordFields(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: Headers
    on_delivery: OnDelivery | None


class OutgoingRecord(_RecordFields):
    """A record as producers accept it. Immutable; ``value``, ``key`` and the headers' values are bytes or None.

    :param topic: its name. Whether a topic can have this name is not checked here.
    :param value: text becomes UTF-8, as in the key and the headers.
    :param partition: -1 lets the partitioner choose.
    :param timestamp: milliseconds since the epoch; 0 is the time at which a producer takes the record.
    :param on_delivery: called as ``on_delivery(error, message)`` once the record is acknowledged or given up.
    :raises TypeError: if an argument has a wrong type.
    :raises ValueError: if no record can have a value that is given.
    """

    __slots__ = ()

    def __new__(
        cls,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersGiven | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> "OutgoingRecord":
        """Check the arguments, and encode text."""
        if type(topic) is not str:
            _check_topic(topic)
        if value is not None and type(value) is not bytes:
            value = _encoded(value)
        if key is not None and type(key) is not bytes:
            key = _encoded(key)
        if partition != -1 or type(partition) is not int:
            partition = _checked_partition(partition)
        timestamp = _checked_timestamp(timestamp) if timestamp else 0
        encoded_headers = _encoded_headers(headers) if headers else ()
        if on_delivery is not None:
            _check_on_delivery(on_delivery)
        return _new(cls, (topic, value, key, partition, timestamp, encoded_headers, on_delivery))

    @staticmethod
    def of_bytes(
        topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Headers | None
    ) -> "OutgoingRecord":
        """A record of the current time, of arguments that are not checked: ``partition`` is in range, and nothing is a
        text but the topic and the headers' names."""
        return _new(OutgoingRecord, (topic, value, key, partition, 0, headers or (), None))

    def reporting_to(self, on_delivery: OnDelivery) -> "OutgoingRecord":
        """This record with ``on_delivery``, which is not checked, instead of its own callback."""
        return _new(OutgoingRecord, (*self[:-1], on_delivery))


_new: Callable[[type[OutgoingRecord], tuple[Any, ...]], OutgoingRecord] = cast(Any, tuple.__new__)


def _check_topic(topic: Any) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic of type {type(topic).__name__}: give text")


def _encoded(content: Any) -> bytes | None:
    """A key or a value as bytes."""
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return _utf_8(content)
    if isinstance(content, (bytearray, memoryview)):
        return bytes(content)
    raise TypeError(f"a key or value of type {type(content).__name__}: give bytes, text or None")


def _utf_8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that has no UTF-8 form ({error.reason}): {text!r:.100}") from None


def _encoded_headers(headers: Any) -> Headers:
    """Headers as pairs of a name and bytes or None."""
    if isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise TypeError(f"headers of type {type(headers).__name__}: give pairs of a name and a value, or a mapping")
    return tuple([_header(header) for header in (headers.items() if isinstance(headers, Mapping) else headers)])


def _header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, (tuple, list)) or len(header) != 2:
        raise TypeError(f"header {header!r:.100}: give a pair of a name and a value")
    name, content = header
    if not isinstance(name, str):
        raise TypeError(f"a header's name of type {type(name).__name__}: give text")
    _utf_8(name)
    try:
        return name, _encoded(content)
    except TypeError:
        raise TypeError(
            f"header {name!r}: a value of type {type(content).__name__}: give bytes, text or None"
        ) from None


def _checked_partition(partition: Any) -> int:
    try:
        whole = index(partition)
    except TypeError:
        whole = None
    if whole is None or isinstance(partition, bool):
        raise TypeError(
            f"a partition of type {type(partition).__name__}: give a whole number, or -1 for the partitioner's"
        )
    if not -1 <= whole <= _MAX_PARTITION:
        raise ValueError(f"partition {whole}: give -1 for the partitioner's, or 0 to {_MAX_PARTITION}")
    return whole


def _checked_timestamp(timestamp_ms: Any) -> int:
    """``timestamp_ms``, if a record can have it (Kafka: ProducerRecord refuses negative ones too)."""
    try:
        whole = index(timestamp_ms)
    except TypeError:
        raise TypeError(f"a timestamp of type {type(timestamp_ms).__name__}: give whole milliseconds") from None
    if not 0 <= whole <= _MAX_TIMESTAMP:
        raise ValueError(f"timestamp {whole}: give milliseconds since the epoch, 0 to {_MAX_TIMESTAMP}")
    return whole


def _check_on_delivery(on_delivery: Any) -> None:
    """Refuse what cannot be called, and a coroutine function, whose coroutine would never be awaited."""
    if not callable(on_delivery):
        raise TypeError(f"on_delivery of type {type(on_delivery).__name__}: give a function, or None")
    if iscoroutinefunction(on_delivery) or iscoroutinefunction(type(on_delivery).__call__):
        raise TypeError("on_delivery is a coroutine function, which is never awaited: give a plain function")
