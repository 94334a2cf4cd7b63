"""Classic groups with members that become consumer groups, and back: case by case. The searches are beside it."""

from dataclasses import replace

import pytest

from dualwrite.broker.core.consumer_groups.commands import ConsumerTimerKind, MigrationPolicy, RemoveMembers
from dualwrite.broker.core.consumer_groups.group import ConsumerGroupState
from dualwrite.broker.core.consumer_protocol import read_assignment, write_assignment
from dualwrite.broker.core.group_commands import JoinReply, LeaveGroup, SyncGroup, SyncReply, TimerKind
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.consumer_groups import MemberState
from dualwrite.broker.facts.groups import GroupForgotten
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, REBALANCE_MS, FollowingClient, join, partitions
from tests.support.broker.group_worlds.mixed import (
    CLASSIC_SESSION_MS,
    COOPERATIVE,
    EAGER,
    ClassicClient,
    MixedWorld,
    classic_join,
    metadata,
)

T = [TopicPartition("t", number) for number in range(4)]


def stable(world: MixedWorld, *clients: ClassicClient) -> tuple[ClassicClient, ...]:
    """``clients`` in a complete classic generation, which they all know."""
    for client in clients:
        client.act(world)
    begin(world)
    for _ in range(8):
        for client in clients:
            client.act(world)
    assert world.table.groups[GROUP].state is GroupState.STABLE
    return clients


def begin(world: MixedWorld) -> None:
    """Let a classic group wait for no more members."""
    while world.table.groups[GROUP].is_initial:
        world.fire_classic(TimerKind.JOIN)


def mixed() -> tuple[MixedWorld, ClassicClient]:
    """A consumer group with m1, and a member of the classic protocol, which share ``t``."""
    world = MixedWorld()
    (classic,) = stable(world, ClassicClient(("t",), COOPERATIVE))
    world.ask(join("m1", "t"))
    for _ in range(8):
        classic.act(world)
        world.beat("m1", world.group.current("m1").epoch, *world.group.current("m1").assigned)
    assert world.group.state is ConsumerGroupState.STABLE
    assert len(classic.held) == 2
    return world, classic


# --- upgrade


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])
def test_members_of_a_classic_group_stay_with_what_they_hold(assignor: str) -> None:
    world = MixedWorld()
    world.apply(OffsetCommitted(GROUP, T[0], 5, -1, "", 0))
    one, other = stable(world, ClassicClient(("t",), assignor), ClassicClient(("t",), assignor))
    generation = world.table.groups[GROUP].generation
    reply = world.ask(join("m1", "t"))
    assert (reply.error, reply.epoch, reply.assigned) == (ErrorCode.NONE, generation + 1, frozenset())
    assert world.table.groups == {}
    assert world.table.offsets.groups[GROUP][T[0]].offset == 5
    assert world.group.state is ConsumerGroupState.RECONCILING
    for client in (one, other):
        current, subscribed = world.group.current(client.member_id), world.group.subscriptions[client.member_id]
        assert (current.epoch, current.state) == (generation, MemberState.STABLE)
        assert current.assigned == dict.fromkeys(client.held, generation)
        assert (subscribed.topics, subscribed.client_id) == (("t",), "client")
        assert subscribed.classic is not None
        assert (subscribed.classic.session_timeout_ms, subscribed.classic.protocols[0][0]) == (10_000, assignor)
        assert world.delay(ConsumerTimerKind.SESSION, client.member_id) == CLASSIC_SESSION_MS
        assert world.heartbeat(client.member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.classic_timers == {}
    assert GroupForgotten(GROUP) in world.facts


def test_what_a_cooperative_member_has_to_give_up_is_held_until_it_joins_without_it() -> None:
    world = MixedWorld()
    one, other = stable(world, ClassicClient(("t",), COOPERATIVE), ClassicClient(("t",), COOPERATIVE))
    late = ClassicClient(("t",), COOPERATIVE)
    late.act(world)
    one.act(world)  # hears of the rebalance
    other.act(world)
    one.act(world)  # joins, with what it owns
    other.act(world)
    one.act(world)
    other.act(world)
    assert world.table.groups[GROUP].state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
    held = one.held | other.held
    assert world.ask(join("m1", "t")).assigned == frozenset()
    assert {*world.group.current(one.member_id).assigned, *world.group.current(other.member_id).assigned} == held


def test_requests_that_wait_in_the_classic_group_are_sent_back() -> None:
    world = MixedWorld()
    parked = world.ask_classic(classic_join("", "t"))
    world.ask(join("m1", "t"))
    (member_id,) = world.members() - {"m1"}
    assert world.answers[parked] == JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id)
    again = world.joined(classic_join(member_id, "t"))
    assert (again.error, again.generation, again.leader, again.protocol) == (ErrorCode.NONE, 2, "", EAGER)


def test_a_group_without_members_does_not_wait_for_a_client_that_is_about_to_join_it() -> None:
    world = MixedWorld()
    named = world.joined(classic_join("", "t", needs_member_id=True))
    assert named.error is ErrorCode.MEMBER_ID_REQUIRED
    assert world.ask(join("m1", "t")).error is ErrorCode.NONE
    assert world.classic_timers == {}
    assert world.joined(classic_join(named.member_id, "t")).error is ErrorCode.NONE
    assert world.members() == {"m1", named.member_id}


def test_a_member_that_waits_for_its_assignment_is_sent_back() -> None:
    world = MixedWorld()
    tickets = [world.ask_classic(classic_join("", "t")) for _ in range(2)]
    begin(world)
    replies = [world.answers[ticket] for ticket in tickets]
    follower = next(reply for reply in replies if isinstance(reply, JoinReply) and reply.leader != reply.member_id)
    syncing = world.ask_classic(sync_of(follower.member_id, follower.generation))
    world.ask(join("m1", "t"))
    assert world.answers[syncing] == SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)


def sync_of(member_id: str, generation: int) -> SyncGroup:
    return SyncGroup(GROUP, member_id, None, generation, (), "consumer", EAGER)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"migration_policy": MigrationPolicy.DISABLED}, "online upgrade is disabled"),
        ({"migration_policy": MigrationPolicy.DOWNGRADE}, "online upgrade is disabled"),
        ({"max_size": 1}, "the group size exceeds the consumer group maximum size"),
    ],
)
def test_an_upgrade_that_is_not_wanted_is_refused(settings: dict[str, object], reason: str) -> None:
    world = MixedWorld(**settings)
    stable(world, ClassicClient(("t",)), ClassicClient(("t",)))
    assert_refused(world, reason)
    assert "is not a consumer group" in (world.beat("m1", 2).message or "")


def assert_refused(world: MixedWorld, reason: str) -> None:
    before = world.table.groups[GROUP].copy()
    reply = world.ask(join("m1", "t"))
    message = f"Cannot upgrade classic group {GROUP} to consumer group because {reason}"
    assert (reply.error, (reply.message or "").startswith(message)) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert (world.table.groups, world.table.consumers) == ({GROUP: before}, {})


@pytest.mark.parametrize(
    ("more", "assignments", "reason"),
    [
        ({"protocol_type": "connect"}, [b"", b""], "the group does not use the consumer embedded protocol"),
        ({"protocols": ((EAGER, b"\x00"),)}, [b"", b""], "the embedded consumer protocol is malformed"),
        ({}, [b"\x00\x01\x00", b""], "the embedded consumer protocol is malformed"),
        ({}, [write_assignment(0, T[:2]), write_assignment(0, T[1:])], "a partition is assigned to two of its members"),
        (
            {"protocols": (("mine", metadata(["t"])),)},
            [write_assignment(0, T[:2])[:-4] + b"\x00\x00\x00\x01x", b""],
            "an unsupported custom assignor is in use",
        ),
    ],
)
def test_a_group_that_the_broker_cannot_read_is_not_upgraded(
    more: dict[str, object], assignments: list[bytes], reason: str
) -> None:
    world = MixedWorld()
    tickets = [world.ask_classic(classic_join("", "t", **more)) for _ in range(2)]
    begin(world)
    replies = [world.answers[ticket] for ticket in tickets]
    members = [reply.member_id for reply in replies if isinstance(reply, JoinReply)]
    leader = next(reply.leader for reply in replies if isinstance(reply, JoinReply))
    command = replace(sync_of(leader, 1), assignments=tuple(zip(members, assignments, strict=True)), protocol=None)
    world.ask_classic(replace(command, protocol_type=None))
    assert_refused(world, reason)


def test_an_assignment_with_a_word_of_a_known_assignor_is_upgraded() -> None:
    world = MixedWorld()
    ticket = world.ask_classic(classic_join("", "t", protocols=((COOPERATIVE, metadata(["t"])),)))
    begin(world)
    reply = world.answers[ticket]
    assert isinstance(reply, JoinReply)
    word = write_assignment(0, T)[:-4] + b"\x00\x00\x00\x01x"
    world.ask_classic(
        replace(sync_of(reply.member_id, 1), assignments=((reply.member_id, word),), protocol=COOPERATIVE)
    )
    world.ask(join("m1", "t"))
    assert world.group.current(reply.member_id).assigned.keys() == partitions(world.topics["t"])


def test_a_static_member_changes_its_protocol_by_a_restart() -> None:
    world = MixedWorld()
    one, other = stable(world, ClassicClient(("t",), instance_id="i1"), ClassicClient(("t",), instance_id="i2"))
    reply = world.ask(join("m1", "t", instance_id="i1"))
    assert (reply.error, reply.epoch, reply.assigned) == (ErrorCode.NONE, 1, one.held)
    assert world.members() == {"m1", other.member_id}
    assert world.heartbeat(other.member_id, other.generation, "i2") is ErrorCode.NONE, "no rebalance"
    assert world.heartbeat(one.member_id, one.generation, "i1") is ErrorCode.FENCED_INSTANCE_ID
    last = world.ask(join("m2", "t", instance_id="i2"))
    assert (last.error, last.assigned, world.group.classic_members) == (ErrorCode.NONE, other.held, [])


@pytest.mark.parametrize("change", ["a topic grows", "a rebalance has begun"])
def test_a_static_member_that_changes_its_protocol_leaves_no_partition_without_a_member(change: str) -> None:
    world = MixedWorld()
    one, other = stable(world, ClassicClient(("t",), instance_id="i1"), ClassicClient(("t",), instance_id="i2"))
    if change == "a topic grows":
        world.create("t", 6)
    else:
        world.ask_classic(LeaveGroup(GROUP, (("", "i2"),)))
    assert world.ask(join("m1", "t", instance_id="i1")).epoch == 2
    client = FollowingClient("m1", ("t",), "i1", 2)
    for _ in range(8):
        client.beat(world)
        client.follow()
        if change == "a topic grows":
            other.act(world)
    held = client.held | (other.held if change == "a topic grows" else frozenset())
    assert held == partitions(world.topics["t"])
    assert one.member_id not in world.members()


# --- downgrade


@pytest.mark.parametrize("how", ["leaves", "dies", "is removed"])
def test_the_last_member_of_the_consumer_protocol_leaves_a_classic_group(how: str) -> None:
    world, classic = mixed()
    epoch = world.group.epoch
    if how == "leaves":
        world.beat("m1", -1)
    elif how == "dies":
        world.fire(ConsumerTimerKind.SESSION, "m1")
    else:
        assert world.step(RemoveMembers(GROUP, (("m1", None),))).removed == (ErrorCode.NONE,)
    group = world.table.groups[GROUP]
    assert (group.state, group.generation, group.leader) == (GroupState.PREPARING_REBALANCE, epoch, None)
    assert (group.members.keys(), world.table.consumers, world.timers) == ({classic.member_id}, {}, {})
    assert {key.kind: delay for key, delay in world.classic_timers.items()} == {
        TimerKind.SESSION: CLASSIC_SESSION_MS,
        TimerKind.JOIN: REBALANCE_MS,
    }
    assert world.heartbeat(classic.member_id, classic.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(8):
        classic.act(world)
    assert classic.held == partitions(world.topics["t"])
    assert group.generation + 1 == world.table.groups[GROUP].generation


@pytest.mark.parametrize("compacted", [False, True])
def test_after_a_restart_the_members_of_a_downgraded_group_join_again(compacted: bool) -> None:
    world, classic = mixed()
    world.beat("m1", -1)
    world.restart(compacted=compacted)
    assert world.heartbeat(classic.member_id, classic.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(8):
        classic.act(world)
    assert classic.held == partitions(world.topics["t"])


def test_a_downgraded_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    world, classic = mixed()
    world.beat("m1", -1)
    world.restart()
    world.fire_classic(TimerKind.JOIN)
    assert world.table.groups[GROUP].state is GroupState.EMPTY
    assert world.heartbeat(classic.member_id, classic.generation) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "settings",
    [
        {"migration_policy": MigrationPolicy.UPGRADE},
        {"classic": GroupSettings(initial_rebalance_delay_ms=0, max_size=1)},
    ],
)
def test_a_group_that_must_not_be_downgraded_goes_on_with_members_of_the_classic_protocol(
    settings: dict[str, object],
) -> None:
    world, classic = mixed()
    world.joined(classic_join("m2", "t", protocols=((COOPERATIVE, metadata(["t"])),)))
    world.settings = replace(world.settings, **settings)  # type: ignore[arg-type]
    world.beat("m1", -1)
    assert world.members() == {classic.member_id, "m2"}
    assert world.is_consumer_group
    world.remove("m2")
    if settings.get("migration_policy") is MigrationPolicy.UPGRADE:
        for _ in range(8):
            classic.act(world)
        assert classic.held == partitions(world.topics["t"])


def test_a_static_member_goes_back_to_the_classic_protocol_by_a_restart() -> None:
    world = MixedWorld()
    one, other = stable(world, ClassicClient(("t",), instance_id="i1"), ClassicClient(("t",), instance_id="i2"))
    world.ask(join("m1", "t", instance_id="i1"))
    for _ in range(4):
        other.act(world)
    again = ClassicClient(("t",), instance_id="i1")
    again.act(world)
    group = world.table.groups[GROUP]
    assert (group.state, len(group.joining)) == (GroupState.PREPARING_REBALANCE, 1)
    for _ in range(8):
        other.act(world)
        again.act(world)
    assert again.held | other.held == partitions(world.topics["t"])
    assert not again.held & other.held
    assert one.member_id not in world.members()


def test_the_record_of_a_downgraded_group_says_what_its_members_hold() -> None:
    world, classic = mixed()
    world.beat("m1", -1)
    (member,) = world.replayed().groups[GROUP].members.values()
    assert read_assignment(member.assignment).partitions == set(world.names_of(classic.held))
    assert member.instance_id is None
