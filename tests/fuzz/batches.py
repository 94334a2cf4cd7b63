"""Fuzzes every reader of record batches: hostile bytes give records, or the one error of malformed batches."""

import random
import time
from collections.abc import Callable

from dualwrite.broker.core.record_rules import RefusedBatchError, as_kept, checked_header
from dualwrite.broker.settings.topic_configs import topic_config
from dualwrite.client.encoding.transaction_end import batches_before, commits_after, first_marker_in, mismatch_at
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, build_batch, iterate_records
from dualwrite.records.compression import Codec
from dualwrite.records.control import Marker, build_marker, read_coordinator_epoch, read_marker
from dualwrite.records.header import (
    BatchFields,
    BatchHeader,
    MalformedBatchError,
    iterate_batches,
    peek_header,
    rebuild_batch,
)
from dualwrite.records.log_records import log_records
from dualwrite.records.rewriting import iterate_spans, recompressed
from tests.fuzz.messages import mutated

SLOWEST_SECONDS = 10.0
_HEADER_BYTES = 61
_PRODUCER = ProducerIdentity(4, 2)
_CONFIGS = [
    topic_config({}, {"cleanup.policy": "compact", "compression.type": codec}) for codec in ("producer", "gzip", "zstd")
]


def fuzz_batches(seed: int) -> str:
    """Read batches that are damaged, and whose checksums are right all the same. An AssertionError begins with the seed
    that repeats it."""
    rng = random.Random(seed)
    try:
        return read_batches(_hostile(rng))
    except Exception as error:
        raise AssertionError(f"fuzz_batches({seed}): {error!r}") from error


def read_batches(data: bytes) -> str:
    """Give ``data`` to every reader of batches, and return the outcome.

    :raises Exception: if a reader raises anything but its own error, or is too slow.
    """
    began = time.monotonic()
    outcomes = [_outcome(reader, data) for reader in (_log, _broker, _recovery)]
    assert time.monotonic() - began < SLOWEST_SECONDS, "too slow"
    return "batches: " + ", ".join(outcomes)


def _outcome(reader: Callable[[bytes], None], data: bytes) -> str:
    try:
        reader(data)
    except (MalformedBatchError, RefusedBatchError):
        return "refused"
    return "read"


def _log(data: bytes) -> None:
    """As a start and a reader of a log: what every way of reading says of one batch must agree."""
    for header, batch in iterate_batches(data):
        if header.is_control:
            read_marker(batch)
            read_coordinator_epoch(batch)
            continue
        records = list(log_records(header, batch))
        if not header.compression:
            plain = [(record.offset, record.key, record.value) for record in iterate_records(batch)]
            assert plain == [(record.offset, record.key, record.value) for record in records], "two readings differ"
        other = Codec.GZIP if header.compression == Codec.NONE else Codec.NONE
        rewritten = recompressed(header, batch, other)
        again = list(log_records(peek_header(rewritten), rewritten))
        assert again == records, "a rewritten batch has other records"


def _broker(data: bytes) -> None:
    """As the broker checks what a producer sends: what it accepts can be read."""
    for config in _CONFIGS:
        header, kept = as_kept(checked_header(data, config, 10_000, True), data, config)
        try:
            count = len(list(log_records(header, kept)))
        except MalformedBatchError as error:
            raise AssertionError(f"the broker keeps what it cannot read: {error}") from error
        assert count == header.record_count, "another number of records than the header says"


def _recovery(data: bytes) -> None:
    """As a client that looks for a transaction's end in an answer, whose last batch may be truncated."""
    mismatch_at(data, _PRODUCER, 0)
    first_marker_in(data, _PRODUCER.producer_id)
    commits_after(data, _PRODUCER.producer_id)
    assert data.startswith(batches_before(data, 3)), "not the beginning"


def _hostile(rng: random.Random) -> bytes:
    batches = [_one(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    at = rng.randrange(len(batches))
    kind = rng.random()
    if kind < 0.5:  # the checksum is right: the reader of the records has to notice
        header, body = peek_header(batches[at]), batches[at][_HEADER_BYTES:]
        batches[at] = rebuild_batch(_other_header(header, rng), mutated(body, rng) if rng.random() < 0.8 else body)
    elif kind < 0.9:
        batches[at] = mutated(batches[at], rng)
    return b"".join(batches)


def _other_header(header: BatchHeader, rng: random.Random) -> BatchHeader:
    if rng.random() < 0.5:
        return header
    counts = (0, 1, 2, 100, 2**31 - 1, -1)
    choice = rng.randrange(4)
    if choice == 0:
        return header._replace(record_count=rng.choice(counts))
    if choice == 1:
        return header._replace(last_offset_delta=rng.choice(counts))
    if choice == 2:
        return header._replace(attributes=rng.randrange(0x80))
    return header._replace(base_timestamp=rng.choice((-1, 0, 2**63 - 1, -(2**63))))


def _one(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return build_marker(rng.choice((Marker.COMMIT, Marker.ABORT)), _PRODUCER, 1, 5)
    fields = BatchFields(_PRODUCER, rng.randrange(3), transactional=rng.random() < 0.5)
    records = [
        Record(rng.choice((None, b"", b"key")), rng.choice((None, b"", rng.randbytes(20))), rng.randrange(100))
        for _ in range(rng.randint(1, 4))
    ]
    batch = build_batch(records, fields if rng.random() < 0.7 else None)
    codec = rng.choice(tuple(Codec))
    header = peek_header(batch)
    # spans are read once here, so that a faulty builder is not taken for a finding
    assert len(list(iterate_spans(header, batch[_HEADER_BYTES:]))) == len(records)
    return recompressed(header, batch, codec) if codec else batch
