"""Variable-length integers: zigzag in records (ByteUtils.writeVarlong), unsigned in flexible messages (KIP-482)."""

_SMALL = 1024
"""The size of the table of encoded values. Most sizes are below it."""


def encode_varint(value: int) -> bytes:
    """``value`` in zigzag form, seven bits a byte, lowest first."""
    if 0 <= value < _SMALL:
        return _SMALL_SIGNED[value]
    return _encoded((value << 1) ^ (value >> 63))


def decode_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """The value at ``position`` and the position after it.

    :raises ValueError: if the buffer ends first or the number has more than 64 bits.
    """
    rest = shift = 0
    for end in range(position, min(position + 10, len(buffer))):
        byte = buffer[end]
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), end + 1
        shift += 7
    raise ValueError(f"no complete varint at byte {position}")


def encode_unsigned_varint(value: int) -> bytes:
    """``value`` (not negative) in seven bits a byte, lowest first: sizes and tags of flexible versions (KIP-482)."""
    return _SMALL_UNSIGNED[value] if value < _SMALL else _encoded(value)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_unsigned_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The unsigned value at ``position`` and the position after it.

    :raises ValueError: if the buffer ends first or the number has more than 32 bits.
    """
    if position < len(buffer) and (byte := buffer[position]) < 0x80:
        return byte, position + 1
    value = shift = 0
    for end in range(position, min(position + 5, len(buffer))):
        byte = buffer[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end + 1
        shift += 7
    raise ValueError(f"no complete unsigned varint at byte {position}")


_SMALL_UNSIGNED = tuple(_encoded(value) for value in range(_SMALL))
_SMALL_SIGNED = tuple(_encoded(value << 1) for value in range(_SMALL))
