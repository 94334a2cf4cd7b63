"""Finds leaders and transaction coordinators, connects to them, and repeats requests until a deadline.

Kafka's answers while leadership moves (NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS) and
while markers are being written (CONCURRENT_TRANSACTIONS) mean "not now". The client repeats such requests with a
growing pause, as Kafka's TransactionManager does.
"""

import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar
from uuid import UUID

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import FIND_COORDINATOR_CAP, METADATA_CAP, WITH_TOPIC_IDS
from dualwrite.errors import AnswerLostError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

DEFAULT_TIMEOUT = 60.0
"""Seconds that one call may take, with all attempts (Java's max.block.ms)."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0

_TRANSACTION_KEY = 1

_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
_BUSY = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT}
)

T = TypeVar("T")
Connect = Callable[[Endpoint, ClientSettings], BlockingConnection]


class Call(NamedTuple):
    """One request and its versions.

    ``repeatable`` says that carrying it out twice is the same as once, so that it may be sent again after a lost
    answer.
    """

    api_key: ApiKey
    message: Message
    floor: int = 0
    cap: int | None = None
    repeatable: bool = True


def raise_if_transient(what: str, code: int) -> None:
    """Raise KafkaUnavailableError if ``code`` means "not now, try again"."""
    if code in _MOVED or code in _BUSY:
        raise KafkaUnavailableError(f"{what}: {error_name(code)}")


class ClusterClient:
    """The brokers behind ``settings.bootstrap``, with a connection to each that was needed. Not thread-safe.

    A forked process gets connections of its own: on a shared socket, either process could read the other's answers.

    :param timeout: seconds that one call may take, with all attempts.
    :param clock: monotonic seconds.
    :param sleep: waits between two attempts.
    :param connect: opens a connection to an endpoint.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connect: Connect = BlockingConnection,
    ) -> None:
        self._settings = settings
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._connect = connect
        self._brokers: tuple[Endpoint, ...] = ()
        self._cluster_id: str | None = None
        self._coordinators: dict[str, Endpoint] = {}
        self._connections: dict[Endpoint, BlockingConnection] = {}
        self._process = os.getpid()
        self.lost_connections = 0
        """How many connections were replaced: a broker's answer from before such a loss may be out of date."""

    def persist(self, attempt: Callable[[float], T], *, repeatable: bool = True, timeout: float | None = None) -> T:
        """Call ``attempt(deadline)`` until it returns, pausing after each KafkaUnavailableError.

        :param repeatable: False to let AnswerLostError through at once.
        :param timeout: seconds that this call may take; None for the timeout of every call.
        :raises KafkaUnavailableError: the last one, when the deadline would pass.
        """
        timeout = self._timeout if timeout is None else timeout
        deadline = self._clock() + timeout
        pause = FIRST_PAUSE
        while True:
            try:
                return attempt(deadline)
            except KafkaUnavailableError as error:
                if isinstance(error, AnswerLostError) and not repeatable:
                    raise
                if self._clock() + pause >= deadline:
                    hint = ": is it running? see bootstrap.servers" if "Connection refused" in str(error) else ""
                    raise KafkaUnavailableError(f"{error} (gave up after {timeout:g} s){hint}") from error
            self._sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def ask(self, endpoint: Endpoint, call: Call, deadline: float) -> Message:
        """Send one request to one broker, once.

        :raises AnswerLostError: if the request was sent and not answered.
        :raises KafkaUnavailableError: if the broker cannot be reached.
        """
        connection = self.connection_to(endpoint)
        remaining = max(deadline - self._clock(), FIRST_PAUSE)
        return connection.request(call.api_key, call.message, floor=call.floor, cap=call.cap, timeout=remaining)

    def ask_coordinator(self, transactional_id: str, call: Call, code_of: Callable[[Message], int]) -> Message:
        """Send a request to the transaction coordinator of ``transactional_id``, until the broker is the coordinator
        and not busy. ``code_of`` finds the error code in the answer. The caller judges every code that is not
        transient.

        :raises AnswerLostError: if an answer was lost and ``call`` is not repeatable.
        :raises KafkaUnavailableError: if there was no such answer in time.
        """

        def attempt(deadline: float) -> Message:
            endpoint = self._coordinator(transactional_id, deadline)
            try:
                answer = self.ask(endpoint, call, deadline)
                code = code_of(answer)
                raise_if_transient(f"{call.api_key.name} of {transactional_id}: broker {endpoint}", code)
            except KafkaUnavailableError:
                self._coordinators.pop(transactional_id, None)
                raise
            return answer

        return self.persist(attempt, repeatable=call.repeatable)

    def ask_any(self, call: Call, deadline: float) -> Message:
        """Send a request to the brokers in turn, until one answers.

        :raises KafkaUnavailableError: if none answers; the message names each broker and the reason.
        """
        reasons = []
        for endpoint in self._candidates():
            try:
                return self.ask(endpoint, call, deadline)
            except KafkaUnavailableError as error:
                reasons.append(str(error))
        raise KafkaUnavailableError("; ".join(reasons))

    def any_connection(self) -> BlockingConnection:
        """A connection to the first broker that can be reached.

        :raises KafkaUnavailableError: if none can be, until the deadline.
        """

        def attempt(_deadline: float) -> BlockingConnection:
            reasons = []
            for endpoint in self._candidates():
                try:
                    return self.connection_to(endpoint)
                except KafkaUnavailableError as error:
                    reasons.append(str(error))
            raise KafkaUnavailableError("; ".join(reasons))

        return self.persist(attempt)

    def brokers(self, deadline: float) -> tuple[Endpoint, ...]:
        """Every broker of the cluster, by Metadata."""
        return tuple(self.nodes(deadline).values())

    def cluster_id(self, deadline: float) -> str | None:
        """The cluster's id, by Metadata; None if it has none."""
        self._metadata((), deadline)
        return self._cluster_id

    def nodes(self, deadline: float) -> dict[int, Endpoint]:
        """As :meth:`brokers`, by node id."""
        return self._metadata((), deadline)[0]

    def topics(self, deadline: float) -> list[str]:
        """The name of every topic that this client may describe."""
        return [topic.name for topic in self._metadata(None, deadline)[1] if not topic.error_code]

    def topic_ids(self, topics: Iterable[str], deadline: float) -> dict[str, str]:
        """The ids of those of ``topics`` that exist, as Kafka writes them; empty if the broker knows no topic ids."""
        listed = self._metadata(topics, deadline, cap=WITH_TOPIC_IDS)[1]
        return {topic.name: _id_text(topic.topic_id) for topic in listed if not topic.error_code and topic.topic_id}

    def leaders(
        self, partitions: Iterable[TopicPartition], deadline: float, *, deleted_too: bool = False
    ) -> dict[TopicPartition, Endpoint]:
        """The leader of each of ``partitions``, by Metadata.

        :param deleted_too: leave out the partitions that do not exist.
        :raises KafkaRefusedError: if a topic does not exist, or may not be described.
        :raises KafkaUnavailableError: if a partition has no leader now.
        """
        wanted = sorted(set(partitions))
        nodes, topics = self._metadata(sorted({partition.topic for partition in wanted}), deadline)
        leader_ids: dict[TopicPartition, int] = {}
        for topic in topics:
            raise_if_transient(f"topic {topic.name}", topic.error_code)
            if topic.error_code and not (deleted_too and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise KafkaRefusedError(f"topic {topic.name}", topic.error_code, error_name(topic.error_code))
            for entry in topic.partitions:
                leader_ids[TopicPartition(topic.name, entry.partition_index)] = entry.leader_id
        found = {}
        for partition in wanted:
            if partition not in leader_ids:
                if deleted_too:
                    continue
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise KafkaRefusedError(f"partition {partition}", code, code.name)
            if leader_ids[partition] not in nodes:
                raise KafkaUnavailableError(f"partition {partition}: {ErrorCode.LEADER_NOT_AVAILABLE.name}")
            found[partition] = nodes[leader_ids[partition]]
        return found

    def connection_to(self, endpoint: Endpoint) -> BlockingConnection:
        """The connection to ``endpoint``; opens a new one if there is none that works.

        :raises KafkaUnavailableError: if the broker cannot be reached.
        """
        if self._process != os.getpid():
            self.close()
            self._process = os.getpid()
        connection = self._connections.pop(endpoint, None)
        if connection is not None and not connection.is_usable():
            connection.close()
            connection = None
            self.lost_connections += 1
        if connection is None:
            connection = self._connect(endpoint, self._settings)
        self._connections[endpoint] = connection
        return connection

    def close(self) -> None:
        """Close every connection. The cluster may be used again afterwards."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _candidates(self) -> tuple[Endpoint, ...]:
        return tuple(dict.fromkeys((*self._connections, *self._brokers, *self._settings.bootstrap)))

    def _coordinator(self, transactional_id: str, deadline: float) -> Endpoint:
        if transactional_id not in self._coordinators:
            request = APIS[ApiKey.FIND_COORDINATOR].request(key=transactional_id, key_type=_TRANSACTION_KEY)
            call = Call(ApiKey.FIND_COORDINATOR, request, floor=1, cap=FIND_COORDINATOR_CAP)
            answer = self.ask_any(call, deadline)
            what = f"coordinator of {transactional_id}"
            raise_if_transient(what, answer.error_code)
            if answer.error_code:
                raise KafkaRefusedError(what, answer.error_code, error_name(answer.error_code))
            self._coordinators[transactional_id] = Endpoint(answer.host, answer.port)
        return self._coordinators[transactional_id]

    def _metadata(
        self, topics: Iterable[str] | None, deadline: float, cap: int = METADATA_CAP
    ) -> tuple[dict[int, Endpoint], list[Message]]:
        """The brokers, by node id, and the metadata of ``topics``; None for all topics."""
        request = APIS[ApiKey.METADATA].request
        wanted = None if topics is None else [request.MetadataRequestTopic(name=topic) for topic in topics]
        message = request(topics=wanted, allow_auto_topic_creation=False)
        answer = self.ask_any(Call(ApiKey.METADATA, message, floor=4, cap=cap), deadline)
        nodes = {broker.node_id: Endpoint(broker.host, broker.port) for broker in answer.brokers}
        self._brokers = tuple(nodes.values())
        self._cluster_id = answer.cluster_id or None
        return nodes, list(answer.topics)


def _id_text(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
