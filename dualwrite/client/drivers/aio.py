"""Drives an engine under asyncio: one transport to each broker, one timer, and events reported as they come.

Cancelling a wait does not cancel its operation: requests that were sent stay sent, and the engine goes on with the
operation while the loop runs. ``async_two_phase_producer.py`` says what that means for the producer's verbs.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.connection_log import ConnectionLog
from dualwrite.client.engine.contract import Command, Drivable, Open, Operation, Send
from dualwrite.client.net.asyncio_connection import AsyncioConnection, Loss
from dualwrite.client.net.tls import RenewedContext
from dualwrite.client.protocol.broker_protocol import Response
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import InvalidTransactionStateError

_LOOK_AFTER = 1.0
"""If the loop has not run for so many seconds, it gets a turn before the engine steps. The delay may have left answers
in the sockets, and the engine would count them as overdue."""

_TURNS = 2
"""Turns of the loop until everything that has arrived is read: the first only starts to poll the sockets."""


class AsyncDriver:
    """Drives one engine in one event loop: the loop of its first use. Not thread-safe.

    :param engine: the engine to drive.
    :param settings: how to reach brokers, and how many seconds opening a connection may take.
    :param clock: monotonic seconds.
    :raises ConfigurationError: if a file of the TLS settings is missing or malformed.
    """

    def __init__(self, engine: Drivable, settings: ClientSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._context = RenewedContext(settings.tls)
        self._log = ConnectionLog(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connections: dict[Endpoint, AsyncioConnection] = {}
        """The connections that are open or being opened."""
        self._closing: set[AsyncioConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looking: asyncio.Handle | None = None
        self._looked_at = clock()
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, operation: Operation) -> Any:
        """Wait for ``operation``; return its result or raise its error. If the wait is cancelled, the operation goes
        on."""
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
        """Do everything that needs no waiting; slightly later, if the loop must first read what has arrived.

        :raises InvalidTransactionStateError: in another event loop than that of the first call.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidTransactionStateError("the producer belongs to another event loop; make a new one in this one")
        now = self._clock()
        if self.connections and now - self._looked_at > _LOOK_AFTER:
            if self._looking is None:
                self._look(_TURNS)
            return
        try:
            self._step(now)
        except BaseException:
            self.interrupted()
            raise

    async def close(self) -> None:
        """Close every connection without notifying the engine, and cancel waits for operations. Safe to call twice,
        also in another event loop, where it does nothing: a loop that ends closes its sockets."""
        if self._loop is not asyncio.get_running_loop():
            return
        for handle in (self._timer, self._looking):
            if handle is not None:
                handle.cancel()
        self._timer = self._looking = None
        for endpoint in list(self.connections):
            self._drop(endpoint)
        for done in self._waiting:
            done.cancel()
        while self._closing:
            link = self._closing.pop()
            await link.wait_closed()

    def opened(self, link: AsyncioConnection) -> None:
        """Requests may be sent; see ConnectionListener."""
        self._log.opened(link.endpoint)
        self._tell(lambda now: self._engine.opened(link.endpoint, link.node.versions, now))

    def answered(self, link: AsyncioConnection, answers: list[Response]) -> None:
        """Some requests were answered; see ConnectionListener."""

        def tell(now: float) -> None:
            for tag, message in answers:
                self._engine.answered(link.endpoint, tag, message, now)

        if answers:
            self._tell(tell)

    def lost(self, link: AsyncioConnection, error: Loss) -> None:
        """The connection could not be opened, or broke; see ConnectionListener."""
        self._log.lost(link.endpoint, error, self._clock(), is_idle=link.node.is_idle)
        self._drop(link.endpoint)
        self._tell(lambda now: self._engine.lost(link.endpoint, error, now))

    def interrupted(self) -> None:
        """An exception from outside, such as a signal handler's, struck in the middle of a step: close every
        connection, as it is unknown how much of a request was written, and notify the engine."""
        for endpoint in list(self.connections):
            self._drop(endpoint)
        self._engine.interrupted()

    def _tell(self, event: Callable[[float], None]) -> None:
        """Report an event to the engine. An event means that the loop is running."""
        try:
            now = self._clock()
            event(now)
            if now - self._looked_at <= _LOOK_AFTER:  # else more may have arrived, and pump() waits for it
                self._looked_at = now
            self.pump()
        except BaseException as error:
            if isinstance(error, Exception):  # the loop's caller gets an interrupt; waits get the rest
                for done in self._waiting:
                    if not done.done():
                        done.set_exception(error)
            self.interrupted()
            raise

    def _look(self, turns: int) -> None:
        """Step the engine after so many turns of the loop."""
        assert self._loop is not None
        if turns:
            self._looking = self._loop.call_soon(self._look, turns - 1)
            return
        self._looking = None
        self._looked_at = self._clock()
        self._tell(lambda _: None)

    def _step(self, now: float) -> None:
        """Carry out the engine's commands."""
        for command in self._engine.step(now):
            self._carry_out(command)
        self._set_timer(now)

    def _carry_out(self, command: Command) -> None:
        endpoint = command.endpoint
        if type(command) is Send:
            # If a connection broke after the engine's decision, the loss was reported with this request.
            if (link := self.connections.get(endpoint)) is not None:
                link.send(command.request)
            return
        if type(command) is Open:
            self._log.opening(endpoint)
        elif (link := self.connections.get(endpoint)) is not None:
            self._log.closed(endpoint, link.node.unanswered)
        self._drop(endpoint)
        if type(command) is Open:
            context = self._context.now()
            self.connections[endpoint] = AsyncioConnection(endpoint, self._settings, context, self, self._clock)

    def _drop(self, endpoint: Endpoint) -> None:
        link = self.connections.pop(endpoint, None)
        if link is not None:
            link.close()
            self._closing = {other for other in self._closing if not other.is_gone} | {link}

    def _set_timer(self, now: float) -> None:
        """Call :meth:`_wake` at the next moment at which something is due. A timer that fires too early sets a new one,
        so that no timer is set and cancelled for each request."""
        due = [moment for link in self.connections.values() if (moment := link.due) is not None]
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
        for link in list(self.connections.values()):
            if (due := link.due) is not None and due <= now:
                link.expire()


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
