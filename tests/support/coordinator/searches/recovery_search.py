"""A small world in which two kinds of producer share a transactional id and a database row, to be searched.

The coordinator is the broker's own pure core; what recovery does is the real verdict over real identities. A process
runs units of work until it dies or is dropped; the next one, of either kind, recovers. Every transaction has a serial
number that nobody in the world sees: with it the oracle knows which of them the database has decided for.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from dualwrite.broker.core.commands import AddPartitions, Command, EndTransaction, Reply
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus, TransactionVersion
from dualwrite.coordinator.rules import recovery_decision
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.ids import NO_PRODUCER, Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.operations.phrases import counted
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import (
    ABORT,
    COMMIT,
    P0,
    TV1,
    TV2,
    add,
    carried_out,
    end,
    init,
    recorded,
    who,
)
from tests.support.exhaustive.states import StateModel

Steps = Iterator[tuple[str, "RecoverySearchWorld"]]

LATE_REFUSED = "a request of a dead process came late, and was refused"
COMMITTED = "a start committed what a dead process had decided"
ABORTED = "a start aborted what a dead process had not decided"
OTHERS = "a start of one kind decided by a state of the other kind"
NOTHING_OPEN = "a start found the transaction that the row names ended already"

_NO_STATE = PreparedTxnState()


class Kind(Enum):
    """A kind of producer: how it ends transactions."""

    NATIVE = TV2
    LIBRDKAFKA = TV1

    @property
    def version(self) -> TransactionVersion:
        return self.value


class UnitStage(Enum):
    """How far the unit of work of the living process is."""

    READY = "between two units"
    SENT = "a record was sent, and has not arrived"
    PREPARED = "every record is acknowledged"
    DECIDED = "the database has committed the state"


@dataclass(frozen=True, slots=True)
class Rules:
    """What is searched, and what a control breaks.

    :param anchors: librdkafka's states have an anchor.
    :param goes_on: the kinds that are used again though a copy of a request of theirs may be under way.
    :param most_late: requests that the network may hold at a time.
    :param most_units: units of work of a history.
    :param most_starts: starts of a process in a history.
    """

    anchors: bool = True
    goes_on: tuple[Kind, ...] = (Kind.NATIVE,)
    most_late: int = 1
    most_units: int = 3
    most_starts: int = 3


@dataclass(frozen=True, slots=True)
class SearchedProcess:
    kind: Kind
    identity: ProducerIdentity
    stage: UnitStage = UnitStage.READY
    serial: int = 0
    state: PreparedTxnState = _NO_STATE


@dataclass(frozen=True, slots=True)
class Late:
    """A request of transaction ``serial`` that the network holds."""

    command: Command
    serial: int


@dataclass(frozen=True, slots=True)
class RecoverySearchWorld:
    """``open`` is the serial of the open transaction and the offset at which it began; ``row`` what the database has
    decided, and that transaction's serial."""

    entry: TransactionRecorded
    process: SearchedProcess | None = None
    open: tuple[int, int] | None = None
    row: tuple[PreparedTxnState, int] = (_NO_STATE, 0)
    fresh_id: int = 73
    units: int = 0
    starts: int = 0
    late: tuple[Late, ...] = ()


def recovery(epoch: int, rules: Rules) -> StateModel[RecoverySearchWorld]:
    """The model, beginning at ``epoch``."""
    return StateModel(
        name="recovery",
        about=f"native producer and librdkafka in turn, {counted(rules.most_units, 'unit of work', 'units of work')}, "
        f"{counted(rules.most_starts, 'start')}, {counted(rules.most_late, 'late request')}, from epoch {epoch}",
        first=(RecoverySearchWorld(recorded(producer=who(42, epoch))),),
        following=lambda world, seen: successors(world, rules, seen),
        asserted=(
            "no request ends a transaction otherwise than the row has decided",
            "no record joins the transaction of another unit of work",
            "the living process is never refused",
            "after a recovery no transaction is open",
        ),
        sometimes={
            f"a {kind.name.lower()} process met a state {'with' if anchored else 'without'} an anchor": (
                lambda world, kind=kind, anchored=anchored: _meets(world, kind, anchored)
            )
            for kind in Kind
            for anchored in (True, False)
        },
        events=(LATE_REFUSED, COMMITTED, ABORTED, OTHERS, NOTHING_OPEN),
        least=40,
    )


def _meets(world: RecoverySearchWorld, kind: Kind, anchored: bool) -> bool:
    state = world.row[0]
    return world.process is not None and world.process.kind is kind and bool(state) and bool(state.anchor) is anchored


def successors(world: RecoverySearchWorld, rules: Rules, seen: Counter[str]) -> Steps:
    """What may happen, and the world after it."""
    if world.starts < rules.most_starts:
        for kind in Kind:  # the living process, if there is one, has died
            for done, after in _recover(replace(world, process=None, starts=world.starts + 1), kind, seen):
                yield f"a {kind.name.lower()} process starts: {done}", after
    for number, late in enumerate(world.late):
        arrived = replace(world, late=world.late[:number] + world.late[number + 1 :])
        after, reply = _arrive(arrived, late)
        seen[LATE_REFUSED] += reply.error is not ErrorCode.NONE
        yield f"a late {type(late.command).__name__} of unit {late.serial} arrives", after
    if world.process is not None:
        yield from _go_on(world, world.process, rules)


def _go_on(world: RecoverySearchWorld, process: SearchedProcess, rules: Rules) -> Steps:
    if process.stage is UnitStage.READY:
        if world.units < rules.most_units:
            yield from _produce(world, process, rules)
        return
    if process.stage is UnitStage.PREPARED:
        decided = replace(process, stage=UnitStage.DECIDED)
        yield (
            f"the database commits unit {process.serial}",
            replace(world, process=decided, row=(process.state, process.serial)),
        )
    yield from _end(world, process, rules)


def _produce(world: RecoverySearchWorld, process: SearchedProcess, rules: Rules) -> Steps:
    """A unit begins: its first record arrives, perhaps twice, or its one copy is held by the network."""
    serial = world.units + 1
    world, sent = replace(world, units=serial), Late(add(process.identity), serial)
    arrived, reply = _arrive(world, sent)
    assert reply.error is ErrorCode.NONE, f"the living {process} is refused: {reply}: {world}"
    assert arrived.open is not None
    assert arrived.open[0] == serial, f"unit {serial} is in the transaction of {arrived.open[0]}: {world}"
    state = PreparedTxnState(process.identity)
    if process.kind is Kind.LIBRDKAFKA and rules.anchors:
        state = replace(state, anchor=Anchor.of(P0, arrived.open[1]))
    prepared = replace(process, stage=UnitStage.PREPARED, serial=serial, state=state)
    yield f"unit {serial} is prepared", replace(arrived, process=prepared)
    if process.kind in rules.goes_on and len(world.late) < rules.most_late:
        late = (*world.late, sent)
        yield (
            f"unit {serial} is prepared, with a copy of its record under way",
            replace(arrived, process=prepared, late=late),
        )
        yield (
            f"unit {serial} has its record delayed",
            replace(world, process=replace(process, stage=UnitStage.SENT, serial=serial), late=late),
        )


def _end(world: RecoverySearchWorld, process: SearchedProcess, rules: Rules) -> Steps:
    """The unit's EndTxn arrives and is answered; or its process, told nothing, is dropped while it, or a copy of it, is
    under way; or the process asks again and goes on."""
    result = COMMIT if process.stage is UnitStage.DECIDED else ABORT
    sent = Late(end(process.identity, result, process.kind.version), process.serial)
    ended, reply = _arrive(world, sent)
    assert reply.error is ErrorCode.NONE, f"the living {process} is refused: {reply}: {world}"
    going_on = SearchedProcess(process.kind, reply.producer if process.kind is Kind.NATIVE else process.identity)
    done = f"unit {process.serial} {result.name.lower()}s"
    yield done, replace(ended, process=going_on)
    if len(world.late) < rules.most_late:
        late = (*world.late, sent)
        yield f"{done}, its EndTxn is delayed and its process dropped", replace(world, process=None, late=late)
        yield f"{done}, its process is dropped with a copy under way", replace(ended, process=None, late=late)
        if process.kind in rules.goes_on:
            again, repeated = _arrive(ended, sent)
            assert (repeated.error, repeated.producer) == (ErrorCode.NONE, reply.producer), "a repeated EndTxn"
            yield f"{done}, and asks again", replace(again, process=going_on, late=late)


def _recover(world: RecoverySearchWorld, kind: Kind, seen: Counter[str]) -> Steps:
    """A process of ``kind`` starts, and may die after each of its requests."""
    kept, reply = _execute(world, init(keep=True, two_phase=True))
    assert reply.error is ErrorCode.NONE, f"{reply}: {world}"
    yield "it dies after InitProducerId", kept
    decided = recovery_decision.verdict(world.row[0], _described(kept, reply.ongoing))
    if decided is RecoveryDecision.NOTHING:
        seen[NOTHING_OPEN] += bool(world.row[0])
    else:
        assert kept.open is not None
        result = COMMIT if decided is RecoveryDecision.COMMIT else ABORT
        seen[COMMITTED if result is COMMIT else ABORTED] += 1
        seen[OTHERS] += result is COMMIT and bool(world.row[0].anchor) is (kind is Kind.NATIVE)
        kept, ended = _arrive(kept, Late(end(reply.producer, result, TV1), kept.open[0]))
        assert ended.error is ErrorCode.NONE, f"{ended}: {world}"
        yield f"it dies after its {decided.value}", kept
    # librdkafka aborts what is open in its InitProducerId, the native producer after it. Nothing is.
    ready, begun = _execute(kept, init(two_phase=True, keep=kind is Kind.NATIVE))
    assert (begun.error, begun.ongoing) == (ErrorCode.NONE, NO_PRODUCER), f"{begun}: {world}"
    assert ready.open is None, f"a transaction is open after a recovery: {ready}"
    yield f"{decided.value}", replace(ready, process=SearchedProcess(kind, begun.producer))


def _described(world: RecoverySearchWorld, ongoing: ProducerIdentity) -> OngoingTransaction | None:
    """What DescribeProducers tells of the transaction that InitProducerId has kept."""
    assert bool(ongoing) is (world.open is not None)
    return None if world.open is None else OngoingTransaction(ongoing, {P0: world.open[1]})


def _arrive(world: RecoverySearchWorld, request: Late) -> tuple[RecoverySearchWorld, Reply]:
    """A request reaches the coordinator: it may begin, join or end a transaction, but only that which it is of."""
    after, reply = _execute(world, request.command)
    if after.entry == world.entry:
        return after, reply
    if isinstance(request.command, AddPartitions):
        assert world.open is None or world.open[0] == request.serial, f"{request} joined {world.open}: {world}"
        # The log gives no offset twice: a later transaction begins at a later one.
        return replace(after, open=world.open or (request.serial, 10 * request.serial)), reply
    assert isinstance(request.command, EndTransaction)
    if world.open is not None:
        is_decided = world.row[1] == world.open[0]
        assert (request.command.result is COMMIT) is is_decided, f"{request} ended {world.open}: {world}"
    return replace(after, open=None), reply


def _execute(world: RecoverySearchWorld, command: Command) -> tuple[RecoverySearchWorld, Reply]:
    """Decide, and take in what follows, markers included."""
    entry, fresh_id, reply = carried_out(world.entry, command, world.fresh_id)
    assert entry.status is not TransactionStatus.PREPARE_COMMIT
    return replace(world, entry=entry, fresh_id=fresh_id), reply
