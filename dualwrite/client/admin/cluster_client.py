"""Finds leaders and transaction coordinators, connects to them, and repeats requests until a deadline.

Answers that are retriable, such as while leadership moves or markers are being written, mean "not now"
(``error_classes.py``). The client repeats such requests with a growing pause, as Kafka's TransactionManager does.
"""

import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.protocol.cluster_metadata import ClusterMetadata
from dualwrite.client.protocol.requests import (
    GROUP,
    TRANSACTION,
    CoordinatorOf,
    VersionedRequest,
    coordinator_in,
    find_coordinator,
    metadata,
)
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import error_for, raise_for, raise_if_retriable
from dualwrite.errors import AnswerLostError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

DEFAULT_TIMEOUT = 60.0
"""Seconds that one call may take, with all attempts (Java's max.block.ms)."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0

T = TypeVar("T")
Connect = Callable[[Endpoint, ClientSettings], BlockingConnection]


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
        self._known = ClusterMetadata(settings.bootstrap)
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

    def ask(self, endpoint: Endpoint, call: VersionedRequest, deadline: float) -> Message:
        """Send one request to one broker, once.

        :raises AnswerLostError: if the request was sent and not answered.
        :raises KafkaUnavailableError: if the broker cannot be reached.
        """
        connection = self.connection_to(endpoint, deadline)
        return connection.request(call, timeout=self._seconds_until(deadline))

    def ask_coordinator(
        self,
        transactional_id: str,
        call: VersionedRequest,
        code_of: Callable[[Message], int] = attrgetter("error_code"),
    ) -> Message:
        """Send a request to the transaction coordinator of ``transactional_id``, until the broker is the coordinator
        and not busy. ``code_of`` finds the error code in the answer. The caller judges every code that is not
        transient.

        :raises AnswerLostError: if an answer was lost and ``call`` is not repeatable.
        :raises KafkaUnavailableError: if there was no such answer in time.
        """
        return self._ask_coordinator(CoordinatorOf(TRANSACTION, transactional_id), call, code_of)

    def ask_group_coordinator(self, group: str, call: VersionedRequest, code_of: Callable[[Message], int]) -> Message:
        """As :meth:`ask_coordinator`, to the coordinator of a consumer group.

        :raises KafkaRefusedError: if the client may not describe the group.
        """
        return self._ask_coordinator(CoordinatorOf(GROUP, group), call, code_of)

    def ask_any(self, call: VersionedRequest, deadline: float) -> Message:
        """Send a request to the brokers in turn, until one answers.

        :raises KafkaUnavailableError: if none answers; the message names each broker and the reason.
        """
        return self._in_turn(lambda each, until: each.request(call, timeout=self._seconds_until(until)), deadline)

    def any_connection(self) -> BlockingConnection:
        """A connection to the first broker that can be reached.

        :raises KafkaUnavailableError: if none can be, until the deadline.
        """
        return self.persist(partial(self._in_turn, lambda connection, _until: connection))

    def ask_once(self, call: VersionedRequest) -> Message:
        """Send a request that must not be carried out twice, to the first broker that can be reached.

        :raises AnswerLostError: if it was sent and not answered: it may have been carried out.
        :raises KafkaUnavailableError: if no broker can be reached.
        """
        return self.any_connection().request(call, timeout=self._timeout)

    def brokers(self, deadline: float) -> tuple[Endpoint, ...]:
        """Every broker of the cluster, by Metadata."""
        return tuple(self.nodes(deadline).values())

    def cluster_id(self, deadline: float) -> str | None:
        """The cluster's id, by Metadata; None if it has none."""
        self._metadata((), deadline)
        return self._known.cluster_id

    def nodes(self, deadline: float) -> dict[int, Endpoint]:
        """As :meth:`brokers`, by node id."""
        self._metadata((), deadline)
        return self._known.nodes

    def topics(self, deadline: float) -> list[str]:
        """The name of every topic that this client may describe."""
        return [topic.name for topic in self._metadata(None, deadline) if not topic.error_code]

    def topic_ids(self, topics: Iterable[str], deadline: float) -> dict[str, str]:
        """The ids of those of ``topics`` that exist, as Kafka writes them; empty if the broker knows no topic ids."""
        listed = self._metadata(topics, deadline, with_ids=True)
        return {
            topic.name: topic_id_text(topic.topic_id) for topic in listed if not topic.error_code and topic.topic_id
        }

    def described_topics(self, topics: Iterable[str] | None, deadline: float) -> list[Message]:
        """The metadata of ``topics``, in Kafka's message, with topic ids if the broker knows them; None for every topic
        that this client may describe."""
        return self._metadata(topics, deadline, with_ids=True)

    def leaders(
        self, partitions: Iterable[TopicPartition], deadline: float, *, deleted_too: bool = False
    ) -> dict[TopicPartition, Endpoint]:
        """The leader of each of ``partitions``, by Metadata.

        :param deleted_too: leave out the partitions that do not exist.
        :raises KafkaRefusedError: if a topic does not exist, or may not be described.
        :raises KafkaUnavailableError: if a partition has no leader now.
        """
        distinct = sorted(set(partitions))
        topics = self._metadata(sorted({partition.topic for partition in distinct}), deadline)
        nodes = self._known.nodes
        leader_ids: dict[TopicPartition, int] = {}
        for topic in topics:
            if not (deleted_too and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise_for(ApiKey.METADATA, f"topic {topic.name}", topic.error_code)
            for entry in topic.partitions:
                leader_ids[TopicPartition(topic.name, entry.partition_index)] = entry.leader_id
        leaders = {}
        for partition in distinct:
            if partition not in leader_ids:
                if deleted_too:
                    continue
                raise error_for(ApiKey.METADATA, f"partition {partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if leader_ids[partition] not in nodes:
                raise error_for(ApiKey.METADATA, f"partition {partition}", ErrorCode.LEADER_NOT_AVAILABLE)
            leaders[partition] = nodes[leader_ids[partition]]
        return leaders

    def connection_to(self, endpoint: Endpoint, deadline: float) -> BlockingConnection:
        """The connection to ``endpoint``; opens a new one if there is none that works.

        :raises KafkaUnavailableError: if the broker cannot be reached before ``deadline``.
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
            patience = min(self._settings.connect_timeout, self._seconds_until(deadline))
            connection = self._connect(endpoint, replace(self._settings, connect_timeout=patience))
        self._connections[endpoint] = connection
        return connection

    def close(self) -> None:
        """Close every connection. The cluster may be used again afterwards."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _seconds_until(self, deadline: float) -> float:
        return max(deadline - self._clock(), FIRST_PAUSE)

    def _in_turn(self, use: Callable[[BlockingConnection, float], T], deadline: float) -> T:
        """What ``use`` returns for the first broker that answers; ``use`` gets the connection, and the time until which
        it may wait. Each broker may take its share of the time: one that says nothing leaves the others theirs."""
        candidates, reasons = self._candidates(), []
        for place, endpoint in enumerate(candidates):
            until = self._clock() + self._seconds_until(deadline) / (len(candidates) - place)
            try:
                return use(self.connection_to(endpoint, until), until)
            except KafkaUnavailableError as error:
                reasons.append(str(error))
        raise KafkaUnavailableError("; ".join(reasons))

    def _candidates(self) -> tuple[Endpoint, ...]:
        return tuple(dict.fromkeys((*self._connections, *self._known.candidates())))

    def _ask_coordinator(
        self, coordinator: CoordinatorOf, call: VersionedRequest, code_of: Callable[[Message], int]
    ) -> Message:
        def attempt(deadline: float) -> Message:
            endpoint = self._coordinator(coordinator, deadline)
            try:
                answer = self.ask(endpoint, call, deadline)
                raise_if_retriable(call.api_key, f"{call.operation}: broker {endpoint}", code_of(answer))
            except KafkaUnavailableError:
                self._known.coordinators.pop(coordinator, None)
                raise
            return answer

        return self.persist(attempt, repeatable=call.repeatable)

    def _coordinator(self, of: CoordinatorOf, deadline: float) -> Endpoint:
        if of not in self._known.coordinators:
            call = find_coordinator(of)
            answer = self.ask_any(call, deadline)
            raise_for(call.api_key, call.operation, answer.error_code)
            self._known.coordinators[of] = coordinator_in(answer)
        return self._known.coordinators[of]

    def _metadata(self, topics: Iterable[str] | None, deadline: float, *, with_ids: bool = False) -> list[Message]:
        """The metadata of ``topics``; None for all topics. Learns the brokers too."""
        call = metadata(topics, with_ids=with_ids)
        answer = self._in_turn(
            lambda each, until: _informed(each.endpoint, each.request(call, timeout=self._seconds_until(until))),
            deadline,
        )
        self._known.learn_brokers(answer)
        return list(answer.topics)


def _informed(endpoint: Endpoint, answer: Message) -> Message:
    """``answer`` to Metadata, unless it names no broker: with ZooKeeper, a broker that has just started answers so, and
    that every topic is unknown (Kafka's NetworkClient ignores it, too).

    :raises KafkaUnavailableError: then.
    """
    if not answer.brokers:
        raise KafkaUnavailableError(f"broker {endpoint}: Metadata: it does not know the cluster yet")
    return answer


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka writes it."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
