"""The blocking driver alone: what it costs, what interrupts it, and that a fork leaves the parent's driver whole."""

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings, TlsSettings
from dualwrite.client.drivers.blocking import BlockingDriver
from dualwrite.client.net.socket_connection import SocketConnection
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError, DualWriteError, KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from tests.support.child import in_child
from tests.support.client.driving import AskingEngine, end_txn, settings
from tests.support.client.sasl_server import handshake_answer, sasl_answer
from tests.support.client.scripted_broker import HANG_UP, SILENCE, ScriptedBroker, ended, scripted


def echo(message: Any) -> Any:
    return ended(producer=(message.producer_id, 1))


@contextlib.contextmanager
def driving(engine: AskingEngine, **arguments: Any) -> Iterator[BlockingDriver]:
    driver = BlockingDriver(engine, settings(), **arguments)
    try:
        yield driver
    finally:
        driver.close()


@contextlib.contextmanager
def asking(*brokers: ScriptedBroker, **arguments: Any) -> Iterator[tuple[AskingEngine, BlockingDriver]]:
    """A driver with an open connection to each of ``brokers``, which echo."""
    for broker in brokers:
        broker.answer(ApiKey.END_TXN, echo)
    engine = AskingEngine(*((broker.endpoint, None) for broker in brokers))
    with driving(engine, **arguments) as driver:
        driver.wait(engine.operation)
        engine.told.clear()
        yield engine, driver


class CountingSocket:
    """A socket that notes which of its methods are called."""

    def __init__(self, inner: socket.socket) -> None:
        self.called: list[str] = []
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(self._inner, name)


def test_a_request_on_an_open_connection_is_one_send_and_one_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as broker, scripted() as idle, asking(broker, idle) as (engine, driver):
        link = driver.connections[broker.endpoint]
        counting = CountingSocket(link.socket)
        monkeypatch.setattr(link, "socket", counting)
        monkeypatch.setattr(selectors.DefaultSelector, "select", lambda *_: pytest.fail("the selector was asked"))
        steps = engine.steps
        for number in range(10):
            driver.wait(engine.ask((broker.endpoint, end_txn(number))))
        assert counting.called == ["send", "recv"] * 10
        assert engine.steps - steps == 10, "an engine is not asked when there is nothing to say"
        assert [answer.producer_id for answer in engine.events("answered")] == list(range(10))


class GreenSocket(socket.socket):
    """A socket as gevent's: unless it is non-blocking, it waits for data, regardless of the flags."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        try:
            return super().recv(size, flags)
        except BlockingIOError:
            assert self.gettimeout() == 0, "it waits for ever"
            raise


def test_a_socket_of_a_program_with_green_threads_is_never_waited_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", GreenSocket)
    with scripted() as broker, asking(broker) as (engine, driver):
        link = driver.connections[broker.endpoint]
        assert type(link.socket) is GreenSocket
        assert link.advance(0.0) == [], "a selector may have been wrong"
        (answer,) = driver.wait(engine.ask((broker.endpoint, end_txn(2))))
        assert answer.producer_id == 2
        driver.pump()


def test_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_elsewhere(thread: threading.Thread) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the driver started a thread"
        start(thread)

    with scripted() as broker:
        monkeypatch.setattr(threading.Thread, "start", start_elsewhere)
        with asking(broker) as (engine, driver):
            driver.wait(engine.ask((broker.endpoint, end_txn())))


class InterruptedHereError(BaseException):
    """What a signal's handler raises."""


def test_an_interrupted_wait_drops_its_connections_and_informs_the_engine() -> None:
    def interrupt(_number: int, _frame: Any) -> None:
        raise InterruptedHereError

    def interrupting(_message: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return SILENCE

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with scripted() as broker, asking(broker) as (engine, driver):
            broker.answer(ApiKey.END_TXN, interrupting)
            with pytest.raises(InterruptedHereError):
                driver.wait(engine.ask((broker.endpoint, end_txn(1))))
            assert engine.interruptions == 1
            assert not driver.connections
            broker.answer(ApiKey.END_TXN, echo)
            (answer,) = driver.wait(engine.ask((broker.endpoint, end_txn(2))))
            assert answer.producer_id == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_connection_that_was_closed_while_idle_is_lost_before_anything_is_sent_on_it() -> None:
    late = 0.0
    with scripted() as broker, asking(broker, clock=lambda: time.monotonic() + late) as (engine, driver):
        broker.hang_up()
        link = driver.connections[broker.endpoint]
        link.socket.settimeout(20)
        assert link.socket.recv(1, socket.MSG_PEEK) == b""  # the end of the stream has arrived
        late = 2.0
        with pytest.raises(KafkaUnavailableError, match="closed the connection"):
            driver.wait(engine.ask((broker.endpoint, end_txn())))
        assert not broker.requests(ApiKey.END_TXN)


def test_a_connection_that_takes_no_request_is_lost() -> None:
    with scripted() as broker, asking(broker) as (engine, driver):
        driver.connections[broker.endpoint].socket.shutdown(socket.SHUT_WR)
        with pytest.raises(KafkaUnavailableError, match=f"broker {broker.endpoint}: Broken pipe"):
            driver.wait(engine.ask((broker.endpoint, end_txn())))
        assert not driver.connections


def test_a_connection_whose_authentication_runs_out_is_not_used_any_more() -> None:
    late = 0.0
    sasl = SaslSettings("PLAIN", "u", "p")
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=600_000))
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, end_txn(1)))
        driver = BlockingDriver(engine, settings(sasl=sasl), clock=lambda: time.monotonic() + late)
        with contextlib.closing(driver):
            driver.wait(engine.operation)
            late = 500.0
            driver.wait(engine.ask((broker.endpoint, end_txn(2))))
            late = 511.0
            with pytest.raises(KafkaUnavailableError, match="its authentication has run out"):
                driver.wait(engine.ask((broker.endpoint, end_txn(3))))
            driver.wait(engine.ask((broker.endpoint, end_txn(4))))
        assert [seen.message.producer_id for seen in broker.requests(ApiKey.END_TXN)] == [1, 2, 4]


class RetryingEngine(AskingEngine):
    """Asks ``then`` once the broker that it asked first is lost, and has no moment to wake at."""

    def __init__(self, first: Endpoint, then: Endpoint) -> None:
        super().__init__((first, end_txn(1)))
        self._then = then

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        self._forget(endpoint)
        operation = self.operation
        self.ask((self._then, end_txn(2)))
        self.operation = operation


def test_an_engine_that_loses_a_broker_at_once_can_ask_another_at_once() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = RetryingEngine(Endpoint("no-such-host.invalid", 9092), broker.endpoint)
        with driving(engine) as driver:
            assert [answer.producer_id for answer in driver.wait(engine.operation)] == [2]


def test_an_authentication_that_runs_out_takes_no_answer_away() -> None:
    late, answer_now = 0.0, threading.Event()

    def held(message: Any) -> Any:
        assert answer_now.wait(20)
        return echo(message)

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=600_000))
        broker.answer(ApiKey.END_TXN, held)
        engine = AskingEngine((broker.endpoint, None))
        sasl = SaslSettings("PLAIN", "u", "p")
        driver = BlockingDriver(engine, settings(sasl=sasl), clock=lambda: time.monotonic() + late)
        with contextlib.closing(driver):
            driver.wait(engine.operation)
            operation = engine.ask((broker.endpoint, end_txn(3)))
            driver.pump()
            late = 511.0
            driver.pump()
            answer_now.set()
            assert [answer.producer_id for answer in driver.wait(operation)] == [3]


def test_a_pump_sends_and_receives_without_waiting() -> None:
    answer_now = threading.Event()

    def held(message: Any) -> Any:
        assert answer_now.wait(20)
        return echo(message)

    with scripted() as broker, asking(broker) as (engine, driver):
        broker.answer(ApiKey.END_TXN, held)
        operation = engine.ask((broker.endpoint, end_txn(3)))
        driver.pump()
        answer_now.set()
        arriving = driver.connections[broker.endpoint].socket
        arriving.settimeout(20)
        arriving.recv(1, socket.MSG_PEEK)
        driver.pump()
        assert [answer.producer_id for answer in operation.outcome()] == [3]


def test_a_pump_on_a_silent_broker_returns_with_nothing() -> None:
    with scripted() as broker, asking(broker) as (engine, driver):
        broker.answer(ApiKey.END_TXN, SILENCE)
        operation = engine.ask((broker.endpoint, end_txn(3)))
        driver.pump()
        assert not operation.is_done


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_that_closes_leaves_the_parents_driver_as_it_was() -> None:
    with scripted() as one, scripted() as other, asking(one, other) as (engine, driver):
        assert in_child(lambda: driver.close() is None)
        answers = driver.wait(engine.ask((one.endpoint, end_txn(1)), (other.endpoint, end_txn(2))))
        assert sorted(answer.producer_id for answer in answers) == [1, 2]
        assert not engine.events("lost")


def test_an_engine_that_waits_for_nothing_is_not_waited_for() -> None:
    engine = AskingEngine()
    engine.ask()
    engine.operation = operation = type(engine.operation)()
    with driving(engine) as driver, pytest.raises(AssertionError, match="waits for nothing"):
        driver.wait(operation)


def test_a_driver_may_be_closed_twice_and_closes_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted_selectors(monkeypatch)
    with scripted() as broker, asking(broker) as (_, driver):
        connection = driver.connections[broker.endpoint].socket
        driver.close()
        driver.close()
        assert connection.fileno() < 0
        assert [selector.get_map() for selector in made] == [None], "a selector is open"


def test_a_missing_tls_file_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location /no/such/ca\.pem"):
        BlockingDriver(AskingEngine(), settings(tls=TlsSettings(ca_location="/no/such/ca.pem")))


def test_a_connection_that_is_opened_anew_replaces_the_one_before() -> None:
    with scripted() as broker, asking(broker) as (engine, driver):
        before = driver.connections[broker.endpoint].socket
        engine.close(broker.endpoint)
        (answer,) = driver.wait(engine.ask((broker.endpoint, end_txn(5))))
        assert answer.producer_id == 5
        assert before.fileno() < 0
        assert {seen.connection for seen in broker.requests(ApiKey.END_TXN)} == {2}


def noted_selectors(monkeypatch: pytest.MonkeyPatch) -> list[selectors.BaseSelector]:
    """The selectors that are made from now on."""
    made: list[selectors.BaseSelector] = []

    class Noted(selectors.DefaultSelector):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(selectors, "DefaultSelector", Noted)
    return made


def test_an_address_is_a_new_socket_for_the_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refusing = closed.getsockname()
    with scripted() as broker:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (refusing, broker.endpoint)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((Endpoint("many.test", 9092), end_txn(1)))
        made = noted_selectors(monkeypatch)
        with driving(engine) as driver:
            driver.wait(engine.operation)
            assert driver.connections[Endpoint("many.test", 9092)].attempt == 2
            assert [len(selector.get_map()) for selector in made] == [1]


def test_an_interrupted_name_lookup_leaves_no_connection_open_for_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted() as first, scripted() as second:
        look_up, interruptions = socket.getaddrinfo, [InterruptedHereError()]

        def interrupted(*arguments: Any, **options: Any) -> Any:
            if interruptions:
                raise interruptions.pop()
            return look_up(*arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", interrupted)
        engine = AskingEngine((first.endpoint, None), (second.endpoint, None))
        with driving(engine) as driver:
            with pytest.raises(InterruptedHereError):
                driver.pump()
            assert engine.interruptions == 1
            driver.wait(engine.ask((first.endpoint, None), (second.endpoint, None)))
            assert len(engine.events("opened")) == 2


@pytest.mark.parametrize("struck", ["wait", "pump"])
@pytest.mark.parametrize("call", ["wait", "pump"])
def test_an_interrupt_during_the_report_of_another_is_reported_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch, call: str, struck: str
) -> None:
    with scripted() as broker, asking(broker) as (engine, driver):
        broker.answer(ApiKey.END_TXN, HANG_UP)
        operation = engine.ask((broker.endpoint, end_txn()))

        def interrupted(*_: Any) -> None:
            raise InterruptedHereError

        if struck == "pump":
            driver.pump()
            ending = driver.connections[broker.endpoint].socket
            ending.settimeout(20)
            ending.recv(1, socket.MSG_PEEK)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "lost", interrupted)
            patch.setattr(engine, "interrupted", interrupted)
            with pytest.raises(InterruptedHereError):
                driver.wait(operation) if struck == "wait" else driver.pump()
        assert not engine.interruptions
        if call == "wait":
            with pytest.raises(KafkaUnavailableError, match="interrupted"):
                driver.wait(operation)
        else:
            driver.pump()
        assert engine.interruptions == 1
        assert not driver.connections


def test_no_answer_is_awaited_before_the_socket_has_taken_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, waits = SocketConnection.receive_patiently, []

    def noting(self: SocketConnection) -> list[Any] | None:
        waits.append(self.wants_write)
        return plain(self)

    monkeypatch.setattr(SocketConnection, "receive_patiently", noting)
    long = APIS[ApiKey.LIST_TRANSACTIONS].request(state_filters=["x" * 1000] * 900, producer_id_filters=[])
    answer = APIS[ApiKey.LIST_TRANSACTIONS].response(
        throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=[]
    )
    with scripted() as broker, asking(broker) as (engine, driver):
        broker.answer(ApiKey.LIST_TRANSACTIONS, answer)
        driver.connections[broker.endpoint].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
        operation = engine.ask((broker.endpoint, long))
        driver.pump()
        assert driver.connections[broker.endpoint].wants_write, "the socket has taken it all"
        assert len(driver.wait(operation)) == 1
        assert not any(waits)


def test_a_pump_reads_arrived_answers_before_the_engine_checks_deadlines() -> None:
    late = 0.0
    with scripted() as broker, asking(broker, clock=lambda: time.monotonic() + late) as (engine, driver):
        operation = engine.ask((broker.endpoint, end_txn(3)))
        driver.pump()
        arriving = driver.connections[broker.endpoint].socket
        arriving.settimeout(20)
        arriving.recv(1, socket.MSG_PEEK)
        late = 31.0
        step = engine.step
        done: list[bool] = []
        engine.step = lambda now: (done.append(operation.is_done), step(now))[1]  # type: ignore[method-assign]
        driver.pump()
        assert done == [True]
