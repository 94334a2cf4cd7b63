"""The fake Kafka, behaving as today's Apache Kafka: it keeps no prepared transactions, and they may time out."""

from typing import Any

from dualwrite.client.engine.delivery_reports import DeliveredRecord
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, outcome_in_log, verdict
from dualwrite.errors import FencedError
from dualwrite.ids import OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import PARTITION, PRODUCER_ID, FakeKafka, FakeParticipant, FakeTransaction


class ResumingKafka(FakeKafka):
    """One transactional id."""

    def __init__(self) -> None:
        super().__init__()
        self.timed_out = 0

    def participant(self, config: object = None) -> "ResumingParticipant":
        made = ResumingParticipant(self)
        self.participants.append(made)
        return made

    def time_out(self) -> None:
        """Abort what is open; its producer is fenced."""
        if self.ongoing is not None:
            self.end(commit=False)
            self.current = ProducerIdentity(PRODUCER_ID, self.current.epoch + 1)
            self.timed_out += 1

    def forget(self) -> None:
        """A cluster that begins anew, and counts from the beginning."""
        self.current = ProducerIdentity(PRODUCER_ID, -1)
        self.next_offset = 0
        self.committed.clear()
        self.ended.clear()


class ResumingParticipant(FakeParticipant):
    """A participant that looks before it ends what a predecessor left, fenced by nobody."""

    kafka: ResumingKafka

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        if not keep_prepared_txn:
            super().init_transactions()

    def produce(self, record: OutgoingRecord) -> None:
        """A record's callback gets a message, not the tuple that will do elsewhere."""

        def report(error: Any, _: Any) -> None:
            if record.on_delivery is not None:
                record.on_delivery(error, DeliveredRecord(record, PARTITION.partition, 0, 0, error))

        super().produce(record.reporting_to(report))

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        self._usable()
        done = Outcome.NOTHING
        while (seen := self.kafka.request("look", lambda: self.kafka.ongoing)) is not None:
            described = OngoingTransaction(seen.producer, {PARTITION: seen.start_offset})
            commits = verdict(state, described) is RecoveryDecision.COMMIT
            if self.kafka.request("end", lambda seen=seen, commits=commits: self._end_seen(seen, commits)):
                done = Outcome.COMMITTED if commits else Outcome.ABORTED
                break
        if not state:
            return done
        now = ProducerIdentity(PRODUCER_ID, self.kafka.current.epoch + 1)
        return outcome_in_log(state, done, now, self.kafka.ending_of(state))

    def _end_seen(self, seen: FakeTransaction, commits: bool) -> bool:
        try:
            self.kafka.check(seen.producer)
        except FencedError:
            return False
        self.kafka.end(commit=commits)
        return True
