"""Units of work, crashes, and recovery by another process: two owners of one slot, searched through all interleavings.

Each owner follows the real machine of a unit of work, or the sequence of recovery, one step at a time; the state row is
judged by the real lease rules, recovery by the real verdict, and Kafka's side by the broker's real rules. Any step may
fail before or after its effect. A lease may be taken at any moment while its row is not locked, as if all clocks were
wrong. A COMMIT or an EndTxn may arrive after its process has died.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from dualwrite.coordinator.rules import machine, recovery_decision
from dualwrite.coordinator.rules.machine import Event, Result, Step, UnitState
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from dualwrite.operations.phrases import counted
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import TV2, add, end, init, recorded, verify, who
from tests.support.exhaustive.handover_world import (
    CONTRADICTED,
    ENDS_OTHERS,
    IN_OTHERS,
    LATE_REFUSED,
    NO_STATE,
    REFUSED_BY_ROW,
    HandoverWorld,
    LateEnd,
    LeftTransaction,
    RecoveryStage,
    SlotOwner,
    arrive,
    required,
)
from tests.support.exhaustive.states import StateModel

Steps = Iterator[tuple[str, HandoverWorld]]

TWO_DECIDERS = "only the owner of the row's fencing token decides a unit of work"
UNEQUAL = "after a recovery both sides are equal"
IN_DOUBT_COMMITTED = "a unit in doubt was committed by another process"
KILLED_COMMITTED = "a decided unit of a dead process was committed by another process"
KILLED_ABORTED = "an undecided unit of a dead process was aborted by another process"
REFUSED_BY_KAFKA = "a zombie was refused by Kafka"
COMMIT_LATE = "a COMMIT arrived after its process had given up"
WAITED = "a process waited for the lock of the row"
FOUND_DONE = "recovery found the commit done, and its answer lost"
TOKEN_READ_AGAIN = "a recovery that had lost the row's lock read the token again, and gave up"


def handover(units: int, starts: int) -> StateModel[HandoverWorld]:
    """The model, with ``units`` units of work and ``starts`` starts of a process."""

    recovers = lru_cache(maxsize=1 << 16)(_recovers_to_equal)

    def following(world: HandoverWorld, seen: Counter[str]) -> Steps:
        yield from _of_the_world(world, seen, starts)
        for owner in world.owners:
            for step, after in _of_owner(world, owner, seen, units):
                yield f"{owner.token}: {step}", after

    return StateModel(
        name="handover",
        about=f"{counted(units, 'unit of work', 'units of work')}, {counted(starts, 'start')}, two processes at once",
        first=(HandoverWorld(recorded(producer=who(42, 5))),),
        following=following,
        always={
            "readers get only what the database has decided": lambda world: world.committed <= world.decided,
            "nothing that was decided is aborted": lambda world: not world.aborted & world.decided,
            "what a caller was told is true": _told_the_truth,
            "from every state a recovery makes both sides equal": lambda world: recovers(_all_gone(world)),
        },
        asserted=(TWO_DECIDERS, UNEQUAL, IN_OTHERS, ENDS_OTHERS, CONTRADICTED),
        sometimes={
            "two processes took the slot for their own": lambda world: len(world.owners) > 1,
            "a caller was told that its unit is in doubt": lambda world: any(
                result is Result.IN_DOUBT for _, result in world.told
            ),
            "a unit succeeded": lambda world: any(result is Result.SUCCEEDED for _, result in world.told),
            "a unit was rolled back": lambda world: any(result is Result.ROLLED_BACK for _, result in world.told),
        },
        events=(
            IN_DOUBT_COMMITTED,
            KILLED_COMMITTED,
            KILLED_ABORTED,
            REFUSED_BY_ROW,
            REFUSED_BY_KAFKA,
            LATE_REFUSED,
            COMMIT_LATE,
            WAITED,
            FOUND_DONE,
            TOKEN_READ_AGAIN,
        ),
        least=18,
    )


def _told_the_truth(world: HandoverWorld) -> bool:
    for serial, result in world.told:
        if result is Result.SUCCEEDED and serial not in world.decided:
            return False
        if result is Result.ROLLED_BACK and serial in world.decided | world.committed:
            return False
    return True


def _all_gone(world: HandoverWorld) -> HandoverWorld:
    """The world after the end of everything that runs, without what does not matter to a recovery."""
    return world._replace(owners=(), left=(), late=None, told=frozenset(), began=(0,) * len(world.began), starts=0)


def _recovers_to_equal(world: HandoverWorld) -> bool:
    """A last process recovers without a fault."""
    nothing: Counter[str] = Counter()
    world = _taken(world)
    while world.owners[0].recovery is not None:
        _, world = next(_recovery_step(world, world.owners[0], nothing))
    return world.committed == world.decided and not world.open


# --- the world


def _of_the_world(world: HandoverWorld, seen: Counter[str], starts: int) -> Steps:
    if world.starts < starts and len(world.owners) < 2 and not world.is_locked:
        yield "a process takes the slot", _taken(world)
    for transaction in world.left:
        gone = world._replace(left=tuple(other for other in world.left if other is not transaction))
        yield f"the transaction of {transaction.serial} is rolled back", gone
        if transaction.may_commit:
            seen[COMMIT_LATE] += 1
            assert transaction.token == world.token, TWO_DECIDERS
            yield f"the COMMIT of {transaction.serial} arrives", gone.commits(transaction.serial, transaction.state)
    if world.late is not None:
        arrived, reply = arrive(world._replace(late=None), world.late.command, world.late.serial)
        seen[LATE_REFUSED] += reply.error is not ErrorCode.NONE
        yield f"the EndTxn of {world.late.serial} arrives", arrived


def _taken(world: HandoverWorld) -> HandoverWorld:
    owner = SlotOwner(world.token + 1, world.state)
    return world._replace(token=owner.token, owners=(*world.owners, owner), starts=world.starts + 1)


def _of_owner(world: HandoverWorld, owner: SlotOwner, seen: Counter[str], units: int) -> Steps:
    yield from _deaths(world, owner)
    if owner.has_lock:
        cut = owner._replace(has_lock=False, is_cut=owner.recovery is None)
        yield "the database drops its connection", world.with_owner(owner, cut)
    if owner.recovery is not None:
        yield from _recovery_step(world, owner, seen)
        if owner.recovery in (RecoveryStage.FENCE, RecoveryStage.COMPLETE):
            for step, after in _recovery_step(world, owner, seen):
                again = next((one for one in after.owners if one.token == owner.token), None)
                if again is not None:
                    yield f"{step}, and the answer is lost", after.with_owner(again, _recovers(again))
    elif owner.unit is None:
        if len(world.began) < units:
            yield _begin(world, owner, seen)
    else:
        yield from _ACTIONS[machine.STEPS[owner.unit]](world, owner, seen)


def _deaths(world: HandoverWorld, owner: SlotOwner) -> Steps:
    """It dies; its database transaction ends some time, and its last request may be on its way."""
    gone = world.with_owner(owner, None)
    if owner.has_lock and owner.recovery is None:
        for may_commit in {False, owner.unit is UnitState.COMMITTING_DATABASE}:
            left = LeftTransaction(owner.serial, owner.prepared, owner.token, may_commit)
            how = ", with its COMMIT on its way" if may_commit else ""
            yield f"dies{how}", gone._replace(left=(*gone.left, left))
        return
    yield "dies", gone
    late = _end_of(owner)
    if late is not None and world.late is None:
        yield "dies, with its EndTxn on its way", gone._replace(late=late)


def _end_of(owner: SlotOwner) -> LateEnd | None:
    """The EndTxn that ``owner`` is about to send for its unit of work."""
    if owner.unit not in (UnitState.COMMITTING_KAFKA, UnitState.ABORTING_KAFKA):
        return None
    result = Marker.COMMIT if owner.unit is UnitState.COMMITTING_KAFKA else Marker.ABORT
    return LateEnd(end(owner.identity, result, TV2), owner.serial)


# --- a unit of work


def _after(world: HandoverWorld, owner: SlotOwner, event: Event) -> HandoverWorld:
    """The world after the machine of ``owner`` has got ``event``, and has told its caller if that was the last."""
    assert owner.unit is not None
    state = machine.decide(owner.unit, event)
    result = machine.RESULTS.get(state)
    if result is None:
        return world.with_owner(owner, owner._replace(unit=state))
    is_left = machine.STEPS.get(owner.unit) is Step.FINISH_LATER
    ended = owner._replace(unit=None, serial=0, prepared=NO_STATE, is_cut=False, has_lock=False)
    world = world._replace(told=world.told | {(owner.serial, result)})
    return world.with_owner(owner, _recovers(ended) if is_left else ended)


def _begin(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> tuple[str, HandoverWorld]:
    """Both transactions begin, and the unit's record is sent."""
    serial = len(world.began) + 1
    state = UnitState.NEW
    for event in (Event.BEGIN, Event.DONE, Event.PRODUCE, Event.DONE, Event.LEFT):
        state = machine.decide(state, event)
    begun = owner._replace(unit=state, serial=serial)
    world, reply = arrive(world, add(owner.identity), serial)
    seen[REFUSED_BY_KAFKA] += reply.error is not ErrorCode.NONE
    return f"unit {serial} sends its record", world.with_owner(owner, begun)._replace(began=(*world.began, owner.token))


def _prepare(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    _, reply = arrive(world, verify(owner.identity), owner.serial)
    if world.open == owner.serial and reply.error is ErrorCode.NONE:
        prepared = owner._replace(prepared=PreparedTxnState(owner.identity))
        yield "prepares", _after(world, prepared, Event.DONE)
    yield "cannot prepare", _after(world, owner, Event.FAILED)


def _store(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    yield "cannot store its state", _after(world, owner, Event.FAILED)
    allowed = None if waits(world, seen) else required(owner, world, seen)
    if allowed is None:
        return  # it cannot store its state: as above
    yield "stores its state", _after(world, allowed._replace(has_lock=True), Event.DONE)


def _commit_database(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    ended = owner._replace(has_lock=False, pending=owner.prepared)
    yield "has no answer to COMMIT, which had no effect", _after(world, ended, Event.FAILED)
    if owner.is_cut:
        return
    assert owner.token == world.token, TWO_DECIDERS
    committed = world.commits(owner.serial, owner.prepared)
    known = ended._replace(known=owner.prepared, pending=None)
    yield "commits in the database", _after(committed, known, Event.DONE)
    yield "has no answer to COMMIT, which had its effect", _after(committed, ended, Event.FAILED)
    left = LeftTransaction(owner.serial, owner.prepared, owner.token, may_commit=True)
    yield (
        "has no answer to COMMIT, which is on its way",
        _after(world._replace(left=(*world.left, left)), ended, Event.FAILED),
    )


def _read_decision(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    yield "cannot read the decision", _after(world, owner, Event.FAILED)
    allowed = None if waits(world, seen) else required(owner, world, seen)
    if allowed is None:
        return
    is_committed = owner.prepared.is_same_as(world.state)
    event = Event.COMMITTED if is_committed else Event.NOT_COMMITTED
    yield "reads the decision", _after(world, allowed, event)


def _roll_back(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    yield "rolls back", _after(world, owner._replace(has_lock=False, pending=None), Event.DONE)


def _end_kafka(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    late = _end_of(owner)
    assert late is not None
    yield "loses its EndTxn", _after(world, owner, Event.FAILED)
    if world.late is None:
        yield "has its EndTxn delayed", _after(world._replace(late=late), owner, Event.FAILED)
    ended, reply = arrive(world, late.command, owner.serial)
    if reply.error is not ErrorCode.NONE:
        seen[REFUSED_BY_KAFKA] += 1
        return
    yield "ends its transaction", _after(ended, owner._replace(identity=reply.producer), Event.DONE)
    yield "ends its transaction, and the answer is lost", _after(ended, owner, Event.FAILED)


def _leave(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    yield "leaves the rest to recovery", _after(world, owner, Event.DONE)


_ACTIONS: dict[Step, Callable[[HandoverWorld, SlotOwner, Counter[str]], Steps]] = {
    Step.PREPARE_KAFKA: _prepare,
    Step.STORE_STATE: _store,
    Step.COMMIT_DATABASE: _commit_database,
    Step.READ_DECISION: _read_decision,
    Step.ROLLBACK_DATABASE: _roll_back,
    Step.COMMIT_KAFKA: _end_kafka,
    Step.ABORT_KAFKA: _end_kafka,
    Step.FINISH_LATER: _leave,
}


def waits(world: HandoverWorld, seen: Counter[str]) -> bool:
    """True if another process holds the lock of the row."""
    seen[WAITED] += world.is_locked
    return world.is_locked


# --- recovery


def _recovers(owner: SlotOwner) -> SlotOwner:
    return owner._replace(recovery=RecoveryStage.LOCK, has_lock=False, read=NO_STATE, ongoing=who(-1, -1))


def _recovery_step(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> Steps:
    """The next step of recovery; an owner whose lease is lost is gone."""
    stage = owner.recovery
    if stage is RecoveryStage.LOCK:
        if waits(world, seen):
            return
        allowed = required(owner, world, seen)
        locked = allowed and allowed._replace(recovery=RecoveryStage.FENCE, has_lock=True, read=world.state)
        yield "recovers: locks the row", world.with_owner(owner, locked)
    elif stage is RecoveryStage.FENCE:
        world, reply = arrive(world, init(keep=True, two_phase=True), 0)
        fenced = owner._replace(recovery=RecoveryStage.VERIFY, identity=reply.producer, ongoing=reply.ongoing)
        yield "recovers: fences Kafka", world.with_owner(owner, fenced)
    elif stage is RecoveryStage.VERIFY:
        is_valid = world.token == owner.token
        seen[TOKEN_READ_AGAIN] += not is_valid
        verified = owner._replace(recovery=RecoveryStage.COMPLETE)
        yield "recovers: reads the token again", world.with_owner(owner, verified if is_valid else None)
    elif stage is RecoveryStage.COMPLETE:
        yield _complete(world, owner, seen)
    else:
        yield _get_ready(world, owner)


def _complete(world: HandoverWorld, owner: SlotOwner, seen: Counter[str]) -> tuple[str, HandoverWorld]:
    ongoing = OngoingTransaction(owner.ongoing) if owner.ongoing else None
    decided = recovery_decision.verdict(owner.read, ongoing)
    completed = owner._replace(recovery=RecoveryStage.READY)
    if decided is RecoveryDecision.NOTHING:
        seen[FOUND_DONE] += bool(world.committed)
        return "recovers: nothing is open", world.with_owner(owner, completed)
    result = Marker.COMMIT if decided is RecoveryDecision.COMMIT else Marker.ABORT
    after, reply = arrive(world, end(owner.identity, result, TV2), 0)
    if reply.error is not ErrorCode.NONE:
        seen[REFUSED_BY_KAFKA] += 1
        return "recovers: is refused by Kafka", world.with_owner(owner, _recovers(owner))
    _note_recovered(world, owner, seen, result)
    return f"recovers: {decided.value}s unit {world.open}", after.with_owner(owner, completed)


def _note_recovered(world: HandoverWorld, owner: SlotOwner, seen: Counter[str], result: Marker) -> None:
    serial = world.open
    if not serial or world.began[serial - 1] == owner.token:
        return
    if result is Marker.COMMIT:
        seen[IN_DOUBT_COMMITTED] += world.result(serial) is Result.IN_DOUBT
        seen[KILLED_COMMITTED] += world.result(serial) is None
    else:
        seen[KILLED_ABORTED] += world.result(serial) is None


def _get_ready(world: HandoverWorld, owner: SlotOwner) -> tuple[str, HandoverWorld]:
    after, reply = arrive(world, init(keep=True, two_phase=True), 0)
    if reply.ongoing:  # a successor's, which has the slot by now
        return "recovers: finds another transaction", after.with_owner(owner, _recovers(owner))
    assert not owner.has_lock or world.decided == world.committed, UNEQUAL
    ready = owner._replace(recovery=None, identity=reply.producer, has_lock=False, read=NO_STATE, ongoing=who(-1, -1))
    return "recovers: is ready", after.with_owner(owner, ready)
