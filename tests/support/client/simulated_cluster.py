"""A cluster for the native producer's engine: the broker's real rules, without sockets, disk or time.

Every request that the engine sends is carried out by the coordinator's and the partitions' pure core. What the network
and the cluster do to it is asked of ``fate``, so that a search can go through all of it. What the partitions hold is
kept record by record, to be compared with what was sent.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    Decision,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    Reply,
    VerifyPartitions,
)
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings, decide, markers_of
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionVersion
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.contract import Close, Open, Operation, Request, Send
from dualwrite.client.engine.engine import Engine
from dualwrite.client.protocol.requests import TRANSACTION
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import VersionRange, Versions
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import iterate_records
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import peek_header
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import read_body, read_response, write_response
from dualwrite.wire.error_codes import ErrorCode

TXN_ID = "app-0"
NODES = (Endpoint("one", 1), Endpoint("two", 2))
TV2_VERSIONS = Versions(
    {
        ApiKey.METADATA: VersionRange(0, 13),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
        ApiKey.INIT_PRODUCER_ID: VersionRange(0, 6),
        ApiKey.PRODUCE: VersionRange(0, 13),
        ApiKey.END_TXN: VersionRange(0, 5),
        ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 6),
    },
    {"transaction.version": 2},
    1,
)


class RequestFate(Enum):
    """What can become of a request."""

    FINE = "nothing else"
    NOT_SENT = "the connection breaks before it arrives"
    NOT_ANSWERED = "the connection breaks before the answer arrives"
    LATE = "the connection breaks, and it arrives after one other"
    LATER = "the connection breaks, and it arrives after five others"
    BEFORE_AN_END = "the connection breaks, and it arrives just before the next EndTxn"
    LEADER_MOVES = "the leader moves before it arrives"
    COORDINATOR_MOVES = "the coordinator moves before it arrives"
    MARKERS_LATE = "the coordinator answers before it writes its markers, as Apache Kafka does"
    REFUSED = "the transaction is refused"
    BUSY = "the leader cannot take it now"


_OF_ALL = (
    RequestFate.FINE,
    RequestFate.NOT_SENT,
    RequestFate.NOT_ANSWERED,
    RequestFate.LATE,
    RequestFate.LATER,
    RequestFate.BEFORE_AN_END,
)
FATES = {
    ApiKey.PRODUCE: (*_OF_ALL, RequestFate.LEADER_MOVES, RequestFate.REFUSED, RequestFate.BUSY),
    ApiKey.END_TXN: (*_OF_ALL, RequestFate.COORDINATOR_MOVES, RequestFate.MARKERS_LATE),
    ApiKey.INIT_PRODUCER_ID: (*_OF_ALL, RequestFate.COORDINATOR_MOVES),
    ApiKey.TXN_OFFSET_COMMIT: _OF_ALL,
}
_LATENESS = {RequestFate.LATE: 1, RequestFate.LATER: 5, RequestFate.BEFORE_AN_END: None}
"""How many other requests arrive before a late one."""
_REFUSALS = {RequestFate.REFUSED: ErrorCode.TRANSACTION_ABORTABLE, RequestFate.BUSY: ErrorCode.NOT_ENOUGH_REPLICAS}


@dataclass
class LogEntry:
    """One record of a partition, or a marker."""

    producer: ProducerIdentity
    value: bytes | None
    marker: Marker | None = None


@dataclass
class SimulatedLog:
    """One partition: the real checks, and what it holds."""

    state: PartitionState = field(default_factory=PartitionState)
    entries: list[LogEntry] = field(default_factory=list)

    def committed(self) -> list[bytes | None]:
        """The values of the records of committed transactions, in order."""
        return [
            entry.value
            for offset, entry in enumerate(self.entries)
            if entry.marker is None and self._end_of(entry.producer.producer_id, offset) is Marker.COMMIT
        ]

    def _end_of(self, producer_id: int, offset: int) -> Marker | None:
        markers = (one for one in self.entries[offset:] if one.marker is not None)
        return next((one.marker for one in markers if one.producer.producer_id == producer_id), None)


class SimulatedCluster:
    """Two nodes. All partitions have one leader, which moves; the coordinator moves by itself.

    :param fate: chooses among so many fates of a request; 0 is none.
    """

    def __init__(self, fate: Callable[[int], int] = lambda options: 0, partitions: int = 1) -> None:
        self.fate = fate
        self.partitions = partitions
        self.table = TransactionTable()
        self.logs: dict[TopicPartition, SimulatedLog] = {}
        self.offsets: list[tuple[ProducerIdentity, str, int]] = []
        """Offsets that were committed under a transaction: by whom, of which topic, which."""
        self.coordinator = 0
        self.leader_epoch = -1
        self.leader = 0
        self.requests: list[ApiKey] = []
        """Everything that arrived, in order."""
        self.seen: set[Any] = set()
        self.fresh_id = 1000
        self.is_tv2 = True
        self.refusals: dict[ApiKey, deque[ErrorCode]] = {}
        """Errors that are answered next, without anything being done."""
        self.topic_errors: deque[ErrorCode] = deque()
        """What the next answers to Metadata say of every topic."""
        self.has_leaders = True
        self.gives_hints = True
        """True if a node that does not lead a partition says who does."""
        self.listed = NODES
        """The nodes that Metadata tells."""
        self._late: list[tuple[int | None, Endpoint, Request]] = []

    @property
    def leader(self) -> int:
        """Which node leads all partitions. Each that is made the leader has an epoch of its own."""
        return self._leader

    @leader.setter
    def leader(self, node: int) -> None:
        self._leader = node
        self.leader_epoch += 1

    # --- the network

    def arrive(self, endpoint: Endpoint, request: Request) -> Message | None:
        """A request is sent; its answer, or None if the connection breaks."""
        options = FATES.get(request.api_key, (RequestFate.FINE,))
        fate = options[self.fate(len(options))] if len(options) > 1 else RequestFate.FINE
        self.seen.add((request.api_key, fate))
        self._arrive_late(request.api_key is ApiKey.END_TXN)
        if fate is RequestFate.NOT_SENT:
            return None
        if fate in _LATENESS:
            self._late.append((_LATENESS[fate], endpoint, request))
            return None
        if fate is RequestFate.LEADER_MOVES:
            self.leader = 1 - self.leader
        if fate is RequestFate.COORDINATOR_MOVES:
            self.coordinator = 1 - self.coordinator
        answer = self._handle(endpoint, request, fate)
        return None if fate is RequestFate.NOT_ANSWERED else answer

    def quiesce(self) -> None:
        """What is late arrives, and markers are written."""
        while self._late:
            self._arrive_late(is_end=True)
        self._write_markers()

    def _arrive_late(self, is_end: bool) -> None:
        late, self._late = self._late, []
        for left, endpoint, request in late:
            if is_end if left is None else left <= 0:
                answer = self._handle(endpoint, request, RequestFate.FINE)
                self.seen.add((request.api_key, "late", self._outcome(request.api_key, answer)))
            else:
                self._late.append((None if left is None else left - 1, endpoint, request))

    @staticmethod
    def _outcome(api_key: ApiKey, answer: Message) -> int:
        if api_key is ApiKey.PRODUCE:
            return int(answer.responses[0].partition_responses[0].error_code)
        if api_key is ApiKey.TXN_OFFSET_COMMIT:
            return int(answer.topics[0].partitions[0].error_code)
        return int(answer.error_code)

    # --- the brokers

    def _handle(self, endpoint: Endpoint, request: Request, fate: RequestFate) -> Message:
        self.requests.append(request.api_key)
        message = request.message
        body = message.encode(version=request.version)
        message = read_body(APIS[request.api_key].request, request.version, body, 0)
        refusals = self.refusals.get(request.api_key)
        refusal = refusals.popleft() if refusals else ErrorCode.NONE
        refusal = _REFUSALS.get(fate, refusal)
        node = NODES.index(endpoint)
        if request.api_key is ApiKey.METADATA:
            answer = self._metadata(message)
        elif request.api_key is ApiKey.FIND_COORDINATOR:
            where = NODES[self.coordinator if message.key_type == TRANSACTION else 0]
            answer = APIS[ApiKey.FIND_COORDINATOR].response(
                throttle_time_ms=0, error_code=refusal, error_message=None, node_id=0, host=where.host, port=where.port
            )
        elif request.api_key is ApiKey.PRODUCE:
            answer = self._produce(message, refusal or self._not_leader(node))
        elif request.api_key is ApiKey.TXN_OFFSET_COMMIT:
            answer = self._commit_offsets(message, refusal)
        else:
            refusal = refusal or (ErrorCode.NONE if node == self.coordinator else ErrorCode.NOT_COORDINATOR)
            answer = self._init(message, refusal) if request.api_key is ApiKey.INIT_PRODUCER_ID else None
            answer = answer or self._end(message, refusal, fate)
        if request.api_key in FATES:
            self.seen.add((request.api_key, "answered", self._outcome(request.api_key, answer)))
        data = write_response(request.api_key, request.version, 0, answer)
        return read_response(request.api_key, request.version, data)

    def _metadata(self, request: Message) -> Message:
        response = APIS[ApiKey.METADATA].response
        topic_class = response.MetadataResponseTopic
        partition_class = topic_class.MetadataResponsePartition
        nodes = [
            response.MetadataResponseBroker(node_id=index, host=node.host, port=node.port, rack=None)
            for index, node in enumerate(NODES)
            if node in self.listed
        ]
        error = self.topic_errors.popleft() if self.topic_errors else ErrorCode.NONE
        topics = [
            topic_class(
                error_code=error,
                name=topic.name,
                is_internal=False,
                partitions=[
                    partition_class(
                        error_code=0,
                        partition_index=index,
                        leader_id=self.leader if self.has_leaders else -1,
                        leader_epoch=self.leader_epoch,
                        replica_nodes=[0],
                        isr_nodes=[0],
                        offline_replicas=[],
                    )
                    for index in range(0 if error else self.partitions)
                ],
            )
            for topic in request.topics
        ]
        return response(throttle_time_ms=0, brokers=nodes, cluster_id="c", controller_id=0, topics=topics)

    def _not_leader(self, node: int) -> ErrorCode:
        return ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _produce(self, request: Message, refusal: ErrorCode) -> Message:
        response = APIS[ApiKey.PRODUCE].response
        topic_class = response.TopicProduceResponse
        names = [
            TopicPartition(topic.name, data.index) for topic in request.topic_data for data in topic.partition_data
        ]
        error = refusal or self._joined(request, names)
        partition_class = topic_class.PartitionProduceResponse
        hints: dict[str, Message] = {}
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.gives_hints and self.has_leaders:
            told = partition_class.LeaderIdAndEpoch(leader_id=self.leader, leader_epoch=self.leader_epoch)
            hints["current_leader"] = told
        answers = []
        for topic in request.topic_data:
            entries = []
            for data in topic.partition_data:
                code, offset = (error, -1) if error else self._append(topic.name, data)
                entries.append(
                    partition_class(
                        index=data.index,
                        error_code=code,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=[],
                        error_message=None,
                        **hints,
                    )
                )
            answers.append(topic_class(name=topic.name, partition_responses=entries))
        where = NODES[self.leader]
        nodes = [response.NodeEndpoint(node_id=self.leader, host=where.host, port=where.port, rack=None)]
        return response(responses=answers, throttle_time_ms=0, node_endpoints=nodes if hints else [])

    def _joined(self, request: Message, names: list[TopicPartition]) -> ErrorCode:
        header = peek_header(request.topic_data[0].partition_data[0].records)
        reply = self._execute(AddPartitions(request.transactional_id, header.producer, frozenset(names)))
        if reply.error is ErrorCode.NONE:
            reply = self._execute(VerifyPartitions(request.transactional_id, header.producer, frozenset(names)))
        return ErrorCode.INVALID_PRODUCER_EPOCH if reply.error is ErrorCode.PRODUCER_FENCED else reply.error

    def _append(self, topic: str, data: Message) -> tuple[ErrorCode, int]:
        log = self.logs.setdefault(TopicPartition(topic, data.index), SimulatedLog())
        header = peek_header(data.records)
        verdict = log.state.decide(header, begins_at_zero=True)
        if verdict.appends:
            offset = log.state.end_offset
            log.state.apply(header._replace(base_offset=offset), None)
            log.entries += [LogEntry(header.producer, one.value) for one in iterate_records(bytes(data.records))]
            return ErrorCode.NONE, offset
        if verdict.duplicate_of >= 0:
            self.seen.add("duplicate")
        return verdict.error, verdict.duplicate_of

    def _commit_offsets(self, request: Message, refusal: ErrorCode) -> Message:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        name = TopicPartition("__consumer_offsets", 0)
        error = refusal or self._execute(AddPartitions(request.transactional_id, producer, frozenset([name]))).error
        response = APIS[ApiKey.TXN_OFFSET_COMMIT].response
        topic_class = response.TxnOffsetCommitResponseTopic
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                if not error:
                    self.offsets.append((producer, topic.name, partition.committed_offset))
                partitions.append(
                    topic_class.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                )
            topics.append(topic_class(name=topic.name, partitions=partitions))
        return response(throttle_time_ms=0, topics=topics)

    def _init(self, request: Message, refusal: ErrorCode) -> Message:
        command = InitProducerId(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.enable2_pc,
            request.keep_prepared_txn,
            ProducerIdentity(request.producer_id, request.producer_epoch),
        )
        reply = Reply(refusal) if refusal else self._execute(command)
        return APIS[ApiKey.INIT_PRODUCER_ID].response(
            throttle_time_ms=0,
            error_code=reply.error,
            producer_id=reply.producer.producer_id,
            producer_epoch=reply.producer.epoch,
            ongoing_txn_producer_id=reply.ongoing.producer_id,
            ongoing_txn_producer_epoch=reply.ongoing.epoch,
        )

    def _end(self, request: Message, refusal: ErrorCode, fate: RequestFate) -> Message:
        command = EndTransaction(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            Marker.COMMIT if request.committed else Marker.ABORT,
            TransactionVersion.TV2,
        )
        reply = Reply(refusal) if refusal else self._execute(command, markers_late=fate is RequestFate.MARKERS_LATE)
        return APIS[ApiKey.END_TXN].response(
            throttle_time_ms=0,
            error_code=reply.error,
            producer_id=reply.producer.producer_id,
            producer_epoch=reply.producer.epoch,
        )

    # --- the coordinator

    def entry(self) -> TransactionRecorded | None:
        """What the coordinator knows of the transactional id."""
        return self.table.entries.get(TXN_ID)

    def begin_at(self, entry: TransactionRecorded) -> None:
        """The transactional id has a past."""
        self.table.apply(entry)

    def _execute(self, command: Command, markers_late: bool = False) -> Reply:
        """Carry ``command`` out. Markers that were left are written after the first request that meets them."""
        for _ in range(3):
            decision = self._step(command)
            if decision.effects and not (markers_late and decision.reply is not None):
                self._write_markers()
            if decision.reply is not None:
                if decision.reply.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                    self.seen.add("concurrent")
                    self._write_markers()
                return decision.reply
        raise AssertionError(f"no answer to {command}")

    def forget_idle(self) -> None:
        """The transactional id was idle for transactional.id.expiration.ms."""
        self._step(Expire(TXN_ID), after_ms=TransactionSettings().id_expiration_ms)
        assert self.entry() is None

    def _step(self, command: Command, after_ms: int = 0) -> Decision:
        settings = TransactionSettings()
        decision = decide(self.table, command, Moment(1_000_000 + after_ms, self.fresh_id), settings)
        for fact in decision.facts:
            self.table.apply(fact)
        if decision.takes(self.fresh_id):
            self.fresh_id += 1
        return decision

    def _write_markers(self) -> None:
        entry = self.entry()
        if entry is None or not entry.is_ended:
            return
        effect = markers_of(entry)
        for name in effect.partitions:
            log = self.logs.setdefault(name, SimulatedLog())
            header = peek_header(build_marker(effect.marker, effect.producer, 0, 0))
            log.state.apply(header._replace(base_offset=log.state.end_offset), effect.marker)
            log.entries.append(LogEntry(effect.producer, None, effect.marker))
        self._step(MarkersWritten(effect.transactional_id))


class SimulatedDriver:
    """Drives an engine against a simulated cluster. Time passes only where nothing else happens."""

    def __init__(self, cluster: SimulatedCluster, **settings: Any) -> None:
        self.cluster = cluster
        self.now = 0.0
        timeout = settings.pop("request_timeout", 60.0)
        client = ClientSettings(settings.pop("bootstrap", NODES), request_timeout=timeout)
        self.engine = Engine(ProducerSettings(client, TXN_ID, **settings), lambda count: 0)
        self.opened: set[Endpoint] = set()
        self.unreachable: set[Endpoint] = set()
        self.events: deque[Callable[[], None]] = deque()

    def run(self, operation: Operation) -> Any:
        """The outcome of ``operation``."""
        while not operation.is_done:
            assert self.turn(operation), "nothing will ever happen again"
        return operation.outcome()

    def turn(self, operation: Operation | None = None) -> bool:
        """One step, and what comes of it; if nothing does, and ``operation`` is not done, time passes. False if nothing
        is left to wait for."""
        for command in self.engine.step(self.now):
            self.perform(command)
        if self.events:
            self.events.popleft()()
            return True
        if operation is not None and operation.is_done:
            return True
        wake_at = self.engine.wake_at()
        if wake_at is None:
            return False
        assert wake_at > self.now, "a driver would spin"
        self.now = wake_at
        return True

    def perform(self, command: Any) -> None:
        """Carry out a command of the engine."""
        engine, endpoint = self.engine, command.endpoint
        if isinstance(command, Open):
            assert endpoint not in self.opened
            if endpoint in self.unreachable:
                error = KafkaUnavailableError(f"broker {endpoint}: refused")
                self.events.append(lambda: engine.lost(endpoint, error, self.now))
                return
            self.opened.add(endpoint)
            versions = TV2_VERSIONS if self.cluster.is_tv2 else TV2_VERSIONS._replace(features={})
            self.events.append(lambda: engine.opened(endpoint, versions, self.now))
        elif isinstance(command, Close):
            self.opened.discard(endpoint)
        elif isinstance(command, Send):
            self._send(endpoint, command.request)

    def _send(self, endpoint: Endpoint, request: Request) -> None:
        if endpoint not in self.opened:
            return  # lost in this very turn; the engine is being told
        answer = self.cluster.arrive(endpoint, request)
        if answer is not None:
            self.events.append(lambda: self.answer(endpoint, request.tag, answer))
            return
        self.opened.discard(endpoint)
        self.events.append(
            lambda: self.engine.lost(endpoint, KafkaUnavailableError(f"broker {endpoint}: reset"), self.now)
        )

    def answer(self, endpoint: Endpoint, tag: int, answer: Message) -> None:
        if endpoint in self.opened:
            self.engine.answered(endpoint, tag, answer, self.now)

    # --- verbs, done

    def init(self, keep: bool = False, refuse_open: bool = False) -> None:
        self.run(self.engine.init_transactions(self.now, keep, refuse_open))

    def produce(self, *values: bytes, topic: str = "t", partition: int = 0, **others: Any) -> None:
        for value in values:
            record = OutgoingRecord(topic, value, partition=partition, **others)
            assert self.engine.produce(record, 0, self.now), "the buffer is full"

    def begin(self, *values: bytes, **others: Any) -> None:
        self.engine.begin_transaction()
        self.produce(*values, **others)

    def prepare(self) -> Any:
        return self.run(self.engine.prepare_transaction(self.now))

    def commit(self) -> Any:
        return self.run(self.engine.commit_transaction(self.now))

    def abort(self) -> Any:
        return self.run(self.engine.abort_transaction(self.now))

    def complete(self, state: Any) -> Any:
        return self.run(self.engine.complete_transaction(state, self.now))
