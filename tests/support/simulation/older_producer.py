"""A participant of the older transaction protocol, as librdkafka speaks it: one epoch for a whole session.

librdkafka has threads of its own and cannot be simulated. This stands for it: its requests are those of transaction
version 1, its state has an anchor, and recovery is the real one. As the real participant does, it asks the coordinator
before it is prepared, and is not used again once a connection was lost.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.fate.transaction_fate import TopicIds, started_ms
from dualwrite.client.librdkafka.deliveries import Deliveries
from dualwrite.client.producer.arguments import member_of, offsets_of
from dualwrite.client.protocol.requests import (
    CommittedOffset,
    GroupMember,
    VersionedRequest,
    add_offsets_to_txn,
    code_in,
    txn_offset_commit,
)
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.coordinator.kafka.librdkafka_session import LibrdkafkaSession
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.recovery.prepared_predecessor import PreparedPredecessor
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import (
    LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS,
    NO_PRODUCER,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import AddPartitionsToTxnRequest, ApiKey, Message
from tests.support.requests.calls import added_topics, produce_request, tx_batch
from tests.support.simulation.client_driver import SimulatedConnection
from tests.support.simulation.scheduler import SimulatedProcess

_LAST_ADD, _LAST_PRODUCE = 3, 11
"""The highest versions of AddPartitionsToTxn and Produce before transaction version 2."""
_PATIENCE = 5.0
_PAUSE = 0.05


class OlderProducer(KafkaParticipant):
    """The participant.

    :param connect: opens a connection to the broker.
    """

    def __init__(
        self,
        transactional_id: str,
        control: ControlPlane,
        connect: Callable[[], SimulatedConnection],
        process: SimulatedProcess,
    ) -> None:
        self._transactional_id = transactional_id
        self._control = control
        self._connect = connect
        self._process = process
        self._session = LibrdkafkaSession(control, transactional_id)
        self._topic_ids = TopicIds(control, process.monotonic)
        self._left: PreparedPredecessor | None = None
        self._connection: SimulatedConnection | None = None
        self._producer: ProducerIdentity = NO_PRODUCER
        self._sequences: dict[TopicPartition, int] = {}
        self._has_lost_connection = False
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        self._records: dict[TopicPartition, list[bytes]] = {}
        self._offsets: list[tuple[Sequence[Any], Any]] = []
        self._sent = Deliveries()

    @property
    def is_reusable(self) -> bool:
        return not self._has_lost_connection

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        if keep_prepared_txn:
            self._left = PreparedPredecessor(self._control, self._transactional_id)
            return
        self._left = None
        self._producer = self.begun_session(self._control, self._transactional_id)
        self._session.look_up()

    @staticmethod
    def begun_session(control: ControlPlane, transactional_id: str) -> ProducerIdentity:
        """The identity of a new session, as librdkafka asks for it. What is open then belongs to a successor, and the
        broker refuses to abort it."""
        return control.init_producer_id(
            transactional_id,
            transaction_timeout_ms=LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS,
            two_phase_commit=False,
            keep_prepared_txn=False,
        ).producer

    def name_left_transaction(self) -> PreparedTxnState:
        """Name the transaction that was left open; see NamesLeftTransaction."""
        return PreparedTxnState() if self._left is None else self._left.name()

    def has_committed(self, state: PreparedTxnState) -> bool:
        return self._left is not None and self._left.has_committed(state)

    def begin_transaction(self) -> None:
        self._begin()

    def produce(self, record: OutgoingRecord) -> None:
        assert record.value is not None
        self._records.setdefault(TopicPartition(record.topic, record.partition), []).append(record.value)
        self._sent.sent()

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        self._offsets.append((positions, group_metadata))

    def prepare_transaction(self) -> PreparedTxnState:
        self._is_open = True
        self._add_partitions()
        for place, values in self._records.items():
            self._write(place, values)
        for positions, group_metadata in self._offsets:
            self._commit_offsets(offsets_of(positions), member_of(group_metadata))
        described = self._session.require_ongoing(self._sent, has_offsets=bool(self._offsets))
        anchor = self._session.anchor(self._sent, described)
        state = PreparedTxnState(described.producer, anchor, started_ms=started_ms(described))
        return self._topic_ids.added(state)

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        assert self._left is not None
        return self._left.complete(state)

    def commit_transaction(self) -> None:
        self._end(True)

    def abort_transaction(self) -> None:
        if self._is_open:
            self._end(False)

    def close(self) -> None:
        self._drop_connection()
        self._control.close()

    def _end(self, commit: bool) -> None:
        self._control.end_txn(self._transactional_id, self._producer, commit)
        self._is_open = False

    def _add_partitions(self) -> None:
        topics = added_topics([(place.topic, place.partition) for place in self._records])
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer.producer_id,
            v3_and_below_producer_epoch=self._producer.epoch,
            v3_and_below_topics=topics,
        )
        call = VersionedRequest("AddPartitionsToTxn", ApiKey.ADD_PARTITIONS_TO_TXN, message, cap=_LAST_ADD)
        self._ask(call, _first_error_of_added)

    def _write(self, place: TopicPartition, values: list[bytes]) -> None:
        sequence = self._sequences.get(place, 0)
        batch = tx_batch(values, self._producer, sequence, timestamp=self._process.wall_ms())
        request = produce_request({(place.topic, place.partition): batch}, self._transactional_id)
        call = VersionedRequest(f"Produce to {place}", ApiKey.PRODUCE, request, cap=_LAST_PRODUCE)
        answer = self._ask(call, lambda produced: _only_partition(produced).error_code)
        self._sequences[place] = sequence + len(values)
        base_offset = _only_partition(answer).base_offset
        for number in range(len(values)):
            self._sent.delivered(place, base_offset + number)

    def _commit_offsets(self, offsets: Sequence[CommittedOffset], member: GroupMember) -> None:
        name, producer = self._transactional_id, self._producer
        calls = (
            add_offsets_to_txn(name, producer, member.group_id),
            txn_offset_commit(name, producer, offsets, member, joins=False),
        )
        for call in calls:
            self._ask(call, lambda answer, key=call.api_key: code_in(key, answer)[0])

    def _ask(self, call: VersionedRequest, code_of: Callable[[Message], int]) -> Message:
        """The answer to ``call``, which is sent again after a lost connection, as the broker knows it again."""
        until = self._process.monotonic() + _PATIENCE
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                answer = self._connection.request(call)
                raise_for(call.api_key, call.operation, code_of(answer))
            except KafkaUnavailableError as error:
                self._has_lost_connection = True
                self._drop_connection()
                if self._process.monotonic() >= until:
                    raise PrepareFailedError(f"{call.operation}: {error}") from error
                self._process.sleep(_PAUSE)
            else:
                return answer

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _only_partition(answer: Message) -> Message:
    ((partition,),) = [topic.partition_responses for topic in answer.responses]
    return partition


def _first_error_of_added(answer: Message) -> int:
    codes = [
        entry.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for entry in topic.results_by_partition
    ]
    return next((code for code in codes if code), 0)
