"""A real broker among clients that hold its memory: the process stays below the bound of docs/broker.md."""

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.codec import write_request
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.broker.broker_process import memory_peak
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    batch,
    end,
    fetch,
    fetch_request,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    read_all,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

MEBIBYTE = 1024 * 1024
MOST = 64 * MEBIBYTE
SLACK = 48 * MEBIBYTE
"""What a working broker needs besides: 32 MiB of docs/broker.md, and its own growth."""
SECONDS = 20.0


@contextmanager
def connections(broker: EmbeddedBroker, count: int, source: str) -> Iterator[list[socket.socket]]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            connection.settimeout(SECONDS)
            connection.bind((source, 0))
            connection.connect((host, int(port)))
            made.append(connection)
        yield made


def is_closed(connection: socket.socket) -> bool:
    """True if the broker has closed ``connection``, on which it never answers."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def send_all_it_takes(connection: socket.socket, data: bytes) -> None:
    """Send ``data`` until the broker reads no more, and closes the connection."""

    def send() -> None:
        try:
            connection.settimeout(3 * SECONDS)
            connection.sendall(data)
        except OSError:
            return

    threading.Thread(target=send, daemon=True).start()


class LargeBatchWorker:
    """A client of 127.0.0.1 that commits one transaction after another, every one with a large batch."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.count = 0
        self._client = RawClient(broker.bootstrap_servers)
        self.topic = new_topic(self._client)
        self._producer = new_producer(self._client, "worker")

    def work(self, size: int) -> None:
        open_transaction(self._client, "worker", self._producer, {(self.topic, 0): [b"%d" % self.count, b"x" * size]})
        answer = end(self._client, "worker", self._producer)
        assert answer.error_code == ErrorCode.NONE
        self._producer = type(self._producer)(answer.producer_id, answer.producer_epoch)
        self.count += 1

    def sees_its_records(self) -> None:
        values = read_all(self._client, self.topic)
        assert [value for value in values if not value.startswith(b"x")] == [b"%d" % n for n in range(self.count)]
        self._client.close()


@pytest.mark.slow
def test_half_sent_requests_lock_out_no_client_and_are_closed(tmp_path: Path) -> None:
    config = {"socket.request.max.bytes": str(48 * MEBIBYTE), "queued.max.request.bytes": str(MOST)}
    size = 40 * MEBIBYTE
    half = struct.pack(">i", size) + bytes(size - 1)
    with ForkedBroker(tmp_path, config={**config, "connections.max.idle.ms": "3000"}) as broker:
        worker = LargeBatchWorker(broker)
        worker.work(10)
        before = memory_peak(broker.pid)
        with connections(broker, 5, "127.0.0.2") as attackers:

            def closed() -> int:
                worker.work(100)
                return sum(map(is_closed, attackers))

            for attacker in attackers:
                send_all_it_takes(attacker, half)
            for number in range(30):
                worker.work(100 if number % 2 else 900_000)
            assert eventually(closed, lambda count: count == 5) == 5
        worker.work(900_000)
        worker.sees_its_records()
        assert memory_peak(broker.pid) - before < MOST + SLACK
    log = (tmp_path / "broker.log").read_text()
    assert "closing a connection of 127.0.0.2: it holds " in log
    assert "of 127.0.0.1" not in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_answers_that_no_client_reads_lock_out_no_client(tmp_path: Path) -> None:
    """Forty clients ask for the same twenty megabytes, and read nothing."""
    config = {"queued.max.request.bytes": str(MOST), "socket.request.max.bytes": str(MOST)}
    value = b"v" * (20 * MEBIBYTE)
    with ForkedBroker(tmp_path, config=config) as broker:
        worker = LargeBatchWorker(broker)
        with RawClient(broker.bootstrap_servers) as client:
            topic = new_topic(client, max_message_bytes=str(32 * MEBIBYTE))
            assert produce(client, topic, batch([value])).error_code == ErrorCode.NONE
            before = memory_peak(broker.pid)
            request = with_size(write_request(ApiKey.FETCH, 12, 1, "deaf", fetch_request(topic, max_bytes=2**30)))
            with connections(broker, 40, "127.0.0.2") as deaf:
                for connection in deaf:
                    connection.sendall(request)
                for _ in range(10):
                    worker.work(900_000)
                assert len(fetch(client, topic, max_bytes=2**30).records) > len(value)
            worker.sees_its_records()
        # Besides the answers that wait, one is being built: its bytes as they were read, and as they are sent.
        assert memory_peak(broker.pid) - before < MOST + 2 * len(value) + SLACK
    log = (tmp_path / "broker.log").read_text()
    assert "closing a connection of 127.0.0.2: it does not read its answer" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_many_slow_readers_get_smaller_answers_and_none_is_closed(tmp_path: Path) -> None:
    config = {"queued.max.request.bytes": str(MOST), "socket.request.max.bytes": str(MOST)}
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        for _ in range(40):
            produce(client, topic, batch([b"v" * 1_000_000]))
        before = memory_peak(broker.pid)
        fetch_all = fetch_request(topic, max_bytes=2**30, partition_max_bytes=2**30)
        request = with_size(write_request(ApiKey.FETCH, 12, 1, "slow", fetch_all))
        with connections(broker, 20, "127.0.0.2") as slow:
            for connection in slow:
                connection.sendall(request)
            sizes = [struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0] for connection in slow]
            assert max(sizes) <= MOST / 4
            for connection, size in zip(slow, sizes, strict=True):
                received = 0
                while received < size:
                    received += len(connection.recv(1 << 20))
            assert memory_peak(broker.pid) - before < MOST + SLACK
    assert "closing" not in (tmp_path / "broker.log").read_text()


@pytest.mark.parametrize("most", ["-1", "0"])
def test_the_limit_can_be_switched_off(tmp_path: Path, most: str) -> None:
    with (
        ForkedBroker(tmp_path, config={"queued.max.request.bytes": most}) as broker,
        connections(broker, 3, "127.0.0.2") as holders,
        RawClient(broker.bootstrap_servers) as client,
    ):
        for holder in holders:
            holder.sendall(struct.pack(">i", 100 * MEBIBYTE) + bytes(10))
        topic = new_topic(client)
        assert produce(client, topic, batch([b"v" * 900_000])).error_code == ErrorCode.NONE
        assert not any(map(is_closed, holders))
