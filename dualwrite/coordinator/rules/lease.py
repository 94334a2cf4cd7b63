"""A lease of a slot, and the errors for a lease that is no longer valid according to its state row."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dualwrite.coordinator.rules.lease_memory import LeaseMemory, RowFinding, RowSeen, Unmatched
from dualwrite.errors import DecisionLostError, FencedError


@dataclass(frozen=True)
class Lease:
    """The right to use a transactional id: valid as long as the row's fencing token equals ``fencing_token``.

    :param memory: this process's knowledge of the row; not part of the lease's identity.
    """

    transactional_id: str
    fencing_token: int
    memory: LeaseMemory = field(default_factory=LeaseMemory, compare=False, repr=False)


class LeaseLostError(FencedError):
    """Another process has taken over the slot of this unit of work, according to the database: this process was paused
    for longer than ``lease_timeout``. The unit was rolled back on both sides; run it again. This is certain and final,
    while Kafka may report a producer as fenced by a late copy of its own InitProducerId."""

    def __init__(self, lease: Lease, message: str = "") -> None:
        super().__init__(
            message
            or f"another process has taken over {lease.transactional_id!r}: this one did not renew its lease in time "
            f"(fencing token {lease.fencing_token} is no longer valid)"
        )
        self.lease = lease


class LeaseContradictedError(LeaseLostError, DecisionLostError):
    """The state row contradicts this process's memory: the database has lost a commit, or this process runs twice.
    The unit was rolled back on both sides; run it again, and see ``dw.outcomes()``.

    ``row`` is the row in the database, None if it is gone; ``unmatched`` are the units of work that are only on one
    side, which go on record.
    """

    def __init__(self, lease: Lease, finding: RowFinding, row: RowSeen | None, unmatched: Sequence[Unmatched]) -> None:
        on_record = ". What is in Kafka alone is on record" if unmatched else ""
        super().__init__(lease, f"the state row of {lease.transactional_id!r}: {_MEANINGS[finding]}{on_record}")
        self.finding = finding
        self.row = row
        self.unmatched = tuple(unmatched)

    @property
    def outdated_row(self) -> RowSeen | None:
        """``row``, if it is this lease's. Under another token another process may have stored its decision there."""
        is_own = self.row is not None and self.row.fencing_token == self.lease.fencing_token
        return self.row if is_own else None


_MEANINGS = {
    RowFinding.ROLLED_BACK: (
        "the database has lost what it had committed (a standby that lagged was promoted, or it was restored from an "
        "older copy): this unit of work is rolled back and may be run again"
    ),
    RowFinding.ROW_GONE: (
        "it is gone (the table was emptied, or the database was restored or replaced): this unit of work is rolled "
        "back and may be run again"
    ),
    RowFinding.COPIED: (
        "another copy of this process has written it (a snapshot of a virtual machine or a process was started twice, "
        "or the row was changed by hand): this unit of work is rolled back and may be run again"
    ),
}


def require_row(lease: Lease, row: RowSeen | None, since: int | None = None) -> None:
    """Require that ``row`` is as the holder of ``lease`` expects.

    :param row: the row in the database; None if there is none.
    :param since: see LeaseMemory.finding.
    :raises LeaseLostError: if another process has taken over.
    :raises LeaseContradictedError: if the database has lost a commit, or the process was copied.
    """
    finding = lease.memory.finding(row, lease.fencing_token, since)
    if finding is RowFinding.TAKEN_OVER:
        raise LeaseLostError(lease)
    if finding is not None:
        raise LeaseContradictedError(lease, finding, row, lease.memory.unmatched(finding, row))
