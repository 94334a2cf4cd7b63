"""The rules for taking slots: pure functions of the rows of one application and the state of their owners.

A slot is a transactional id ``application-0``, ``application-1``, … with a row in the state table. A slot whose owner
may be alive is not taken: that would fence the owner in the middle of its work.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from shlex import quote


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot's row as it was read.

    :param fencing_token: 0 for a row that does not exist yet.
    :param owner: empty if the lease was given back.
    :param remaining: seconds left of the lease by the database's clock; None for a row without an end.
    :param cluster_id: the Kafka cluster that the slot was last leased for; None if it is not known.
    """

    transactional_id: str
    number: int
    fencing_token: int = 0
    owner: str = ""
    remaining: float | None = None
    cluster_id: str | None = None


class SlotStatus(Enum):
    """The status of a slot according to its row."""

    FREE = "given back, or never used"
    EXPIRED = "its owner has not renewed the lease in time"
    DEAD = "its owner was a process of this machine that is gone"
    ABANDONED = "this owner's, who does not use it: transferred, or its taking was interrupted, or Kafka fenced it"
    FOREIGN = "its owner left it without giving it back, and what it left is in another Kafka cluster"
    HELD = "leased, by this owner or by another that may be alive"


ENDED = (SlotStatus.EXPIRED, SlotStatus.DEAD, SlotStatus.ABANDONED)
"""The owner is gone and has not given the slot back: it may have left a transaction to be recovered."""

RECOVERABLE = (*ENDED, SlotStatus.FREE)
"""The slots that a call of recovery takes: also those that were given back, where no transaction should be open."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A slot that may be taken, if its row has not changed meanwhile."""

    row: SlotRow
    status: SlotStatus


@dataclass(frozen=True, slots=True)
class SlotObserver:
    """The rules as one process applies them, with its knowledge.

    :param owner: its signature on its own leases.
    :param held: the transactional ids that it holds.
    :param is_gone: True for an owner that is known to be dead, however long its lease lasts. It may be wrong: an owner
        that is taken over while alive is fenced, and both sides of its unit of work are rolled back.
    :param cluster_id: the Kafka cluster that it uses; None if it is not known.
    """

    owner: str
    held: Collection[str]
    is_gone: Callable[[str], bool]
    cluster_id: str | None = None

    def status(self, row: SlotRow) -> SlotStatus:
        """The status of ``row``. A lease without an end comes from a release that did not renew: it may be taken."""
        if row.transactional_id in self.held:
            return SlotStatus.HELD  # or lost, or read before it was taken: its holder finds out
        if not row.owner:
            return SlotStatus.FREE
        status = self._status_of_leased(row)
        is_foreign = is_another(row.cluster_id, self.cluster_id)
        return SlotStatus.FOREIGN if is_foreign and status in ENDED else status

    def _status_of_leased(self, row: SlotRow) -> SlotStatus:
        if row.owner == self.owner:
            return SlotStatus.ABANDONED
        if row.remaining is None or row.remaining <= 0:
            return SlotStatus.EXPIRED
        return SlotStatus.DEAD if self.is_gone(row.owner) else SlotStatus.HELD


def is_another(cluster_id: str | None, current: str | None) -> bool:
    """True if ``cluster_id``, of a state row, is known to be another Kafka cluster than ``current``."""
    return None not in (cluster_id, current) and cluster_id != current


def describe_owner(owner: str) -> str:
    """``owner``, the signature of a lease, for a person: host and process id."""
    return owner.split(" ")[0]


_DIGITS = 255
"""The most digits of a slot's number: the maximum length of a transactional id (ids.py)."""


def slot_id(application: str, number: int) -> str:
    """The transactional id of slot ``number``."""
    return f"{application}-{number}"


def slot_number(application: str, transactional_id: str) -> int | None:
    """The number of the slot; None if it is not a slot of ``application``: ``a-1-0`` belongs to ``a-1``, not to
    ``a``."""
    start, _, digits = transactional_id.rpartition("-")
    # Names in the cluster may be of any origin and length; Python parses up to 4,300 digits.
    if start != application or len(digits) > _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if digits == str(int(digits)) else None


def application_of(transactional_id: str) -> str | None:
    """The application whose slot has the name ``transactional_id``; None if it is not the name of a slot."""
    name = transactional_id.rpartition("-")[0]
    return name if name and slot_number(name, transactional_id) is not None else None


def application_option(application: str) -> str:
    """The option of a command that names ``application``, for a shell."""
    return f"--application{'=' if application.startswith('-') else ' '}{quote(application)}"


_ORDER = (SlotStatus.DEAD, SlotStatus.EXPIRED, SlotStatus.FREE, SlotStatus.ABANDONED)


def choose(application: str, pool_size: int, rows: Iterable[SlotRow], observer: SlotObserver) -> Iterator[Candidate]:
    """The slots that a unit of work may take, the best first.

    Slots of dead owners come first: they need recovery, and each lease begins with it. A slot that this owner has
    abandoned comes last: if Kafka fenced it, the process that fenced it may do so again.
    """
    known = {row.number: row for row in rows if row.number < pool_size}
    candidates = (Candidate(row, observer.status(row)) for row in known.values())
    takeable = sorted((candidate for candidate in candidates if candidate.status in _ORDER), key=_preference)
    # One by one: a pool may be large, and usually the first one is taken.
    unused = (
        Candidate(SlotRow(slot_id(application, number), number), SlotStatus.FREE)
        for number in range(pool_size)
        if number not in known
    )
    return heapq.merge(takeable, unused, key=_preference)


def _preference(candidate: Candidate) -> tuple[int, bool, int]:
    """The sort key of choose."""
    return _ORDER.index(candidate.status), not candidate.row.fencing_token, candidate.row.number


def slots_to_recover(rows: Iterable[SlotRow], observer: SlotObserver, *, free_too: bool = False) -> list[Candidate]:
    """The slots that need recovery: their owner is gone. Includes slots beyond the pool size.

    :param free_too: also slots that were given back.
    """
    wanted = RECOVERABLE if free_too else ENDED
    candidates = [Candidate(row, observer.status(row)) for row in rows]
    return [candidate for candidate in candidates if candidate.status in wanted]


SHOWN = 3
"""The most slots that a message names."""


def named(names: Sequence[str], most: int = SHOWN) -> str:
    """Up to ``most`` of ``names``, and the number of the others."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def left_in_another_cluster(rows: Sequence[SlotRow], cluster_id: str | None) -> str:
    """The message about slots that are FOREIGN: which, in which cluster they were left, and what to do.

    :param rows: at least one.
    :param cluster_id: of the cluster in use.
    """
    names = named([row.transactional_id for row in rows])
    slots, were = ("slot", "was") if len(rows) == 1 else ("slots", "were")
    theirs = sorted({row.cluster_id or "" for row in rows})
    return (
        f"{slots} {names} {were} left in the Kafka cluster {' and '.join(theirs)} without being given "
        f"back, perhaps with work that the database has committed; this is the cluster {cluster_id}. Connect to the "
        "other one to recover what is left there; or run `dualwrite db moved --db URL --yes` if it is gone for good; "
        "or use another application name in this one"
    )


@dataclass(frozen=True, slots=True)
class AbandonedApplication:
    """An application with slots that need recovery, and without a process that would recover them.

    :param transactional_ids: the slots whose owners are gone.
    :param seconds: time since the first of these leases expired; 0 if none has, and its owner is known to be dead;
        None if no row shows it.
    """

    application: str
    transactional_ids: tuple[str, ...]
    seconds: float | None


def abandoned_applications(
    rows: Iterable[SlotRow], observer: SlotObserver, *, apart_from: str | None = None
) -> list[AbandonedApplication]:
    """The applications among ``rows`` that hold no slot and have not given all slots back; sorted by name.

    :param apart_from: an application to skip.
    """
    left: dict[str, list[SlotRow]] = {}
    alive = {apart_from}
    for row in rows:
        application = application_of(row.transactional_id)
        status = observer.status(row)
        if application is not None and status is SlotStatus.HELD:
            alive.add(application)
        elif application is not None and status in ENDED:
            left.setdefault(application, []).append(row)
    return [_abandoned(application, left[application]) for application in sorted(left) if application not in alive]


def _abandoned(application: str, rows: Iterable[SlotRow]) -> AbandonedApplication:
    in_order = sorted(rows, key=lambda row: row.number)
    ends = [row.remaining for row in in_order if row.remaining is not None]
    return AbandonedApplication(
        application, tuple(row.transactional_id for row in in_order), max(0.0, -min(ends)) if ends else None
    )
