"""Decodes and encodes messages. kafka-python's compiled codecs do the work; this adds headers and bounds.

It calls the body decoder through the message class's struct, not through ``decode()``, because only the struct returns
the position where decoding ended. Without that, a string that exceeds its frame would be truncated silently.
"""

import struct
from functools import cache
from typing import Any, NamedTuple

from kafka.protocol.schemas.fields.codecs.types import Bytes, UnsignedVarInt32

from dualwrite.records.varint import decode_unsigned_varint
from dualwrite.wire.apis import APIS, ApiKey, Message, ProduceRequest
from dualwrite.wire.hot import encode_hot

Frame = bytes | bytearray | memoryview

_HEAD = struct.Struct(">hhi")
_LENGTH = struct.Struct(">h")
_CORRELATION = struct.Struct(">i")
_FLEXIBLE_REQUESTS = frozenset(
    (int(key), version)
    for key, api in APIS.items()
    for version in range(api.request.max_version + 1)
    if api.request.flexible_version_q(version)
)
"""API keys and versions of requests whose header has tagged fields."""


class MalformedMessageError(ValueError):
    """The bytes are not the message that their header announces. A broker then closes the connection."""


class RequestHead(NamedTuple):
    """A request's header (RequestHeader v1 and v2)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def read_request_head(frame: Frame) -> tuple[RequestHead, int]:
    """The header of a request frame, and the position of the body.

    The header of an unknown API is read as non-flexible, because its body cannot be read anyway.

    :raises MalformedMessageError: if the frame is too short.
    """
    try:
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        client_id, position = _nullable_string(frame, _HEAD.size)
        if (api_key, version) in _FLEXIBLE_REQUESTS:
            position = _after_tags(frame, position)
    except (struct.error, ValueError) as error:
        raise MalformedMessageError(f"request header: {error}") from error
    return RequestHead(api_key, version, correlation_id, client_id), position


def write_request(api_key: ApiKey, version: int, correlation_id: int, client_id: str, request: Message) -> bytes:
    """A request with its header, without the frame's size."""
    name = client_id.encode()
    head = _HEAD.pack(api_key, version, correlation_id) + _LENGTH.pack(len(name)) + name
    tags = b"\x00" if request.flexible_version_q(version) else b""
    return b"".join((head, tags, request.encode(version=version)))


def read_response_correlation(frame: bytes) -> int:
    """The correlation id at the beginning of a response frame.

    :raises MalformedMessageError: if the frame is too short.
    """
    if len(frame) < _CORRELATION.size:
        raise MalformedMessageError("response without a correlation id")
    value: int = _CORRELATION.unpack_from(frame)[0]
    return value


def read_response(api_key: ApiKey, version: int, frame: bytes) -> Message:
    """The body of a response frame.

    :raises MalformedMessageError: if it is not a response of ``api_key`` in ``version``.
    """
    position = _CORRELATION.size
    if _has_flexible_response_header(api_key, version):
        try:
            position = _after_tags(frame, position)
        except ValueError as error:
            raise MalformedMessageError(f"response header: {error}") from error
    return read_body(APIS[api_key].response, version, frame, position)


def write_response(api_key: ApiKey, version: int, correlation_id: int, response: Message) -> bytes:
    """A response with its header, without the frame's size."""
    return b"".join(write_response_parts(api_key, version, correlation_id, response))


def write_response_parts(api_key: ApiKey, version: int, correlation_id: int, response: Message) -> list[bytes]:
    """As :func:`write_response`, in parts for consecutive writes, so that fetched records are not copied."""
    head = _CORRELATION.pack(correlation_id)
    if _has_flexible_response_header(api_key, version):
        head += b"\x00"
    return [head, *(encode_hot(api_key, version, response) or (response.encode(version=version),))]


def read_body(message: Any, version: int, frame: Frame, position: int) -> Message:
    """The message of class ``message`` in ``version`` that fills ``frame`` from ``position`` on.

    The records of a Produce request are views of ``frame``, valid as long as its content.

    :raises MalformedMessageError: if the message runs past the end of the frame or is otherwise malformed.
    """
    try:
        body, end = _decoder(message, version)(memoryview(frame), position)
    except (struct.error, IndexError, ValueError, OverflowError, MemoryError, AssertionError) as error:
        raise MalformedMessageError(f"{message.__name__} v{version}: {error}") from error
    if end > len(frame):
        raise MalformedMessageError(f"{message.__name__} v{version}: the frame is {end - len(frame)} bytes too short")
    return body


def make_ready(message: Any, version: int) -> None:
    """Compile the decoder of messages of class ``message`` in ``version``, so that several threads may then use it.

    The compilation modifies kafka-python for a moment. Two compilations at once could leave it modified, and the
    records of a request would be views of a reused buffer. So only one thread may compile; then any thread may decode.
    """
    _decoder(message, version)


def refuse_nulls(body: Message, version: int) -> None:
    """Check that no field of a decoded message, and no entry of its arrays, is null unless its schema allows it.

    :raises MalformedMessageError: if there is such a field. The message names the first.
    """
    message: Any = type(body)
    _refuse_nulls(body, _required(message, version), message.__name__)


def _refuse_nulls(body: Message, fields: "_Fields", name: str) -> None:
    for field, is_required, inner in fields:
        value = getattr(body, field)
        if value is None:
            if is_required:
                raise MalformedMessageError(f"{name}: {field} is null")
        elif inner is _PLAIN:
            if None in value:
                raise MalformedMessageError(f"{name}: an entry of {field} is null")
        elif inner:
            for entry in value:
                _refuse_nulls(entry, inner, name)


_Fields = tuple[tuple[str, bool, Any], ...]
"""The fields of a message for the null check: name, whether it is required, and the same for an array's entries."""
_PLAIN = object()
"""In place of an entry's fields: the array's entries are strings or bytes, which no schema allows to be null."""
_NULLABLE = frozenset({"string", "bytes"})
"""The plain types that can be null on the wire."""


_NONE_IS_NO_NULL = frozenset({"uuid", "bitfield"})
"""Types of a fixed size, of which kafka-python decodes one value ("no id" or "not requested") as None."""


@cache
def _required(message: Any, version: int) -> _Fields:
    return _nested(message._struct, version)


def _nested(structure: Any, version: int) -> _Fields:
    found = []
    for field in structure.untagged_fields(version):
        is_required = not field.nullable_for_version_q(version) and field.type_str not in _NONE_IS_NO_NULL
        inner = _entries(field, version)
        if inner or (is_required and not field.is_batchable() and not field.is_struct()):
            found.append((field.name, is_required, inner))
    return tuple(found)


def _entries(field: Any, version: int) -> Any:
    if field.is_struct_array():
        return _nested(field.array_of, version)
    return _PLAIN if field.is_array() and field.array_of.type_str in _NULLABLE else ()


@cache
def _decoder(message: Any, version: int) -> Any:
    """kafka-python's decoder, compiled with bounded varints and with views of produced records. Its own readers and
    compiled code are restored at once, so that other users of kafka-python in this process are not affected."""
    structure, flexible = message._struct, message.flexible_version_q(version)
    own_varint, own_bytes = UnsignedVarInt32.__dict__["emit_decode_from"], Bytes.__dict__["emit_decode_from"]
    own_compiled, structure._compiled_encoders = structure._compiled_encoders, {}
    UnsignedVarInt32.emit_decode_from = staticmethod(_emit_bounded_varint)
    if message is ProduceRequest:
        Bytes.emit_decode_from = staticmethod(_emit_view)
    try:
        return structure.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=message)
    finally:
        UnsignedVarInt32.emit_decode_from, Bytes.emit_decode_from = own_varint, own_bytes
        structure._compiled_encoders = own_compiled


def _emit_bounded_varint(ctx: Any, name: str, indent: str) -> None:
    """Source code that reads a varint of five bytes at most into ``name``.

    kafka-python's own reader has no bound, and its time grows with the square of the number of bytes: ten megabytes of
    0xff would keep a broker busy for half an hour.
    """
    ctx.globs["_read_varint"] = decode_unsigned_varint
    ctx.emit(indent, f"{name}, pos = _read_varint(data, pos)")


def _emit_view(ctx: Any, name: str, indent: str, compact: bool = False) -> None:
    """Source code that reads nullable bytes into ``name``, as a view of the frame's."""
    size = ctx.next_var("size")
    if compact:
        _emit_bounded_varint(ctx, size, indent)
        ctx.emit(indent, f"{size} -= 1")
    else:
        ctx.emit(indent, f"{size} = unpack_from('>i', data, pos)[0]")
        ctx.emit(indent, "pos += 4")
    ctx.emit(indent, f"{name} = None if {size} < 0 else data[pos : pos + {size}]")
    ctx.emit(indent, f"pos += max({size}, 0)")


@cache
def _has_flexible_response_header(api_key: ApiKey, version: int) -> bool:
    """True if the response's header has tagged fields. The response to ApiVersions has the oldest header, so that
    clients can read it before they know the broker's version."""
    return api_key is not ApiKey.API_VERSIONS and bool(APIS[api_key].response.flexible_version_q(version))


def _nullable_string(buffer: Frame, position: int) -> tuple[str | None, int]:
    length = _LENGTH.unpack_from(buffer, position)[0]
    position += _LENGTH.size
    if length < 0:
        return None, position
    if position + length > len(buffer):
        raise ValueError("client id runs past the end of the frame")
    return str(buffer[position : position + length], "utf-8"), position + length


def _after_tags(buffer: Frame, position: int) -> int:
    count, position = decode_unsigned_varint(buffer, position)
    for _ in range(count):
        _, position = decode_unsigned_varint(buffer, position)
        size, position = decode_unsigned_varint(buffer, position)
        position += size
    return position
