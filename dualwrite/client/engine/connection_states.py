"""The brokers that an engine is connected to, and the unanswered requests of each connection.

Every request has a deadline. If it passes, the engine closes the whole connection: answers come in order, so an answer
behind the missing one cannot be matched (Kafka's NetworkClient does the same).
"""

from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.contract import NEVER, Close, Command, Open, Request, Send
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import NO_VERSIONS, Versions
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message


class InFlight(NamedTuple):
    """One unanswered request: ``about`` is the context that the handler of its answer needs."""

    api_key: ApiKey
    about: Any
    deadline: float


class ConnectionState:
    """One broker that is connected or being connected."""

    __slots__ = ("_picked", "asked", "endpoint", "is_open", "producing", "used_at", "versions")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_open = False
        self.versions: Versions = NO_VERSIONS
        self.asked: dict[int, InFlight] = {}
        """Unanswered requests by tag, in the order in which they were sent."""
        self.producing = 0
        """How many of them are Produce requests."""
        self.used_at = 0.0
        self._picked: dict[tuple[ApiKey, int, int | None], int] = {}

    def version(self, api_key: ApiKey, floor: int, cap: int | None) -> int:
        """The version in which to send ``api_key``; computed once.

        :raises NoCommonVersionError: if there is none in these bounds.
        """
        wanted = api_key, floor, cap
        picked = self._picked.get(wanted)
        if picked is None:
            picked = self._picked[wanted] = self.versions.of(api_key, floor, cap)
        return picked


class _BackOff(NamedTuple):
    until: float
    pause: float
    error: DualWriteError


class ConnectionStates:
    """The connections that the engine wants, and the commands that are due."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._request_timeout = settings.client.request_timeout
        self._connections: dict[Endpoint, ConnectionState] = {}
        self._back_offs: dict[Endpoint, _BackOff] = {}
        self._commands: list[Command] = []
        self._next_tag = 0
        self._is_wanted = False
        self._check_at = NEVER
        """No answer is overdue before this time."""

    def take_commands(self) -> list[Command]:
        """The commands that have become due since the last call."""
        commands, self._commands = self._commands, []
        return commands

    # --- connections

    def open_connection(self, endpoint: Endpoint, now: float) -> ConnectionState | None:
        """The open connection to ``endpoint``, if there is one; else begin one, now or after a pause."""
        connection = self._connections.get(endpoint)
        if connection is not None:
            return connection if connection.is_open else None
        back_off = self._back_offs.get(endpoint)
        if back_off is None or now >= back_off.until:
            self._commands.append(Open(endpoint))  # first: else an interrupt leaves a peer that is never opened
            self._connections[endpoint] = ConnectionState(endpoint)
        else:
            self._is_wanted = True
        return None

    def any_open_connection(self, candidates: Iterable[Endpoint], now: float) -> ConnectionState | None:
        """The least busy open connection. If there is none, begin one: to the first candidate without a recent failure,
        otherwise to the one that failed longest ago."""
        connections = [connection for connection in self._connections.values() if connection.is_open]
        if connections:
            return min(connections, key=lambda connection: len(connection.asked))
        candidates = list(candidates)
        unknown = [endpoint for endpoint in candidates if endpoint not in self._back_offs]
        if all(endpoint in self._back_offs for endpoint in self._connections):  # opening may take long to fail
            untried = [endpoint for endpoint in unknown if endpoint not in self._connections]
            backing_off = [endpoint for endpoint in candidates if endpoint in self._back_offs]
            known = sorted(backing_off, key=lambda endpoint: self._back_offs[endpoint].until)
            for endpoint in untried[:1] or (known[:1] if not self._connections else ()):
                self.open_connection(endpoint, now)
        return None

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> bool:
        """A connection is ready; False if it is not wanted any more."""
        connection = self._connections.get(endpoint)
        if connection is None:
            return False
        connection.is_open, connection.versions, connection.used_at = True, versions, now
        self._back_offs.pop(endpoint, None)
        return True

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> list[InFlight]:
        """A connection is lost; return its unanswered requests, in order. The engine reopens a connection that had been
        open at once, and then after growing pauses."""
        connection = self._connections.pop(endpoint, None)
        if connection is None:
            return []
        before = self._back_offs.get(endpoint)
        if connection.is_open:
            pause = 0.0
        elif before is None or not before.pause:
            pause = self._settings.reconnect_backoff
        else:
            pause = min(before.pause * 2, self._settings.reconnect_backoff_max)
        self._back_offs[endpoint] = _BackOff(now + pause, pause, error)
        return list(connection.asked.values())

    def forget_back_offs(self, known: Set[Endpoint]) -> None:
        """Forget failures at endpoints that are not ``known``: the cluster has no broker there, so they explain
        nothing."""
        for endpoint in self._back_offs.keys() - known - self._connections.keys():
            del self._back_offs[endpoint]

    def why_not(self) -> list[str]:
        """The reasons why brokers cannot be reached, each as the end of a sentence."""
        return list(dict.fromkeys(str(back_off.error) for back_off in self._back_offs.values()))

    # --- requests

    def send(
        self, connection: ConnectionState, api_key: ApiKey, version: int, message: Message, about: Any, now: float
    ) -> None:
        """Send ``message``; ``about`` is returned with the answer, or with the loss of the connection."""
        tag = self._next_tag
        self._next_tag += 1
        connection.used_at = now
        deadline = now + self._request_timeout
        if deadline < self._check_at:
            self._check_at = deadline
        connection.asked[tag] = InFlight(api_key, about, deadline)
        if api_key is ApiKey.PRODUCE:
            connection.producing += 1
        self._commands.append(Send(connection.endpoint, Request(tag, api_key, version, message)))

    def answered(self, endpoint: Endpoint, tag: int) -> InFlight | None:
        """The request that the answer with ``tag`` belongs to; None if the answer is not needed any more."""
        connection = self._connections.get(endpoint)
        asked = connection.asked.pop(tag, None) if connection is not None else None
        if connection is not None and asked is not None and asked.api_key is ApiKey.PRODUCE:
            connection.producing -= 1
        return asked

    # --- time

    def expire(self, now: float) -> list[tuple[Endpoint, list[InFlight]]]:
        """Close the connections with an overdue answer; return their unanswered requests. Also closes connections that
        were idle too long."""
        if self._settings.max_idle is not None:
            self._close_idle(now - self._settings.max_idle)
        self._is_wanted = False
        if now < self._check_at:
            return []
        oldest = [
            (endpoint, next(iter(connection.asked.values())))
            for endpoint, connection in self._connections.items()
            if connection.asked
        ]
        overdue = [(endpoint, asked.api_key) for endpoint, asked in oldest if now >= asked.deadline]
        self._check_at = min((asked.deadline for _, asked in oldest if now < asked.deadline), default=NEVER)
        given_up = []
        for endpoint, api_key in overdue:
            error = KafkaUnavailableError(f"broker {endpoint}: {api_key.name}: timed out")
            given_up.append((endpoint, self.lost(endpoint, error, now)))
            self._commands.append(Close(endpoint))
        return given_up

    def _close_idle(self, since: float) -> None:
        idle = [
            connection.endpoint
            for connection in self._connections.values()
            if connection.is_open and not connection.asked
        ]
        for endpoint in idle:
            if self._connections[endpoint].used_at <= since:
                del self._connections[endpoint]
                self._commands.append(Close(endpoint))

    def wake_at(self, now: float) -> float:
        """When an answer may be overdue, or a pause before a reconnect ends."""
        if not self._is_wanted:
            return self._check_at
        return min((self._check_at, *(back_off.until for back_off in self._back_offs.values() if back_off.until > now)))
