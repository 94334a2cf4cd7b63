"""A broker with the answers of a test, on a real socket: for answers that a real broker does not give on demand."""

import socket
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_body, read_request_head, write_response
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import frame_size, with_size

HANG_UP = object()
"""Close the connection instead of answering."""

SILENCE = object()
"""Take the request and never answer."""


class Cut(NamedTuple):
    """Send ``data`` as it is, and close the connection."""

    data: bytes


class SeenRequest(NamedTuple):
    """A request that arrived."""

    connection: int
    api_key: ApiKey
    version: int
    message: Any
    client_id: str | None


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class ScriptedBroker:
    """Answers each request with what was queued for its API, and the last of these again and again.

    An answer is a message, a function of the request's message, raw bytes, sent as they are, or
    a Cut, HANG_UP or SILENCE.
    ApiVersions, Metadata and FindCoordinator have answers of their own: this broker is node 1, and everybody's leader.
    """

    def __init__(
        self, versions: dict[ApiKey, tuple[int, int]] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.seen: list[SeenRequest] = []
        self.versions = {key: (0, int(api.request.max_version)) for key, api in APIS.items()} | (versions or {})
        self.api_versions_cap = self.versions[ApiKey.API_VERSIONS][1]
        self.topics: dict[str, int] = {"t": 2}
        self.topic_codes: dict[str, int] = {}
        self._tls = tls
        self._answers: dict[ApiKey, deque[Any]] = defaultdict(deque)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname()[:2])
        self.nodes: dict[int, Endpoint] = {1: self.endpoint}
        self.leaders: dict[tuple[str, int], int] = {}
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def bootstrap_servers(self) -> str:
        return str(self.endpoint)

    def answer(self, api_key: ApiKey, *answers: Any) -> None:
        self._answers[api_key] = deque(answers)

    def requests(self, api_key: ApiKey) -> list[SeenRequest]:
        return [seen for seen in self.seen if seen.api_key is api_key]

    def hang_up(self) -> None:
        """Close every connection; new ones are welcome. Returns once the peers can see it."""
        sockets, self._sockets = self._sockets, []
        for connection in sockets:
            with_shutdown(connection)

    def close(self) -> None:
        with_shutdown(self._listener)
        self.hang_up()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            self._sockets.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection, number)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                while (prefix := stream.read(4)) and len(prefix) == 4:
                    if not self.reply(connection, number, stream.read(frame_size(prefix, 1 << 20))):
                        return
        except OSError:
            return

    def reply(self, connection: socket.socket, number: int, frame: bytes) -> bool:
        head, position = read_request_head(frame)
        api_key = ApiKey(head.api_key)
        message = read_body(APIS[api_key].request, head.version, frame, position)
        self.seen.append(SeenRequest(number, api_key, head.version, message, head.client_id))
        answer = self._next_answer(api_key, head.version, message)
        if answer is HANG_UP:
            return False
        if answer is SILENCE:
            return True
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return True
        if isinstance(answer, Cut):
            connection.sendall(answer.data)
            return False
        version = head.version
        if api_key is ApiKey.API_VERSIONS and version > self.api_versions_cap:
            version = 0
        connection.sendall(with_size(write_response(api_key, version, head.correlation_id, answer)))
        return True

    def _next_answer(self, api_key: ApiKey, version: int, message: Any) -> Any:
        queue = self._answers[api_key]
        if queue:
            answer = queue[0] if len(queue) == 1 else queue.popleft()
        elif api_key is ApiKey.API_VERSIONS:
            return self.api_versions(version)
        elif api_key is ApiKey.METADATA:
            return self._metadata(message)
        elif api_key is ApiKey.FIND_COORDINATOR:
            return coordinator_is(self.endpoint)
        else:
            raise AssertionError(f"no answer for {api_key.name}")
        return answer(message) if callable(answer) else answer

    def api_versions(self, version: int) -> Any:
        response = APIS[ApiKey.API_VERSIONS].response
        offered = self.versions | {ApiKey.API_VERSIONS: (0, self.api_versions_cap)}
        keys = [
            response.ApiVersion(api_key=int(key), min_version=low, max_version=high)
            for key, (low, high) in offered.items()
            if high >= 0
        ]
        code = ErrorCode.UNSUPPORTED_VERSION if version > self.api_versions_cap else ErrorCode.NONE
        return response(error_code=int(code), api_keys=keys, throttle_time_ms=0)

    def _metadata(self, message: Any) -> Any:
        response = APIS[ApiKey.METADATA].response
        topic_class = response.MetadataResponseTopic
        topics = []
        for asked in message.topics:
            partitions = [
                topic_class.MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=self.leaders.get((asked.name, index), 1),
                    leader_epoch=0,
                    replica_nodes=[1],
                    isr_nodes=[1],
                    offline_replicas=[],
                )
                for index in range(self.topics.get(asked.name, 0))
            ]
            unknown = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = self.topic_codes.get(asked.name, unknown)
            topics.append(topic_class(error_code=int(code), name=asked.name, is_internal=False, partitions=partitions))
        brokers = [
            response.MetadataResponseBroker(node_id=node, host=endpoint.host, port=endpoint.port, rack=None)
            for node, endpoint in self.nodes.items()
        ]
        return response(throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=1, topics=topics)


def with_shutdown(connection: socket.socket) -> None:
    """Close a socket so that whoever waits on it, here or there, is woken."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        connection.close()  # the peer was faster
    else:
        connection.close()


def coordinator_is(endpoint: Endpoint, code: int = 0) -> Any:
    return APIS[ApiKey.FIND_COORDINATOR].response(
        throttle_time_ms=0, error_code=code, error_message=None, node_id=1, host=endpoint.host, port=endpoint.port
    )


def initialized(code: int = 0, producer: tuple[int, int] = (7, 1), ongoing: tuple[int, int] = (-1, -1)) -> Any:
    return APIS[ApiKey.INIT_PRODUCER_ID].response(
        throttle_time_ms=0,
        error_code=int(code),
        producer_id=producer[0],
        producer_epoch=producer[1],
        ongoing_txn_producer_id=ongoing[0],
        ongoing_txn_producer_epoch=ongoing[1],
    )


def ended(code: int = 0, producer: tuple[int, int] = (-1, -1)) -> Any:
    return APIS[ApiKey.END_TXN].response(
        throttle_time_ms=0, error_code=int(code), producer_id=producer[0], producer_epoch=producer[1]
    )


def described(
    code: int = 0,
    state: str = "Ongoing",
    producer: tuple[int, int] = (7, 0),
    partitions: dict[str, list[int]] | None = None,
) -> Any:
    response = APIS[ApiKey.DESCRIBE_TRANSACTIONS].response
    entry = response.TransactionState
    return response(
        throttle_time_ms=0,
        transaction_states=[
            entry(
                error_code=int(code),
                transactional_id="app-0",
                transaction_state=state,
                transaction_timeout_ms=2147483647,
                transaction_start_time_ms=-1 if state == "Empty" else 1700000000000,
                producer_id=producer[0],
                producer_epoch=producer[1],
                topics=[
                    entry.TopicData(topic=name, partitions=indexes) for name, indexes in (partitions or {}).items()
                ],
            )
        ],
    )


def producers_of(
    starts: dict[tuple[str, int], int],
    producer: tuple[int, int] = (7, 0),
    codes: dict[tuple[str, int], int] | None = None,
) -> Callable[[Any], Any]:
    """An answer to DescribeProducers: ``producer`` in every partition asked, with its start offset there (or none)."""
    response = APIS[ApiKey.DESCRIBE_PRODUCERS].response
    topic_class = response.TopicResponse
    partition_class = topic_class.PartitionResponse

    def state(name: str, index: int) -> Any:
        return partition_class.ProducerState(
            producer_id=producer[0],
            producer_epoch=producer[1],
            last_sequence=3,
            last_timestamp=1700000000000,
            coordinator_epoch=0,
            current_txn_start_offset=starts.get((name, index), -1),
        )

    def answer(request: Any) -> Any:
        return response(
            throttle_time_ms=0,
            topics=[
                topic_class(
                    name=topic.name,
                    partitions=[
                        partition_class(
                            partition_index=index,
                            error_code=(codes or {}).get((topic.name, index), 0),
                            error_message=None,
                            active_producers=[state(topic.name, index)],
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ],
        )

    return answer


def listed(*entries: tuple[str, int, str], code: int = 0) -> Any:
    response = APIS[ApiKey.LIST_TRANSACTIONS].response
    return response(
        throttle_time_ms=0,
        error_code=code,
        unknown_state_filters=[],
        transaction_states=[
            response.TransactionState(transactional_id=name, producer_id=producer_id, transaction_state=state)
            for name, producer_id, state in entries
        ],
    )


@contextmanager
def scripted(**arguments: Any) -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker(**arguments)
    try:
        yield broker
    finally:
        broker.close()
