"""What the native producer's batches are made of, for those who read them."""

import functools
import time

from dualwrite.client.encoding.batches import BatchBuilder, Headers
from dualwrite.records.compression import Codec
from dualwrite.wire.error_codes import ErrorCode
from tests.support.peer_clients.client import Got
from tests.support.requests.calls import end, new_producer, produce, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""What Apache Kafka answers while a topic is new."""
NOW_MS = int(time.time() * 1000)
"""A timestamp that no broker finds too old or too new."""

Entry = tuple[bytes | None, bytes | None, Headers]

ENTRIES: list[Entry] = [
    (None, None, ()),
    (b"", b"", [("", b""), ("nothing", None)]),
    (b"k", b"v", [("same", b"1"), ("same", b"2")]),
    ("ключ".encode(), bytes(range(256)) * 40, [("имя", "значение".encode())] * 70),
    *((b"%d" % number, b"value %d " % number * 50, ()) for number in range(500)),
]


def gathered(entries: list[Entry]) -> BatchBuilder:
    """A batch of them, a second apart."""
    builder = BatchBuilder(1 << 30)
    for number, (key, value, headers) in enumerate(entries):
        builder.append(key, value, headers, NOW_MS - 1000 * number)
    return builder


def committed(client: RawClient, topic: str, codec: Codec, *, version: int = 6) -> None:
    """Write ``ENTRIES`` into partition 0 in two batches of one transaction, and commit it.

    :param version: that of InitProducerId.
    """
    name = unique("native")
    producer = new_producer(client, name, version=version)
    for first, entries in ((0, ENTRIES[:100]), (100, ENTRIES[100:])):
        batch = gathered(entries).seal(codec, None, producer, first)
        write = functools.partial(produce, client, topic, batch, name, version=12)
        answer = eventually(write, lambda answer: answer.error_code not in NOT_YET)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    assert end(client, name, producer).error_code == ErrorCode.NONE


def check(got: list[Got]) -> None:
    """That ``got`` is ``ENTRIES``."""
    expected = [(key, value, [(name, content) for name, content in headers]) for key, value, headers in ENTRIES]
    assert [(record.key, record.value, record.headers) for record in got] == expected
    assert [record.offset for record in got] == list(range(len(ENTRIES)))
    assert [record.timestamp for record in got[:100]] == [NOW_MS - 1000 * number for number in range(100)]
