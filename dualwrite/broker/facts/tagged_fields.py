"""The tagged fields that end a structure of a flexible version (KIP-482)."""

from dualwrite.records.varint import decode_unsigned_varint


def decode_tagged_fields(value: bytes, position: int) -> tuple[dict[int, bytes], int]:
    """The fields at ``position`` by their tag, and the position after them.

    :raises ValueError: if a tag or size is missing. A last field that is cut short raises nothing: the returned
        position is then past the end of ``value``.
    """
    fields = {}
    count, position = decode_unsigned_varint(value, position)
    for _ in range(count):
        number, position = decode_unsigned_varint(value, position)
        size, position = decode_unsigned_varint(value, position)
        fields[number] = value[position : position + size]
        position += size
    return fields, position
