"""The common behaviour of both drivers, over real sockets: open, ask, and report the outcome to the engine."""

import contextlib
import gc
import socket
import ssl
import struct
import threading
from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings, TlsSettings
from dualwrite.client.net.socket_connection import PATIENCE as SHORT_WAIT
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_request_head, write_response
from dualwrite.wire.frames import with_size
from tests.support.client.certificate import CERTIFICATE
from tests.support.client.driving import (
    AskingEngine,
    Drive,
    deaf,
    drive_async,
    drive_blocking,
    echo,
    end_txn,
    ids,
    lost_error,
    resolving,
    unused_endpoint,
)
from tests.support.client.sasl_server import handshake_answer, sasl_answer
from tests.support.client.scripted_broker import HANG_UP, SILENCE, Cut, ScriptedBroker, ended, scripted

pytestmark = pytest.mark.parametrize("drive", [drive_blocking, drive_async])
PATIENCE = 20.0


def test_a_request_is_answered_once_the_connection_is_open(drive: Drive) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, end_txn(7)))
        assert ids(drive(engine)) == [7]
        assert [told.kind for told in engine.told] == ["opened", "answered"]
        assert engine.events("opened")[0].of(ApiKey.END_TXN) == 5


def test_requests_do_not_wait_for_the_answers_to_others(drive: Drive) -> None:
    class Gathering(ScriptedBroker):
        """Answers nothing before it has five requests."""

        def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
            head, _ = read_request_head(frame)
            if head.api_key == ApiKey.API_VERSIONS:
                return super().reply(connection, number, frame)
            frames.append(frame)
            return len(frames) < 5 or all(super(Gathering, self).reply(connection, number, held) for held in frames)

    frames: list[bytes] = []
    with contextlib.closing(Gathering()) as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine(*((broker.endpoint, end_txn(number)) for number in range(5)))
        assert ids(drive(engine)) == [0, 1, 2, 3, 4]


def test_several_brokers_get_requests_at_the_same_time(drive: Drive) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def when_both_are_asked(message: Any) -> Any:
        both.wait()
        return echo(message)

    with scripted() as one, scripted() as other:
        for broker in (one, other):
            broker.answer(ApiKey.END_TXN, when_both_are_asked)
        engine = AskingEngine((one.endpoint, end_txn(1)), (other.endpoint, end_txn(2)))
        assert sorted(ids(drive(engine))) == [1, 2]


@pytest.mark.parametrize("secured", [False, True])
def test_a_broker_that_does_not_read_does_not_block_requests_to_another(
    drive: Drive, server_tls: ssl.SSLContext, secured: bool
) -> None:
    tls = server_tls if secured else None
    gate = threading.Event()

    class Slow(ScriptedBroker):
        """Reads its first request, and then nothing until the other broker was asked."""

        def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
            result = super().reply(connection, number, frame)
            assert gate.wait(PATIENCE)
            return result

    def open_gate(message: Any) -> Any:
        gate.set()
        return echo(message)

    huge = APIS[ApiKey.LIST_TRANSACTIONS].request(
        state_filters=["x" * 1000] * 900, producer_id_filters=list(range(10_000))
    )
    slow = Slow(tls=tls)
    with contextlib.closing(slow), scripted(tls=tls) as other:
        answer = APIS[ApiKey.LIST_TRANSACTIONS].response(
            throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=[]
        )
        slow.answer(ApiKey.LIST_TRANSACTIONS, answer)
        other.answer(ApiKey.END_TXN, open_gate)
        engine = AskingEngine(*[(slow.endpoint, huge)] * 16, (other.endpoint, end_txn(2)))
        assert len(drive(engine, tls=TlsSettings(ca_pem=CERTIFICATE) if secured else None)) == 17
        assert len(slow.requests(ApiKey.LIST_TRANSACTIONS)) == 16


def test_a_broker_that_cannot_be_reached_is_lost(drive: Drive) -> None:
    endpoint = unused_endpoint()
    message = lost_error(AskingEngine((endpoint, end_txn())), drive, KafkaUnavailableError)
    assert message == f"broker {endpoint}: Connection refused"


def test_an_unknown_host_is_lost(drive: Drive) -> None:
    engine = AskingEngine((Endpoint("no-such-host.invalid", 9092), end_txn()))
    assert "broker no-such-host.invalid:9092: " in lost_error(engine, drive, KafkaUnavailableError)


def test_a_name_that_no_host_can_have_is_lost(drive: Drive) -> None:
    endpoint = Endpoint("a" * 64 + ".invalid", 9092)
    assert f"broker {endpoint}: " in lost_error(AskingEngine((endpoint, end_txn())), drive, KafkaUnavailableError)


def test_the_addresses_of_a_host_are_tried_in_turn(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        with resolving(monkeypatch, unused_endpoint(), unused_endpoint(), broker.endpoint) as host:
            assert ids(drive(AskingEngine((host, end_txn(3))))) == [3]


UNKNOWN_FAMILY = 255
"""As the family of IPv6 is on a machine that has IPv4 alone."""
NO_HOST = Endpoint("255.255.255.255", 9092)
"""An address to which no system connects by TCP: the attempt fails before it begins."""


@pytest.mark.parametrize("family", [socket.AF_INET, UNKNOWN_FAMILY])
def test_an_address_that_fails_at_once_gives_way_to_the_next(
    drive: Drive, family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        with resolving(monkeypatch, NO_HOST, broker.endpoint, family=family) as host:
            assert ids(drive(AskingEngine((host, end_txn(3))))) == [3]
            gc.collect()  # a socket that was left open is a warning, and a warning is a failure


def test_a_host_none_of_whose_addresses_answers_is_lost_once(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    with resolving(monkeypatch, unused_endpoint(), unused_endpoint()) as host:
        message = lost_error(AskingEngine((host, end_txn())), drive, KafkaUnavailableError)
    assert message == "broker many.test:9092: Connection refused"


@pytest.mark.slow
def test_an_address_that_does_not_answer_gives_way_to_the_next(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as broker, deaf() as silent:
        broker.answer(ApiKey.END_TXN, echo)
        with resolving(monkeypatch, silent, broker.endpoint) as host:
            assert ids(drive(AskingEngine((host, end_txn(3))), connect_timeout=2)) == [3]


def test_after_an_address_that_leads_nowhere_the_next_attempt_begins_with_the_next_address(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy whose broker is down accepts the connection, and hangs up."""
    with scripted() as proxy, scripted() as other, scripted() as broker:
        proxy.answer(ApiKey.API_VERSIONS, HANG_UP)
        other.answer(ApiKey.API_VERSIONS, HANG_UP)
        broker.answer(ApiKey.END_TXN, echo)
        with resolving(monkeypatch, proxy.endpoint, other.endpoint, broker.endpoint) as host:
            for _ in range(2):
                assert "closed" in lost_error(AskingEngine((host, end_txn())), drive, KafkaUnavailableError)
            for number in (3, 4):
                assert ids(drive(AskingEngine((host, end_txn(number))))) == [number]
        assert [len(each.requests(ApiKey.API_VERSIONS)) for each in (proxy, other, broker)] == [1, 1, 2]


def test_an_address_that_does_not_answer_is_given_up(drive: Drive) -> None:
    with deaf() as silent:
        message = lost_error(AskingEngine((silent, end_txn())), drive, KafkaUnavailableError, connect_timeout=0.2)
    assert message == f"broker {silent}: timed out"


def test_a_broker_that_does_not_answer_in_the_opening_is_given_up(drive: Drive) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.API_VERSIONS, SILENCE)
        engine = AskingEngine((broker.endpoint, end_txn()))
        message = lost_error(engine, drive, KafkaUnavailableError, connect_timeout=0.2)
        assert message == f"broker {broker.endpoint}: timed out"


@pytest.mark.parametrize("secured", [False, True])
def test_an_answer_that_comes_after_the_patience_of_the_short_wait_is_taken(
    drive: Drive, server_tls: ssl.SSLContext, secured: bool
) -> None:
    asked, answer_now = threading.Event(), threading.Event()

    def late(message: Any) -> Any:
        asked.set()
        assert answer_now.wait(PATIENCE)
        return echo(message)

    tls = TlsSettings(ca_pem=CERTIFICATE) if secured else None
    with scripted(tls=server_tls if secured else None) as broker:
        broker.answer(ApiKey.END_TXN, late)
        timer = threading.Timer(0.2, answer_now.set)
        timer.start()
        assert ids(drive(AskingEngine((broker.endpoint, end_txn(3))), tls=tls)) == [3]
        timer.join()
        assert asked.is_set()


def whole_answer(api_key: ApiKey, broker: ScriptedBroker) -> bytes:
    if api_key is ApiKey.END_TXN:
        return with_size(write_response(api_key, 5, 1, ended(producer=(7, 1))))
    return with_size(write_response(api_key, 4, 0, broker.api_versions(4)))


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.END_TXN])
def test_a_broker_that_hangs_up_in_the_middle_of_an_answer_is_lost_wherever_that_is(
    drive: Drive, api_key: ApiKey
) -> None:
    with scripted() as broker:
        data = whole_answer(api_key, broker)
        for cut in range(0, len(data), 1 if api_key is ApiKey.END_TXN else 17):
            broker.answer(api_key, Cut(data[:cut]))
            engine = AskingEngine((broker.endpoint, end_txn()))
            assert "broker" in lost_error(engine, drive, KafkaUnavailableError)
            assert not engine.events("answered")


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.END_TXN])
def test_a_connection_that_the_broker_resets_is_lost_with_the_systems_reason(drive: Drive, api_key: ApiKey) -> None:
    class Resetting(ScriptedBroker):
        def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
            if read_request_head(frame)[0].api_key != api_key:
                return super().reply(connection, number, frame)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False

    with contextlib.closing(Resetting()) as broker:
        message = lost_error(AskingEngine((broker.endpoint, end_txn())), drive, KafkaUnavailableError)
    assert message.startswith(f"broker {broker.endpoint}: Connection reset by peer")


def test_a_complete_answer_counts_although_the_broker_hangs_up_after_it(drive: Drive) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, Cut(whole_answer(ApiKey.END_TXN, broker)))
        assert ids(drive(AskingEngine((broker.endpoint, end_txn())))) == [7]


@pytest.mark.parametrize(
    "answer", [HANG_UP, with_size(b"HTTP"), b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xff\xff\xff", with_size(b"")]
)
@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.END_TXN])
def test_an_answer_that_makes_no_sense_loses_the_connection(drive: Drive, answer: Any, api_key: ApiKey) -> None:
    with scripted() as broker:
        broker.answer(api_key, answer)
        engine = AskingEngine((broker.endpoint, end_txn()))
        assert f"broker {broker.endpoint}: " in lost_error(engine, drive, KafkaUnavailableError)


def test_an_engine_that_asks_to_be_woken_is_called_again_without_an_event(drive: Drive) -> None:
    class Waking(AskingEngine):
        wakings = 0

        def step(self, now: float) -> Any:
            if self.wakes is None:
                self.wakes = now + 0.02
            elif now >= self.wakes and not self.operation.is_done:
                self.wakes = now + 0.02
                self.wakings += 1
                if self.wakings == 3:
                    self.operation.succeed("woken")
            return super().step(now)

    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, SILENCE)
        assert drive(Waking((broker.endpoint, end_txn()))) == "woken"


def test_a_wake_leaves_a_connection_whose_authentication_lasts(drive: Drive) -> None:
    class Waking(AskingEngine):
        def step(self, now: float) -> Any:
            if self.wakes is None and self._open:
                self.wakes = now + 0.02
            elif self.wakes is not None and now >= self.wakes and not self.operation.is_done:
                self.operation.succeed("woken")
            return super().step(now)

        def _finish_if_done(self) -> None:
            """Only the wake ends the operation."""

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=600_000))
        engine = Waking((broker.endpoint, None))
        assert drive(engine, sasl=SaslSettings("PLAIN", "u", "p")) == "woken"
        assert not engine.events("lost")


def test_an_engine_is_woken_in_time_while_a_broker_owes_it_an_answer(drive: Drive) -> None:
    """The moment is so far away that the blocking driver first waits on the socket alone."""
    was_woken = threading.Event()

    class Waking(AskingEngine):
        def answered(self, endpoint: Endpoint, tag: int, message: Any, now: float) -> None:
            pytest.fail("the driver waited for the answer, and not until the moment")

        def step(self, now: float) -> Any:
            if self.wakes is None and self._awaited:
                self.wakes = now + 6 * SHORT_WAIT
            elif self.wakes is not None and now >= self.wakes and not self.operation.is_done:
                self.operation.succeed("woken")
                was_woken.set()
            return super().step(now)

    def held(message: Any) -> Any:
        was_woken.wait(PATIENCE)
        return echo(message)

    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, held)
        assert drive(Waking((broker.endpoint, end_txn()))) == "woken"


def test_a_connection_that_the_engine_closes_is_not_lost(drive: Drive) -> None:
    with scripted() as broker, scripted() as other:
        broker.answer(ApiKey.END_TXN, SILENCE)
        other.answer(ApiKey.END_TXN, echo)

        class Closing(AskingEngine):
            """Closes the silent broker once the other has answered."""

            def answered(self, endpoint: Endpoint, tag: int, message: Any, now: float) -> None:
                super().answered(endpoint, tag, message, now)
                self.close(broker.endpoint)

        engine = Closing((broker.endpoint, end_txn(1)), (other.endpoint, end_txn(2)))
        drive(engine)
        assert ids(engine.events("answered")) == [2]
        assert not engine.events("lost")
