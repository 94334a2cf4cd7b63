"""The lease of one slot: two processes whose clocks differ, a database that may lose commits, a process that is copied.

Which slot may be taken is decided by the real ``SlotObserver``, and whether a process may go on with its row by the
real ``require_row`` over its real ``LeaseMemory``. A process renews its lease at any time or never, as it may be
paused. The clock by which it reads and writes the expiry is wrong by some ticks, as on databases that use the
machine's clock.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from dualwrite.coordinator.rules import lease as lease_rules
from dualwrite.coordinator.rules import slot_rules
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import LeaseMemory, RowFinding, RowSeen
from dualwrite.coordinator.rules.slot_rules import SlotRow, SlotStatus
from dualwrite.ids import PreparedTxnState
from dualwrite.operations.phrases import counted
from tests.support.broker.transactions import TXN_ID, who
from tests.support.exhaustive.states import StateModel

TIMEOUT = 2
"""Ticks of a lease."""

FALSE_ALARM = "no row contradicts its owner unless the database lost a commit or the process was copied"
UNSEEN = "no decision replaces one that its process has not seen"
UNDER_OTHERS = "no process writes under the token of another"
UNNOTICED = "a process whose commit the database has lost does not go on"
NOT_NAMED = "each commit that was lost goes on record"
LEASED = "a lease that is valid by its taker's clock is not taken from a living process"

TAKEN_EARLY = "a lease was taken that was valid by the clock of its owner"
LATE_RENEWAL = "a process came back after its lease was taken, and was refused"
DEAD_OWNER = "the lease of a dead process was taken before it had expired"
LOST = "a lost commit was noticed"
COPY = "a copy of a process was noticed"
UNKNOWN_END = "a COMMIT without an answer was found done"


class LeaseRow(NamedTuple):
    """The state row; ``left`` are the ticks to its expiry by a clock that is right."""

    token: int = 0
    version: int = 0
    owner: str = ""
    left: int = 0
    state: int = 0

    @property
    def seen(self) -> RowSeen:
        """What a process reads of it."""
        return RowSeen(self.token, self.version, _state(self.state))


class LeaseProcess(NamedTuple):
    """A process.

    :param offset: the ticks by which its clock is ahead.
    :param token: of its lease; 0 if it has none.
    :param memory: what it has done, from which its LeaseMemory follows.
    :param writing: the state that its open transaction has written; it holds the row's lock.
    """

    name: str
    offset: int
    token: int = 0
    memory: tuple[tuple[str, int, int], ...] = ()
    writing: int = 0

    def did(self, what: str, one: int = 0, other: int = 0) -> "LeaseProcess":
        """The process after it has noted something."""
        return self._replace(memory=(*self.memory, (what, one, other)))

    def without_lease(self) -> "LeaseProcess":
        """The process after it has given up the slot."""
        return LeaseProcess(self.name, self.offset)


class LeaseWorld(NamedTuple):
    """Everything that can differ.

    :param older: the rows before, which a standby that lags may still have.
    :param by: each state that was committed, and the process; ``gone`` those that the database has lost.
    :param made: how many versions, states and processes there were.
    """

    row: LeaseRow = LeaseRow()
    processes: tuple[LeaseProcess, ...] = ()
    older: tuple[LeaseRow, ...] = ()
    by: frozenset[tuple[int, str]] = frozenset()
    gone: frozenset[int] = frozenset()
    versions: int = 0
    states: int = 0
    names: int = 2
    dead: frozenset[str] = frozenset()
    failovers: int = 0
    copies: int = 0

    @property
    def is_locked(self) -> bool:
        """True if some transaction holds the row's lock."""
        return any(process.writing for process in self.processes)

    def with_process(self, number: int, process: LeaseProcess) -> "LeaseWorld":
        """The world in which process ``number`` has become ``process``."""
        processes = list(self.processes)
        processes[number] = process
        return self._replace(processes=tuple(processes))

    def with_row(self, row: LeaseRow) -> "LeaseWorld":
        """The world after the row was written."""
        return self._replace(row=row, older=(*self.older, self.row)[-2:])


Steps = Iterator[tuple[str, LeaseWorld]]


def leases(offset: int, states: int, failovers: int, copies: int) -> StateModel[LeaseWorld]:
    """The model, with up to ``states`` decisions, and so many losses and copies.

    :param offset: the ticks by which the second process's clock is ahead or behind; both are searched.
    """

    _remembered.cache_clear()  # a negative control may have broken what it calls

    def following(world: LeaseWorld, seen: Counter[str]) -> Steps:
        if world.row.left > -TIMEOUT - offset:
            yield "time passes", world._replace(row=world.row._replace(left=world.row.left - 1))
        if world.failovers < failovers:
            yield from _failovers(world)
        for number, process in enumerate(world.processes):
            for step, after in _of_process(world, number, process, seen, states):
                yield f"{process.name}: {step}", after
            if process.token and not process.writing and world.copies < copies:
                other = 1 - number
                copied = process._replace(offset=world.processes[other].offset)
                yield f"{process.name} is copied", world.with_process(other, copied)._replace(copies=world.copies + 1)

    return StateModel(
        name="leases",
        about=f"two processes, clocks {counted(offset, 'tick')} apart, {counted(states, 'decision')}, "
        f"{counted(failovers, 'lost commit')}, {counted(copies, 'copy', 'copies')}",
        first=[
            LeaseWorld(processes=(LeaseProcess("a", 0), LeaseProcess("b", ahead))) for ahead in {0, offset, -offset}
        ],
        following=following,
        asserted=(FALSE_ALARM, UNSEEN, UNDER_OTHERS, UNNOTICED, NOT_NAMED, LEASED),
        sometimes={
            "two processes hold a lease": lambda world: all(process.token for process in world.processes),
        },
        events=(TAKEN_EARLY, LATE_RENEWAL, DEAD_OWNER, UNKNOWN_END, *(LOST,) * failovers, *(COPY,) * copies),
        least=6,
    )


def _state(number: int) -> PreparedTxnState:
    return PreparedTxnState(who(42, number)) if number else PreparedTxnState()


@lru_cache(maxsize=1 << 16)
def _remembered(memory: tuple[tuple[str, int, int], ...]) -> LeaseMemory:
    """What the process remembers: the real memory, after all that it has done; must not be changed."""
    remembered = LeaseMemory()
    for what, one, other in memory:
        if what in ("read", "writes"):
            getattr(remembered, what)(_state(one))
        elif what == "renews":
            remembered.renews(one, other)
        elif what == "renewed":
            remembered.renewed(one)
        else:
            getattr(remembered, what)()
    return remembered


def _failovers(world: LeaseWorld) -> Steps:
    """A standby that lagged is promoted: open transactions are gone, and their ends unknown to their processes."""
    for number, older in enumerate(world.older):
        later = {row.state for row in (*world.older[number + 1 :], world.row)}
        processes = tuple(process._replace(writing=0) for process in world.processes)
        after = world._replace(
            row=older, older=world.older[:number], processes=processes, failovers=world.failovers + 1
        )
        yield (
            f"the database forgets {len(world.older) - number} commits",
            after._replace(gone=(world.gone | later) - {older.state, 0}),
        )


def _of_process(world: LeaseWorld, number: int, process: LeaseProcess, seen: Counter[str], states: int) -> Steps:
    if process.writing:
        yield from _ends(world, number, process)
        return
    reborn = LeaseProcess(f"p{world.names}", process.offset)
    dead = world.dead | ({process.name} if not _has_copy(world, process) else frozenset())
    if process.token:
        yield "dies", world.with_process(number, reborn)._replace(names=world.names + 1, dead=dead)
    if world.is_locked:
        return
    if not process.token:
        yield from _takes(world, number, process, seen)
        return
    allowed = _looked(world, process, seen)
    if allowed is None:
        yield "finds that it has lost its slot", world.with_process(number, process.without_lease())
        return
    version, row = world.versions + 1, world.row
    renewed = row._replace(version=version, left=TIMEOUT + process.offset)
    renewing = allowed.did("renews", row.version, version)
    counted = world._replace(versions=version)
    yield "renews", counted.with_row(renewed).with_process(number, renewing.did("renewed", version))
    yield "renews, without an answer", counted.with_row(renewed).with_process(number, renewing)
    yield "fails to renew, without an answer", counted.with_process(number, renewing)
    if world.states < states:
        state = world.states + 1
        known = {one for what, one, _ in allowed.memory if what in ("read", "writes")}
        assert row.state in known, f"{UNSEEN}: {state} replaces {row.state}"
        writing = allowed.did("writes", state)._replace(writing=state)
        yield f"stores {state}", world._replace(states=state).with_process(number, writing)


def _has_copy(world: LeaseWorld, process: LeaseProcess) -> bool:
    return [other.name for other in world.processes].count(process.name) > 1


def _ends(world: LeaseWorld, number: int, process: LeaseProcess) -> Steps:
    """Its transaction ends, with an answer or without."""
    assert process.token == world.row.token, UNDER_OTHERS
    done = world.with_row(world.row._replace(state=process.writing))
    done = done._replace(by=world.by | {(process.writing, process.name)})
    idle = process._replace(writing=0)
    yield f"commits {process.writing}", done.with_process(number, idle.did("committed"))
    yield f"commits {process.writing}, without an answer", done.with_process(number, idle)
    yield f"rolls {process.writing} back", world.with_process(number, idle.did("rolled_back"))
    yield f"rolls {process.writing} back, without an answer", world.with_process(number, idle)


def _takes(world: LeaseWorld, number: int, process: LeaseProcess, seen: Counter[str]) -> Steps:
    row = world.row
    owner = next((other for other in world.processes if other.name == row.owner and other.token == row.token), None)
    remaining = row.left - process.offset
    shown = SlotRow(TXN_ID, 0, row.token, row.owner, float(remaining) if row.owner else None)
    observer = slot_rules.SlotObserver(process.name, (), lambda name: name in world.dead)
    status = observer.status(shown)
    if status not in slot_rules.RECOVERABLE:
        return
    assert owner is None or remaining <= 0 or status is SlotStatus.ABANDONED, f"{LEASED}: {status}"
    seen[TAKEN_EARLY] += owner is not None and row.left - owner.offset > 0
    seen[DEAD_OWNER] += status is SlotStatus.DEAD
    version = world.versions + 1
    taken = LeaseRow(row.token + 1, version, process.name, TIMEOUT + process.offset, row.state)
    holder = process._replace(token=taken.token).did("renewed", version).did("read", row.state)
    yield "takes the slot", world._replace(versions=version).with_row(taken).with_process(number, holder)


def _looked(world: LeaseWorld, process: LeaseProcess, seen: Counter[str]) -> LeaseProcess | None:
    """The process after it has looked at its row; None if it may not go on."""
    memory, row = _remembered(process.memory), world.row
    try:
        lease_rules.require_row(Lease(TXN_ID, process.token, memory), row.seen)
    except LeaseContradictedError as contradiction:
        _check_contradiction(world, process, contradiction, seen)
        return None
    except LeaseLostError:
        seen[LATE_RENEWAL] += 1
        return None
    assert process.token == row.token, UNDER_OTHERS
    is_known = memory.state in (None, row.seen.state) or memory.pending == row.seen.state
    assert is_known, f"{UNNOTICED}: {memory.state}, and the row has {row.seen.state}"
    if memory.pending is not None and memory.pending.is_same_as(row.seen.state):
        seen[UNKNOWN_END] += 1
        return process.did("committed")
    return process


def _check_contradiction(
    world: LeaseWorld, process: LeaseProcess, contradiction: LeaseContradictedError, seen: Counter[str]
) -> None:
    """It is no false alarm, and names each commit that the process has had and the database has lost."""
    assert world.failovers or world.copies, f"{FALSE_ALARM}: {contradiction}"
    seen[COPY] += contradiction.finding is RowFinding.COPIED and bool(world.copies)
    if contradiction.finding is not RowFinding.ROLLED_BACK:
        return
    seen[LOST] += 1
    known = _known_commits(process)
    lost = {_state(state) for state, name in world.by if name == process.name and state in world.gone & known}
    named = {unit.state for unit in contradiction.unmatched}
    assert lost <= named, f"{NOT_NAMED}: {lost - named} of {lost}"


def _known_commits(process: LeaseProcess) -> set[int]:
    """The decisions that ``process`` knows to be committed."""
    known, written = set(), 0
    for what, one, _ in process.memory:
        if what == "writes":
            written = one
        elif what == "committed":
            known.add(written)
    return known
