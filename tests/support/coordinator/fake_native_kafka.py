"""A Kafka of one transactional id that speaks KIP-890 part 2: each transaction has an epoch of its own, so it can be
named before its records are acknowledged."""

from typing import Any

from dualwrite.errors import PrepareFailedError
from dualwrite.ids import Anchor, EndedTransaction, Ending, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import PARTITION, PRODUCER_ID, FakeKafka, FakeParticipant


class FakeNativeKafka(FakeKafka):
    """The cluster. ``is_slow`` is also asked when records are sent: True if they arrive only when they are awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.following: dict[ProducerIdentity, ProducerIdentity] = {}
        """By the identity of an ended transaction: the next one's, as the answer to EndTxn has it."""

    def participant(self, config: object = None) -> "FakeNativeParticipant":
        made = FakeNativeParticipant(self)
        self.participants.append(made)
        return made

    def end_txn(self, producer: ProducerIdentity, *, commit: bool) -> None:
        super().end_txn(producer, commit=commit)
        self.current = self.following[producer] = ProducerIdentity(PRODUCER_ID, producer.epoch + 1)

    def ending_of(self, state: PreparedTxnState) -> EndedTransaction:
        found = [number for number, (each, _) in enumerate(self.ended) if each.producer == state.producer]
        if not found or state.first_record is None:
            return EndedTransaction(Ending.UNKNOWN)
        (number,) = found
        assert state.first_record.offset <= self.ended[number][0].start_offset, "the row has a place that is wrong"
        later = [ending for _, ending in self.ended[number + 1 :]]
        return EndedTransaction(self.ended[number][1], Ending.COMMITTED in later)


class FakeNativeParticipant(FakeParticipant):
    """Gathers records, as the native producer does: they are sent when it is prepared."""

    def __init__(self, kafka: FakeNativeKafka) -> None:
        super().__init__(kafka)
        self.following = kafka.following
        self.unsent: list[Any] = []
        self.bound = 0
        """The expected place of the first record; wrong if it is too high."""

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self.unsent.clear()

    def produce(self, record: OutgoingRecord) -> None:
        self._usable()
        assert self.begun, "produce outside a transaction"
        self.kafka.request("produce", lambda: None)
        self.unsent.append(None if record.value is None else record.value.decode())

    def expected_state(self) -> PreparedTxnState:
        if self.anchor is not None:
            return PreparedTxnState(self.identity, first_record=self.anchor)
        place = Anchor.of(PARTITION, self.bound)
        return PreparedTxnState(self.identity, first_record=place, is_bound=True)

    def begin_prepare(self) -> None:
        self._usable()
        is_late = self.kafka.is_slow()
        self.kafka.request("send", (lambda: None) if is_late else self._append)

    def prepare_transaction(self) -> PreparedTxnState:
        self._usable()
        self.kafka.request("prepare", self._append)
        if self.anchor is None:
            raise PrepareFailedError("nothing was acknowledged")
        self.bound = self.anchor.offset + 1
        return PreparedTxnState(self.identity, first_record=self.anchor)

    def name_left_transaction(self) -> PreparedTxnState:
        left = self.kafka.ongoing
        if left is None:
            return PreparedTxnState()
        return PreparedTxnState(left.producer, first_record=Anchor.of(PARTITION, left.start_offset))

    @property
    def open_transaction(self) -> PreparedTxnState:
        return PreparedTxnState(self.identity, first_record=self.anchor) if self.begun else PreparedTxnState()

    def collect_commit(self, *, wait: bool) -> bool:
        was_committing, is_collected = self.is_committing, super().collect_commit(wait=wait)
        if was_committing and is_collected:
            self.identity = self.following[self.identity]
        return is_collected

    def _end(self, name: str, *, commit: bool) -> None:
        super()._end(name, commit=commit)
        self.identity = self.following[self.identity]

    def _append(self) -> None:
        self.kafka.check(self.identity)
        while self.unsent:
            offset = self.kafka.append(self.identity, self.unsent.pop(0))
            self.anchor = self.anchor or Anchor.of(PARTITION, offset)
