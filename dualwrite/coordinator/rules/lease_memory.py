"""A process's memory of the state row that it has leased, and the conclusions if the row contradicts it.

The fencing token shows a process that another one has taken its slot. It does not show that the database has lost a
commit: an asynchronous standby was promoted, a backup was restored, the table was emptied. Nor does it show that the
process itself exists twice: a virtual machine was restored from a snapshot with its memory. So each write to the row
also requires the state that this process stored or read there last, and each renewal gives the lease a random version
that no other process can guess. This module compares row and memory. It does no I/O.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from math import inf
from typing import NamedTuple

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import PreparedTxnState

REMEMBERED_STATES = 256
"""Remembered decisions of a slot; these can be named one by one if the database has lost them."""
REMEMBERED_VERSIONS = 64
"""Remembered renewals of a lease: those of ten minutes at the default lease_timeout."""


class RowSeen(NamedTuple):
    """A state row as read from the database.

    :param lease_version: None in a row that an earlier release has leased.
    """

    fencing_token: int
    lease_version: int | None
    state: PreparedTxnState


class RowFinding(Enum):
    """How a state row contradicts the memory of the process that holds its lease."""

    TAKEN_OVER = "another process has taken the slot over"
    ROLLED_BACK = "the database shows an older row than this process has seen committed"
    ROW_GONE = "the row is gone"
    COPIED = "another copy of this process has written the row"


class Unmatched(NamedTuple):
    """A unit of work that ends differently on the two sides, as this process knows it."""

    state: PreparedTxnState
    outcome: Outcome
    detail: str


@dataclass(slots=True)
class LeaseMemory:
    """One process's knowledge of the row of one lease. Written by the unit of work that uses the slot, by recovery and
    by the heartbeat; each write is one assignment or one append, and :meth:`since` makes late readers safe.

    :param state: the state in the row when this process last read or wrote it; None before the first read.
    :param pending: a state written in a transaction whose end is not known yet.
    :param doubtful: a state whose COMMIT may have been sent, and that the locked row did not hold afterwards. Recovery
        has yet to find out whether Kafka has committed it all the same: a successor may have read it in the row before
        the database forgot both.
    :param uncompleted: a state that is decided, and not yet known to be committed in Kafka.
    :param versions: the lease's version, and the one that a renewal in progress is about to write.
    :param is_new: True if the row is new in its cluster, and was not recovered since (``tables.UNRECOVERED``): it was
        inserted, or given back in another cluster. No unit of work of the row has left a transaction open in this
        cluster.
    :param renewed_at: the monotonic time in seconds before the lease was taken or last renewed.
    """

    state: PreparedTxnState | None = None
    pending: PreparedTxnState | None = None
    doubtful: PreparedTxnState | None = None
    uncompleted: PreparedTxnState | None = None
    versions: tuple[int, ...] = ()
    is_new: bool = False
    renewed_at: float = -inf
    _states: deque[PreparedTxnState] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STATES), repr=False)
    _stored: int = 0
    _past_versions: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_VERSIONS), repr=False)

    def read(self, state: PreparedTxnState) -> None:
        """Note that the new owner read the locked row: this process begins with ``state``. Recovery has yet to find out
        whether Kafka has committed it."""
        self._remember(state)
        self.uncompleted = state or None

    def writes(self, state: PreparedTxnState) -> None:
        """Note that a transaction is about to write ``state``. Until it has ended, the row may hold either state."""
        self.pending, self.doubtful = state, None

    def committed(self) -> None:
        """Note that the transaction that wrote the pending state was committed."""
        if self.pending is not None:
            self._remember(self.pending)
            self.uncompleted = self.state

    def completed(self) -> None:
        """Note that Kafka has committed the decided transaction."""
        self.uncompleted = None

    def rolled_back(self) -> None:
        """Note that the transaction that wrote the pending state was rolled back."""
        self.pending = None

    def found(self, state: PreparedTxnState) -> None:
        """Note that the locked row holds ``state``: no transaction that has written it is open any more."""
        if self.state is None:
            self.read(state)
        elif self.pending is not None:
            if self.pending.is_same_as(state):
                self.committed()
            else:
                self.doubtful, self.pending = self.pending, None

    def renews(self, now: int, version: int) -> None:
        """Note that the lease, whose locked row has the version ``now``, is about to be renewed as ``version``. Until
        that is known to be committed, the row may hold either."""
        self._past_versions.extend(old for old in self.versions if old != now)
        self.versions = (now, version)

    def renewed(self, version: int) -> None:
        """Note that the lease was renewed as ``version``. Does nothing if another thread has locked the row since, to
        renew the lease again."""
        if self.versions and self.versions[-1] != version:
            return
        self._past_versions.extend(old for old in self.versions if old != version)
        self.versions = (version,)

    def since(self) -> int:
        """A mark for :meth:`finding`; get it before the row is read."""
        return self._stored - 1

    def finding(self, row: RowSeen | None, fencing_token: int, since: int | None = None) -> RowFinding | None:
        """The contradiction in ``row``, which was read under the lease with ``fencing_token``; None if it is as
        expected.

        :param since: the result of :meth:`since` before the row was read without keeping it locked: the unit of work
            may have gone on meanwhile.
        """
        if row is None:
            return RowFinding.ROW_GONE
        if row.fencing_token > fencing_token:
            return RowFinding.TAKEN_OVER
        if row.fencing_token < fencing_token:
            return RowFinding.ROLLED_BACK
        if self.versions and row.lease_version not in self.versions:
            return RowFinding.ROLLED_BACK if row.lease_version in self._past_versions else RowFinding.COPIED
        if self.state is None or row.state in self._expected(since):
            return None
        is_older = row.state in self._states or _precedes(row.state, self._states[0])
        return RowFinding.ROLLED_BACK if is_older else RowFinding.COPIED

    def unmatched(self, finding: RowFinding, row: RowSeen | None) -> list[Unmatched]:
        """The units of work that ``finding`` leaves on one side alone, the oldest first."""
        if finding is RowFinding.COPIED:
            return self._of_copies(row)
        if finding is RowFinding.TAKEN_OVER:
            return []  # the new owner's recovery decides by the row
        remembered = list(self._states)
        if row is not None and (row.state in remembered or _precedes(row.state, remembered[0])):
            known = len(remembered) - remembered[::-1].index(row.state) if row.state in remembered else 0
            return [self._forgotten(state, _FORGOTTEN) for state in remembered[known:] if state]
        if row is None and self._knows_all():
            return [self._forgotten(state, _ROW_GONE_ALL_KNOWN) for state in remembered if state]
        detail = _ROW_GONE if row is None else _UNKNOWN_ROW
        return [self._forgotten(state, detail) for state in remembered[-1:] if state]

    def _knows_all(self) -> bool:
        """True if this memory has every state that the row has held: the row began empty, and no state was dropped."""
        return bool(self._states) and not self._states[0] and len(self._states) == self._stored

    def _forgotten(self, state: PreparedTxnState, detail: str) -> Unmatched:
        if state == self.uncompleted:
            return Unmatched(state, Outcome.HEURISTIC_HAZARD, f"{_NOT_COMPLETED} {detail}")
        return Unmatched(state, Outcome.HEURISTIC_COMMIT, f"Kafka has committed it. {detail}")

    def _of_copies(self, row: RowSeen | None) -> list[Unmatched]:
        """The units of two copies of this process. Both have the same producer epochs, so records of both may be in one
        Kafka transaction."""
        found: Sequence[PreparedTxnState] = [row.state] if row is not None and row.state not in self._states else []
        states = dict.fromkeys([*found, *([self.pending] if self.pending else [])])
        return [Unmatched(state, Outcome.HEURISTIC_HAZARD, _COPIED) for state in states if state]

    def _expected(self, since: int | None) -> set[PreparedTxnState]:
        expected = {state for state in (self.state, self.pending) if state is not None}
        if since is not None:
            later = self._stored - max(0, since)
            expected.update(islice(reversed(list(self._states)), later))
        return expected

    def _remember(self, state: PreparedTxnState) -> None:
        self._states.append(state)
        self._stored += 1
        self.state = state
        self.pending = None


def _precedes(state: PreparedTxnState, other: PreparedTxnState) -> bool:
    """True if ``state`` is known to be older than ``other``: by the epoch of the same producer, or by the offset in the
    same partition. The empty state is older than any other."""
    if not state:
        return bool(other)
    if state.producer.producer_id != other.producer.producer_id:
        return False
    if state.producer.epoch != other.producer.epoch:
        return state.producer.epoch < other.producer.epoch
    own, others = state.anchor, other.anchor
    if own is None or others is None or (own.topic, own.partition) != (others.topic, others.partition):
        return False
    return own.offset < others.offset


_NOT_COMPLETED = "It is not known whether Kafka has committed it."
_FORGOTTEN = (
    "The database, which had committed it, has forgotten it: a standby that lagged was promoted, or the database was "
    "restored from an older copy. If Kafka has its records, they have no rows"
)
_UNKNOWN_ROW = (
    "The state row holds an older state that this process does not know: the database was restored from an older copy. "
    "Its records may have no rows, and so may those of earlier units of work of this slot"
)
_ROW_GONE = (
    "Its row of the state table is gone: the table was emptied, or the database was restored or replaced. Its records "
    "may have no rows, and so may those of earlier units of work of this slot"
)
_ROW_GONE_ALL_KNOWN = (
    "Its row of the state table is gone: the table was emptied, or the database was restored or replaced. Its records "
    "may have no rows; each of the slot's units of work is on record by itself"
)
_COPIED = (
    "Two copies of one process (a snapshot of a virtual machine or of a process that was started twice) used the same "
    "slot and producer epoch: its Kafka transaction may hold records of either, and only the rows of one"
)
