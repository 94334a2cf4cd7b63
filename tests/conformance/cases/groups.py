"""Groups of the classic protocol: who may join, every answer, and committed offsets (KIP-394, KIP-345, KIP-447)."""

from dataclasses import dataclass

from dualwrite.wire.apis import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    Message,
    SyncGroupRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject, Word
from tests.support.requests.calls import unique
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient, key_of
from tests.support.waiting import eventually

JOIN, SYNC = 9, 5
"""Newest versions."""


@dataclass
class ConnectedMember:
    """A member of a group on a connection of its own."""

    broker: Subject
    client: RawClient
    group: str
    member_id: str = ""
    generation: int = -1
    instance: str | None = None
    protocols: tuple[str, ...] = ("range",)
    session_ms: int = 30_000
    rebalance_ms: int = 30_000

    def request(self, **fields: object) -> Message:
        """JoinGroup as this member."""
        entry = JoinGroupRequest.JoinGroupRequestProtocol
        given: dict[str, object] = {
            "group_id": self.group,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [entry(name=name, metadata=self.group.encode()) for name in self.protocols],
            **fields,
        }
        return JoinGroupRequest(**given)

    def ask(self, version: int = JOIN, **fields: object) -> Message:
        """JoinGroup, waiting for the answer; the id that the broker gives is kept."""
        answer = self.client.ask(self.request(**fields), version)
        if answer.member_id:
            self.broker.call(answer.member_id, "member")
            self.member_id = answer.member_id
        self.generation = answer.generation_id
        return answer

    def join(self, version: int = JOIN) -> Message:
        """JoinGroup, again with the id that it gives if it asks for that."""
        answer = self.ask(version)
        return self.ask(version) if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED else answer

    def sync_request(self, assignments: dict[str, bytes] | None = None, **fields: object) -> Message:
        """SyncGroup as this member."""
        entry = SyncGroupRequest.SyncGroupRequestAssignment
        given: dict[str, object] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": self.protocols[0],
            "assignments": [entry(member_id=name, assignment=what) for name, what in (assignments or {}).items()],
            **fields,
        }
        return SyncGroupRequest(**given)

    def sync(self, assignments: dict[str, bytes] | None = None, version: int = SYNC, **fields: object) -> Message:
        """SyncGroup, waiting for the answer."""
        return self.client.ask(self.sync_request(assignments, **fields), version)

    def beat(self, version: int = 4, **fields: object) -> int:
        """Heartbeat: the error."""
        given: dict[str, object] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            **fields,
        }
        code: int = self.client.ask(HeartbeatRequest(**given), version).error_code
        return code


def member(broker: Subject, group: str, **more: object) -> ConnectedMember:
    """A member that has not joined yet."""
    return ConnectedMember(broker, broker.connect(), group, **more)  # type: ignore[arg-type]


def stable(broker: Subject, group: str, **more: object) -> ConnectedMember:
    """The only member of a group that is stable."""
    only = member(broker, group, **more)
    only.join()
    only.sync({only.member_id: b"everything"})
    return only


def note_joined(broker: Subject, step: str, answer: Message) -> None:
    """Note a JoinGroup answer."""
    broker.note(
        step,
        error=answer.error_code,
        generation=answer.generation_id,
        protocol=answer.protocol_name,
        kind=answer.protocol_type,
        leader=answer.leader,
        me=answer.member_id,
        members=sorted((broker.show(entry.member_id), entry.group_instance_id) for entry in answer.members),
    )


@case
def who_may_join(broker: Subject) -> None:
    for label, fields in {
        "no group": {"group_id": ""},
        "a short session": {"session_timeout_ms": 5999},
        "a long session": {"session_timeout_ms": 1_800_001},
        "an unknown member": {"member_id": "nobody"},
        "no protocol": {"protocols": []},
        "no kind": {"protocol_type": ""},
    }.items():
        asking = member(broker, unique("group"))
        answer = asking.client.ask(asking.request(**fields), JOIN)
        broker.note(label, error=answer.error_code, generation=answer.generation_id, some=bool(answer.member_id))


@case
def ids_of_members(broker: Subject) -> None:
    for version in range(10):
        joining = member(broker, unique("group"))
        answer = joining.ask(version)
        broker.note(
            f"v{version}", error=answer.error_code, given=bool(answer.member_id), generation=answer.generation_id
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            note_joined(broker, f"v{version} again", joining.ask(version))


@case
def one_member_lives(broker: Subject) -> None:
    group = broker.name("group")
    only = member(broker, group)
    broker.note("heartbeat of nobody", error=only.beat(member_id="nobody", generation_id=0))
    note_joined(broker, "first", only.ask())
    note_joined(broker, "with the id", only.ask())
    broker.note("heartbeat before the assignment", error=only.beat())
    broker.note("commit before the assignment", errors=commit_as(only, broker.topic()))
    answer = only.sync({only.member_id: b"all"})
    broker.note(
        "sync", error=answer.error_code, kind=answer.protocol_type, name=answer.protocol_name, mine=answer.assignment
    )
    answer = only.sync()
    broker.note("sync again", error=answer.error_code, mine=answer.assignment)
    for label, fields in {
        "heartbeat": {},
        "heartbeat of an old generation": {"generation_id": 0},
        "heartbeat of a later generation": {"generation_id": 9},
        "heartbeat of a stranger": {"member_id": "stranger"},
        "heartbeat of no group": {"group_id": ""},
        "heartbeat of an unknown group": {"group_id": "no-such-group"},
        "heartbeat with an unknown instance": {"group_instance_id": "i"},
    }.items():
        broker.note(label, error=only.beat(**fields))
    for label, fields in {
        "sync of an old generation": {"generation_id": 0},
        "sync of a stranger": {"member_id": "stranger"},
        "sync as another kind": {"protocol_type": "connect"},
        "sync under another protocol": {"protocol_name": "sticky"},
        "sync of an unknown group": {"group_id": "no-such-group"},
    }.items():
        broker.note(label, error=only.sync(**fields).error_code)  # type: ignore[arg-type]
    note_joined(broker, "joins again", only.ask())
    broker.note("sync of the new generation", error=only.sync({only.member_id: b"x"}).error_code)


@case
def a_second_member_joins(broker: Subject) -> None:
    group = broker.name("group")
    first = stable(broker, group)
    second = member(broker, group)
    second.ask()
    waiting = second.client.send(second.request(), JOIN)
    seen = eventually(first.beat, lambda error: error != ErrorCode.NONE)
    broker.note("heartbeat of the first", error=seen)
    asked_for = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    (described,) = broker.client.ask(asked_for, 6).groups
    held = sorted((broker.show(entry.member_id), entry.member_assignment) for entry in described.members)
    broker.note("described while it rebalances", state=described.group_state, held=held)
    broker.note("commit while it rebalances", errors=commit_as(first, broker.topic()))
    broker.note("sync while it rebalances", error=first.sync().error_code)
    note_joined(broker, "the first again", first.ask())
    answer = second.client.receive(key_of(second.request()), JOIN, waiting)
    second.generation = answer.generation_id
    note_joined(broker, "the second", answer)
    broker.note("heartbeat of the second", error=second.beat())
    asked = second.sync_request()
    waiting = second.client.send(asked, SYNC)
    broker.note("sync of the first", mine=first.sync({first.member_id: b"one", second.member_id: b"two"}).assignment)
    broker.note("sync of the second", mine=second.client.receive(key_of(asked), SYNC, waiting).assignment)
    broker.note("heartbeats", errors=[ErrorCode(first.beat()), ErrorCode(second.beat())])
    leave(broker, "the second leaves", second)
    broker.note("heartbeat then", error=eventually(first.beat, lambda error: error != ErrorCode.NONE))
    note_joined(broker, "the first alone", first.ask())


@case
def protocols_that_do_not_match(broker: Subject) -> None:
    group = broker.name("group")
    stable(broker, group)
    other = member(broker, group, protocols=("sticky",))
    broker.note("another protocol", error=other.ask().error_code)
    answer = other.client.ask(other.request(protocol_type="connect"), JOIN)
    broker.note("another kind", error=answer.error_code)


def leave(broker: Subject, step: str, leaving: ConnectedMember, version: int = 5, **fields: object) -> None:
    """LeaveGroup, noted."""
    entry = LeaveGroupRequest.MemberIdentity
    if version < 3:
        request = LeaveGroupRequest(**{"group_id": leaving.group, "member_id": leaving.member_id, **fields})  # type: ignore[arg-type]
    else:
        identity = {"member_id": leaving.member_id, "group_instance_id": leaving.instance, **fields}
        request = LeaveGroupRequest(group_id=leaving.group, members=[entry(**identity)])  # type: ignore[arg-type]
    answer = leaving.client.ask(request, version)
    members = [Word(ErrorCode(seen.error_code).name) for seen in answer.members] if version >= 3 else []
    broker.note(step, error=answer.error_code, members=members)


@case
def members_that_leave(broker: Subject) -> None:
    group = broker.name("group")
    only = stable(broker, group)
    for version in (2, 5):
        leave(broker, f"a stranger in v{version}", only, version, member_id="stranger")
        leave(broker, f"in v{version}", only, version)
        leave(broker, f"in v{version} again", only, version)
        broker.note(f"heartbeat after v{version}", error=only.beat())
        only = stable(broker, group)
    nowhere = member(broker, "no-such-group", member_id="nobody")
    leave(broker, "an unknown group", nowhere)


@case
def static_members(broker: Subject) -> None:
    group = broker.name("group")
    first = stable(broker, group, instance="i1")
    broker.note("heartbeat", error=first.beat())
    again = member(broker, group, instance="i1")
    note_joined(broker, "the same instance again", again.ask())
    broker.note("heartbeat of the old", error=first.beat())
    broker.note("sync of the old", error=first.sync().error_code)
    broker.note("commit of the old", errors=commit_as(first, broker.topic()))
    broker.note("commit of the new", errors=commit_as(again, broker.topic()))
    answer = again.sync()
    broker.note("sync of the new", error=answer.error_code, mine=answer.assignment)
    broker.note("heartbeat of the new", error=again.beat())
    note_joined(broker, "joins as the old", first.ask())
    broker.note("another instance with the same id", error=again.beat(group_instance_id="i2"))
    leave(broker, "leaves by instance", again, member_id="")
    leave(broker, "leaves by instance again", again, member_id="")
    broker.note("heartbeat after it left", error=again.beat())


def commit_as(committer: ConnectedMember, topic: str, **fields: object) -> list[ErrorCode]:
    """OffsetCommit as ``committer``, or otherwise as ``fields`` say: the errors."""
    given = {
        "generation_id_or_member_epoch": committer.generation,
        "member_id": committer.member_id,
        "group_instance_id": committer.instance,
        **fields,
    }
    return commit(committer.client, committer.group, {(topic, 0): 5}, **given)  # type: ignore[arg-type]


def note_described(broker: Subject, step: str, *groups: str, version: int = 6) -> None:
    """Note a DescribeGroups answer, one step for each group."""
    answer = broker.client.ask(DescribeGroupsRequest(groups=list(groups), include_authorized_operations=False), version)
    for number, group in enumerate(answer.groups):
        broker.note(
            f"{step}, {number}",
            error=group.error_code,
            state=group.group_state,
            kind=group.protocol_type,
            protocol=group.protocol_data,
            members=[
                (entry.member_id, entry.group_instance_id, entry.client_id, entry.client_host, entry.member_assignment)
                for entry in group.members
            ],
        )


@case
def groups_described_and_listed(broker: Subject) -> None:
    group, topic = broker.name("group"), broker.topic()
    for version in (5, 6):
        note_described(broker, f"unknown in v{version}", "no-such-group", version=version)
    only = member(broker, group)
    only.join()
    note_described(broker, "before the assignment", group)
    only.sync({only.member_id: b"all"})
    note_described(broker, "stable", group)
    _listed(broker, "stable", group)
    leave(broker, "leaves", only)
    note_described(broker, "empty", group)
    simple = broker.name("group")
    commit(broker.client, simple, {(topic, 0): 1})
    note_described(broker, "of offsets alone", simple)
    _listed(broker, "then", group, simple)


def _listed(broker: Subject, step: str, *groups: str) -> None:
    for label, (version, fields) in {
        "v0": (0, {}),
        "v4": (4, {"states_filter": []}),
        "stable": (4, {"states_filter": ["Stable"]}),
        "in small letters": (4, {"states_filter": ["stable"]}),
        "an unknown state": (4, {"states_filter": ["Sleeping"]}),
        "classic": (5, {"states_filter": [], "types_filter": ["classic"]}),
        "consumer": (5, {"states_filter": [], "types_filter": ["consumer"]}),
        "an unknown type": (5, {"states_filter": [], "types_filter": ["other"]}),
    }.items():
        answer = broker.client.ask(ListGroupsRequest(**fields), version)
        found = {entry.group_id: entry for entry in answer.groups if entry.group_id in groups}
        broker.note(
            f"{step}: listed, {label}",
            error=answer.error_code,
            groups=[
                (name, found[name].protocol_type)
                + ((found[name].group_state,) if version >= 4 else ())
                + ((found[name].group_type,) if version >= 5 else ())
                for name in groups
                if name in found
            ],
        )
