"""Fields of Kafka's internal records: strings and bytes, in the plain and in the compact form."""

import struct

from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

SHORT = struct.Struct(">h")
INT = struct.Struct(">i")
LONG = struct.Struct(">q")
NO_TAGGED_FIELDS = b"\x00"

LONGEST_STRING = 32767
"""The most UTF-8 bytes of a string in the plain form, which every record's key uses."""


class LaterReleaseError(ValueError):
    """A record has a type or version that this release does not know."""


def version_error(name: str, found: int, known: int) -> ValueError:
    """The error about a record ``name`` of the version ``found``, where this release writes and reads ``known``."""
    kind = LaterReleaseError if found > known else ValueError
    return kind(f"{name} of version {found}; only {known} is written here")


def encode_string(text: str) -> bytes:
    """``text`` with its size in two bytes, as in versions that are not flexible; at most ``LONGEST_STRING`` bytes."""
    data = text.encode()
    return SHORT.pack(len(data)) + data


def decode_string(data: bytes, position: int) -> tuple[str, int]:
    """The string at ``position``, and the position after it.

    :raises ValueError: if the data ends first.
    """
    begin = position + SHORT.size
    if begin > len(data):
        raise ValueError("string without a size")
    end = begin + int(SHORT.unpack_from(data, position)[0])
    if not begin <= end <= len(data):
        raise ValueError("string cut short")
    return data[begin:end].decode(), end


def encode_compact(value: str | bytes | None) -> bytes:
    """``value`` with its size as a varint, as in flexible versions (KIP-482); None has size 0."""
    if value is None:
        return encode_unsigned_varint(0)
    data = value.encode() if isinstance(value, str) else value
    return encode_unsigned_varint(len(data) + 1) + data


def decode_compact(data: bytes, position: int) -> tuple[bytes | None, int]:
    """The bytes at ``position``, and the position after them.

    :raises ValueError: if the data ends first.
    """
    size, begin = decode_unsigned_varint(data, position)
    if size == 0:
        return None, begin
    end = begin + size - 1
    if end > len(data):
        raise ValueError("bytes cut short")
    return bytes(data[begin:end]), end
