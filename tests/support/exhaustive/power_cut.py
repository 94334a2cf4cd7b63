"""The broker's transactions under power cuts: two producers of one transactional id write to two partitions.

The rules, the partitions and what a start restores are the product's own pure functions. Their order is that of
``TransactionCoordinator``: which appends wait for a round of fsyncs, and which do not. A power cut may come between any
two steps, also during the start after it, and keeps of each of the three logs what was synced and any prefix of the
rest (docs/decisions/0029).
"""

from collections import Counter
from collections.abc import Iterator
from itertools import product

from dualwrite.broker.core import transaction_recovery, transaction_rules
from dualwrite.broker.core.commands import AddPartitions, MarkersWritten, WriteMarkers
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transactions import TransactionStatus, TransactionVersion
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.operations.phrases import counted
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import ABORT, COMMIT, TV1, TV2, TXN_ID, end, init, recorded, verify, who
from tests.support.exhaustive.power_logs import PARTITIONS, FactLog, KeptEntry, UnitEnd, forget_replays
from tests.support.exhaustive.power_world import (
    PowerClient,
    PowerRequest,
    PowerWorld,
    RequestPhase,
    asks,
    decide,
    unit_of,
)
from tests.support.exhaustive.states import StateModel

Steps = Iterator[tuple[str, PowerWorld]]

MARKER_AFTER_RESTART = "a marker was written after a restart"
MARKER_REPEATED = "a start repeated a marker that a power cut had taken"
JOIN_REPEATED = "a start added a partition whose fact a power cut had taken"
RECORD_LOST = "a power cut took a record that was not acknowledged"
DECISION_LOST = "a power cut took a decision that was not acknowledged"
FENCED = "a zombie was refused"
KEPT_COMMITTED = "a producer committed the transaction that it had kept"
WAITED_FOR_MARKERS = "a request waited for the markers of the transaction before"


def power_cut(versions: tuple[TransactionVersion, TransactionVersion], cuts: int, units: int) -> StateModel[PowerWorld]:
    """The model, with ``cuts`` power cuts and ``units`` transactions.

    :param versions: of the two producers.
    """

    def following(world: PowerWorld, seen: Counter[str]) -> Steps:
        if world.cuts < cuts:
            yield from _power_cuts(world, seen)
        if world.starting:
            yield "the start goes on", _go_on_starting(world, seen)
            return
        if any(client.request and client.request.waits for client in world.clients):
            yield "a round of fsyncs", world.after_sync()
        for number, client in enumerate(world.clients):
            if client.request is not None:
                if not client.request.waits:
                    yield f"{number}: {client.request.phase.value}", _advance(world, client, client.request, seen)
            elif client not in world.clients[:number]:  # the other one is equal: its steps lead to equal states
                for step, request in _requests(world, client, units):
                    yield f"{number}: {step}", _enter(world, client, request, seen)

    forget_replays()
    first = recorded(producer=who(42, 5), version=TV1)
    clients = tuple(PowerClient(version) for version in sorted(versions))
    return StateModel(
        name="power-cut",
        about=f"two producers ({' and '.join(version.name for version in sorted(versions))}) of one transactional id, "
        f"two partitions, {counted(units, 'transaction')}, {counted(cuts, 'power cut')}",
        first=(PowerWorld(first, FactLog((first,)), clients=clients),),
        following=following,
        always={
            "what was acknowledged survives": _keeps_what_was_acknowledged,
            "a transaction ends alike in both partitions": _ends_alike,
            "only what its producer asked to commit is committed": _commits_what_was_asked,
            "what a read_committed reader has seen stays so": _keeps_what_was_seen,
            "no transaction is open that its coordinator does not know": _knows_what_is_open,
        },
        sometimes={
            "a reader saw a committed transaction": lambda world: any(e.marker is COMMIT for e in world.seen),
            "a reader waited before an open transaction": lambda world: any(
                log.state.last_stable_offset < log.synced for log in world.logs
            ),
            **({"the power failed during a start": lambda world: world.was_cut_while_starting} if cuts > 1 else {}),
        },
        events=(
            MARKER_AFTER_RESTART,
            RECORD_LOST,
            DECISION_LOST,
            FENCED,
            KEPT_COMMITTED,
            *((JOIN_REPEATED, MARKER_REPEATED, WAITED_FOR_MARKERS) if TV2 in versions else ()),
        ),
        least=12,
    )


# --- what must always hold


def _ends(world: PowerWorld) -> list[UnitEnd]:
    return [end for number, log in enumerate(world.logs) for end in log.ends(number)]


def _keeps_what_was_acknowledged(world: PowerWorld) -> bool:
    ends = {(end.partition, end.unit): end.marker for end in _ends(world)}
    if any(place not in ends for place in world.acknowledged):
        return False
    if world.starting:
        return True  # markers may be missing still
    return all(
        ends[place] is marker for unit, marker in world.ended for place in world.acknowledged if place[1] == unit
    )


def _ends_alike(world: PowerWorld) -> bool:
    ended = {(end.unit, end.marker) for end in _ends(world) if end.marker is not None}
    return len(ended) == len({unit for unit, _ in ended})


def _commits_what_was_asked(world: PowerWorld) -> bool:
    return all(end.unit in world.asked for end in _ends(world) if end.marker is COMMIT)


def _keeps_what_was_seen(world: PowerWorld) -> bool:
    return world.seen <= {*_ends(world)}


def _knows_what_is_open(world: PowerWorld) -> bool:
    """Once no request is under way; meanwhile records may be there before their fact, or markers be missing."""
    if world.starting or any(client.request for client in world.clients):
        return True
    entry = world.entry
    known = entry.partitions if entry.status is TransactionStatus.ONGOING else frozenset()
    return all(
        name in known and [*log.state.open_transactions] == [entry.producer.producer_id]
        for name, log in zip(PARTITIONS, world.logs, strict=True)
        if log.state.open_transactions
    )


# --- producers


def _requests(world: PowerWorld, client: PowerClient, units: int) -> Iterator[tuple[str, PowerRequest]]:
    """What ``client`` may ask next."""
    for keep in (False, True):
        yield f"starts{', and keeps what is prepared' * keep}", PowerRequest(init(keep=keep))
    if client.again is not None:
        yield "asks again", client.again
        return
    if not client.identity:
        return
    if not client.is_kept and (client.unit or world.units < units):
        for number in range(2 if world.units else 1):  # both partitions are alike before the first record
            if number not in client.wrote:
                command = AddPartitions(TXN_ID, client.identity, frozenset({PARTITIONS[number]}), client.version)
                yield f"produces to {PARTITIONS[number]}", PowerRequest(command)
    if client.wrote or client.is_kept:
        for result in (COMMIT, ABORT):
            yield f"asks to {result.name.lower()}", PowerRequest(end(client.identity, result, client.version))


def _enter(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    """The request arrives."""
    joins = isinstance(request.command, AddPartitions)
    begun = client._replace(again=None, unit=client.unit or (world.units + 1) * joins)
    world = asks(world.with_client(client, begun), begun, request)._replace(units=max(world.units, begun.unit))
    if joins and client.version is TV2:
        return _decide(world, begun, request, seen)
    if world.has_unsynced_end:
        seen[WAITED_FOR_MARKERS] += 1
        return world.writes_ends().waiting(begun, request, RequestPhase.DECIDE)
    return _decide(world, begun, request, seen)


def _advance(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    """One step of a request, up to its next wait for the disk."""
    phase = request.phase
    if phase is RequestPhase.DECIDE:
        return _decide(world, client, request, seen)
    if phase is RequestPhase.APPEND:
        _, decision = decide(world, verify(client.identity, _partition(request)))
        assert decision.reply is not None
        if decision.reply.error is not ErrorCode.NONE:
            return _refused(world, client, seen)
        return _append(world, client, request, seen)
    if phase is RequestPhase.MARK:
        return _mark(world, client, request, seen)
    if phase is RequestPhase.COMPLETE:
        world, decision = decide(world, MarkersWritten(TXN_ID))
        return _ended(world.with_facts(decision.facts), client, request, seen)
    return _acknowledge(world, client, request, seen)


def _decide(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    decided, decision = decide(world, request.command, client.unit)
    if decision.reply is not None and decision.reply.error is not ErrorCode.NONE:
        if decision.reply.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            return world.with_client(client, client._replace(request=None, again=request))
        return _refused(world, client, seen)
    decided, request = decided.with_facts(decision.facts), request._replace(reply=decision.reply)
    if not isinstance(request.command, AddPartitions):
        return decided.waiting(client, request, RequestPhase.MARK if decision.effects else RequestPhase.ANSWER)
    if decided.entry.owns_epoch and not decided.has_unsynced_identity:
        return _append(decided, client, request, seen)
    return decided.waiting(client, request, RequestPhase.APPEND)


def _append(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    number = PARTITIONS.index(_partition(request))
    log = world.logs[number]
    entry = KeptEntry(client.identity, client.sequences[number], client.unit)
    verdict = log.state.decide(entry.header(len(log.entries)))
    if verdict.error is not ErrorCode.NONE:
        return _refused(world, client, seen)
    if verdict.appends:
        world = world.with_log(number, log.with_entry(entry))
    return world.waiting(client, request, RequestPhase.ANSWER)


def _mark(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    """The decision is on disk: its markers follow."""
    effect, is_tv2 = transaction_rules.markers_of(world.entry), world.entry.version is TV2
    for number, log in enumerate(world.logs):
        if PARTITIONS[number] in effect.partitions and not log.state.has_fenced(effect.producer):
            world = _with_marker(world, number, effect)
    if not is_tv2:
        return world.waiting(client, request, RequestPhase.COMPLETE)
    world, decision = decide(world, MarkersWritten(TXN_ID))
    return _ended(world.defers(decision.facts), client, request, seen)


def _ended(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    """The transaction has ended: the command is answered, or decided again."""
    if request.reply is None:
        return _decide(world, client, request, seen)
    return _acknowledge(world, client, request, seen)


def _acknowledge(world: PowerWorld, client: PowerClient, request: PowerRequest, seen: Counter[str]) -> PowerWorld:
    """The answer reaches the client."""
    assert request.reply is not None
    if isinstance(request.command, AddPartitions):
        number = PARTITIONS.index(_partition(request))
        counted = [sequence + (place == number) for place, sequence in enumerate(client.sequences)]
        done = client._replace(request=None, wrote=client.wrote | {number}, sequences=(counted[0], counted[1]))
        return world.with_client(client, done)._replace(acknowledged=world.acknowledged | {(number, client.unit)})
    after = PowerClient(client.version, request.reply.producer or client.identity)
    if request.result is None:
        if request.reply.ongoing:
            after = after._replace(is_kept=True, unit=unit_of(world.entry))
        return world.with_client(client, after)
    seen[KEPT_COMMITTED] += client.is_kept and request.result is COMMIT
    if after.identity == client.identity:
        after = after._replace(sequences=client.sequences)
    return world.with_client(client, after)._replace(ended=world.ended | {(client.unit, request.result)})


def _refused(world: PowerWorld, client: PowerClient, seen: Counter[str]) -> PowerWorld:
    seen[FENCED] += 1
    return world.with_client(client, PowerClient(client.version))


def _partition(request: PowerRequest) -> TopicPartition:
    assert isinstance(request.command, AddPartitions)
    (name,) = request.command.partitions
    return name


def _with_marker(world: PowerWorld, number: int, effect: WriteMarkers) -> PowerWorld:
    return world.with_log(number, world.logs[number].with_entry(KeptEntry(effect.producer, marker=effect.marker)))


# --- power cuts, and the start after one


def _power_cuts(world: PowerWorld, seen: Counter[str]) -> Steps:
    """Every disk that a power cut may leave."""
    if world.is_synced and not world.starting and not any(client.request for client in world.clients):
        return
    clients = tuple(
        client if client.request is None else client._replace(request=None, again=PowerRequest(client.request.command))
        for client in world.clients
    )
    for journal, *logs in product(world.journal.after_cut(), *(log.after_cut() for log in world.logs)):
        kept = len(world.journal.fresh) - _count_lost(world.journal, journal)
        seen[DECISION_LOST] += any(fact.is_ended for fact in world.journal.fresh[kept:])
        seen[RECORD_LOST] += any(
            entry.marker is None
            for before, after in zip(world.logs, logs, strict=True)
            for entry in before.entries[len(after.entries) :]
        )
        places = ", ".join(f"{len(log.entries)} of {len(b.entries)}" for b, log in zip(world.logs, logs, strict=True))
        yield (
            f"the power fails: the coordinator keeps {kept} of {len(world.journal.fresh)} facts, the logs {places}",
            world._replace(
                entry=journal.durable[-1],
                journal=journal,
                logs=(logs[0], logs[1]),
                clients=clients,
                cuts=world.cuts + 1,
                starting=1,
                was_cut_while_starting=world.was_cut_while_starting or bool(world.starting),
            ),
        )


def _count_lost(before: FactLog, after: FactLog) -> int:
    """How many of the facts that were not on disk are lost."""
    everything = before.durable + before.fresh
    last = max(number for number, fact in enumerate(everything) if fact == after.durable[-1])
    return min(len(everything) - 1 - last, len(before.fresh))


def _go_on_starting(world: PowerWorld, seen: Counter[str]) -> PowerWorld:
    """TransactionCoordinator.finish_decided, from one round of fsyncs to the next."""
    if world.starting == 1:
        return _with_missing_markers(world, seen)._replace(starting=2)
    world = world.after_sync()
    if world.starting == 2:
        if world.entry.is_ended:
            world, decision = decide(world, MarkersWritten(TXN_ID))
            world = world.with_facts(decision.facts)
        return _with_lost_joins(world, seen)._replace(starting=3)
    return world._replace(starting=0)


def _with_missing_markers(world: PowerWorld, seen: Counter[str]) -> PowerWorld:
    if world.entry.is_ended:
        effect = transaction_rules.markers_of(world.entry)
        for number, log in enumerate(world.logs):
            if PARTITIONS[number] in effect.partitions and transaction_recovery.lacks_marker(world.entry, log.state):
                seen[MARKER_AFTER_RESTART] += 1
                world = _with_marker(world, number, effect)
    for fact in world.journal.last_decisions():
        effect = transaction_rules.markers_of(fact)
        for number, log in enumerate(world.logs):
            if PARTITIONS[number] in effect.partitions and transaction_recovery.lost_marker(fact, log.state):
                seen[MARKER_REPEATED] += 1
                world = _with_marker(world, number, effect)
    return world


def _with_lost_joins(world: PowerWorld, seen: Counter[str]) -> PowerWorld:
    table = TransactionTable()
    table.apply(world.entry)
    for number, log in enumerate(world.logs):
        for producer_id in log.state.open_transactions:
            entry = table.owner_of(producer_id)
            producer = ProducerIdentity(producer_id, log.state.producers[producer_id].epoch)
            if entry is None or not transaction_recovery.lost_join(world.entry, producer, PARTITIONS[number]):
                continue
            seen[JOIN_REPEATED] += 1
            unit = next(one.unit for one in log.ends(number) if one.marker is None)
            command = AddPartitions(TXN_ID, world.entry.client, frozenset({PARTITIONS[number]}), TV2)
            world, decision = decide(world, command, unit)
            world = world.with_facts(decision.facts)
    return world
