"""The commands of a group, its replies, and its effects.

A request may have to wait for other members: it is parked under a number, its ticket, until a later decision answers.
"""

from dataclasses import dataclass
from enum import Enum

from dualwrite.broker.core.groups import Group
from dualwrite.broker.facts.groups import GroupFact
from dualwrite.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """A client wants to join, or stay in, the next generation.

    :param protocols: names with metadata, in order of preference.
    :param needs_member_id: a client without a member id gets one, and must join again with it (KIP-394, v4).
    :param can_skip_assignment: the client understands skip_assignment, for a static leader that comes back (v9).
    """

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_member_id: bool = False
    can_skip_assignment: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the protocols."""
        return tuple(name for name, _ in self.protocols)


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """A member of a new generation asks for its assignment. The leader also sends the assignments of all members.

    :param protocol_type: the protocol type that the member expects; None before v5. ``protocol`` likewise.
    """

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member is alive."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Members leave, or an administrator removes them by their instance ids alone: (member id, instance id)."""

    group: str
    members: tuple[tuple[str, str | None], ...]


class TimerKind(Enum):
    """The kinds of events that a group waits for."""

    SESSION = "a member's heartbeat"
    JOIN = "the members that have not joined yet"
    SYNC = "the members that have not asked for their assignment yet"


@dataclass(frozen=True, slots=True)
class TimerKey:
    """One timer of a group, and the command that is issued when it fires. Only SESSION has a member."""

    group: str
    kind: TimerKind
    member_id: str = ""


GroupCommand = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | TimerKey


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The answer to JoinGroup. Only the leader gets ``members`` (member id, instance id, metadata)."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The answer to SyncGroup."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to Heartbeat: REBALANCE_IN_PROGRESS asks the member to join again."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """The answer to LeaveGroup: the error of the request, and that of each member in the order of the request."""

    error: ErrorCode = ErrorCode.NONE
    members: tuple[tuple[str, str | None, ErrorCode], ...] = ()


GroupReply = JoinReply | SyncReply | HeartbeatReply | LeaveReply


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """``reply`` answers the request with ``ticket``."""

    ticket: int
    reply: GroupReply


@dataclass(frozen=True, slots=True)
class SetTimer:
    """An effect: issue ``key`` as a command after ``delay_ms``, and not earlier. None cancels the timer."""

    key: TimerKey
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """The consequences of a command.

    :param group: the group from now on; None if it is unchanged.
    :param facts: the caller appends them first.
    :param answers: the caller sends them once the facts are on disk.
    """

    group: Group | None = None
    facts: tuple[GroupFact, ...] = ()
    answers: tuple[GroupAnswer, ...] = ()
    timers: tuple[SetTimer, ...] = ()
