"""Drives an engine from the calling thread: non-blocking sockets, one selector, no background thread and no polling.

In the common case, one request in flight on one connection, a round trip is a single send and a single recv. The
selector is needed only for several events, or for long waits.
"""

import selectors
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.connection_log import ConnectionLog
from dualwrite.client.engine.contract import Close, Drivable, Open, Operation, Send
from dualwrite.client.net.socket_connection import PATIENCE, SocketConnection
from dualwrite.client.net.tls import RenewedContext
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError, KafkaUnavailableError

_LOOK_AFTER = 1.0
"""Seconds after which a wait first looks at the connections. An idle connection may have been closed meanwhile, or its
authentication may have expired: a request that is sent on it is lost."""

_Broken = (KafkaUnavailableError, ConfigurationError)


class _Watched(NamedTuple):
    """The state of a link in the selector."""

    descriptor: int
    attempt: int
    events: int


class BlockingDriver:
    """A :class:`~dualwrite.client.engine.contract.Driver`. One thread at a time may use it and its engine.

    A look-up of a broker's name waits for the system's resolver, and delays everything else.

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
        self._selector = selectors.DefaultSelector()
        self.connections: dict[Endpoint, SocketConnection] = {}
        """The connections that are open or being opened."""
        self._watched: dict[Endpoint, _Watched] = {}
        self._is_amid = False
        """True while the engine and the connections may disagree: in the middle of a call, or after an interrupted
        one."""
        self._looked_at = clock()

    def wait(self, operation: Operation) -> Any:
        """Carry out the engine's commands until ``operation`` is done; return its result or raise its error. Commands
        that become due then wait for the next call, which may have more of them.

        If an exception such as a signal handler's interrupts the wait, the driver closes every connection, as it is
        unknown how much of a request was written, and notifies the engine: the operation has failed then.
        """
        if self._is_amid:
            self._give_up()
        self._is_amid = True
        try:
            now = self._clock()
            if now - self._looked_at > _LOOK_AFTER:
                self._look()
            while not operation.is_done:
                now = self._step()
                if not operation.is_done:
                    self._await_event(now)
        except BaseException:
            self._give_up()
            raise
        self._is_amid = False
        return operation.outcome()

    def pump(self) -> None:
        """Do everything that needs no waiting. It first takes in what has arrived: otherwise the engine would count
        answers of long ago as overdue. An interrupt is handled as in :meth:`wait`."""
        if self._is_amid:
            self._give_up()
        self._is_amid = True
        try:
            if self.connections:
                self._look()
            self._step()
        except BaseException:
            self._give_up()
            raise
        self._is_amid = False

    def close(self) -> None:
        """Close every connection, without notifying the engine. Never raises; safe to call twice.

        It does not unregister the sockets first: a forked process shares the selector with its parent, which still
        waits on it.
        """
        for link in self.connections.values():
            link.close()
        self.connections.clear()
        self._watched.clear()
        self._selector.close()

    def _step(self) -> float:
        """Carry out the engine's commands, and those that their events cause; return the time of the last step."""
        while True:
            now = self._clock()
            is_news = False
            for command in self._engine.step(now):
                endpoint = command.endpoint
                try:
                    if type(command) is Send:
                        # If a connection broke after the engine's decision, the loss was reported with this request.
                        if (link := self.connections.get(endpoint)) is not None:
                            link.send(*command.request)
                            self._watch(endpoint, link)
                    elif type(command) is Close:
                        self._close(endpoint)
                    elif type(command) is Open:
                        self._open(endpoint, now)
                except _Broken as error:
                    self._lose(endpoint, error, now)
                    is_news = True
            if not is_news:
                return now

    def _open(self, endpoint: Endpoint, now: float) -> None:
        self._log.opening(endpoint)
        self._drop(endpoint)
        link = self.connections[endpoint] = SocketConnection(endpoint, self._settings, self._context.now(), now)
        self._watch(endpoint, link)

    def _await_event(self, now: float) -> None:
        """Wait for an event for the engine, or until the engine wants to step."""
        busy = [link for link in self.connections.values() if link.is_waiting]
        due = [moment for link in busy if (moment := link.due) is not None]
        wake_at = self._engine.wake_at()
        if wake_at is not None:
            due.append(wake_at)
        first = min(due, default=None)
        assert busy or first is not None, "the engine waits for nothing"
        if len(busy) == 1 and busy[0].can_be_patient and (first is None or first - now > PATIENCE):
            if self._receive_patiently(busy[0]):
                return
            now = self._clock()
        self._select(None if first is None else max(first - now, 0))
        self._expire(self._clock())

    def _receive_patiently(self, link: SocketConnection) -> bool:
        """Wait briefly on a single connection; False if nothing happened there."""
        try:
            answers = link.receive_patiently()
        except _Broken as error:
            self._lose(link.endpoint, error, self._clock())
            return True
        if answers is None:
            return False
        now = self._clock()
        for tag, message in answers:
            self._engine.answered(link.endpoint, tag, message, now)
        return True

    def _look(self) -> None:
        """Take in what has happened at the connections since the last look."""
        self._select(0)
        self._expire(self._looked_at)

    def _select(self, timeout: float | None) -> None:
        ready = self._selector.select(timeout)
        now = self._looked_at = self._clock()
        for key, _ in ready:
            self._advance(key.data, now)

    def _advance(self, link: SocketConnection, now: float) -> None:
        endpoint, was_open = link.endpoint, link.node.is_open
        try:
            answers = link.advance(now)
        except _Broken as error:
            self._lose(endpoint, error, now)
            return
        self._watch(endpoint, link)
        if not was_open and link.node.is_open:
            self._log.opened(endpoint)
            self._engine.opened(endpoint, link.node.versions, now)
        for tag, message in answers:
            self._engine.answered(endpoint, tag, message, now)

    def _expire(self, now: float) -> None:
        for endpoint, link in list(self.connections.items()):
            due = link.due
            if due is not None and due <= now:
                try:
                    link.expire(now)
                except _Broken as error:
                    self._lose(endpoint, error, now)
                else:
                    self._watch(endpoint, link)

    def _watch(self, endpoint: Endpoint, link: SocketConnection) -> None:
        """Register with the selector the events that ``link`` waits for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        known = self._watched.get(endpoint)
        if known is not None and known.attempt == link.attempt:
            if known.events != events:
                self._selector.modify(known.descriptor, events, link)
                self._watched[endpoint] = known._replace(events=events)
            return
        self._forget(endpoint)
        descriptor = link.fileno()
        self._selector.register(descriptor, events, link)
        self._watched[endpoint] = _Watched(descriptor, link.attempt, events)

    def _forget(self, endpoint: Endpoint) -> None:
        known = self._watched.pop(endpoint, None)
        if known is not None:
            self._selector.unregister(known.descriptor)

    def _lose(self, endpoint: Endpoint, error: KafkaUnavailableError | ConfigurationError, now: float) -> None:
        link = self.connections.get(endpoint)
        self._log.lost(endpoint, error, now, is_idle=link is not None and link.node.is_idle)
        self._drop(endpoint)
        self._engine.lost(endpoint, error, now)

    def _close(self, endpoint: Endpoint) -> None:
        link = self.connections.get(endpoint)
        if link is not None:
            self._log.closed(endpoint, link.node.unanswered)
        self._drop(endpoint)

    def _drop(self, endpoint: Endpoint) -> None:
        self._forget(endpoint)
        link = self.connections.pop(endpoint, None)
        if link is not None:
            link.close()

    def _give_up(self) -> None:
        """After an interrupted call: close every connection, and notify the engine. If that is interrupted too, the
        next call repeats it."""
        for endpoint in list(self.connections):
            self._drop(endpoint)
        self._engine.interrupted()
        self._is_amid = False
