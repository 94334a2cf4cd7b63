"""Connections of clients that are too many, idle, or of another protocol, over real sockets."""

import asyncio
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dualwrite.broker.clients.connection_limits import ConnectionLimits
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.listening import BoundListener, listen
from dualwrite.broker.server import Server
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.in_process import MOST_BYTES, InProcessBroker
from tests.support.broker.simulated import Rooms
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import fetch, is_served, new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SECONDS = 20.0
STEPS = 200


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EmbeddedBroker]]:
    with ExitStack() as stack:

        def start(**settings: object) -> EmbeddedBroker:
            config = {name.replace("_", "."): str(value) for name, value in settings.items()}
            return stack.enter_context(ForkedBroker(tmp_path / "data", config=config))

        yield start


@contextmanager
def idle(broker: EmbeddedBroker, count: int = 1, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections of the address ``source`` that say nothing."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), SECONDS, source_address=(source, 0)))
            for _ in range(count)
        ]


def connects(broker: EmbeddedBroker) -> bool:
    """True if a new connection is served."""
    with suppress(ConnectionError), RawClient(broker.bootstrap_servers) as client:
        return is_served(client)
    return False


def awaits_end(connection: socket.socket) -> bool:
    """True once the broker has closed ``connection``."""
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def count_open(connections: list[socket.socket]) -> int:
    """How many of ``connections``, on which the broker sends nothing, it has not closed."""
    closed, _, _ = select.select(connections, [], [], 0)
    return len(connections) - len(closed)


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "data" / "broker.log").read_text()


def test_idle_connections_lock_no_client_out(start: Callable[..., EmbeddedBroker]) -> None:
    """Five times as many as there may be, of one address, while a client of another works, and a third one comes."""
    broker = start(max_connections=50)
    is_over = threading.Event()
    served: list[bool] = []
    with RawClient(broker.bootstrap_servers) as worker:

        def work() -> None:
            while not is_over.is_set():
                served.append(is_served(worker))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with idle(broker, 250, "127.0.0.2") as flood, RawClient(broker.bootstrap_servers) as latecomer:
                assert is_served(latecomer)
                assert eventually(lambda: count_open(flood), lambda count: count <= 50) <= 50
        finally:
            is_over.set()
            thread.join()
    assert served
    assert all(served)


def test_the_connection_that_is_idle_for_longest_makes_room(start: Callable[..., EmbeddedBroker]) -> None:
    broker = start(max_connections=3)
    with idle(broker) as (first,), RawClient(broker.bootstrap_servers) as second:
        assert is_served(second)
        with RawClient(broker.bootstrap_servers) as third, RawClient(broker.bootstrap_servers) as fourth:
            assert is_served(third)
            assert is_served(fourth)
            assert awaits_end(first)
            assert is_served(second)


def test_one_address_gets_no_more_connections_than_its_limit(
    start: Callable[..., EmbeddedBroker], tmp_path: Path
) -> None:
    broker = start(max_connections_per_ip=2)
    with RawClient(broker.bootstrap_servers) as first, idle(broker):
        assert is_served(first)
        with idle(broker) as (refused,):
            assert awaits_end(refused)
        assert is_served(first)
    assert "refusing a connection of 127.0.0.1: it has 2, which is max.connections.per.ip" in log_of(tmp_path)
    assert eventually(lambda: connects(broker), bool), "connections that are closed are not counted"


def is_closed(connection: socket.socket) -> bool:
    """True if the broker has closed ``connection``, on which it sends nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("at_once", "expected"), [(2, [0, 1]), (3, [0, 1, 2, 3])])
def test_a_connection_that_is_being_closed_has_made_room_already_and_makes_none_again(
    at_once: int, expected: list[int]
) -> None:
    """Each time two of 200 connections are closed. So of several at once the second takes the room that the first has
    left, and the third closes two others."""

    async def scenario() -> list[int]:
        context = InProcessBroker(await Rooms(MemoryFiles()).with_topic()).context
        (listener,) = context.options.listeners
        server = Server(context, MOST_BYTES, ConnectionLimits(200, 1000, -1), {})
        sock = listen("127.0.0.1", 0)
        address = sock.getsockname()
        await server.start([BoundListener(listener.on_port(address[1]), sock, None)])
        with ExitStack() as stack:

            def connect() -> socket.socket:
                return stack.enter_context(socket.create_connection(address, SECONDS))

            clients = []
            for count in range(1, 201):
                clients.append(connect())
                while sum(context.meters.connections().values()) < count:
                    await asyncio.sleep(0)
            clients += [connect() for _ in range(at_once)]  # the system takes them; the server finds them together
            for _ in range(STEPS):
                await asyncio.sleep(0)
            closed = [number for number, client in enumerate(clients) if is_closed(client)]
            await server.close(0)
        return closed

    assert asyncio.run(scenario()) == expected


@pytest.mark.slow
def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
    config = {"connections.max.idle.ms": "1500"}
    with (
        ForkedBroker(tmp_path, config=config) as broker,
        RawClient(broker.bootstrap_servers) as waiting,
        idle(broker, 2) as (silent, begun),
    ):
        begun.sendall(b"\x00\x00\x10\x00half a frame")
        answered = fetch(waiting, topic, 0, max_wait_ms=4000, min_bytes=1)
        assert answered.error_code == 0
        assert awaits_end(silent)
        assert awaits_end(begun)


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "PostgreSQL (SSLRequest)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
def test_a_client_of_another_protocol_is_named_in_the_log(
    start: Callable[..., EmbeddedBroker], tmp_path: Path, first: bytes, name: str
) -> None:
    with idle(start()) as (stranger,):
        stranger.sendall(first)
        assert awaits_end(stranger)
    assert f"it speaks {name}, and this is a Kafka broker: check the address" in log_of(tmp_path)


def test_a_client_of_tls_is_named_in_the_log(start: Callable[..., EmbeddedBroker], tmp_path: Path) -> None:
    host, _, port = start().bootstrap_servers.rpartition(":")
    context = ssl.create_default_context()
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    assert "it speaks TLS, and this listener does not" in log_of(tmp_path)
