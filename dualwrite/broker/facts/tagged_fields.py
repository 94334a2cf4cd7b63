"""The tagged fields that end a structure of a flexible version (KIP-482)."""

from dualwrite.records.varint import decode_unsigned_varint


def decode_tagged_fields(value: bytes, position: int) -> tuple[dict[int, bytes], int]:
    """The fields at ``position`` by their number, and the position after them.

    :raises ValueError: if there is no number or size where one must be. A last field that is cut short is not noticed
        here: the position after it is then past the end of ``value``.
    """
    fields = {}
    count, position = decode_unsigned_varint(value, position)
    for _ in range(count):
        number, position = decode_unsigned_varint(value, position)
        size, position = decode_unsigned_varint(value, position)
        fields[number] = value[position : position + size]
        position += size
    return fields, position
