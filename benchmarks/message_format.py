"""Bytes on disk for KIP-98's table of batch sizes, beside the figures of the KIP, of its draft, and of the old format.

    python benchmarks/message_format.py [--write docs/reference/message-format.md]

librdkafka sends each batch to the bundled broker; the partition's .log file is what is measured. The old format (v1)
is not written by any broker of today: kafka-python builds it. As the KIP has it, a message has 1 KiB, 100 bytes of
which are its key, and timestamps are close: here two messages a millisecond.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from kafka.record.memory_records import MemoryRecordsBuilder

from dualwrite import EmbeddedBroker
from dualwrite.records.header import HEADER_SIZE, iterate_batches
from dualwrite.records.rewriting import iterate_spans
from dualwrite.records.varint import encode_varint

SIZES = (1, 3, 10, 50, 100)
KEY, VALUE = b"k" * 100, b"v" * 924
FIRST_TIMESTAMP = 1_700_000_000_000

KIP_BATCH, KIP_MESSAGE = 53, 7
DRAFT_BATCH, DRAFT_MESSAGE = 45, 17
OLD_MESSAGE = 34
UNCOUNTED_BATCH = 8
"""PartitionLeaderEpoch (KIP-101) and the number of records: in the final format, and not in the KIP's 53."""
UNCOUNTED_MESSAGE = 3
"""Length of the value (2) and number of headers (1): likewise not in its 7."""


@dataclass(frozen=True)
class MeasuredBatch:
    """The overhead of one batch: what it takes beyond its keys and values, in bytes."""

    messages: int
    on_disk: int
    long_deltas: int
    """Messages from the 65th on, whose offset delta takes two bytes where the KIP counts one."""
    old: int

    @property
    def counted(self) -> int:
        """What is left for the fields that the KIP's figure counts, as long as it counts them."""
        return self.on_disk - UNCOUNTED_BATCH - self.messages * UNCOUNTED_MESSAGE - self.long_deltas


def measure() -> list[MeasuredBatch]:
    """One batch of each size, through the broker."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory)) as broker:
        return [_measure(broker.bootstrap_servers, Path(directory), messages) for messages in SIZES]


def _measure(servers: str, data_dir: Path, messages: int) -> MeasuredBatch:
    topic = f"batch-of-{messages}"
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 10_000, "batch.num.messages": messages})
    for index in range(messages):
        producer.produce(topic, VALUE, KEY, partition=0, timestamp=FIRST_TIMESTAMP + index // 2)
    deadline = time.monotonic() + 30
    while len(producer):  # a full batch goes out by itself; flush() would send what has gathered when it is called
        producer.poll(0.1)
        if time.monotonic() > deadline:
            raise SystemExit(f"the broker did not take {messages} messages")
    content = (data_dir / f"{topic}-0" / f"{0:020}.log").read_bytes()
    ((header, batch),) = iterate_batches(content)
    spans = list(iterate_spans(header, batch[HEADER_SIZE:]))
    if len(spans) != messages:
        raise SystemExit(f"a batch of {len(spans)} messages instead of {messages}")
    payload = messages * (len(KEY) + len(VALUE))
    long_deltas = sum(len(encode_varint(span.offset - header.base_offset)) - 1 for span in spans)
    return MeasuredBatch(messages, len(content) - payload, long_deltas, _old_format(messages) - payload)


def _old_format(messages: int) -> int:
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for index in range(messages):
        builder.append(timestamp=FIRST_TIMESTAMP + index // 2, key=KEY, value=VALUE)
    builder.close()
    return len(builder.buffer())


def page(measured: list[MeasuredBatch]) -> str:
    """The page in docs/reference."""
    lines = [
        "# The message format's bytes",
        "",
        "Written by `python benchmarks/message_format.py --write docs/reference/message-format.md`; a test compares.",
        "",
        "The overhead of a batch: its bytes without keys and values, for messages of 1 KiB with keys of 100 bytes.",
        "This is the table of KIP-98, section *Space Comparison*. *On disk* is measured: librdkafka sends one batch to",
        "the bundled broker, and the overhead is the size of the partition's `.log` file minus keys and values.",
        "*Counted* is *on disk* minus the fields that the KIP's figures leave out (below). It equals the figure of the",
        "final KIP in every row.",
        "",
        "| messages | on disk | counted | KIP-98, final | KIP-98, draft | old format (v1), measured | old, KIP |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        count = row.messages
        lines.append(
            f"| {count} | {row.on_disk} | {row.counted} | {KIP_BATCH} + {count}·{KIP_MESSAGE} ="
            f" {KIP_BATCH + count * KIP_MESSAGE} | {DRAFT_BATCH} + {count}·{DRAFT_MESSAGE} ="
            f" {DRAFT_BATCH + count * DRAFT_MESSAGE} | {row.old} | {OLD_MESSAGE * count} |"
        )
    return "\n".join([*lines, "", *_EXPLANATION, ""])


_EXPLANATION = f"""\
The batch header has 61 bytes. The KIP counts {KIP_BATCH}: it leaves out the partition leader epoch (4), which KIP-101
added, and the number of records (4), which only the released format has. Each message of this table has 10 bytes
beyond key and value. The KIP counts {KIP_MESSAGE}: length (2), attributes (1), timestamp delta and key length (together
3: the KIP counts 2 and 1; with zigzag encoding, close timestamps and a key of 100 bytes they are 1 and 2), and offset
delta (1).
The KIP leaves out the value's length (2) and the number of headers (1). It also leaves out that an offset delta takes
two bytes from the 65th message on (36 bytes in a batch of 100).

The draft counted {DRAFT_BATCH} and {DRAFT_MESSAGE}: no first timestamp in the batch (8 bytes less), but in every
message a timestamp of 8 bytes and a checksum of 4. By these figures the final format is the smaller one at every size.
The old format pays {OLD_MESSAGE} bytes for every message.""".splitlines()


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="write the page there")
    target = parser.parse_args().write
    text = page(measure())
    if target is None:
        print(text, end="")
    else:
        target.write_text(text)


if __name__ == "__main__":
    main()
