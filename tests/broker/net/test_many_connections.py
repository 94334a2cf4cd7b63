"""Five thousand idle connections beside a client that works."""

import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.broker.secured import Keys
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, is_served, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

IDLE = 5000
FILES = 4 * IDLE
"""The broker gives a quarter of its open files to connections."""
MOST_KIB = {"PLAINTEXT": 64, "SSL": 96}
"""docs/broker.md: 40 KiB for an idle connection, and 60 with TLS; another system may need a little more."""


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"a process may open {hard} files here, and the broker needs {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def count_open(connections: list[socket.socket]) -> int:
    """How many of ``connections`` the broker has not closed. On those with TLS, it has sent its session tickets."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            count += connection.recv(1) != b""
        except (BlockingIOError, ssl.SSLWantReadError):
            count += 1
    return count


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL"])
def test_five_thousand_idle_connections_disturb_no_client(tmp_path: Path, listener: str) -> None:
    """A client writes and reads while they come and while they stay; a new client is served; they stay open."""
    keys = Keys(tmp_path)
    context = keys.context() if listener == "SSL" else None
    is_over = threading.Event()
    written: list[bytes] = []
    with (
        ForkedBroker(tmp_path / "broker", config=keys.listeners()) as broker,
        RawClient(broker.listeners["PLAINTEXT"]) as worker,
        ExitStack() as stack,
    ):
        topic = new_topic(worker)

        def work() -> None:
            while not is_over.is_set():
                value = b"%d" % len(written)
                assert produce(worker, topic, batch([value])).error_code == 0
                written.append(value)

        before = resident_kib(broker.pid)
        host, _, port = broker.listeners[listener].rpartition(":")
        thread = threading.Thread(target=work)
        thread.start()
        try:
            crowd: list[socket.socket] = []
            for _ in range(IDLE):
                plain = stack.enter_context(socket.create_connection((host, int(port)), 20))
                crowd.append(
                    plain if context is None else stack.enter_context(context.wrap_socket(plain, server_hostname=host))
                )
            with RawClient(broker.listeners["PLAINTEXT"]) as newcomer:
                assert is_served(newcomer)
                assert metadata(newcomer, topic).topics
            at_the_end = len(written)
            assert eventually(lambda: len(written) >= at_the_end + 100)
        finally:
            is_over.set()
            thread.join()
        assert count_open(crowd) >= IDLE * 0.98, (
            "with 20,000 open files, one in a hundred makes room for the two others"
        )
        assert (resident_kib(broker.pid) - before) / IDLE < MOST_KIB[listener]
        assert read_all(worker, topic) == written
