"""Chooses a record's partition: librdkafka's partitioners by their names, with the same results.

``murmur2_random`` also gives the results of the Java producer. For a record without a key or with an empty key, each
name means the same as in librdkafka (CONFIGURATION.md, ``partitioner``): only ``consistent_random`` treats an empty key
as none.
"""

import struct
from collections.abc import Callable
from zlib import crc32

Partitioner = Callable[[bytes | None, int], int]
"""Takes a record's key and the topic's number of partitions, and returns one of the partitions."""

RandRange = Callable[[int], int]
"""``random.randrange`` or a similar function: takes n, returns a number from 0 to n-1."""

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SIGN = 0x80000000
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995
_WORD = struct.Struct("<I")


class StickyChoice:
    """A ``randrange`` that keeps its choice until :meth:`renew`, so that records without a key share a batch (KIP-480;
    librdkafka's ``sticky.partitioning.linger.ms``, but by events and not by time). Each topic has its own.

    :param randrange: makes the choices.
    """

    __slots__ = ("_chosen", "_count", "_randrange")

    def __init__(self, randrange: RandRange) -> None:
        self._randrange = randrange
        self._count = 0
        self._chosen = 0

    def __call__(self, count: int) -> int:
        """The choice among ``count``; a new one if the topic's number of partitions has changed."""
        if count != self._count:
            self._chosen = self._randrange(count)
            self._count = count
        return self._chosen

    def renew(self) -> None:
        """Make a new choice at the next call: a batch is full, or a transaction begins."""
        self._count = 0


def make_partitioner(name: str, randrange: RandRange) -> Partitioner:
    """The partitioner that librdkafka calls ``name``.

    :param name: one of :data:`PARTITIONERS`.
    :param randrange: the source of randomness; a :class:`StickyChoice` for any but ``random``.
    :raises KeyError: if there is no such partitioner.
    """
    return _MAKERS[name](randrange)


def murmur2(key: bytes) -> int:
    """MurmurHash2 as in Java's producer (Utils.murmur2), as an unsigned number of 32 bits."""
    size = len(key)
    hashed = _MURMUR_SEED ^ size
    whole = size & ~3
    for (word,) in _WORD.iter_unpack(key[:whole]):
        mixed = word * _MURMUR_M & _MASK
        hashed = (hashed * _MURMUR_M ^ (mixed ^ mixed >> 24) * _MURMUR_M) & _MASK
    if whole != size:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _MURMUR_M & _MASK
    hashed = (hashed ^ hashed >> 13) * _MURMUR_M & _MASK
    return hashed ^ hashed >> 15


def fnv1a(key: bytes) -> int:
    """FNV-1a of 32 bits, read as a signed number and made positive, as in librdkafka and Sarama."""
    hashed = _FNV_OFFSET
    for byte in key:
        hashed = (hashed ^ byte) * _FNV_PRIME & _MASK
    return hashed if hashed < _SIGN else (1 << 32) - hashed


def _random(randrange: RandRange) -> Partitioner:
    return lambda _key, count: randrange(count)


def _consistent(_randrange: RandRange) -> Partitioner:
    return lambda key, count: crc32(key or b"") % count


def _consistent_random(randrange: RandRange) -> Partitioner:
    return lambda key, count: crc32(key) % count if key else randrange(count)


def _murmur2(_randrange: RandRange) -> Partitioner:
    return lambda key, count: (murmur2(key or b"") & _POSITIVE) % count


def _murmur2_random(randrange: RandRange) -> Partitioner:
    return lambda key, count: randrange(count) if key is None else (murmur2(key) & _POSITIVE) % count


def _fnv1a(_randrange: RandRange) -> Partitioner:
    return lambda key, count: fnv1a(key or b"") % count


def _fnv1a_random(randrange: RandRange) -> Partitioner:
    return lambda key, count: randrange(count) if key is None else fnv1a(key) % count


_MAKERS: dict[str, Callable[[RandRange], Partitioner]] = {
    "random": _random,
    "consistent": _consistent,
    "consistent_random": _consistent_random,
    "murmur2": _murmur2,
    "murmur2_random": _murmur2_random,
    "fnv1a": _fnv1a,
    "fnv1a_random": _fnv1a_random,
}
PARTITIONERS = tuple(_MAKERS)
"""The names."""
