"""The transaction coordinator at run time: decisions become facts in ``__transaction_state``, markers follow.

The order matters. The decision of a transaction (PrepareCommit, PrepareAbort) is durable before the first marker is
written, and its markers are durable before the next decision of its transactional id is written. Under TV1 they are
durable before CompleteCommit or CompleteAbort is written, too. A restart completes what a crash has interrupted
(docs/decisions/0029).
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.core.cluster import TRANSACTION_STATE
from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    Decision,
    Expire,
    MarkersWritten,
    Reply,
    TimeOut,
    VerifyPartitions,
    WriteMarkers,
)
from dualwrite.broker.core.open_times import OpenTimes
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.core.transaction_recovery import LastDecisions, lacks_marker, lost_join, lost_marker
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings, decide, markers_of
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transaction_log import decode_fact, encode_fact
from dualwrite.broker.facts.transactions import (
    TransactionFact,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.expiry_clock import ExpiryClock
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import Clock, Files
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchHeader
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)


# Python 3.11 looks the members of an enum up slowly.
_NONE = ErrorCode.NONE
_EMPTY = TransactionStatus.EMPTY
_TV2 = TransactionVersion.TV2

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
        self._last_decisions = LastDecisions()
        """Those of the journal, until the start has looked for their markers."""
        self._unsynced_ends: dict[str, int] = {}
        """Transactional id -> the journal's offset after the end of its last transaction under TV2. Its markers are
        durable once the journal is durable up to there."""
        self._unwritten_ends: list[Record] = []
        """Facts that transactions of TV2 are complete. They go into the journal with the next fact: see
        :meth:`write_ends`."""
        self._after_identities = 0
        """The journal's offset after the last fact that gave an identity to a client that did not have it yet."""
        self._journal = InternalTopic.open(
            TRANSACTION_STATE, files, data_dir, cluster, flusher, self._replay, segment_bytes=settings.log_segment_bytes
        )
        self._open_times = OpenTimes(self.table.entries.values(), clock.wall_ms(), self._steady_ms())
        self._expiry_clock = ExpiryClock(clock)
        # A power cut may keep a fact and lose the reservation of its producer id, which was appended at the same time.
        cluster.skip_producer_ids(self.table.highest_producer_id + 1)

    def _replay(self, record: Record, _: BatchHeader) -> None:
        assert record.key is not None, "a transaction fact has a key"
        fact = decode_fact(record.key, record.value)
        self.table.apply(fact)
        self._last_decisions.note(fact)

    # --- the start

    async def finish_decided(self) -> int:
        """Complete the transactions that were decided before a crash, and return their number. Also complete the
        transactions in progress: see :meth:`_add_lost_partitions`. Must be called before any command."""
        ended, self._last_decisions = list(self._last_decisions), LastDecisions()
        unfinished = list(self.table.unfinished())
        for entry in unfinished:
            logger.info("finishing %s of %s", entry.status.kafka_name, shown(entry.transactional_id))
            self._append_markers(markers_of(entry), partial(lacks_marker, entry))
        lost = [fact for fact in ended if self._append_markers(markers_of(fact), partial(lost_marker, fact))]
        for fact in lost:
            logger.info("repeating %s of %s", fact.status.kafka_name, shown(fact.transactional_id))
        await self._flusher.barrier()
        for entry in unfinished:
            self._decide(MarkersWritten(entry.transactional_id))
        self._add_lost_partitions()
        await self._flusher.barrier()
        return len(unfinished) + len(lost)

    def _add_lost_partitions(self) -> None:
        """Add to each transaction the partitions in which it has records, but of which no fact is on disk: see
        :meth:`join`."""
        lost: dict[str, set[TopicPartition]] = {}
        for partition in self._cluster.partitions():
            for producer_id in partition.state.open_transactions:
                entry = self.table.owner_of(producer_id)
                producer = ProducerIdentity(producer_id, partition.state.producers[producer_id].epoch)
                if entry is not None and lost_join(entry, producer, partition.name):
                    lost.setdefault(entry.transactional_id, set()).add(partition.name)
        for transactional_id, names in lost.items():
            logger.info("adding %d partitions to the transaction of %s", len(names), shown(transactional_id))
            client = self.table.entries[transactional_id].client
            self._decide(AddPartitions(transactional_id, client, frozenset(names), _TV2))

    # --- commands

    async def execute(self, command: Command) -> Reply:
        """Carry out ``command``. The caller may send the reply at once."""
        if self._has_unsynced_end(command.transactional_id):  # the command may end the next transaction
            self.write_ends()
            await self._flusher.barrier()  # the markers of yet another one would need one more round
        while True:
            decision = self._decide(command)
            if self._flusher.must_wait:
                await self._flusher.barrier()
            for effect in decision.effects:
                await self._write_markers(effect)
            if decision.reply is not None:
                return decision.reply

    async def join(self, command: AddPartitions) -> ErrorCode:
        """Carry out ``command`` for a caller that appends its records at once, without any await, and replies once they
        are durable.

        If possible, the facts become durable together with the records. A power cut may then keep the records without
        the facts, and the restart adds the partitions again. For that the client's identity must be on disk, and no
        earlier transaction may have had it.
        """
        reply = self._decide(command).reply
        assert reply is not None
        if not self._flusher.must_wait or self._is_told_by_records(command.transactional_id):
            return reply.error
        await self._flusher.barrier()
        if reply.error is not _NONE:
            return reply.error
        return self.check(VerifyPartitions(command.transactional_id, command.producer, command.partitions)).error

    def _is_told_by_records(self, transactional_id: str) -> bool:
        """True if a restart could tell from records alone that they are of the transaction of ``transactional_id``."""
        entry = self.table.entries.get(transactional_id)
        return entry is not None and entry.owns_epoch and self._is_durable(self._after_identities)

    def _is_durable(self, offset: int) -> bool:
        return self._journal.partition.state.high_watermark >= offset

    def _has_unsynced_end(self, transactional_id: str) -> bool:
        """True if some marker of the last transaction of ``transactional_id`` may not be durable yet."""
        offset = self._unsynced_ends.get(transactional_id)
        if offset is None:
            return False
        if not self._is_durable(offset):
            return True
        del self._unsynced_ends[transactional_id]
        return False

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

    def _decide(self, command: Command, *, defers: bool = False) -> Decision:
        """Decide ``command``, and write its facts; with ``defers`` they are written with the next ones."""
        self._cluster.reserve_producer_ids()
        fresh_id, now_ms = self._cluster.next_producer_id, self._clock.wall_ms()
        steady_ms = self._steady_ms()
        open_ms = self._open_times.open_ms(command.transactional_id, steady_ms)
        decision = decide(self.table, command, Moment(now_ms, fresh_id, open_ms), self.settings)
        if decision.facts:
            try:
                for fact in decision.facts:
                    self.table.apply(fact)  # first, because it checks: an illegal fact on disk prevents every restart
                    self._open_times.note(fact, steady_ms)
                records = [Record(*encode_fact(fact), now_ms) for fact in decision.facts]
                if defers:
                    self._unwritten_ends += records
                else:
                    self._append(records)
                    self._after_appended(decision, fresh_id)
            except Exception as error:  # noqa: BLE001  memory and log would differ
                self._flusher.fail(error)
        return decision

    def write_ends(self) -> None:
        """Write the ends of transactions that wait for another fact. Until then a restart finds their decisions, and
        that their markers are there."""
        if self._unwritten_ends:
            with self._critical:
                self._append([])

    def _append(self, records: list[Record]) -> None:
        if self._unwritten_ends:
            records, self._unwritten_ends = self._unwritten_ends + records, []
        self._journal.append(records)

    def _after_appended(self, decision: Decision, fresh_id: int) -> None:
        """Note the identities that the facts of ``decision`` give."""
        if any(map(_gives_identity, decision.facts)):
            self._after_identities = self._journal.partition.end_offset
        if decision.takes(fresh_id):
            self._cluster.take_producer_id()

    async def _write_markers(self, effect: WriteMarkers) -> None:
        """Write the markers of a decision that is durable, and then the end of the transaction.

        Under TV2 nothing is durable on return: a restart finds the decision, and the partitions that lack its marker.
        Readers see the end once it is durable; those that ask earlier wait. The end needs no write of its own.

        Under TV1 a restart could not tell such a partition from one with the client's next transaction. So the markers
        are durable before the end is written, and the end is written before that transaction can begin. It needs no
        barrier: until it is durable, a restart finds the decision.
        """
        marked = self._append_markers(effect, lambda partition: not partition.has_fenced(effect.producer))
        is_tv2 = self.table.entries[effect.transactional_id].version is _TV2
        if not is_tv2 and self._flusher.must_wait:
            await self._flusher.barrier()
        self._decide(MarkersWritten(effect.transactional_id), defers=is_tv2)
        if is_tv2 and self._flusher.must_wait:
            offset = self._journal.partition.end_offset + len(self._unwritten_ends)
            self._unsynced_ends[effect.transactional_id] = offset
            if any(partition.has_readers for partition in marked):
                self._flusher.hurry()

    def _append_markers(self, effect: WriteMarkers, is_missing: Callable[[PartitionState], bool]) -> list[Partition]:
        """Append markers to the partitions where one ``is_missing``, and return these partitions."""
        marked = []
        with self._critical:
            for name in sorted(effect.partitions):  # a frozenset has another order in each process
                partition = self._cluster.partition(name)
                if partition is not None and is_missing(partition.state):
                    partition.append_marker(effect.marker, effect.producer, self._clock.wall_ms())
                    marked.append(partition)
        return marked


def _gives_identity(fact: TransactionFact) -> bool:
    """True if ``fact`` begins a session: its client does not know its identity yet."""
    return isinstance(fact, TransactionRecorded) and fact.status is _EMPTY
