"""Drives an engine under asyncio: one transport to each broker, one timer, and events told as they come.

Cancelling what waits for an operation leaves the operation as it is: what was sent is sent, and the engine goes on with
it while the loop runs. ``producer.py`` says what that means for its verbs.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.connection_log import ConnectionLog
from dualwrite.client.engine.contract import Command, Drivable, Open, Operation, Send
from dualwrite.client.net.asyncio_connection import AsyncioConnection, Loss
from dualwrite.client.net.socket_connection import context_of
from dualwrite.client.protocol.broker_protocol import Response
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import InvalidTransactionStateError

_LOOK_AFTER = 1.0
"""Seconds without a word from the loop after which it is given a turn before the engine is asked: what kept it from
running may have kept answers in the sockets, and the engine would count them as overdue."""

_TURNS = 2
"""Of the loop, until everything that had arrived is read: the first only begins with a look at the sockets."""


class AsyncDriver:
    """Drives one engine in one event loop: that in which it is first used. Not thread-safe.

    :param engine: what is driven.
    :param settings: how to reach brokers, and how many seconds opening a connection may take.
    :param clock: monotonic seconds.
    :raises ConfigurationError: if a file of the TLS settings is missing or malformed.
    """

    def __init__(self, engine: Drivable, settings: ClientSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._context = context_of(settings)
        self._log = ConnectionLog(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._links: dict[Endpoint, AsyncioConnection] = {}
        self._closing: set[AsyncioConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looking: asyncio.Handle | None = None
        self._looked_at = clock()
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, operation: Operation) -> Any:
        """Its outcome once ``operation`` is done, or its error raised. Cancelled, the operation goes on."""
        self.pump()
        if not operation.is_done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(done)
            operation.when_done(lambda _: _resolve(done))
            try:
                await done
            finally:
                self._waiting.discard(done)
        return operation.outcome()

    def pump(self) -> None:
        """Do what can be done now without waiting; a little later, if the loop must read first what has arrived.

        :raises InvalidTransactionStateError: in another event loop than that of the first call.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidTransactionStateError("the producer belongs to another event loop; make a new one in this one")
        now = self._clock()
        if self._links and now - self._looked_at > _LOOK_AFTER:
            if self._looking is None:
                self._look(_TURNS)
            return
        try:
            self._step(now)
        except BaseException:
            self.interrupted()
            raise

    async def close(self) -> None:
        """Close every connection, without a word to the engine; what still waits for an operation is cancelled. Safe to
        call twice, and in another event loop, where there is nothing left to do: a loop that ends closes sockets."""
        if self._loop is not asyncio.get_running_loop():
            return
        for handle in (self._timer, self._looking):
            if handle is not None:
                handle.cancel()
        self._timer = self._looking = None
        for endpoint in list(self._links):
            self._drop(endpoint)
        for done in self._waiting:
            done.cancel()
        while self._closing:
            link = self._closing.pop()
            await link.wait_closed()

    def opened(self, link: AsyncioConnection) -> None:
        """A connection's news."""
        self._log.opened(link.endpoint)
        self._tell(lambda now: self._engine.opened(link.endpoint, link.node.versions, now))

    def answered(self, link: AsyncioConnection, answers: list[Response]) -> None:
        """A connection's news."""

        def tell(now: float) -> None:
            for tag, message in answers:
                self._engine.answered(link.endpoint, tag, message, now)

        if answers:
            self._tell(tell)

    def lost(self, link: AsyncioConnection, error: Loss) -> None:
        """A connection's news."""
        self._log.lost(link.endpoint, error, self._clock(), is_idle=link.node.is_idle)
        self._drop(link.endpoint)
        self._tell(lambda now: self._engine.lost(link.endpoint, error, now))

    def interrupted(self) -> None:
        """An exception that is nobody's answer, as a signal's, struck in the middle of something: close every
        connection, as nobody knows how much of a request was written, and tell the engine."""
        for endpoint in list(self._links):
            self._drop(endpoint)
        self._engine.interrupted()

    def _tell(self, event: Callable[[float], None]) -> None:
        """The loop has news: it runs."""
        try:
            now = self._clock()
            event(now)
            if now - self._looked_at <= _LOOK_AFTER:  # else there may be more, which pump() waits for
                self._looked_at = now
            self.pump()
        except BaseException as error:
            if isinstance(error, Exception):  # an interrupt reaches whoever runs the loop; others have its outcome
                for done in self._waiting:
                    if not done.done():
                        done.set_exception(error)
            self.interrupted()
            raise

    def _look(self, turns: int) -> None:
        """Ask the engine after so many turns of the loop."""
        assert self._loop is not None
        if turns:
            self._looking = self._loop.call_soon(self._look, turns - 1)
            return
        self._looking = None
        self._looked_at = self._clock()
        self._tell(lambda _: None)

    def _step(self, now: float) -> None:
        """Carry out what the engine says."""
        for command in self._engine.step(now):
            self._carry_out(command)
        self._set_timer(now)

    def _carry_out(self, command: Command) -> None:
        endpoint = command.endpoint
        if type(command) is Send:
            # A connection that broke since the engine decided was told as lost, this request with it.
            if (link := self._links.get(endpoint)) is not None:
                link.send(command.request)
            return
        if type(command) is Open:
            self._log.opening(endpoint)
        elif (link := self._links.get(endpoint)) is not None:
            self._log.closed(endpoint, link.node.unanswered)
        self._drop(endpoint)
        if type(command) is Open:
            self._links[endpoint] = AsyncioConnection(endpoint, self._settings, self._context, self, self._clock)

    def _drop(self, endpoint: Endpoint) -> None:
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.close()
            self._closing = {other for other in self._closing if not other.is_gone} | {link}

    def _set_timer(self, now: float) -> None:
        """Have :meth:`_wake` called at the next moment at which something is due. A timer that comes too early looks
        again, so that one is not set and cancelled for each request."""
        due = [moment for link in self._links.values() if (moment := link.due) is not None]
        wake_at = self._engine.wake_at()
        if wake_at is not None:
            due.append(wake_at)
        if not due or (self._timer is not None and self._timer_at <= min(due)):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(due)
        assert self._loop is not None
        self._timer = self._loop.call_later(max(self._timer_at - now, 0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._tell(self._expire)

    def _expire(self, now: float) -> None:
        for link in list(self._links.values()):
            if (due := link.due) is not None and due <= now:
                link.expire()


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
