"""A broker under test, and the transcript of what it answered: lines that do not depend on who answers, or when.

Names, ids and present times differ from run to run, so that a transcript has what they stand for instead: "topic 1",
"p1:0" for the first producer id seen in the case with epoch 0, "now" for a time of today.
"""

import functools
import time
from collections.abc import Callable
from types import TracebackType
from uuid import UUID

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import FindCoordinatorRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests import calls
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors that a client waits out: Apache Kafka writes markers after it has answered EndTxn."""

_GROUP, _TRANSACTION = 0, 1
_NO_ID = UUID(int=0)
_HOUR_MS = 3600 * 1000
_LONG_MS = 1_000_000


class Subject:
    """One case's view of a broker: its connections, the names that it uses, and its transcript."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._clients: list[RawClient] = []
        self._lines: dict[str, str] = {}
        self._names: dict[object, str] = {}
        self._producers: dict[int, str] = {}
        self.start_ms = int(time.time() * 1000) - _HOUR_MS
        self.client = self.connect()

    @property
    def transcript(self) -> dict[str, str]:
        """What was noted: by step, what the broker answered."""
        return self._lines

    def connect(self) -> RawClient:
        """One more connection, closed with the case."""
        client = RawClient(self.bootstrap_servers)
        self._clients.append(client)
        return client

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """A new topic that can be used at once; ``settings`` have underscores for dots."""
        name = calls.new_topic(self.client, partitions, **settings)
        self.call(name, "topic")
        for partition in range(partitions):
            look = functools.partial(calls.list_offset, self.client, name, calls.EARLIEST, partition=partition)
            seen = eventually(look, lambda answer: answer.error_code == ErrorCode.NONE)
            assert seen.error_code == ErrorCode.NONE, ErrorCode(seen.error_code)
        return name

    def name(self, kind: str) -> str:
        """A unique name for a transactional id or a group."""
        return self.call(calls.unique(kind), kind)

    def call(self, name: str, kind: str) -> str:
        """Let ``name`` be "kind 1", "kind 2" and so on in the transcript."""
        if name in self._names:
            return name
        number = sum(known.startswith(f"{kind} ") for known in self._names.values()) + 1
        self._names[name] = f"{kind} {number}"
        return name

    def note(self, step: str, /, **seen: object) -> None:
        """Write down what ``step`` led to; ``error`` is an error code."""
        assert step not in self._lines, f"two steps are called {step!r}"
        shown = {key: self._error(value) if key == "error" else self.show(value) for key, value in seen.items()}
        self._lines[step] = " ".join(f"{key}={value}" for key, value in shown.items())

    def include(self, label: str, other: "Subject") -> None:
        """Write down what ``other`` has noted, as steps of ``label``."""
        for step, line in other.transcript.items():
            name = f"{label}: {step}"
            assert name not in self._lines, f"two steps are called {name!r}"
            self._lines[name] = line

    def show(self, value: object) -> str:
        """``value`` as a transcript has it."""
        if isinstance(value, ErrorCode):
            return value.name
        if isinstance(value, ProducerIdentity):
            return f"{self._producer(value.producer_id)}:{value.epoch}"
        if isinstance(value, bytes):
            return repr(value.decode(errors="backslashreplace"))
        if isinstance(value, UUID):
            return "none" if value == _NO_ID else self._names.get(value, "some id")
        if isinstance(value, str) and not isinstance(value, Word):
            return self._names.get(value, repr(value))
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.show(key)}: {self.show(entry)}" for key, entry in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self.show(entry) for entry in value) + "]"
        return str(value)

    def moment(self, milliseconds: int) -> object:
        """A time as a transcript has it: after ``start_ms``, an hour ago, from where cases count their own times."""
        if 0 <= milliseconds - self.start_ms < _LONG_MS:
            return Word(f"start+{milliseconds - self.start_ms}")
        return Word("now") if abs(milliseconds - time.time() * 1000) < _LONG_MS else milliseconds

    def settled(self, ask: Callable[[], Message]) -> Message:
        """The answer of ``ask`` once its error is none that passes."""
        return eventually(ask, lambda answer: answer.error_code not in PASSING)

    def close(self) -> None:
        """Hang up every connection."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> "Subject":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _producer(self, producer_id: int) -> str:
        if producer_id < 0:
            return "nobody"
        return self._producers.setdefault(producer_id, f"p{len(self._producers) + 1}")

    @staticmethod
    def _error(code: object) -> str:
        return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"


class Word(str):
    """Text that stands in a transcript as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def warm_up(bootstrap_servers: str) -> None:
    """Let a fresh cluster make coordinators and producer ids, as Apache Kafka does when it is first asked for them."""
    with Subject(bootstrap_servers) as subject:
        for kind in (_GROUP, _TRANSACTION):
            request = FindCoordinatorRequest(key="warm-up", key_type=kind)
            subject.settled(functools.partial(subject.client.ask, request, 3))
        for transactional_id in (None, "warm-up"):
            subject.settled(functools.partial(calls.init, subject.client, transactional_id, version=4))
