"""How a request of the control plane ends without an answer: at its deadline, or struck by a signal handler."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.protocol.requests import describe_transactions
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import AnswerLostError
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.codec import read_request_head
from tests.support.client.scripted_broker import SILENCE, ScriptedBroker, described, scripted
from tests.support.waiting import eventually

CALL = describe_transactions("app-0")


class StruckClock:
    """A clock whose reading a signal handler strikes, once it is told so."""

    def __init__(self) -> None:
        self.reads_left = -1

    def __call__(self) -> float:
        self.reads_left -= 1
        if self.reads_left == 0:
            raise KeyboardInterrupt
        return time.monotonic()


def connect(endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> BlockingConnection:
    return BlockingConnection(endpoint, ClientSettings((endpoint,), connect_timeout=5, request_timeout=20), clock)


def test_a_connection_with_an_interrupted_request_gives_its_answer_to_no_other() -> None:
    clock = StruckClock()
    with scripted() as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, SILENCE)
        connection = connect(broker.endpoint, clock)
        clock.reads_left = 2  # the first one is before the request is sent
        with pytest.raises(KeyboardInterrupt):
            connection.request(CALL)
        assert eventually(lambda: broker.requests(ApiKey.DESCRIBE_TRANSACTIONS)), "the request was sent"
        assert not connection.is_usable()


def test_an_interrupted_opening_leaves_no_connection_behind() -> None:
    clock = StruckClock()
    clock.reads_left = 3
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        with pytest.raises(KeyboardInterrupt) as caught:
            connect(Endpoint(*listener.getsockname()[:2]), clock)
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(5)
            while accepted.recv(1000):
                pass
        assert caught.tb is not None, "which keeps what the constructor had made"


def test_a_request_waits_no_longer_than_its_own_limit() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, SILENCE)
        connection = connect(broker.endpoint)
        began = time.monotonic()
        with pytest.raises(AnswerLostError, match="timed out"):
            connection.request(CALL, timeout=0.05)
        assert time.monotonic() - began < 10


def test_a_request_waits_no_longer_than_the_socket_timeout() -> None:
    """Without an answer for so long, another attempt in a new connection may still have time."""
    has_ended = threading.Event()

    def held(_: Any) -> Any:
        has_ended.wait(5)
        return described()

    with scripted() as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, held)
        settings = ClientSettings((broker.endpoint,), connect_timeout=5, request_timeout=0.05)
        with pytest.raises(AnswerLostError, match="timed out"):
            BlockingConnection(broker.endpoint, settings).request(CALL, timeout=20)
        has_ended.set()


class DrippingBroker(ScriptedBroker):
    """Sends the beginning of an answer byte by byte, one for each second that its clock shows."""

    def __init__(self) -> None:
        super().__init__()
        self.drips_to: socket.socket | None = None
        self.readings_before_request: int | None = None
        self._now = 1000.0

    def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
        if read_request_head(frame)[0].api_key != ApiKey.DESCRIBE_TRANSACTIONS:
            return super().reply(connection, number, frame)
        self.drips_to = connection
        return True

    def clock(self) -> float:
        if self.readings_before_request == 0:
            drips_to = eventually(lambda: self.drips_to)
            assert drips_to is not None
            drips_to.sendall(b"\0")
        elif self.readings_before_request is not None:
            self.readings_before_request -= 1
        self._now += 1
        return self._now


def test_an_answer_that_comes_byte_by_byte_does_not_move_the_deadline() -> None:
    broker = DrippingBroker()
    try:
        connection = connect(broker.endpoint, broker.clock)
        broker.readings_before_request = 1
        with pytest.raises(AnswerLostError, match="timed out"):
            connection.request(CALL, timeout=3)
    finally:
        broker.close()
