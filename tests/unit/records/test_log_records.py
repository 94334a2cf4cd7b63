"""Records with values and headers, as confluent-kafka and this project's own producer encode them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.records.compression import Codec, compress
from dualwrite.records.header import BatchHeader, MalformedBatchError, peek_header, rebuild_batch, with_compression
from dualwrite.records.log_records import LogRecord, log_records
from dualwrite.records.varint import encode_varint

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=5)
BASE = peek_header(bytes(8) + (49).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(44))


def sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encoded(delta: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    """The bytes of one record, written by the specification (KIP-98)."""
    parts = [b"\x00", encode_varint(delta * 10), encode_varint(delta), sized(key), sized(value)]
    parts.append(encode_varint(len(headers)))
    parts += [sized(name.encode()) + sized(data) for name, data in headers]
    return sized(b"".join(parts))


def batch_of(body: bytes, count: int, codec: Codec = Codec.NONE) -> tuple[BatchHeader, bytes]:
    header = BASE._replace(base_offset=100, base_timestamp=5000, record_count=count, last_offset_delta=count - 1)
    records = body if codec is Codec.NONE else compress(codec, body)
    batch = rebuild_batch(with_compression(header, codec), records)
    return peek_header(batch), batch


@given(RECORDS, st.sampled_from(Codec))
def test_records_are_read_as_they_were_written(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], codec: Codec
) -> None:
    body = b"".join(encoded(number, *record) for number, record in enumerate(records))
    assert list(log_records(*batch_of(body, len(records), codec))) == [
        LogRecord(100 + number, 5000 + number * 10, key, value, tuple(headers))
        for number, (key, value, headers) in enumerate(records)
    ]


@pytest.mark.parametrize(
    "tail",
    [
        b"\x02" + sized(b"name"),  # a header without its value
        b"\x04" + sized(b"name") + sized(b"x"),  # fewer headers than announced
        b"\x00" + b"more",
        b"\x01",  # a negative number of headers
        encode_varint(2**40),
        b"\x02" + encode_varint(100) + b"name",
    ],
)
def test_a_record_whose_headers_are_damaged_is_an_error(tail: bytes) -> None:
    record = b"\x00" + encode_varint(0) + encode_varint(0) + sized(b"key") + sized(b"value") + tail
    with pytest.raises(MalformedBatchError, match="record at offset 100: "):
        list(log_records(*batch_of(sized(record), 1)))


def test_a_header_name_that_is_not_utf_8_is_shown_with_escapes() -> None:
    record = (
        b"\x00" + encode_varint(0) + encode_varint(0) + sized(None) + sized(None) + b"\x02" + sized(b"\xff") + b"\x00"
    )
    (read,) = log_records(*batch_of(sized(record), 1))
    assert read.headers == (("\\xff", b""),)
