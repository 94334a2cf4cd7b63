"""The codecs: what others write is opened, what is written here they open, and nothing takes the memory."""

import struct
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.records.batch import Record
from dualwrite.records.compression import Codec, batch_body, compress, decompress
from dualwrite.records.header import HEADER_SIZE, MalformedBatchError, peek_header
from tests.support.oracle_batches import oracle_batch
from tests.support.strategies import attempt, placed

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
PLAIN = b"".join(b"%d plain " % number for number in range(40_000))
"""More than one block of every codec."""
MEBIBYTE = 1 << 20


@given(st.sampled_from(CODECS), st.binary(max_size=300), st.integers(1, 2000))
def test_compressed_records_decompress_to_the_same_bytes(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, [-1, 1, 9]), (Codec.ZSTD, [-131072, -1, 0, 3, 22])],
)
def test_every_level_is_opened_again(codec: Codec, levels: list[int]) -> None:
    sizes = []
    for level in levels:
        squeezed = compress(codec, PLAIN[:MEBIBYTE], level)
        assert decompress(codec, squeezed) == PLAIN[:MEBIBYTE]
        sizes.append(len(squeezed))
    assert sizes[-1] < sizes[1 if codec is Codec.GZIP else 0], "the highest level tries harder"


@pytest.mark.parametrize("codec", CODECS)
def test_many_blocks_are_opened_as_one(codec: Codec) -> None:
    squeezed = compress(codec, PLAIN)
    assert len(squeezed) < len(PLAIN) / 2
    assert decompress(codec, memoryview(squeezed)) == PLAIN


@pytest.mark.parametrize(
    ("codec", "theirs"),
    [
        (Codec.GZIP, zlib.compressobj(wbits=31)),
        (Codec.SNAPPY, cramjam.snappy.compress_raw),
        (Codec.LZ4, cramjam.lz4.compress),
        (Codec.ZSTD, cramjam.zstd.compress),
    ],
)
def test_each_form_that_others_write_is_opened(codec: Codec, theirs: object) -> None:
    data = theirs.compress(PLAIN) + theirs.flush() if codec is Codec.GZIP else bytes(theirs(PLAIN))  # type: ignore
    assert decompress(codec, data) == PLAIN


def test_gzip_of_several_members_is_one() -> None:
    assert decompress(Codec.GZIP, compress(Codec.GZIP, b"one ") + compress(Codec.GZIP, b"two")) == b"one two"


def test_the_forms_written_are_those_that_java_reads() -> None:
    snappy, lz4 = compress(Codec.SNAPPY, PLAIN), compress(Codec.LZ4, PLAIN)
    assert snappy[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (size,) = struct.unpack_from(">i", snappy, 16)
    assert bytes(cramjam.snappy.decompress_raw(snappy[20 : 20 + size])) == PLAIN[: 32 * 1024]
    assert lz4[4] & 0x20, "Java refuses blocks that depend on each other"
    assert bytes(cramjam.lz4.decompress(lz4)) == PLAIN
    assert bytes(cramjam.gzip.decompress(compress(Codec.GZIP, PLAIN))) == PLAIN
    assert bytes(cramjam.zstd.decompress(compress(Codec.ZSTD, PLAIN))) == PLAIN


def test_lz4_stores_what_it_cannot_make_smaller() -> None:
    data = bytes(range(256))
    assert data in compress(Codec.LZ4, data)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, data)) == data


@pytest.mark.slow_cases
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_and_does_not_take_the_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(200 * MEBIBYTE))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBatchError, match="records that"):
            decompress(codec, bomb, limit=2 * MEBIBYTE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * MEBIBYTE


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_itself_is_allowed(codec: Codec) -> None:
    data = compress(codec, bytes(100_000))
    assert len(decompress(codec, data, limit=100_000)) == 100_000
    with pytest.raises(MalformedBatchError):
        decompress(codec, data, limit=99_999)


@pytest.mark.slow
@given(st.sampled_from(CODECS), st.binary(max_size=60), st.integers(0, 60), st.integers(1, 255))
def test_damage_is_noticed_or_harmless(codec: Codec, data: bytes, at: int, flip: int) -> None:
    squeezed = bytearray(compress(codec, data))
    squeezed[at % len(squeezed)] ^= flip
    opened = attempt(lambda: decompress(codec, squeezed), MalformedBatchError)
    assert isinstance(opened, bytes | MalformedBatchError)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_records_are_refused(codec: Codec) -> None:
    with pytest.raises(MalformedBatchError):
        decompress(codec, compress(codec, PLAIN)[:-100])


def test_an_unknown_codec_is_refused() -> None:
    for codec in (0, 5, 7):
        with pytest.raises(MalformedBatchError, match=f"unknown codec {codec}"):
            decompress(codec, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_the_body_of_a_batch_is_opened(codec: Codec) -> None:
    records = [Record(b"key", b"value " * 100, 1000 + delta) for delta in range(50)]
    plain, squeezed = oracle_batch(records), oracle_batch(records, compression=codec)
    assert peek_header(squeezed).compression == codec
    assert bytes(batch_body(peek_header(squeezed), squeezed)) == plain[HEADER_SIZE:]


def test_the_body_of_a_plain_batch_is_itself() -> None:
    batch = placed([Record(b"key", b"value")])
    assert bytes(batch_body(peek_header(batch), batch)) == batch[HEADER_SIZE:]
