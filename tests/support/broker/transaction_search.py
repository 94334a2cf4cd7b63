"""A small world around the coordinator's real rules and a partition's real checks, to be searched step by step.

Two clients share one transactional id. Answers get lost, clients come back, transactions time out, and the coordinator
crashes between markers and completion. A world is a value; ``successors`` gives all worlds one event later. What must
*always* hold is asserted while a step is made; what must *sometimes* happen is counted in ``SearchCoverage``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dualwrite.broker.core import transaction_rules
from dualwrite.broker.core.commands import Command, Decision, EndTransaction, InitProducerId, MarkersWritten, TimeOut
from dualwrite.broker.core.partitions import PartitionState, ProducerEntry
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.producer_snapshot import RetainedBatch
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus, TransactionVersion
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchFields, peek_header
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import (
    ABORT,
    COMMIT,
    P0,
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN_ID,
    add,
    end,
    init,
    recorded,
    verify,
    who,
)
from tests.support.exhaustive.states import StateModel

_COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
_SETTINGS = TransactionSettings()
_BATCH = peek_header(build_batch([Record(None, b"")], BatchFields(ProducerIdentity(0, 0), 0, transactional=True)))
_MARKER = peek_header(build_marker(COMMIT, ProducerIdentity(0, 0), 0, 0))


@dataclass(frozen=True, slots=True)
class SearchClient:
    """What one client believes."""

    version: TransactionVersion
    identity: ProducerIdentity = NO_PRODUCER
    sequence: int = 0
    in_transaction: bool = False
    is_kept: bool = False
    unanswered: EndTransaction | None = None
    """Sent, decided, and the answer lost: it can only ask again, or start anew."""


@dataclass(frozen=True, slots=True)
class SearchWriter:
    """What the partition knows of one producer id."""

    producer_id: int
    epoch: int
    last_sequence: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class TransactionSearchWorld:
    """Everything that can differ. ``waiting`` is the client whose InitProducerId aborts before it is answered, and
    ``last_end`` who last had a transaction ended, by a request or a timeout, and how."""

    entry: TransactionRecorded
    clients: tuple[SearchClient, ...]
    fresh_id: int = 73
    writers: tuple[SearchWriter, ...] = ()
    waiting: tuple[int, InitProducerId] | None = None
    last_end: tuple[ProducerIdentity, Marker] | None = None


@dataclass(slots=True)
class SearchCoverage:
    """What happened somewhere in a search, and how often."""

    counts: Counter[str] = field(default_factory=Counter)
    _inspected: set[object] = field(default_factory=set)

    def is_new(self, what: object) -> bool:
        known = what in self._inspected
        self._inspected.add(what)
        return not known

    def saw(self, event: str) -> None:
        """Count ``event``."""
        self.counts[event] += 1


STATUS = {status: f"a transaction was {status.kafka_name}" for status in TransactionStatus}
ANSWER = {error: f"an answer was {error.name}" for error in ErrorCode}


def successors(world: TransactionSearchWorld, seen: SearchCoverage) -> Iterator[tuple[str, TransactionSearchWorld]]:
    """What may happen, and the world after it."""
    inspect(world, seen)
    if world.entry.is_ended:
        yield "the markers are written", _write_markers(world, seen)
        crashed = replace(_with_marker(world, seen), waiting=None)  # a restart writes them again
        yield "the coordinator crashes after the markers", crashed
    elif world.entry.status is TransactionStatus.ONGOING:
        aborted = _take(world, TimeOut(TXN_ID), seen, now_ms=START_MS + TIMEOUT_MS)[0]
        yield "the transaction times out", replace(aborted, last_end=(world.entry.client, ABORT))
    for number, client in enumerate(world.clients):
        if world.waiting is None:
            for command in (init(), init(keep=True)) + ((init(expected=client.identity),) if client.identity else ()):
                does = f"{number}: {command}"
                yield does, _start(world, number, command, seen)
                yield f"{does}, the answer is lost", _start(world, number, command, seen, is_answered=False)
        if client.unanswered is not None:
            yield f"{number}: asks again", _end(world, number, client.unanswered, seen)
        elif client.identity:
            if not client.in_transaction and not client.is_kept:
                yield f"{number}: produces", _produce(world, number, seen)
            for result in (COMMIT, ABORT):
                ending = end(client.identity, result, client.version)
                yield f"{number}: {result.name.lower()}s", _end(world, number, ending, seen)
                lost = _end(world, number, ending, seen, is_answered=False)
                yield f"{number}: {result.name.lower()}s, the answer is lost", lost


def transactions(
    first: Sequence[TransactionSearchWorld], about: str, events: Sequence[str]
) -> StateModel[TransactionSearchWorld]:
    """The model, from these worlds on.

    :param events: what must happen beside the statuses and answers that always do.
    """
    coverage = SearchCoverage()

    def following(world: TransactionSearchWorld, seen: Counter[str]) -> Iterator[tuple[str, TransactionSearchWorld]]:
        coverage.counts = seen
        return successors(world, coverage)

    return StateModel(
        name="transactions",
        about=about,
        first=first,
        following=following,
        asserted=(
            "one identity lives, and every other is refused",
            "a retry learns how its own transaction ended",
            "every session has an identity of its own, and epochs never go back",
            "the living client is not refused by the partition",
            "markers leave no transaction open, and fence its epoch",
        ),
        events=(*(STATUS[status] for status in STATUS if status is not TransactionStatus.DEAD), *events),
        least=5,
    )


def inspect(world: TransactionSearchWorld, seen: SearchCoverage) -> None:
    """One identity lives: whoever else asks is refused, or told again how its own transaction ended."""
    entry = world.entry
    seen.saw(STATUS[entry.status])
    if not seen.is_new((entry, world.last_end)):
        return
    for sender in _suspects(entry):
        lives = sender == entry.client
        for command in (add(sender), verify(sender)):
            decision = _decide(world, command, seen)
            assert lives or not _succeeds(decision), f"{sender} is not {entry.client} and may write: {entry}"
        for result in (COMMIT, ABORT):
            for version in TransactionVersion:
                decision = _decide(world, end(sender, result, version), seen)
                if _succeeds(decision) and not (lives and decision.facts):
                    assert not decision.facts
                    assert world.last_end == (sender, result), f"{sender} did not {result.name}: {world}"


def _suspects(entry: TransactionRecorded) -> set[ProducerIdentity]:
    known = {entry.client, entry.producer, entry.previous, NO_PRODUCER}
    return known | {ProducerIdentity(one.producer_id, one.epoch + step) for one in known for step in (-2, -1, 1, 2)}


def _succeeds(decision: Decision) -> bool:
    return decision.reply is not None and decision.reply.error is ErrorCode.NONE


# --- the coordinator


def _decide(world: TransactionSearchWorld, command: Command, seen: SearchCoverage, now_ms: int = START_MS) -> Decision:
    table = TransactionTable({TXN_ID: world.entry})
    decision = transaction_rules.decide(table, command, Moment(now_ms, world.fresh_id, now_ms - START_MS), _SETTINGS)
    if decision.reply is not None:
        seen.saw(ANSWER[decision.reply.error])
    return decision


def _take(
    world: TransactionSearchWorld, command: Command, seen: SearchCoverage, now_ms: int = START_MS
) -> tuple[TransactionSearchWorld, Decision]:
    """Decide ``command`` and take its fact in, as the journal and the table do."""
    decision = _decide(world, command, seen, now_ms)
    for fact in decision.facts:
        table = TransactionTable({TXN_ID: world.entry})
        table.apply(fact)
        before, after = world.entry.client, table.entries[TXN_ID].client
        moved_on = before.producer_id == after.producer_id and before.epoch <= after.epoch
        assert moved_on or after.producer_id == world.fresh_id, f"{after} after {before}"
        same_transaction = table.entries[TXN_ID].status in (world.entry.status, *_COMPLETE)
        last_end = world.last_end if same_transaction else None
        world = replace(world, entry=table.entries[TXN_ID], last_end=last_end)
    if decision.takes(world.fresh_id):
        seen.saw(f"overflow of {type(command).__name__}{' of a kept transaction' * world.entry.is_kept}")
        world = replace(world, fresh_id=world.fresh_id + 1)
    return world, decision


def _start(
    world: TransactionSearchWorld, number: int, command: InitProducerId, seen: SearchCoverage, is_answered: bool = True
) -> TransactionSearchWorld:
    following, decision = _take(world, command, seen)
    if decision.reply is None:
        asked_by = (command.expected, ABORT) if command.expected else None
        return replace(following, waiting=(number, command) if is_answered else None, last_end=asked_by)
    if decision.reply.error is not ErrorCode.NONE or not is_answered:
        return following
    if command.expected and command.expected == world.entry.previous:
        seen.saw("InitProducerId retried")
    elif decision.facts:
        assert decision.reply.producer != world.entry.client, "every session has an identity of its own"
    client = world.clients[number]
    return _with_client(
        following, number, SearchClient(client.version, decision.reply.producer, is_kept=bool(decision.reply.ongoing))
    )


def _end(
    world: TransactionSearchWorld, number: int, command: EndTransaction, seen: SearchCoverage, is_answered: bool = True
) -> TransactionSearchWorld:
    following, decision = _take(world, command, seen)
    assert decision.reply is not None
    if not _succeeds(decision):
        return following
    if decision.facts:
        following = replace(following, last_end=(command.producer, command.result))
    else:
        seen.saw(f"EndTransaction retried under {command.version.name}")
    client = world.clients[number]
    if not is_answered:
        return _with_client(following, number, replace(client, unanswered=command))
    identity = decision.reply.producer
    sequence = client.sequence if identity == client.identity else 0
    return _with_client(following, number, SearchClient(client.version, identity, sequence))


def _with_client(world: TransactionSearchWorld, number: int, client: SearchClient) -> TransactionSearchWorld:
    return replace(world, clients=(*world.clients[:number], client, *world.clients[number + 1 :]))


def _write_markers(world: TransactionSearchWorld, seen: SearchCoverage) -> TransactionSearchWorld:
    """The markers are down: the transaction is complete, and whoever waited for that is answered."""
    status = world.entry.status
    world, _ = _take(_with_marker(world, seen), MarkersWritten(TXN_ID), seen)
    assert world.entry.status.name == status.name.replace("PREPARE", "COMPLETE")
    assert not any(writer.is_open for writer in world.writers), f"a hanging transaction: {world}"
    if world.waiting is None:
        return world
    number, command = world.waiting
    following = _start(replace(world, waiting=None), number, command, seen)
    assert following.clients[number].identity == following.entry.client, "the one who aborted lives"
    return following


# --- the partition


def _produce(world: TransactionSearchWorld, number: int, seen: SearchCoverage) -> TransactionSearchWorld:
    """One record of a client, as Produce handles it: join the transaction, verify that, append."""
    client = world.clients[number]
    following, decision = _take(world, add(client.identity), seen)
    if not _succeeds(decision):
        return following
    assert _succeeds(_decide(following, verify(client.identity), seen))
    partition = _thawed(following.writers)
    header = _BATCH._replace(
        base_offset=partition.end_offset,
        producer_id=client.identity.producer_id,
        producer_epoch=client.identity.epoch,
        base_sequence=client.sequence,
    )
    verdict = partition.decide(header)
    assert verdict.appends, f"the living client {client} is refused with {verdict}: {world}"
    partition.apply(header, None)
    following = replace(following, writers=_frozen(partition))
    return _with_client(following, number, replace(client, sequence=client.sequence + 1, in_transaction=True))


def _with_marker(world: TransactionSearchWorld, seen: SearchCoverage) -> TransactionSearchWorld:
    """The partition after the marker; perhaps it was there before."""
    effect, partition = transaction_rules.markers_of(world.entry), _thawed(world.writers)
    if not effect.partitions:
        return world
    known = partition.producers.get(effect.producer.producer_id)
    if known is not None and known.transaction_start >= 0:
        assert effect.producer.epoch in (known.epoch, known.epoch + 1)
    elif known is not None and known.epoch == effect.producer.epoch:
        seen.saw("marker written again")
    for writer in world.writers:
        assert not writer.is_open or writer.producer_id == effect.producer.producer_id, f"not ended: {writer}"
    header = _MARKER._replace(
        base_offset=partition.end_offset,
        producer_id=effect.producer.producer_id,
        producer_epoch=effect.producer.epoch,
    )
    partition.apply(header, effect.marker)
    return replace(world, writers=_frozen(partition))


def _thawed(writers: tuple[SearchWriter, ...]) -> PartitionState:
    state = PartitionState(end_offset=1)
    for writer in writers:
        entry = ProducerEntry(writer.producer_id, writer.epoch, transaction_start=0 if writer.is_open else -1)
        if writer.last_sequence >= 0:
            entry.batches.append(RetainedBatch(writer.last_sequence, writer.last_sequence, 0))
        if writer.is_open:
            state.open_transactions[writer.producer_id] = 0
        state.producers[writer.producer_id] = entry
    return state


def _frozen(state: PartitionState) -> tuple[SearchWriter, ...]:
    return tuple(
        SearchWriter(entry.producer_id, entry.epoch, entry.last_sequence, entry.transaction_start >= 0)
        for _, entry in sorted(state.producers.items())
    )


# --- where histories begin

VERSIONS = ((TV2, TV2), (TV1, TV1), (TV1, TV2))
"""Two clients of one kind, and a librdkafka application that a native control plane recovers."""


def idle(epoch: int, versions: tuple[TransactionVersion, ...]) -> TransactionSearchWorld:
    """42:``epoch`` has no transaction, and no client has begun."""
    return TransactionSearchWorld(recorded(producer=who(42, epoch)), tuple(map(SearchClient, versions)))


def kept(epoch: int, client_epoch: int, versions: tuple[TransactionVersion, ...]) -> TransactionSearchWorld:
    """42:``epoch`` crashed with a prepared transaction, and its successor is 73:``client_epoch``."""
    entry = recorded(TransactionStatus.ONGOING, who(42, epoch), partitions=frozenset({P0}), started_ms=START_MS)
    first, second = map(SearchClient, versions)
    return TransactionSearchWorld(
        entry._replace(next_producer=who(73, client_epoch)),
        (replace(first, identity=who(73, client_epoch), is_kept=True), second),
        fresh_id=85,
        writers=(SearchWriter(42, epoch, 0, is_open=True),),
    )
