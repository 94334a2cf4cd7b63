"""A signal among working clients: the broker stops in time, and has everything that it acknowledged."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dualwrite.broker.process.ending import STOP_EXIT_CODE
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.broker_process import RunningBroker
from tests.support.requests.calls import batch, fetch_request, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

STOP_SECONDS = 6.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[RunningBroker]]:
    """Brokers that the test has started; those that still run are killed."""
    running: list[RunningBroker] = []
    yield running
    for broker in running:
        broker.process.kill()
        broker.process.communicate()


def start(tmp_path: Path, brokers: list[RunningBroker], stop_timeout: float = STOP_SECONDS) -> RunningBroker:
    scratch = tmp_path / f"run-{len(brokers)}"
    scratch.mkdir()
    arguments = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--stop-timeout", str(stop_timeout))
    brokers.append(RunningBroker(scratch, arguments, ()))
    return brokers[-1]


class AcknowledgedWriter(threading.Thread):
    """Produces one record after the other with acks=all, and remembers those that were acknowledged."""

    def __init__(self, address: str, topic: str, number: int) -> None:
        super().__init__()
        self.acknowledged: list[bytes] = []
        self._client = RawClient(address)
        self._topic = topic
        self._number = number

    def run(self) -> None:
        with suppress(ConnectionError), self._client:
            while True:
                value = b"%d-%d" % (self._number, len(self.acknowledged))
                assert produce(self._client, self._topic, batch([value])).error_code == ErrorCode.NONE
                self.acknowledged.append(value)


def stuffed(address: str) -> str:
    """A topic with more bytes than a client's and the system's buffers take."""
    with RawClient(address) as client:
        topic = new_topic(client)
        for _ in range(20):
            produce(client, topic, batch([b"v" * 1_000_000]))
    return topic


def deaf(address: str, topic: str) -> RawClient:
    """A client that has asked for 20 MB, of which it reads nothing."""
    client = RawClient(address)
    request = fetch_request(topic, max_bytes=2**30, partition_max_bytes=2**30)
    client.send(request, 12)
    with RawClient(address) as other:
        metadata(other)  # the fetch was sent before, so it is being handled
    return client


@pytest.mark.slow
def test_a_stop_under_load_is_in_time_and_loses_nothing(tmp_path: Path, brokers: list[RunningBroker]) -> None:
    broker = start(tmp_path, brokers)
    address = broker.address
    with RawClient(address) as client:
        topic = new_topic(client)
    with deaf(address, stuffed(address)):
        writers = [AcknowledgedWriter(address, topic, number) for number in range(4)]
        for writer in writers:
            writer.start()
        assert eventually(lambda: min(len(writer.acknowledged) for writer in writers), lambda count: count >= 20) >= 20
        began = time.monotonic()
        code = broker.end()
        took = time.monotonic() - began
        for writer in writers:
            writer.join()
    assert code == 0
    assert took < STOP_SECONDS
    assert broker.log.read_text().splitlines()[-1].endswith(": stopped")
    with RawClient(start(tmp_path, brokers).address) as client:
        there = read_all(client, topic)
    assert {value for writer in writers for value in writer.acknowledged} <= set(there)
    assert len(there) == len(set(there))


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_and_loses_nothing(tmp_path: Path, brokers: list[RunningBroker]) -> None:
    broker = start(tmp_path, brokers, stop_timeout=600)
    address = broker.address
    topic = stuffed(address)
    with deaf(address, topic):
        broker.process.send_signal(signal.SIGTERM)

        def ends() -> int | None:
            broker.process.send_signal(signal.SIGTERM)
            return broker.process.poll()

        assert eventually(ends, lambda code: code is not None) == -signal.SIGTERM
    with RawClient(start(tmp_path, brokers).address) as client:
        assert len(read_all(client, topic)) == 20


def test_two_signals_at_the_same_time_are_one(tmp_path: Path, brokers: list[RunningBroker]) -> None:
    broker = start(tmp_path, brokers)
    address = broker.address
    broker.process.send_signal(signal.SIGINT)
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(STOP_SECONDS) == 0
    assert address


def test_an_answer_that_is_read_late_is_read_whole(tmp_path: Path, brokers: list[RunningBroker]) -> None:
    broker = start(tmp_path, brokers, stop_timeout=60)
    address = broker.address
    topic = stuffed(address)
    with deaf(address, topic) as client:
        broker.process.send_signal(signal.SIGTERM)
        answer = client.receive(ApiKey.FETCH, 12, 1)
        assert len(answer.responses[0].partitions[0].records) > 5_000_000
        assert client.read_to_end() == b""
    assert broker.process.wait(60) == 0


def test_a_stop_that_hangs_ends_with_one_line() -> None:
    program = """
import asyncio, logging, time
from dualwrite.broker.process.stop_deadline import StopDeadline

async def stop():
    deadline = StopDeadline(0.2)
    deadline.begin()
    assert 0 < deadline.seconds_left <= 0.2
    time.sleep(60)

logging.basicConfig(format="%(message)s")
asyncio.run(stop())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == STOP_EXIT_CODE
    (line,) = done.stderr.splitlines()
    assert line.startswith("the broker did not stop within 0.2 s (--stop-timeout) and ends now")
