"""Aborted transactions as Kafka stores them in a segment's ``.txnindex`` (AbortedTxn, TransactionIndex)."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

_LAYOUT = struct.Struct(">hqqqq")
ENTRY_SIZE = _LAYOUT.size
"""The size of an entry in bytes."""
_VERSION = 0


@dataclass(frozen=True, slots=True)
class IndexedTransaction:
    """A transaction whose marker is in the log, with the offsets of its first record and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int = field(default=-1, compare=False)
    """The last stable offset (LSO) after the transaction ended."""


def encode_aborted(transactions: Iterable[IndexedTransaction]) -> bytes:
    """The entries of ``transactions``, which must be in the order of their markers."""
    return b"".join(
        _LAYOUT.pack(
            _VERSION,
            transaction.producer_id,
            transaction.first_offset,
            transaction.last_offset,
            transaction.last_stable_offset,
        )
        for transaction in transactions
    )


def decode_aborted(data: bytes) -> list[IndexedTransaction]:
    """The transactions whose entries are ``data``.

    :raises ValueError: if ``data`` is not a valid index. The caller must rebuild it from the log.
    """
    if len(data) % _LAYOUT.size:
        raise ValueError(f"{len(data)} bytes are not a whole number of entries")
    transactions: list[IndexedTransaction] = []
    for version, producer_id, first_offset, last_offset, last_stable_offset in _LAYOUT.iter_unpack(data):
        if version != _VERSION:
            raise ValueError(f"entry of version {version}")
        if not 0 <= first_offset <= last_offset or (transactions and last_offset <= transactions[-1].last_offset):
            raise ValueError(f"entry with the offsets {first_offset} and {last_offset}")
        transactions.append(IndexedTransaction(producer_id, first_offset, last_offset, last_stable_offset))
    return transactions
