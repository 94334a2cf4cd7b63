"""The settings of the pool of slots, the message of NoFreeSlotError, and the log line about applications whose slots no
process recovers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from dualwrite.coordinator.rules.slot_rules import (
    AbandonedApplication,
    SlotRow,
    application_option,
    describe_owner,
    left_in_another_cluster,
    slot_id,
)
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.errors import ConfigurationError
from dualwrite.ids import validated_transactional_id

_SHOWN = 5
"""The most slots that an error names, and applications that a log line names."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Usage:
    """How a process uses its slots.

    :param pool_size: slots of the application in all its processes together.
    :param used: slots leased by this process and used by a unit of work.
    :param idle: slots leased and not used.
    :param pending: slots in which the background completes an earlier unit of work.
    """

    application: str
    pool_size: int
    used: int = 0
    idle: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The user's settings of the pool; times in seconds. See DualWrite."""

    application: str
    size: int
    acquire_timeout: float
    lease_timeout: float
    database_timeout: float = math.inf

    def unused(self) -> Usage:
        """The usage of a process that has leased nothing."""
        return Usage(self.application, self.size)

    def check(self) -> None:
        """Refuse invalid settings.

        :raises ConfigurationError: naming the setting.
        """
        if not self.application:
            raise ConfigurationError("application is empty: use a name that no other application has")
        if not isinstance(self.application, str):
            raise ConfigurationError(f"application {self.application!r}: name this application by a text")
        if not _is(Integral, self.size) or self.size < 1:
            raise ConfigurationError(f"pool_size {self.size!r}: use an int, 1 or more")
        validated_transactional_id(slot_id(self.application, self.size - 1))
        if not (_is(Real, self.acquire_timeout) and self.acquire_timeout >= 0):
            raise ConfigurationError(f"acquire_timeout {self.acquire_timeout!r}: use 0 seconds or more")
        if not (_is(Real, self.lease_timeout) and self.lease_timeout > 0):
            raise ConfigurationError(f"lease_timeout {self.lease_timeout!r}: use more than 0 seconds")
        if not (_is(Real, self.database_timeout) and self.database_timeout > 0):
            raise ConfigurationError(f"database_timeout {self.database_timeout!r}: use more than 0 seconds")


def _is(kind: type, value: object) -> bool:
    """True for a number of ``kind``; True and False are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def no_free_slot(
    settings: PoolSettings,
    own: Mapping[str, Slot],
    rows: Sequence[SlotRow],
    *,
    one_writer: bool,
    foreign: Sequence[SlotRow] = (),
    cluster_id: str | None = None,
) -> str:
    """The message of NoFreeSlotError: which processes hold the slots, until when, and what to do.

    :param own: the slots of this process by transactional id.
    :param rows: the rows as of the last look.
    :param one_writer: see DecisionStore.
    :param foreign: those of ``rows`` that were left in another Kafka cluster.
    :param cluster_id: the cluster in use.
    """
    elsewhere = [row for row in foreign if row.number < settings.size]
    users = [_own_use(slot) for slot in own.values()]
    users += [
        f"{row.transactional_id} by {describe_owner(row.owner)}, whose lease has {row.remaining:.0f} s left"
        for row in rows
        if row.transactional_id not in own and row not in elsewhere and row.owner and row.remaining is not None
    ]
    more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    if one_writer and any(slot.user is not None for slot in own.values()):
        advice = "the database writes for one unit of work at a time: make them shorter, or raise acquire_timeout"
    else:
        advice = "Raise pool_size to the number of units of work that may run at once in all processes together"
    parts = []
    if users or not elsewhere:
        parts.append(f"in use are {'; '.join(users[:_SHOWN]) or 'some that were just taken'}{more}. {advice}")
    if elsewhere:
        parts.append(left_in_another_cluster(elsewhere, cluster_id))
    return (
        f"no slot of application {settings.application!r} was free for {settings.acquire_timeout:g} s; pool_size is "
        f"{settings.size}, {'. Besides, '.join(parts)}"
    )


def _own_use(slot: Slot) -> str:
    if not slot.pending:
        return f"{slot.transactional_id} by this process"
    return (
        f"{slot.transactional_id} by this process, where an earlier unit of work is not finished in Kafka (last error: "
        f"{slot.last_error})"
    )


def described(left: AbandonedApplication) -> str:
    """The application, how many of its slots were left behind, and for how long."""
    count = len(left.transactional_ids)
    slots = "1 slot whose owner is" if count == 1 else f"{count} slots whose owners are"
    if left.seconds is None:
        return f"{left.application!r} has {slots} gone"
    size, unit = next(((size, unit) for size, unit in _UNITS if left.seconds >= size), _UNITS[-1])
    return f"{left.application!r} has {slots} gone, for {left.seconds // size:.0f} {unit} now"


def left_elsewhere(others: Sequence[AbandonedApplication]) -> str:
    """The log line about other applications that no process recovers: which, since when, the effect, and what to do.

    :param others: at least one.
    """
    more = f"; and {len(others) - _SHOWN} more applications" if len(others) > _SHOWN else ""
    names, first = "; ".join(map(described, others[:_SHOWN])), application_option(others[0].application)
    return (
        f"in the same database, application {names}{more}. If a dead process left a transaction open in Kafka, "
        "read_committed consumers of its partitions wait until it is recovered. The application's next start does "
        f"that. If it was renamed or removed, run: dualwrite recover {first} --db URL "
        "--bootstrap-servers HOST:PORT"
    )
