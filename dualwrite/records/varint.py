"""Zigzag variable-length integers, as Kafka's record format writes them (ByteUtils.writeVarlong)."""


def encode_varint(value: int) -> bytes:
    """``value`` in zigzag form, seven bits a byte, lowest first."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


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
