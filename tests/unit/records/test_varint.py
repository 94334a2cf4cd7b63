"""Variable-length integers, against kafka-python's."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import util as oracle

from dualwrite.records.varint import decode_varint, encode_varint

int64 = st.integers(-(2**63), 2**63 - 1)


@given(int64, st.binary(max_size=3), st.binary(max_size=3))
@example(-(2**63), b"", b"")
@example(2**63 - 1, b"", b"")
def test_a_number_survives_wherever_it_stands(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(int64)
def test_numbers_are_written_as_kafka_python_writes_them(value: int) -> None:
    out = bytearray()
    oracle.encode_varint(value, out.append)
    assert encode_varint(value) == bytes(out)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (2**31 - 1, "feffffff0f"),
    ],
)
def test_known_numbers_have_known_encodings(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0)[0] == value


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\x80" * 10 + b"\x01"])
def test_an_unfinished_number_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no complete varint at byte 0"):
        decode_varint(data, 0)
