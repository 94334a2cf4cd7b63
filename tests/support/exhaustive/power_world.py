"""The small world of :mod:`tests.support.exhaustive.power_cut`: a coordinator, two partitions, two producers."""

from enum import Enum
from typing import NamedTuple

from dualwrite.broker.core import transaction_rules
from dualwrite.broker.core.commands import AddPartitions, Command, Decision, EndTransaction, InitProducerId, Reply
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transactions import TransactionFact, TransactionRecorded, TransactionStatus
from dualwrite.broker.facts.transactions import TransactionVersion as Version
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.control import Marker
from tests.support.broker.transactions import COMMIT, START_MS, TV2, TXN_ID
from tests.support.exhaustive.power_logs import FactLog, KeptLog, UnitEnd

_SETTINGS = TransactionSettings()


class RequestPhase(Enum):
    """What a request does next."""

    DECIDE = "its command is decided"
    APPEND = "its record is appended"
    MARK = "markers are written"
    COMPLETE = "the transaction is complete"
    ANSWER = "it is answered"


class PowerRequest(NamedTuple):
    """A request that the broker has begun to handle.

    :param waits: for a round of fsyncs.
    """

    command: AddPartitions | EndTransaction | InitProducerId
    phase: RequestPhase = RequestPhase.DECIDE
    waits: bool = False
    reply: Reply | None = None

    @property
    def result(self) -> Marker | None:
        """How it ends a transaction, if it is an EndTxn."""
        return self.command.result if isinstance(self.command, EndTransaction) else None


class PowerClient(NamedTuple):
    """What a producer believes.

    :param unit: its transaction, or the one that it has kept; 0 if there is none.
    :param sequences: the next of each partition.
    :param wrote: the partitions with an acknowledged record of the transaction.
    :param is_kept: the transaction is its predecessor's.
    :param again: a request that the broker's end has interrupted.
    """

    version: Version
    identity: ProducerIdentity = NO_PRODUCER
    unit: int = 0
    sequences: tuple[int, int] = (0, 0)
    wrote: frozenset[int] = frozenset()
    is_kept: bool = False
    request: PowerRequest | None = None
    again: PowerRequest | None = None


class PowerWorld(NamedTuple):
    """Everything that can differ.

    :param entry: the coordinator's memory. Its ``started_ms`` names the transaction: see ``unit_of``.
    :param starting: how far the start is, after a power cut; 0 once it is over.
    :param acknowledged: partition and transaction of the records that were acknowledged.
    :param asked: the transactions whose commit was asked for; ``ended`` those whose end was acknowledged.
    :param seen: what a read_committed reader has seen.
    """

    entry: TransactionRecorded
    journal: FactLog
    logs: tuple[KeptLog, KeptLog] = (KeptLog(), KeptLog())
    clients: tuple[PowerClient, ...] = ()
    fresh_id: int = 73
    units: int = 0
    cuts: int = 0
    starting: int = 0
    was_cut_while_starting: bool = False
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    asked: frozenset[int] = frozenset()
    ended: frozenset[tuple[int, Marker]] = frozenset()
    seen: frozenset[UnitEnd] = frozenset()

    @property
    def has_unsynced_end(self) -> bool:
        """As in the coordinator: a marker of the last transaction of TV2 may not be on disk."""
        waiting = (*self.journal.fresh, *self.journal.unwritten)
        return any(_is_complete(fact) and fact.version is TV2 for fact in waiting)

    @property
    def has_unsynced_identity(self) -> bool:
        """As in the coordinator: the identity of a new session may not be on disk."""
        return any(fact.status is TransactionStatus.EMPTY for fact in self.journal.fresh)

    @property
    def is_synced(self) -> bool:
        """True if a power cut would take nothing."""
        return not self.journal.fresh and all(log.synced == len(log.entries) for log in self.logs)

    def with_client(self, before: PowerClient, after: PowerClient) -> "PowerWorld":
        """The world in which ``before`` has become ``after``. Equal clients are in one order."""
        clients = list(self.clients)
        clients[clients.index(before)] = after
        clients.sort(key=lambda one: (one.version, one.identity, one.unit, one.wrote, one.sequences))
        return self._replace(clients=tuple(clients))

    def with_log(self, number: int, log: KeptLog) -> "PowerWorld":
        """The world in which partition ``number`` has ``log``."""
        return self._replace(logs=(log, self.logs[1]) if number == 0 else (self.logs[0], log))

    def with_facts(self, facts: tuple[TransactionFact, ...]) -> "PowerWorld":
        """The world after these facts, which the memory has, were appended."""
        return self._replace(journal=self.journal.with_facts(recorded_facts(facts))) if facts else self

    def writes_ends(self) -> "PowerWorld":
        """The world after the ends that waited for another fact were appended."""
        return self._replace(journal=self.journal.with_facts(()))

    def defers(self, facts: tuple[TransactionFact, ...]) -> "PowerWorld":
        """The world in which these facts wait for the next append."""
        unwritten = (*self.journal.unwritten, *recorded_facts(facts))
        return self._replace(journal=self.journal._replace(unwritten=unwritten))

    def waiting(self, client: PowerClient, request: PowerRequest, phase: RequestPhase) -> "PowerWorld":
        """The world in which ``request`` goes on with ``phase`` after a round, if it has to wait for one."""
        following = request._replace(phase=phase, waits=not self.is_synced)
        return self.with_client(client, client._replace(request=following))

    def after_sync(self) -> "PowerWorld":
        """The world after a round of fsyncs: readers see more, and no request waits."""
        logs = (self.logs[0].after_sync(), self.logs[1].after_sync())
        visible = {end for number, log in enumerate(logs) for end in log.visible(number)}
        world = self._replace(journal=self.journal.after_sync(), logs=logs, seen=self.seen | visible)
        for client in self.clients:
            if client.request is not None and client.request.waits:
                world = world.with_client(client, client._replace(request=client.request._replace(waits=False)))
        return world


def unit_of(entry: TransactionRecorded) -> int:
    """The transaction of ``entry``; 0 if there is none."""
    return max(entry.started_ms - START_MS, 0)


def recorded_facts(facts: tuple[TransactionFact, ...]) -> tuple[TransactionRecorded, ...]:
    """``facts``, none of which forgets an id: nothing expires here."""
    return tuple(fact for fact in facts if isinstance(fact, TransactionRecorded))


def decide(world: PowerWorld, command: Command, unit: int = 0) -> tuple[PowerWorld, Decision]:
    """The coordinator's decision; its facts are in memory, and nowhere else.

    :param unit: the transaction that the command may begin.
    """
    table = TransactionTable({TXN_ID: world.entry})
    decision = transaction_rules.decide(table, command, Moment(START_MS + unit, world.fresh_id), _SETTINGS)
    for fact in decision.facts:
        table.apply(fact)
    fresh_id = world.fresh_id + decision.takes(world.fresh_id)
    return world._replace(entry=table.entries[TXN_ID], fresh_id=fresh_id), decision


def asks(world: PowerWorld, client: PowerClient, request: PowerRequest) -> PowerWorld:
    """Note that ``client`` has asked to commit its transaction, if it has."""
    return world._replace(asked=world.asked | {client.unit}) if request.result is COMMIT else world


def _is_complete(fact: TransactionRecorded) -> bool:
    return fact.status in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
