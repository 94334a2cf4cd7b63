"""The cutter passes on what it should, and cuts at the byte that it was asked to cut at."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.crash.byte_cutter import ByteCutter, Flowing


class EchoingServer:
    """Sends back what comes, on any number of connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(4096):
                self.received += data
                connection.sendall(data)


@pytest.fixture
def server() -> Iterator[EchoingServer]:
    made = EchoingServer()
    yield made
    made.close()


@pytest.fixture
def cutter(server: EchoingServer) -> Iterator[ByteCutter]:
    made = ByteCutter(f"tcp://127.0.0.1:{server.port}")
    yield made
    made.close()


def ask(cutter: ByteCutter, data: bytes) -> bytes:
    """What comes back before the connection ends, or as much as was sent."""
    with socket.create_connection(("127.0.0.1", cutter.port), timeout=30) as connection:
        connection.sendall(data)
        answer = b""
        while len(answer) < len(data):
            try:
                part = connection.recv(4096)
            except ConnectionError:
                break
            if not part:
                break
            answer += part
        return answer


def test_everything_passes_until_it_is_armed(cutter: ByteCutter) -> None:
    assert ask(cutter, b"abc") == b"abc"
    assert not cutter.struck.is_set()


@pytest.mark.parametrize("after", range(6))
def test_a_request_is_cut_at_each_byte(cutter: ByteCutter, server: EchoingServer, after: int) -> None:
    cutter.arm(Flowing.REQUESTS, after)
    assert b"abcdef"[:after].startswith(ask(cutter, b"abcdef"))
    assert cutter.struck.wait(30)
    assert b"abcdef"[:after].startswith(server.received)
    assert ask(cutter, b"abcdef") == b"abcdef", "it strikes once"


@pytest.mark.parametrize("after", range(6))
def test_an_answer_is_cut_at_each_byte(cutter: ByteCutter, server: EchoingServer, after: int) -> None:
    cutter.arm(Flowing.ANSWERS, after)
    assert ask(cutter, b"abcdef") == b"abcdef"[:after]
    assert cutter.struck.wait(30)
    assert server.received == b"abcdef", "the server has the whole request"


def test_bytes_count_over_all_connections(cutter: ByteCutter) -> None:
    cutter.arm(Flowing.ANSWERS, 4)
    assert ask(cutter, b"abc") == b"abc"
    assert ask(cutter, b"def") == b"d"


def test_a_cutter_that_was_disarmed_cuts_nothing(cutter: ByteCutter) -> None:
    cutter.arm(Flowing.REQUESTS, 0)
    cutter.disarm()
    assert ask(cutter, b"abc") == b"abc"
    assert not cutter.struck.is_set()


def test_all_connections_are_cut_at_once(cutter: ByteCutter) -> None:
    with socket.create_connection(("127.0.0.1", cutter.port), timeout=30) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        assert cutter.cut_all() == 2, "both ends of one"
        assert connection.recv(1) == b""
    assert ask(cutter, b"abc") == b"abc"


def test_the_url_of_a_database_leads_through_the_cutter() -> None:
    made = ByteCutter("postgresql+psycopg://dualwrite@/postgres?host=/tmp/some-socket")
    assert made.url == f"postgresql+psycopg://dualwrite@127.0.0.1:{made.port}/postgres"
    made.close()
