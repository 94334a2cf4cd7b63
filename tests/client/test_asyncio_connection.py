"""How a connection under asyncio opens: what it waits for, and that it can be closed meanwhile."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings, SocketSettings, TlsSettings
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.net import asyncio_connection
from dualwrite.client.net.socket_options import tune
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.oauth import TokenSource
from dualwrite.errors import KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from tests.support.client.driving import LOOPS, AskingEngine, NewLoop, deaf, echo, end_txn, run_in_loop
from tests.support.client.sasl_server import handshake_answer, sasl_answer
from tests.support.client.scripted_broker import ScriptedBroker, scripted

PATIENCE = 20.0


@pytest.mark.parametrize("secured", [False, True])
def test_a_connection_that_is_being_opened_can_be_closed(secured: bool) -> None:
    with deaf() as silent:
        engine = AskingEngine((silent, end_txn()))

        async def test(driver: AsyncDriver) -> None:
            driver.pump()
            await asyncio.sleep(0)
            await asyncio.wait_for(driver.close(), PATIENCE)

        run_in_loop(engine, test, connect_timeout=10 * PATIENCE, tls=TlsSettings() if secured else None)
        assert engine.told == []


@contextlib.contextmanager
def scripted_endpoint() -> Iterator[Endpoint]:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        yield broker.endpoint


@LOOPS
@pytest.mark.parametrize("place", [scripted_endpoint, deaf])
def test_a_connection_can_be_closed_at_every_moment_of_its_opening(
    place: Callable[[], contextlib.AbstractContextManager[Endpoint]], new_loop: NewLoop
) -> None:
    """The name look-up takes no thread here, so that each turn of the loop is one step of the opening."""

    async def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    with place() as endpoint:
        for steps in range(20):
            engine = AskingEngine((endpoint, end_txn()))

            async def test(driver: AsyncDriver, engine: AskingEngine = engine, steps: int = steps) -> None:
                asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign,assignment]
                driver.pump()
                for _ in range(steps):
                    await asyncio.sleep(0)
                engine.close(endpoint)
                driver.pump()
                assert not engine.events("lost")
                await asyncio.wait_for(driver.close(), PATIENCE)

            run_in_loop(engine, test, new_loop, connect_timeout=10 * PATIENCE)


def test_a_token_is_fetched_while_the_loop_serves_others() -> None:
    served = threading.Event()

    def fetch(_config: str) -> tuple[str, float]:
        assert served.wait(PATIENCE), "the loop waits for the token"
        return "token", 4e9

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer())
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, end_txn(7)))

        async def test(driver: AsyncDriver) -> None:
            waiting = asyncio.create_task(driver.wait(engine.operation))
            await asyncio.sleep(0)
            served.set()
            (answer,) = await waiting
            assert answer.producer_id == 7

        run_in_loop(engine, test, sasl=SaslSettings("OAUTHBEARER", tokens=TokenSource(fetch)))
        (authenticate,) = broker.requests(ApiKey.SASL_AUTHENTICATE)
        assert authenticate.message.auth_bytes.startswith(b"n,,\x01auth=Bearer token")


def test_a_callback_that_gives_no_token_in_time_leaves_the_broker_unavailable() -> None:
    ended = threading.Event()

    def fetch(_config: str) -> tuple[str, float]:
        ended.wait(PATIENCE)
        return "token", 4e9

    with scripted() as broker:
        engine = AskingEngine((broker.endpoint, end_txn(7)))

        async def test(driver: AsyncDriver) -> None:
            try:
                with pytest.raises(KafkaUnavailableError, match="timed out"):
                    await driver.wait(engine.operation)
                assert not ended.is_set()
            finally:
                ended.set()

        sasl = SaslSettings("OAUTHBEARER", tokens=TokenSource(fetch))
        run_in_loop(engine, test, sasl=sasl, connect_timeout=0.1)
        assert not broker.seen


def test_a_name_look_up_that_does_not_end_leaves_the_broker_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def look_up(*_: Any, **__: Any) -> Any:
        ended.wait(PATIENCE)
        raise OSError("too late")

    engine = AskingEngine((Endpoint("slow.test", 9092), end_txn(7)))

    async def test(driver: AsyncDriver) -> None:
        try:
            with pytest.raises(KafkaUnavailableError, match="timed out"):
                await driver.wait(engine.operation)
        finally:
            ended.set()

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    run_in_loop(engine, test, connect_timeout=0.1)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """The sockets whose options are set, and whether they were connected then."""
    noted: list[tuple[Any, bool]] = []

    def noting(connection: Any, options: SocketSettings) -> None:
        try:
            connection.getpeername()
        except OSError:
            noted.append((connection, False))
        else:
            noted.append((connection, True))
        tune(connection, options)

    monkeypatch.setattr(asyncio_connection, "tune", noting)
    return noted


@LOOPS
def test_options_are_set_before_the_socket_connects_and_after_the_loop_has_set_its_own(
    tuned: list[tuple[Any, bool]], new_loop: NewLoop
) -> None:
    with scripted() as broker:
        engine = AskingEngine((broker.endpoint, None))

        async def test(driver: AsyncDriver) -> None:
            await driver.wait(engine.operation)
            assert [was_connected for _, was_connected in tuned] == [False, True]
            assert not tuned[-1][0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

        run_in_loop(engine, test, new_loop, socket=SocketSettings(no_delay=False))


@LOOPS
def test_a_close_does_not_wait_for_a_broker_that_reads_nothing(new_loop: NewLoop) -> None:
    gate = threading.Event()

    class Slow(ScriptedBroker):
        """Reads its first request, and then nothing until the end."""

        def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
            if gate.is_set():
                return False
            super().reply(connection, number, frame)
            return gate.wait(10 * PATIENCE)

    huge = APIS[ApiKey.LIST_TRANSACTIONS].request(state_filters=["x" * 1000] * 900, producer_id_filters=[])
    with contextlib.closing(Slow()) as broker:
        engine = AskingEngine((broker.endpoint, None))

        async def test(driver: AsyncDriver) -> None:
            await driver.wait(engine.operation)
            engine.ask(*[(broker.endpoint, huge)] * 16)
            driver.pump()
            try:
                await asyncio.wait_for(driver.close(), PATIENCE)
            finally:
                gate.set()

        run_in_loop(engine, test, new_loop)
