"""The codecs of record batches: gzip, snappy, lz4 and zstd, named and encoded as in Kafka's CompressionType.

The broker stores a producer's batches unchanged, and sends them to consumers unchanged. It decompresses a batch only
for an exact look-up by timestamp, for compaction, for a topic with its own codec, and if a header lacks the highest
timestamp.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from dualwrite.records.header import HEADER_SIZE, BatchHeader, MalformedBatchError

LARGEST_BODY = 64 * 1024 * 1024
"""The most decompressed bytes of one batch's records. Without a limit, a few bytes that decompress to gigabytes would
exhaust the broker's memory. Kafka needs no limit, because it reads the records as a stream."""

_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC = _XERIAL[:8]
_XERIAL_BLOCK = 32 * 1024
_INT = struct.Struct(">i")
# Magic, descriptor and its checksum of an lz4 frame as Java reads it (Lz4BlockInputStream): independent 64 KiB blocks.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_SIZE = struct.Struct("<I")
_LZ4_STORED = 0x8000_0000
_ZSTD_LEVEL = 3
_FIRST_ROOM = 64 * 1024


class Codec(IntEnum):
    """The compression of a batch's records. The values are those in the header's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def batch_body(header: BatchHeader, batch: bytes | memoryview, limit: int = LARGEST_BODY) -> bytes | memoryview:
    """The records of ``batch``, decompressed if necessary.

    :param limit: the most bytes that the result may have.
    :raises MalformedBatchError: if the records are not data of the header's codec, or the result exceeds ``limit``.
    """
    body = memoryview(batch)[HEADER_SIZE : header.size]
    return decompress(header.compression, body, limit) if header.compression else body


def decompress(codec: int, data: bytes | memoryview, limit: int = LARGEST_BODY) -> bytes:
    """The decompressed ``data``.

    :param codec: a :class:`Codec` that is not NONE.
    :param limit: the most bytes that the result may have.
    :raises MalformedBatchError: if the codec is unknown, ``data`` is not its output, or the result exceeds ``limit``.
    """
    opener = _OPENERS.get(codec)
    if opener is None:
        raise MalformedBatchError(f"records compressed by unknown codec {codec}")
    try:
        return opener(bytes(data), limit)
    except (zlib.error, cramjam.DecompressionError, struct.error, OSError, OverflowError) as error:
        raise MalformedBatchError(f"{Codec(codec).name.lower()} records that cannot be decompressed: {error}") from None


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """``data``, compressed so that every Kafka client can read it.

    :param codec: a :class:`Codec` that is not NONE.
    :param level: the compression level, as in Kafka's compression.gzip.level and the like; None for the codec's
        default. Snappy and lz4 have only one level here.
    """
    return _CLOSERS[codec](data, level)


def _too_large(limit: int) -> MalformedBatchError:
    return MalformedBatchError(f"compressed records that exceed {limit} bytes")


def _gunzip(data: bytes, limit: int) -> bytes:
    out = bytearray()
    while data:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=31)
        out += member.decompress(data, limit - len(out) + 1)
        if len(out) > limit:
            raise _too_large(limit)
        if not member.eof:
            raise MalformedBatchError("gzip records that end too early")
        data = member.unused_data
    return bytes(out)


def _gzip(data: bytes, level: int | None) -> bytes:
    member = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
    return member.compress(data) + member.flush()


def _unsnap(data: bytes, limit: int) -> bytes:
    """Decompress both forms that Java's SnappyInputStream reads: its own frames, and librdkafka's one raw block."""
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnap_block(data, limit)
    out = bytearray()
    position = len(_XERIAL)
    while position < len(data):
        (size,) = _INT.unpack_from(data, position)
        position += _INT.size
        if not 0 <= size <= len(data) - position:
            raise MalformedBatchError("snappy records with a block that runs past the end")
        out += _unsnap_block(data[position : position + size], limit - len(out))
        position += size
    return bytes(out)


def _unsnap_block(block: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _snap(data: bytes, _level: int | None) -> bytes:
    out = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        out += [_INT.pack(len(block)), block]
    return b"".join(out)


def _lz4(data: bytes, _level: int | None) -> bytes:
    out = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        stored = len(block) >= len(plain)
        out += [_LZ4_SIZE.pack(len(plain) | _LZ4_STORED if stored else len(block)), plain if stored else block]
    return b"".join([*out, _LZ4_SIZE.pack(0)])


def _zstd(data: bytes, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def _opener(codec: Any) -> Callable[[bytes, int], bytes]:
    def decompress_within(data: bytes, limit: int) -> bytes:
        """Decompress with growing buffers: the library reports neither a frame's size nor a buffer that is too
        small."""
        room = min(limit, max(_FIRST_ROOM, 4 * len(data)))
        while True:
            out = bytearray(room)
            try:
                return bytes(memoryview(out)[: codec.decompress_into(data, out)])
            except cramjam.DecompressionError as error:
                if room == limit:
                    raise MalformedBatchError(f"records that do not decompress in {limit} bytes: {error}") from None
            room = min(limit, 4 * room)

    return decompress_within


_OPENERS: dict[int, Callable[[bytes, int], bytes]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnap,
    Codec.LZ4: _opener(cramjam.lz4),
    Codec.ZSTD: _opener(cramjam.zstd),
}
_CLOSERS: dict[int, Callable[[bytes, int | None], bytes]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snap,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
