"""Hand-written encoders of responses that are sent thousands of times a second, with the same bytes as kafka-python's.

The responses are kafka-python's messages, or the tuples of ``producing``, which have the same attributes and are faster
to create.

An encoded response is a list of parts for consecutive writes, so that megabytes of fetched records need not be copied
behind a header. For messages that these encoders do not support (with tagged fields, or rare ones) they return None,
and kafka-python encodes them.
"""

import struct
from collections.abc import Callable, Mapping

from dualwrite.records.varint import encode_unsigned_varint
from dualwrite.wire.apis import ApiKey, Message

Parts = list[bytes]

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG_PAIR = struct.Struct(">qq")
_THROTTLE_AND_ERROR = struct.Struct(">ih")
_END_TXN_OF_TV2 = struct.Struct(">ihqh")
_INDEX_AND_ERROR = struct.Struct(">ih")
_FETCH_HEAD = struct.Struct(">ihi")
_FETCHED = struct.Struct(">ihqqq")
_FETCHED_BEFORE_LOG_START = struct.Struct(">ihqq")
_PRODUCED = struct.Struct(">ihqqq")
_PRODUCED_BEFORE_LOG_START = struct.Struct(">ihqq")
_NO_TAGS = b"\x00"
_NO_UUID = bytes(16)

_PRODUCE_FLEXIBLE, _PRODUCE_LOG_START, _PRODUCE_RECORD_ERRORS, _PRODUCE_TOPIC_IDS = 9, 5, 8, 13
_FETCH_FLEXIBLE, _FETCH_LOG_START, _FETCH_SESSIONS, _FETCH_REPLICA, _FETCH_TOPIC_IDS = 12, 5, 7, 11, 13
_ADD_PARTITIONS_FLEXIBLE = 3
_END_TXN_FLEXIBLE, _END_TXN_TV2 = 3, 5


def encode_hot(key: ApiKey, version: int, response: Message) -> Parts | None:
    """``response`` without its header, in parts; None if these encoders do not support it."""
    encode = _ENCODERS.get((key, version))
    return None if encode is None or _is_tagged(response) else encode(response, version)


def _is_tagged(message: Message) -> bool:
    """True if ``message`` has tagged fields, which only kafka-python's messages can have."""
    return not isinstance(message, tuple) and bool(message.tags)


def _length(count: int, flexible: bool) -> bytes:
    return encode_unsigned_varint(count + 1) if flexible else _INT.pack(count)


def _string(text: str, flexible: bool) -> bytes:
    data = text.encode()
    return (encode_unsigned_varint(len(data) + 1) if flexible else _SHORT.pack(len(data))) + data


def _nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    return _string(text, flexible)


def _topic(topic: Message, name: str, has_id: bool, flexible: bool) -> bytes:
    if has_id:
        return topic.topic_id.bytes if topic.topic_id else _NO_UUID
    return _string(name, flexible)


def _produce(response: Message, version: int) -> Parts | None:
    flexible = version >= _PRODUCE_FLEXIBLE
    parts = [_length(len(response.responses), flexible)]
    for topic in response.responses:
        parts.append(_topic(topic, topic.name, version >= _PRODUCE_TOPIC_IDS, flexible))
        parts.append(_length(len(topic.partition_responses), flexible))
        for entry in topic.partition_responses:
            if _is_tagged(entry):
                return None
            fixed = entry.index, entry.error_code, entry.base_offset, entry.log_append_time_ms
            if version >= _PRODUCE_LOG_START:
                parts.append(_PRODUCED.pack(*fixed, entry.log_start_offset))
            else:
                parts.append(_PRODUCED_BEFORE_LOG_START.pack(*fixed))
            if version >= _PRODUCE_RECORD_ERRORS:
                parts.append(_record_errors(entry, flexible))
            if flexible:
                parts.append(_NO_TAGS)
        if flexible:
            parts.append(_NO_TAGS)
    parts.append(_INT.pack(response.throttle_time_ms))
    if flexible:
        parts.append(_NO_TAGS)
    return parts


def _record_errors(entry: Message, flexible: bool) -> bytes:
    parts = [_length(len(entry.record_errors), flexible)]
    for error in entry.record_errors:
        parts += _INT.pack(error.batch_index), _nullable_string(error.batch_index_error_message, flexible)
        if flexible:
            parts.append(_NO_TAGS)
    return b"".join((*parts, _nullable_string(entry.error_message, flexible)))


def _fetch(response: Message, version: int) -> Parts | None:
    flexible = version >= _FETCH_FLEXIBLE
    if version >= _FETCH_SESSIONS:
        parts = [_FETCH_HEAD.pack(response.throttle_time_ms, response.error_code, response.session_id)]
    else:
        parts = [_INT.pack(response.throttle_time_ms)]
    parts.append(_length(len(response.responses), flexible))
    for topic in response.responses:
        parts.append(_topic(topic, topic.topic, version >= _FETCH_TOPIC_IDS, flexible))
        parts.append(_length(len(topic.partitions), flexible))
        for entry in topic.partitions:
            if entry.tags:
                return None
            _fetched(entry, version, flexible, parts)
        if flexible:
            parts.append(_NO_TAGS)
    if flexible:
        parts.append(_NO_TAGS)
    return parts


def _fetched(entry: Message, version: int, flexible: bool, parts: Parts) -> None:
    fixed = entry.partition_index, entry.error_code, entry.high_watermark, entry.last_stable_offset
    if version >= _FETCH_LOG_START:
        parts.append(_FETCHED.pack(*fixed, entry.log_start_offset))
    else:
        parts.append(_FETCHED_BEFORE_LOG_START.pack(*fixed))
    aborted = entry.aborted_transactions
    if aborted is None:
        parts.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
    else:
        parts.append(_length(len(aborted), flexible))
        after = _NO_TAGS if flexible else b""
        parts += [_LONG_PAIR.pack(transaction.producer_id, transaction.first_offset) + after for transaction in aborted]
    if version >= _FETCH_REPLICA:
        parts.append(_INT.pack(entry.preferred_read_replica))
    records = entry.records
    if records is None:
        parts.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
    else:
        parts += _length(len(records), flexible), records
    if flexible:
        parts.append(_NO_TAGS)


def _add_partitions(response: Message, version: int) -> Parts:
    after = _NO_TAGS if (flexible := version >= _ADD_PARTITIONS_FLEXIBLE) else b""
    parts = [_INT.pack(response.throttle_time_ms), _length(len(response.results_by_topic_v3_and_below), flexible)]
    for topic in response.results_by_topic_v3_and_below:
        parts += _string(topic.name, flexible), _length(len(topic.results_by_partition), flexible)
        for entry in topic.results_by_partition:
            parts += _INDEX_AND_ERROR.pack(entry.partition_index, entry.partition_error_code), after
        parts.append(after)
    return [*parts, after]


def _end_txn(response: Message, version: int) -> Parts:
    if version >= _END_TXN_TV2:
        error, producer_id, epoch = response.error_code, response.producer_id, response.producer_epoch
        return [_END_TXN_OF_TV2.pack(response.throttle_time_ms, error, producer_id, epoch), _NO_TAGS]
    fixed = _THROTTLE_AND_ERROR.pack(response.throttle_time_ms, response.error_code)
    return [fixed, _NO_TAGS] if version >= _END_TXN_FLEXIBLE else [fixed]


_ENCODERS: Mapping[tuple[ApiKey, int], Callable[[Message, int], Parts | None]] = {
    **{(ApiKey.PRODUCE, version): _produce for version in range(3, 14)},
    **{(ApiKey.FETCH, version): _fetch for version in range(4, 19)},
    **{(ApiKey.ADD_PARTITIONS_TO_TXN, version): _add_partitions for version in range(4)},
    **{(ApiKey.END_TXN, version): _end_txn for version in range(6)},
}
