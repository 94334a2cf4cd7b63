"""The client over simulated connections: a driver for the producer's engine, and a connection for the control plane.

Both have the sans-I/O protocol of the real client under them (``client/protocol/broker_protocol.py``), as the drivers
with sockets have.
"""

from collections.abc import Callable, Iterator
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.contract import Close, Drivable, Open, Operation, Send
from dualwrite.client.protocol.broker_protocol import BrokerProtocol, Response
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import AnswerLostError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message
from tests.support.simulation.network import SimulatedLink
from tests.support.simulation.scheduler import SimulatedProcess

Connect = Callable[[], SimulatedLink]
"""Begins a connection of the process to the broker."""


class SimulatedChannel:
    """One connection with the client's protocol on it.

    :param until: when it must be open, in the process's monotonic seconds.
    """

    def __init__(self, endpoint: Endpoint, settings: ClientSettings, connect: Connect, until: float) -> None:
        self.endpoint = endpoint
        self.until = until
        self.link = connect()
        self.node = BrokerProtocol(str(endpoint), settings.client_id)
        self.link.send(self.node.start())

    def take_in(self) -> Iterator[Response]:
        """The answers that have arrived. May open the connection.

        :raises KafkaUnavailableError: if it is lost.
        """
        while self.link.inbox:
            data = self.link.inbox.popleft()
            if self.node.is_open:
                yield from self.node.receive(data)
            else:
                outgoing = self.node.advance(data)
                if outgoing:
                    self.link.send(outgoing)
        if self.link.lost is not None:
            raise KafkaUnavailableError(f"broker {self.endpoint}: {self.link.lost}")


class LinkedDriver:
    """A Driver (``client/engine/contract.py``).

    :param process: whose clock and whose scheduler it uses.
    """

    def __init__(
        self, engine: Drivable, settings: ClientSettings, *, process: SimulatedProcess, connect: Connect
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._process = process
        self._connect = connect
        self._channels: dict[Endpoint, SimulatedChannel] = {}

    def wait(self, operation: Operation) -> Any:
        """Carry out the engine's commands until ``operation`` is done."""
        while True:
            self.pump()
            if operation.is_done:
                return operation.outcome()
            self._await_event()

    def pump(self) -> None:
        """Take in what has arrived, and carry out the commands that are due."""
        self._take_in()
        for command in self._engine.step(self._process.monotonic()):
            endpoint = command.endpoint
            if isinstance(command, Send):
                channel = self._channels.get(endpoint)
                if channel is not None:
                    channel.link.send(channel.node.send(*command.request))
            elif isinstance(command, Close):
                self._drop(endpoint)
            elif isinstance(command, Open):
                self._drop(endpoint)
                until = self._process.monotonic() + self._settings.connect_timeout
                self._channels[endpoint] = SimulatedChannel(endpoint, self._settings, self._connect, until)

    def close(self) -> None:
        """Close every connection."""
        for endpoint in list(self._channels):
            self._drop(endpoint)

    def _take_in(self) -> None:
        now = self._process.monotonic()
        for endpoint, channel in list(self._channels.items()):
            was_open = channel.node.is_open
            try:
                for tag, message in channel.take_in():
                    self._engine.answered(endpoint, tag, message, now)
                if not channel.node.is_open and now >= channel.until:
                    raise KafkaUnavailableError(f"broker {endpoint}: timed out")
            except KafkaUnavailableError as error:
                self._drop(endpoint)
                self._engine.lost(endpoint, error, now)
            else:
                if channel.node.is_open and not was_open:
                    self._engine.opened(endpoint, channel.node.versions, now)

    def _await_event(self) -> None:
        """Wait until something arrives, or until the engine wants to step."""
        due = [channel.until for channel in self._channels.values() if not channel.node.is_open]
        wake_at = self._engine.wake_at()
        if wake_at is not None:
            due.append(wake_at)
        assert due or self._channels, "the engine waits for nothing"
        _await(self._process, [channel.link for channel in self._channels.values()], min(due, default=None))

    def _drop(self, endpoint: Endpoint) -> None:
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            channel.link.close()


class SimulatedConnection:
    """In place of BlockingConnection, for the control plane.

    :raises KafkaUnavailableError: if the broker cannot be reached in time.
    """

    def __init__(
        self, endpoint: Endpoint, settings: ClientSettings, *, process: SimulatedProcess, connect: Connect
    ) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._process = process
        until = process.monotonic() + settings.connect_timeout
        self._channel = SimulatedChannel(endpoint, settings, connect, until)
        try:
            while not self._channel.node.is_open:
                self._receive(until)
        except BaseException:
            self.close()
            raise

    @property
    def versions(self) -> Versions:
        """The broker's versions."""
        return self._channel.node.versions

    def is_usable(self) -> bool:
        """False if the connection is closed or lost."""
        link = self._channel.link
        return link.lost is None and not link.is_closed and not link.inbox

    def request(self, call: VersionedRequest, *, timeout: float | None = None) -> Message:
        """Send a request; return its answer. As BlockingConnection has it."""
        version = call.version_at(self.endpoint, self.versions)
        limit = self._settings.request_timeout if timeout is None else min(timeout, self._settings.request_timeout)
        until, channel = self._process.monotonic() + limit, self._channel
        try:
            channel.link.send(channel.node.send(0, call.api_key, version, call.message))
            while True:
                answers = self._receive(until)
                if answers:
                    return answers[0].message
        except KafkaUnavailableError as error:
            self.close()
            raise AnswerLostError(f"{call.api_key.name}: {error}") from error

    def offers(self, api_key: ApiKey, version: int) -> bool:
        """True if the broker advertised ``version`` of ``api_key``."""
        return self.versions.offers(api_key, version)

    def close(self) -> None:
        """Close it."""
        self._channel.link.close()

    def _receive(self, until: float) -> list[Response]:
        """The answers that arrive next, if any.

        :raises KafkaUnavailableError: if the connection is lost, or the time is over.
        """
        if self._process.monotonic() >= until:
            raise KafkaUnavailableError(f"broker {self.endpoint}: timed out")
        link = self._channel.link
        if not link.inbox and link.lost is None:
            _await(self._process, [link], until)
        return list(self._channel.take_in())


def _await(process: SimulatedProcess, links: list[SimulatedLink], until: float | None) -> None:
    """Let the current thread wait until something happens at one of ``links``, or until the process's clock shows
    ``until``."""
    scheduler = process.scheduler
    if any(link.inbox or link.lost is not None for link in links):
        return
    for link in links:
        link.waiter = scheduler.current
    if until is None:
        scheduler.wait()
    else:
        scheduler.wait(max(scheduler.now, process.when(until)))
    for link in links:
        link.waiter = None
