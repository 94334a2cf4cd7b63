"""A server that is farther away: everything arrives, in order, and later."""

import socket
import threading
import time
from pathlib import Path

import pytest

from benchmarks.distance import distant

ROUND_TRIP = 0.05


@pytest.fixture(params=["inet", "unix"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> socket.socket:
    """Of a server that answers with what it was sent, until its client has ended."""
    if request.param == "inet":
        made = socket.create_server(("127.0.0.1", 0))
    else:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(tmp_path / "socket"))
        made.listen()
    threading.Thread(target=_echo, args=(made,), daemon=True).start()
    return made


def _echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def test_all_bytes_come_back_after_the_round_trip_and_so_does_the_end(listener: socket.socket) -> None:
    content = bytes(range(256)) * 4000
    with distant(ROUND_TRIP) as distance:
        distance.leads_to(listener.getsockname())
        with socket.create_connection(("127.0.0.1", distance.port), 120) as near, near.makefile("rb") as answers:
            began = time.monotonic()
            near.sendall(b"first")
            assert answers.read(5) == b"first"
            assert time.monotonic() - began >= ROUND_TRIP
            sending = threading.Thread(target=near.sendall, args=(content,))
            sending.start()
            assert answers.read(len(content)) == content
            sending.join()
            near.shutdown(socket.SHUT_WR)
            assert answers.read(1) == b"", "the server's end arrives, too"
    listener.close()


def test_a_client_that_comes_before_the_server_loses_its_connection_and_the_next_one_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with distant(0) as distance:
        distance.leads_to(path)
        with socket.create_connection(("127.0.0.1", distance.port), 120) as early:
            assert early.recv(1) == b""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            threading.Thread(target=_echo, args=(listener,), daemon=True).start()
            with socket.create_connection(("127.0.0.1", distance.port), 120) as near, near.makefile("rb") as answers:
                near.sendall(b"first")
                assert answers.read(5) == b"first"
