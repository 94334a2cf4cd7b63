"""An engine that sends the requests of a test, and both drivers behind one call."""

import asyncio
import contextlib
import gc
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import uvloop

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.drivers.blocking import BlockingDriver
from dualwrite.client.engine.contract import Close, Command, Open, Operation, Request, Send
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey, Message
from tests.support.client.scripted_broker import ended


class ReportedEvent(NamedTuple):
    """One event that the driver reported to the engine."""

    kind: str
    endpoint: Endpoint
    what: Any = None


class AskingEngine:
    """Connects, sends the given requests, and is done when all are answered; a lost connection ends it.

    :param questions: endpoint and message, asked all at once: ``None`` only opens.
    """

    def __init__(self, *questions: tuple[Endpoint, Message | None]) -> None:
        self.told: list[ReportedEvent] = []
        self.operation = Operation()
        self.commands: deque[Command] = deque()
        self.wakes: float | None = None
        self.steps = self.interruptions = 0
        self._questions: dict[Endpoint, list[Message]] = {}
        self._open: set[Endpoint] = set()
        self._tags = 100
        self._awaited: dict[int, Endpoint] = {}
        self.ask(*questions)

    def ask(self, *questions: tuple[Endpoint, Message | None]) -> Operation:
        """The next operation."""
        self.operation = Operation()
        for endpoint, message in questions:
            if endpoint not in self._open and endpoint not in self._questions:
                self.commands.append(Open(endpoint))
            self._questions.setdefault(endpoint, [])
            if message is not None:
                self._questions[endpoint].append(message)
        self._send_what_can_be_sent()
        return self.operation

    def close(self, endpoint: Endpoint) -> None:
        """Have the driver close it."""
        self._forget(endpoint)
        self.commands.append(Close(endpoint))
        self._finish_if_done()

    def events(self, kind: str) -> list[Any]:
        """The contents of the events of one kind."""
        return [told.what for told in self.told if told.kind == kind]

    def step(self, now: float) -> list[Command]:
        self.steps += 1
        commands = list(self.commands)
        self.commands.clear()
        return commands

    def wake_at(self) -> float | None:
        return self.wakes

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> None:
        self.told.append(ReportedEvent("opened", endpoint, versions))
        self._open.add(endpoint)
        self._send_what_can_be_sent()

    def answered(self, endpoint: Endpoint, tag: int, message: Message, now: float) -> None:
        self.told.append(ReportedEvent("answered", endpoint, message))
        assert self._awaited.pop(tag) == endpoint
        self._finish_if_done()

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        self.told.append(ReportedEvent("lost", endpoint, error))
        self._forget(endpoint)
        if not self.operation.is_done:
            self.operation.fail(error)

    def interrupted(self) -> None:
        self.interruptions += 1
        for endpoint in [*self._open, *self._questions]:
            self._forget(endpoint)
        if not self.operation.is_done:
            self.operation.fail(KafkaUnavailableError("interrupted"))

    def _forget(self, endpoint: Endpoint) -> None:
        self._open.discard(endpoint)
        self._questions.pop(endpoint, None)
        self._awaited = {tag: where for tag, where in self._awaited.items() if where != endpoint}

    def _send_what_can_be_sent(self) -> None:
        for endpoint in self._open & self._questions.keys():
            for message in self._questions.pop(endpoint):
                self._tags += 1
                self._awaited[self._tags] = endpoint
                key = next(key for key, api in APIS.items() if isinstance(message, api.request))
                version = int(min(api_version(key), 5))
                self.commands.append(Send(endpoint, Request(self._tags, key, version, message)))
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._awaited and not self._questions and not self.operation.is_done:
            self.operation.succeed(self.events("answered"))


def api_version(key: ApiKey) -> int:
    """The newest version of ``key`` that there is a message for."""
    return int(APIS[key].request.max_version)


def end_txn(producer_id: int = 1) -> Message:
    """A question whose answer a test can recognise."""
    return APIS[ApiKey.END_TXN].request(transactional_id="a", producer_id=producer_id, producer_epoch=2, committed=True)


def settings(**changes: Any) -> ClientSettings:
    """Patient enough for a busy machine."""
    made = ClientSettings((Endpoint("unused", 1),), connect_timeout=20, request_timeout=20)
    return replace(made, **changes)


Drive = Callable[..., Any]
"""``drive(engine, **settings)``: the outcome of the engine's operation, by one of the drivers."""


def drive_blocking(engine: AskingEngine, **changes: Any) -> Any:
    """By the blocking driver."""
    driver = BlockingDriver(engine, settings(**changes))
    try:
        return driver.wait(engine.operation)
    finally:
        driver.close()


def drive_async(engine: AskingEngine, **changes: Any) -> Any:
    """By the asyncio driver, in a loop of its own."""

    async def run() -> Any:
        driver = AsyncDriver(engine, settings(**changes))
        try:
            return await driver.wait(engine.operation)
        finally:
            await driver.close()

    return asyncio.run(run())


def echo(message: Any) -> Any:
    return ended(producer=(message.producer_id, 1))


@contextlib.contextmanager
def deaf() -> Iterator[Endpoint]:
    """A listener whose queue is full, so that the kernel leaves a SYN without an answer."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(2):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield Endpoint(*address[:2])


NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def run_in_loop(
    engine: AskingEngine,
    test: Callable[[AsyncDriver], Awaitable[Any]],
    new_loop: NewLoop = asyncio.new_event_loop,
    **changes: Any,
) -> Any:
    """``test`` with a driver of ``engine`` in a loop of its own; afterwards nothing may be left in the loop."""

    async def main() -> Any:
        driver = AsyncDriver(engine, settings(**changes))
        try:
            return await test(driver)
        finally:
            await driver.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    loop = new_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        gc.collect()  # what was not closed is a warning, and a warning is a failure


def ids(answers: list[Any]) -> list[int]:
    return [answer.producer_id for answer in answers]


def unused_endpoint() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Endpoint(*listener.getsockname()[:2])


def lost_error(engine: AskingEngine, drive: Drive, kind: type[Exception], **changes: Any) -> str:
    """The error that the engine got when it could not send."""
    with pytest.raises(kind) as caught:
        drive(engine, **changes)
    assert engine.events("lost") == [caught.value]
    return str(caught.value)


@contextlib.contextmanager
def resolving(
    monkeypatch: pytest.MonkeyPatch, *endpoints: Endpoint, family: int = socket.AF_INET
) -> Iterator[Endpoint]:
    """A host name with the addresses of ``endpoints``; the first of them is in ``family``."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host, port in endpoints]
    found[0] = (family, *found[0][1:])
    own = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **named: Any) -> Any:
        return found if host == "many.test" else own(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield Endpoint("many.test", 9092)
