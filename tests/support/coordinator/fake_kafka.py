"""A Kafka of one transactional id and a participant over it, as far as the recipe can tell; every call may fail.

It speaks the older transaction protocol, as librdkafka does: one epoch for a whole session, so only the anchor tells
one transaction of a session from the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, outcome_in_log, verdict
from dualwrite.errors import AnswerLostError, FencedError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import (
    Anchor,
    EndedTransaction,
    Ending,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)
from dualwrite.records.outgoing import OutgoingRecord

T = TypeVar("T")
PARTITION = TopicPartition("events", 0)
PRODUCER_ID = 4711
_DECIDING = ("commit", "send commit", "collect")


class Crash(BaseException):
    """The process died here: nothing that follows in it has any effect."""


class Fault(Enum):
    """What happens at one call."""

    NONE = 0
    BEFORE = 1
    """The call raises, without effect."""
    AFTER = 2
    """The call has its effect, and raises."""
    CRASH = 3
    """The call has its effect, and the process dies."""


@dataclass
class FakeTransaction:
    producer: ProducerIdentity
    start_offset: int
    values: list[Any] = field(default_factory=list)


class FakeKafka:
    """The cluster. ``fault`` is asked at every request; the two hooks see its name before and after its effect."""

    def __init__(self) -> None:
        self.current = ProducerIdentity(PRODUCER_ID, -1)
        self.ongoing: FakeTransaction | None = None
        self.committed: list[Any] = []
        self.aborted: list[Any] = []
        self.ended: list[tuple[FakeTransaction, Ending]] = []
        """The log, as far as it tells how transactions ended."""
        self.next_offset = 0
        self.requests: list[str] = []
        self.participants: list[FakeParticipant] = []
        self.fault: Callable[[str], Fault] = lambda request: Fault.NONE
        self.before_effect: Callable[[str], None] = lambda request: None
        self.after_effect: Callable[[str], None] = lambda request: None
        self.is_slow: Callable[[], bool] = lambda: False
        """Asked when a commit is sent: True if it takes effect only once its answer is awaited."""

    def participant(self, config: object = None) -> "FakeParticipant":
        made = FakeParticipant(self)
        self.participants.append(made)
        return made

    def open_participants(self) -> int:
        return sum(not participant.closed for participant in self.participants)

    def request(self, name: str, effect: Callable[[], T]) -> T:
        self.requests.append(name)
        self.before_effect(name)
        fault = self.fault(name)
        silence = AnswerLostError if name in _DECIDING else KafkaUnavailableError
        if fault is Fault.BEFORE:
            raise silence(f"{name}: no answer, and it never arrived")
        answer = effect()
        self.after_effect(name)
        if fault is Fault.AFTER:
            raise silence(f"{name}: no answer, but it arrived")
        if fault is Fault.CRASH:
            raise Crash(name)
        return answer

    def init_producer_id(self, keep_prepared_txn: bool) -> ProducerIdentity:
        if not keep_prepared_txn:
            self.end(commit=False)
        self.current = ProducerIdentity(PRODUCER_ID, self.current.epoch + 1)
        return self.current

    def append(self, producer: ProducerIdentity, value: Any) -> int:
        self.check(producer)
        if self.ongoing is None:
            self.ongoing = FakeTransaction(producer, self.next_offset)
        self.ongoing.values.append(value)
        self.next_offset += 1
        return self.next_offset - 1

    def end_txn(self, producer: ProducerIdentity, *, commit: bool) -> None:
        self.check(producer)
        self.end(commit=commit)

    def check(self, producer: ProducerIdentity) -> None:
        if producer != self.current:
            raise FencedError(f"{producer} is fenced by {self.current}")

    def end(self, *, commit: bool) -> None:
        if self.ongoing is not None:
            (self.committed if commit else self.aborted).extend(self.ongoing.values)
            self.ended.append((self.ongoing, Ending.COMMITTED if commit else Ending.ABORTED))
            self.ongoing = None
            self.next_offset += 1  # the marker

    def ending_of(self, state: PreparedTxnState) -> EndedTransaction:
        """As ``ended_transaction`` tells it from a log that keeps everything."""
        if state.first_record is None:
            return EndedTransaction(Ending.UNKNOWN)
        offset = state.first_record.offset
        if offset >= self.next_offset:
            return EndedTransaction(Ending.LOST)
        found = [ending for each, ending in self.ended if each.start_offset == offset]
        later = [ending for each, ending in self.ended if each.start_offset > offset]
        return EndedTransaction(found[0] if found else Ending.UNKNOWN, Ending.COMMITTED in later)


class FakeParticipant:
    """A KafkaParticipant. Use after close, or after a failed commit or abort, is a bug of the coordinator's."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.closed = False
        self.spent = False
        self.identity = ProducerIdentity()
        self.begun = False
        self.anchor: Anchor | None = None
        self.is_committing = False
        self.has_arrived = False
        self.lost: BaseException | None = None

    @property
    def is_reusable(self) -> bool:
        return True

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        self._usable()
        name = "init-keep" if keep_prepared_txn else "init"
        self.identity = self.kafka.request(name, lambda: self.kafka.init_producer_id(keep_prepared_txn))

    def begin_transaction(self) -> None:
        self.collect_commit(wait=True)
        self._usable()
        assert not self.begun, "begin inside a transaction"
        self.kafka.request("begin", lambda: None)
        self.begun = True
        self.anchor = None

    def produce(self, record: OutgoingRecord) -> None:
        topic, value, key, partition, timestamp, headers, on_delivery = record
        self._usable()
        assert self.begun, "produce outside a transaction"
        text = None if value is None else value.decode()  # as the rows have it
        offset = self.kafka.request("produce", lambda: self.kafka.append(self.identity, text))
        self.anchor = self.anchor or Anchor.of(PARTITION, offset)
        if on_delivery is not None:
            on_delivery(None, (topic, partition, timestamp, key, headers))

    def send_records(self) -> None:
        self._usable()
        assert self.begun, "sent outside a transaction"
        self.kafka.request("send", lambda: self.kafka.check(self.identity))

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        self._usable()
        assert self.begun, "offsets outside a transaction"
        value = (group_metadata, {(position.topic, position.partition): position.offset for position in positions})
        offset = self.kafka.request("offsets", lambda: self.kafka.append(self.identity, value))
        self.anchor = self.anchor or Anchor.of(PARTITION, offset)

    def name_left_transaction(self) -> PreparedTxnState:
        left = self.kafka.ongoing
        return PreparedTxnState(left.producer, Anchor.of(PARTITION, left.start_offset)) if left else PreparedTxnState()

    def has_committed(self, state: PreparedTxnState) -> bool:
        return self.kafka.ending_of(state).ending is Ending.COMMITTED

    @property
    def open_transaction(self) -> PreparedTxnState:
        return PreparedTxnState(self.identity, self.anchor) if self.anchor else PreparedTxnState()

    def prepare_transaction(self) -> PreparedTxnState:
        self._usable()
        if self.anchor is None:
            raise PrepareFailedError("nothing was acknowledged")
        self.kafka.request("prepare", lambda: self.kafka.check(self.identity))
        return PreparedTxnState(self.identity, self.anchor)

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        self._usable()
        return self.kafka.request("complete", lambda: self._complete(state))

    def commit_transaction(self) -> None:
        self._end("commit", commit=True)

    def send_commit(self) -> None:
        self._usable()
        self.spent = self.is_committing = True
        self.has_arrived = not self.kafka.is_slow()
        self._request("send commit", self._commit if self.has_arrived else lambda: None)

    def collect_commit(self, *, wait: bool) -> bool:
        assert not self.closed, "used after close"
        if not self.is_committing:
            return True
        if not wait and not self.has_arrived:
            return False
        if self.lost is not None:
            raise self.lost
        self._request("collect", lambda: None if self.has_arrived else self._commit())
        self.spent = self.is_committing = self.begun = False
        return True

    def abort_transaction(self) -> None:
        self.collect_commit(wait=True)
        self._end("abort", commit=False)

    def close(self) -> None:
        self.closed = True

    def _request(self, name: str, effect: Callable[[], None]) -> None:
        try:
            self.kafka.request(name, effect)
        except BaseException as error:
            self.lost = error
            raise

    def _commit(self) -> None:
        self.kafka.end_txn(self.identity, commit=True)

    def _complete(self, state: PreparedTxnState) -> Outcome:
        self.kafka.check(self.identity)
        open_now = self.kafka.ongoing
        described = None
        if open_now is not None:
            described = OngoingTransaction(open_now.producer, {PARTITION: open_now.start_offset})
        decided = verdict(state, described)
        done = Outcome.NOTHING
        if decided is not RecoveryDecision.NOTHING:
            self.kafka.end(commit=decided is RecoveryDecision.COMMIT)
            done = Outcome.COMMITTED if decided is RecoveryDecision.COMMIT else Outcome.ABORTED
        return outcome_in_log(state, done, self.identity, self.kafka.ending_of(state)) if state else done

    def _end(self, name: str, *, commit: bool) -> None:
        self._usable()
        self.spent = True
        self.kafka.request(name, lambda: self.kafka.end_txn(self.identity, commit=commit))
        self.spent = False
        self.begun = False

    def _usable(self) -> None:
        assert not self.closed, "used after close"
        assert not self.spent, "used after a commit or abort of unknown outcome"


class FakeCluster:
    """Kafka with many transactional ids, each of its own."""

    def __init__(self) -> None:
        self.ids: dict[str, FakeKafka] = {}

    def of(self, transactional_id: str) -> FakeKafka:
        return self.ids.setdefault(transactional_id, FakeKafka())

    def participant(self, config: Mapping[str, Any]) -> FakeParticipant:
        return self.of(config["transactional.id"]).participant()

    @property
    def committed(self) -> list[Any]:
        return sorted(value for kafka in self.ids.values() for value in kafka.committed)

    @property
    def ongoing(self) -> list[str]:
        return sorted(name for name, kafka in self.ids.items() if kafka.ongoing is not None)
