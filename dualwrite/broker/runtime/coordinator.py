"""The transaction coordinator at run time: decisions become facts in ``__transaction_state``, markers follow.

The order matters. The decision of a transaction (PrepareCommit, PrepareAbort) is durable before the first marker is
written. Every marker is durable before CompleteCommit or CompleteAbort is written. A crash in between leaves a decision
in the log, which a restart completes.
"""

import logging
from pathlib import Path

from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.core.cluster import TRANSACTION_STATE
from dualwrite.broker.core.commands import Command, Decision, Expire, MarkersWritten, Reply, TimeOut, WriteMarkers
from dualwrite.broker.core.open_times import OpenTimes
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings, decide, markers_of
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transaction_log import decode_fact, encode_fact
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.expiry_clock import ExpiryClock
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.ports import Clock, Files
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchHeader

logger = logging.getLogger(__name__)

_NO_MOMENT = Moment(0, 0)
"""For commands whose decision depends on the state alone."""


class TransactionCoordinator:
    """Runs the coordinator's rules. Belongs to the event loop's thread."""

    def __init__(
        self,
        files: Files,
        data_dir: Path,
        cluster: Cluster,
        flusher: Flusher,
        clock: Clock,
        settings: TransactionSettings,
    ) -> None:
        self.table = TransactionTable()
        self._cluster = cluster
        self._flusher = flusher
        self._critical = flusher.critical()
        self._clock = clock
        self.settings = settings
        self._journal = InternalTopic.open(
            TRANSACTION_STATE, files, data_dir, cluster, flusher, self._replay, segment_bytes=settings.log_segment_bytes
        )
        self._open_times = OpenTimes(self.table.entries.values(), clock.wall_ms(), self._steady_ms())
        self._expiry_clock = ExpiryClock(clock)
        # A power cut may keep a fact and lose the reservation of its producer id, which was appended at the same time.
        cluster.skip_producer_ids(self.table.highest_producer_id + 1)

    def _replay(self, record: Record, _: BatchHeader) -> None:
        assert record.key is not None, "a transaction fact has a key"
        self.table.apply(decode_fact(record.key, record.value))

    async def finish_decided(self) -> int:
        """Complete the transactions that were decided before a crash; return their number."""
        unfinished = list(self.table.unfinished())
        for entry in unfinished:
            logger.info("finishing %s of %s", entry.status.kafka_name, shown(entry.transactional_id))
            await self._write_markers(markers_of(entry))
        return len(unfinished)

    async def execute(self, command: Command) -> Reply:
        """Carry out ``command``. The caller may send the reply at once."""
        while True:
            decision = self._decide(command)
            if self._flusher.must_wait:
                await self._flusher.barrier()
            for effect in decision.effects:
                await self._write_markers(effect)
            if decision.reply is not None:
                return decision.reply

    def check(self, command: Command) -> Reply:
        """The reply to a command that changes nothing, without any await."""
        decision = decide(self.table, command, _NO_MOMENT, self.settings)
        assert not decision.facts, f"{command} changes state"
        assert decision.reply is not None
        return decision.reply

    async def end_overdue(self) -> None:
        """Abort transactions past their timeout."""
        steady_ms = self._steady_ms()
        overdue = self.table.timed_out(lambda entry: self._open_times.open_ms(entry.transactional_id, steady_ms))
        for transactional_id in list(overdue):
            logger.info("aborting the transaction of %s: it is past its timeout", shown(transactional_id))
            await self.execute(TimeOut(transactional_id))

    async def forget_idle(self) -> None:
        """Forget transactional ids that were idle for transactional.id.expiration.ms."""
        now_ms = self._expiry_clock.now_ms()
        for transactional_id in list(self.table.idle_since(now_ms - self.settings.id_expiration_ms)):
            await self.execute(Expire(transactional_id))

    def _steady_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _decide(self, command: Command) -> Decision:
        self._cluster.reserve_producer_ids()
        steady_ms = self._steady_ms()
        open_ms = self._open_times.open_ms(command.transactional_id, steady_ms)
        moment = Moment(self._clock.wall_ms(), self._cluster.next_producer_id, open_ms)
        decision = decide(self.table, command, moment, self.settings)
        if decision.facts:
            with self._critical:
                for fact in decision.facts:
                    self.table.apply(fact)  # first, because it checks: an illegal fact on disk prevents every restart
                    self._open_times.note(fact, steady_ms)
                self._journal.append([Record(*encode_fact(fact), moment.now_ms) for fact in decision.facts])
                if decision.takes(moment.fresh_producer_id):
                    self._cluster.take_producer_id()
        return decision

    async def _write_markers(self, effect: WriteMarkers) -> None:
        """Write markers to every partition, durably, and only then the end of the transaction.

        That last fact needs neither a barrier nor its own fsync. Until it is durable, a restart finds the decision and
        writes the markers again, which changes nothing. The client's next transaction follows it in the journal.
        """
        with self._critical:
            for name in effect.partitions:
                partition = self._cluster.partition(name)
                fenced = partition is not None and partition.state.has_fenced(effect.producer)
                if partition is not None and not fenced:  # otherwise an operator has already ended it in this partition
                    partition.append_marker(effect.marker, effect.producer, self._clock.wall_ms())
        if self._flusher.must_wait:
            await self._flusher.barrier()
        self._decide(MarkersWritten(effect.transactional_id))
