"""The classic group protocol, rule by rule: each answer, the members, and the events that the group waits for."""

import pytest

from dualwrite.broker.core.group_commands import Heartbeat, LeaveGroup, SyncGroup, TimerKind
from dualwrite.broker.core.group_rules import NEW_MEMBER_JOIN_TIMEOUT_MS
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES, SHORTEST_WAIT_MS
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.broker.facts.groups import GroupRecorded
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.classic import BOTH, GROUP, RANGE, REBALANCE_MS, SESSION_MS, GroupWorld, join

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE
SESSION, JOIN, SYNC = TimerKind.SESSION, TimerKind.JOIN, TimerKind.SYNC


# --- who may join


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (join(group=""), ErrorCode.INVALID_GROUP_ID),
        (join(group="g" * (LONGEST_STRING + 1)), ErrorCode.INVALID_GROUP_ID),
        (join(session_timeout_ms=5_999), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join(session_timeout_ms=1_800_001), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join(instance_id="i" * (LONGEST_STRING + 1)), ErrorCode.INVALID_REQUEST),
        (join(protocol_type="t" * (LONGEST_STRING + 1)), ErrorCode.INVALID_REQUEST),
        (join(protocols=(*RANGE, ("ü" * (LONGEST_STRING // 2 + 1), b""))), ErrorCode.INVALID_REQUEST),
        (join("unknown"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join(protocol_type=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_refused_request_creates_no_group(command: object, error: ErrorCode) -> None:
    world = GroupWorld()
    reply = world.joined(world.ask(command))  # type: ignore[arg-type]
    assert (reply.error, reply.member_id, reply.generation) == (error, command.member_id, -1)  # type: ignore[attr-defined]
    assert (world.table.groups, world.timers, world.facts) == ({}, {}, [])


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (join(protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join(protocols=(("other", b""),)), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join("unknown"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join("unknown", "unknown"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join("unknown", "static"), ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_join_that_does_not_fit_the_group_is_refused(command: object, error: ErrorCode) -> None:
    world = GroupWorld()
    world.stable(join(), join(instance_id="static"))
    assert world.joined(world.ask(command)).error is error  # type: ignore[arg-type]
    assert world.state is STABLE


def test_a_client_without_a_member_id_gets_one_and_a_session_to_join_with_it() -> None:
    world = GroupWorld()
    reply = world.joined(world.ask(join(needs_member_id=True)))
    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "client-id1")
    assert (world.state, world.group.pending, world.delay(SESSION, "client-id1")) == (EMPTY, {"client-id1"}, SESSION_MS)
    assert world.joined(world.ask(join("client-id1", "static"))).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.ask(join("client-id1", needs_member_id=True))
    assert (world.state, world.group.pending, list(world.group.members)) == (PREPARING, set(), ["client-id1"])
    late = world.joined(world.ask(join(needs_member_id=True))).member_id
    world.fire(SESSION, late)
    assert late not in world.group.pending


def test_a_client_that_never_uses_its_member_id_does_not_disturb_the_group() -> None:
    world = GroupWorld()
    (member,) = world.stable(join())
    stranger = world.joined(world.ask(join(needs_member_id=True))).member_id
    world.fire(SESSION, stranger)
    assert (world.state, world.group.pending) == (STABLE, set())
    assert world.heartbeat(member) is ErrorCode.NONE


@pytest.mark.parametrize("called", ["c" * LONGEST_STRING, "😀" * (LONGEST_STRING // 4)])
@pytest.mark.parametrize("is_static", [True, False])
def test_a_member_id_fits_into_a_string_for_any_client_id(called: str, is_static: bool) -> None:
    world = GroupWorld()
    command = join(instance_id=called) if is_static else join(client_id=called)
    (member,) = world.with_members(command)
    assert len(member.encode()) <= LONGEST_STRING
    assert member.startswith(called[:1000])


def test_a_static_member_needs_no_member_id_beforehand() -> None:
    world = GroupWorld()
    (member,) = world.with_members(join(instance_id="static", needs_member_id=True))
    assert member.startswith("static-")


def test_a_full_group_accepts_no_member_until_one_leaves() -> None:
    world = GroupWorld(max_size=2)
    one, two = world.stable(join(), join())
    reply = world.joined(world.ask(join()))
    assert (reply.error, reply.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert world.leave((two, None)) == [ErrorCode.NONE]
    world.ask(join())
    third = world.ask(join(needs_member_id=True))
    assert world.joined(third).error is ErrorCode.MEMBER_ID_REQUIRED, "those who have joined count: one of two"
    world.ask(join(world.joined(third).member_id))
    assert world.joined(world.ask(join(one))).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one not in world.group.members


def test_a_static_member_that_comes_back_takes_its_own_place_in_a_full_group() -> None:
    world = GroupWorld(max_size=2)
    world.stable(join(), join(instance_id="static"))
    assert world.joined(world.ask(join(instance_id="another"))).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(world.ask(join(instance_id="static"))).error is ErrorCode.NONE
    assert (world.state, len(world.group.members)) == (STABLE, 2)


def test_a_static_member_that_comes_back_before_its_first_generation_takes_its_own_place_too() -> None:
    world = GroupWorld(max_size=1)
    former, later = world.ask(join(instance_id="static")), world.ask(join(instance_id="static"))
    assert world.joined(former).error is ErrorCode.FENCED_INSTANCE_ID
    world.fire(JOIN)
    assert (world.joined(later).error, world.state) == (ErrorCode.NONE, COMPLETING)


# --- the first half


def test_the_first_rebalance_waits_for_others_and_longer_if_they_come_but_not_for_ever() -> None:
    world = GroupWorld()
    tickets = [world.ask(join(rebalance_timeout_ms=8_000))]
    assert (world.state, world.delay(JOIN)) == (PREPARING, 3000)
    delays = []
    while world.state is PREPARING:
        tickets.append(world.ask(join(rebalance_timeout_ms=8_000)))
        delays.append(world.delay(JOIN))
        world.fire(JOIN)
    assert delays == [3000, 3000, 2000], "in all the rebalance timeout"
    assert [world.joined(ticket).generation for ticket in tickets] == [1] * 4
    quick = GroupWorld()
    quick.ask(join())
    quick.fire(JOIN)
    assert quick.state is COMPLETING, "no other member came"


def test_only_the_leader_gets_the_list_of_members() -> None:
    world = GroupWorld()
    tickets = [world.ask(join(protocols=BOTH)), world.ask(join(instance_id="static", protocols=BOTH))]
    while world.state is PREPARING:
        world.fire(JOIN)
    leader, follower = map(world.joined, tickets)
    assert leader.leader == follower.leader == leader.member_id
    assert leader.members == ((leader.member_id, None, b"r"), (follower.member_id, "static", b"r"))
    assert follower.members == ()
    assert (leader.protocol_type, leader.protocol, leader.skip_assignment) == ("consumer", "range", False)


@pytest.mark.parametrize(
    ("likes", "protocol"),
    [
        (["ab", "ab"], "a"),
        (["ab", "ba", "ba"], "b"),
        (["abc", "bc", "cb"], "b"),
        (["ab", "b"], "b"),
    ],
)
def test_the_protocol_is_supported_by_all_members_and_preferred_by_most(likes: list[str], protocol: str) -> None:
    world = GroupWorld()
    world.with_members(*(join(protocols=tuple((name, b"") for name in names)) for names in likes))
    assert world.group.protocol == protocol


def test_a_new_member_starts_a_rebalance_that_the_last_join_completes() -> None:
    world = GroupWorld()
    one, two = world.stable(join(), join())
    newcomer = world.ask(join())
    assert (world.state, world.delay(JOIN), newcomer in world.answers) == (PREPARING, REBALANCE_MS, False)
    assert world.heartbeat(one) is ErrorCode.REBALANCE_IN_PROGRESS
    first, second = world.ask(join(two)), world.ask(join(one))
    assert world.state is COMPLETING
    assert [world.joined(ticket).generation for ticket in (newcomer, first, second)] == [2, 2, 2]
    assert world.joined(second).leader == one, "the leader stays"
    assert world.delay(JOIN) is None


def test_a_late_dynamic_member_is_removed_and_a_late_static_member_is_kept() -> None:
    world = GroupWorld()
    one, dynamic, static = world.stable(join(), join(), join(instance_id="static"))
    world.ask(join())
    world.ask(join(one))
    world.fire(JOIN)
    assert (world.state, dynamic in world.group.members, static in world.group.members) == (COMPLETING, False, True)
    assert world.delay(SESSION, dynamic) is None
    assert world.heartbeat(dynamic, generation=2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_join_is_replaced() -> None:
    world = GroupWorld()
    leader, other = world.stable(join(instance_id="leader"), join())
    world.ask(join())
    world.ask(join(other))
    world.fire(JOIN)
    assert world.group.leader == other
    assert leader in world.group.members


def test_static_members_that_have_all_gone_are_waited_for_until_their_sessions_end() -> None:
    world = GroupWorld()
    one, two = world.stable(join(instance_id="one"), join(instance_id="two"))
    world.fire(SESSION, one)
    assert world.state is PREPARING
    world.fire(JOIN)
    assert (world.state, world.delay(JOIN)) == (PREPARING, REBALANCE_MS)
    world.fire(SESSION, two)
    assert (world.state, world.group.generation, world.delay(JOIN)) == (EMPTY, 2, None)
    assert world.facts[-1] == GroupRecorded(GROUP, "consumer", 2, None, None, world.now_ms)


@pytest.mark.parametrize("rebalance_timeout_ms", [0, -1])
def test_a_group_waits_for_absent_static_members_for_a_minimum_time(rebalance_timeout_ms: int) -> None:
    """Else the broker would do nothing but look whether they have come."""
    world = GroupWorld()
    _, other = world.stable(join(instance_id="static"), join())
    world.ask(join(instance_id="static", rebalance_timeout_ms=rebalance_timeout_ms))
    world.leave((other, None))
    assert world.state is PREPARING
    world.fire(JOIN)
    assert (world.state, world.delay(JOIN)) == (PREPARING, SHORTEST_WAIT_MS)


def test_a_rebalance_waits_for_clients_that_got_a_member_id() -> None:
    world = GroupWorld()
    (one,) = world.stable(join())
    pending = world.joined(world.ask(join(needs_member_id=True))).member_id
    assert world.state is STABLE
    again = world.ask(join(one))
    assert (world.state, again in world.answers) == (PREPARING, False)
    world.fire(SESSION, pending)
    assert world.joined(again).generation == 2


def test_a_rejoining_leader_or_a_changed_member_begins_a_rebalance() -> None:
    world = GroupWorld()
    leader, follower = world.stable(join(protocols=BOTH), join(protocols=BOTH))
    reply = world.joined(world.ask(join(follower, protocols=BOTH)))
    assert (reply.generation, reply.members, world.state) == (1, (), STABLE), (
        "a follower without changes gets the current generation"
    )
    world.ask(join(follower, protocols=RANGE))
    assert world.state is PREPARING
    world.ask(join(leader, protocols=BOTH))
    assert world.group.generation == 2
    reply = world.joined(world.ask(join(leader, protocols=BOTH)))
    assert (reply.generation, len(reply.members)) == (2, 2), "it may not have seen its answer"
    world.ask(join(leader, protocols=RANGE))
    assert world.state is PREPARING


def test_a_join_that_was_given_up_is_answered_when_its_member_joins_again() -> None:
    world = GroupWorld()
    one, two = world.stable(join(), join())
    given_up = world.ask(join(one))
    again = world.ask(join(one))
    assert world.joined(given_up).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.ask(join(two))
    assert world.joined(again).generation == 2


# --- the second half


def test_every_member_gets_its_assignment_from_the_leader_and_it_is_recorded() -> None:
    world = GroupWorld()
    leader, follower, forgotten = world.with_members(join(), join(instance_id="static"), join())
    waiting = world.sync(follower)
    assert waiting not in world.answers
    brought = world.sync(leader, {leader: b"1", follower: b"2", "stranger": b"3"})
    assert [world.synced(ticket).assignment for ticket in (waiting, brought)] == [b"2", b"1"]
    assert (world.synced(waiting).protocol_type, world.synced(waiting).protocol) == ("consumer", "range")
    assert (world.state, world.delay(SYNC)) == (STABLE, REBALANCE_MS)
    assert world.synced(world.sync(forgotten)).assignment == b""
    assert world.delay(SYNC) is None, "every member has asked"
    (fact,) = world.facts
    assert isinstance(fact, GroupRecorded)
    assert (fact.generation, fact.leader, fact.protocol, fact.since_ms) == (1, leader, "range", world.now_ms)
    assert [(member.instance_id, member.subscription, member.assignment) for member in fact.members] == [
        (None, b"r", b"1"),
        ("static", b"r", b"2"),
        (None, b"r", b""),
    ]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "static"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol": "range"}, ErrorCode.NONE),
    ],
)
def test_a_sync_is_of_a_member_in_its_generation_and_protocol(more: dict[str, object], error: ErrorCode) -> None:
    world = GroupWorld()
    leader, _ = world.stable(join(), join(instance_id="static"))
    command = SyncGroup(**{"group": GROUP, "member_id": leader, "instance_id": None, "generation": 1, **more})  # type: ignore[arg-type]
    assert world.synced(world.ask(command)).error is error


def test_a_generation_that_is_too_large_to_store_is_refused() -> None:
    world = GroupWorld()
    said = ("range", b"r" * (LARGEST_GROUP_BYTES // 2))
    leader, follower = world.with_members(join(protocols=(said,)), join(protocols=(said,)))
    waiting = world.sync(follower)
    brought = world.sync(leader, {leader: b"1", follower: b"2"})
    assert [world.synced(number).error for number in (waiting, brought)] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert (world.state, world.facts, world.delay(SYNC)) == (PREPARING, [], None)
    assert world.delay(SESSION, follower) == world.delay(SESSION, leader) == SESSION_MS
    again = world.ask(join(follower))
    world.leave((leader, None))
    assert world.joined(again).generation == 2
    assert world.synced(world.sync(follower, {follower: b"all"})).assignment == b"all", "one is not too large"


def test_a_member_waiting_for_its_assignment_must_rejoin_when_a_rebalance_begins() -> None:
    world = GroupWorld()
    leader, follower = world.with_members(join(), join())
    waiting = world.sync(follower)
    world.timers.pop(next(key for key in world.timers if key.member_id == follower))
    world.ask(join())
    assert world.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert (world.state, world.delay(SYNC), world.delay(SESSION, follower)) == (PREPARING, None, SESSION_MS)
    assert world.synced(world.sync(leader, {leader: b""})).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_ask_for_its_assignment_is_removed() -> None:
    world = GroupWorld()
    leader, follower = world.with_members(join(), join())
    waiting = world.sync(follower)
    world.fire(SYNC)
    assert world.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert (world.state, list(world.group.members), world.group.leader) == (PREPARING, [follower], follower)
    assert world.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


# --- life and death


def test_a_session_has_the_requested_length_and_restarts_with_each_heartbeat() -> None:
    world = GroupWorld()
    ticket = world.ask(join(session_timeout_ms=7_000))
    member = next(iter(world.group.members))
    assert world.delay(SESSION, member) == NEW_MEMBER_JOIN_TIMEOUT_MS, "it cannot send heartbeats before its answer"
    world.fire(JOIN)
    assert (world.joined(ticket).member_id, world.delay(SESSION, member)) == (member, 7_000)
    world.timers.clear()
    assert world.heartbeat(member) is ErrorCode.NONE
    assert world.delay(SESSION, member) == 7_000


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Heartbeat("", "m", None, 1), ErrorCode.INVALID_GROUP_ID),
        (Heartbeat(GROUP, "unknown", None, 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (Heartbeat(GROUP, "unknown", "static", 1), ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_heartbeat_of_a_stranger_is_refused(command: Heartbeat, error: ErrorCode) -> None:
    world = GroupWorld()
    world.stable(join(instance_id="static"))
    reply = world.answers[world.ask(command)]
    assert reply.error is error


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    world = GroupWorld()
    (member,) = world.stable(join(instance_id="static"))
    assert world.heartbeat(member, "static", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(member, "static") is ErrorCode.NONE


def test_a_member_whose_session_ends_is_removed_and_the_others_join_again() -> None:
    world = GroupWorld()
    leader, other = world.stable(join(), join())
    world.fire(SESSION, leader)
    assert (world.state, list(world.group.members), world.group.leader) == (PREPARING, [other], other)
    world.ask(join(other))
    assert world.group.generation == 2


def test_a_member_that_waits_lives_but_a_new_one_may_have_gone_unseen() -> None:
    world = GroupWorld()
    one, two = world.stable(join(), join())
    waiting = world.ask(join(one))
    world.fire(SESSION, one)
    assert one in world.group.members
    new = world.ask(join())
    new_id = next(member for member in world.group.members if member not in (one, two))
    world.fire(SESSION, new_id)
    assert world.joined(new).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert waiting not in world.answers
    world.fire(SESSION, two)
    assert world.joined(waiting).generation == 2


def test_the_last_member_to_leave_leaves_an_empty_group() -> None:
    world = GroupWorld()
    (member,) = world.stable(join())
    assert world.leave((member, None)) == [ErrorCode.NONE]
    assert (world.state, world.group.generation, world.group.leader, world.timers) == (EMPTY, 2, None, {})
    assert world.facts[-1] == GroupRecorded(GROUP, "consumer", 2, None, None, world.now_ms)
    world.stable(join(protocol_type="connect"))
    assert world.group.protocol_type == "connect", "it may be of another kind then"


def test_many_members_can_leave_at_once_and_each_is_answered() -> None:
    world = GroupWorld()
    _, two, three = world.stable(join(), join(), join(instance_id="static"))
    pending = world.joined(world.ask(join(needs_member_id=True))).member_id
    wanted: list[tuple[str, str | None]] = [
        (two, None), ("unknown", None), ("", "static"), ("", "unknown"), ("", None), (pending, None), (three, "static"),
    ]  # fmt: skip
    none, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave(*wanted) == [none, unknown, none, unknown, unknown, none, unknown]
    assert (world.state, len(world.group.members), world.group.pending) == (PREPARING, 1, set())


def test_a_client_cannot_remove_a_static_member_under_another_member_id() -> None:
    world = GroupWorld()
    world.stable(join(instance_id="static"))
    assert world.leave(("other", "static")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.state is STABLE


def test_no_member_leaves_an_unnamed_or_unknown_group() -> None:
    world = GroupWorld()
    assert world.answers[world.ask(LeaveGroup("", ()))].error is ErrorCode.INVALID_GROUP_ID
    assert world.leave(("m", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.table.groups == {}


# --- static members (KIP-345)


@pytest.mark.parametrize("can_skip", [False, True])
def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance(can_skip: bool) -> None:
    world = GroupWorld()
    leader, follower = world.stable(join(instance_id="leader"), join(instance_id="follower"))
    facts = len(world.facts)
    reply = world.joined(world.ask(join(instance_id="follower", can_skip_assignment=can_skip)))
    assert (reply.generation, reply.leader, reply.members, world.state) == (1, leader, (), STABLE)
    assert (follower in world.group.members, reply.member_id in world.group.members) == (False, True)
    assert len(world.facts) == facts + 1, "its new id is remembered"
    assert world.synced(world.sync(reply.member_id)).assignment == follower.encode()
    assert world.heartbeat(follower, "follower") is ErrorCode.FENCED_INSTANCE_ID
    reply = world.joined(world.ask(join(instance_id="leader", can_skip_assignment=can_skip)))
    if can_skip:
        assert (reply.leader, len(reply.members), reply.skip_assignment) == (reply.member_id, 2, True)
    else:
        assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)


def test_a_static_member_that_changes_the_protocol_begins_a_rebalance() -> None:
    world = GroupWorld()
    _, two = world.stable(join(instance_id="one", protocols=BOTH), join(protocols=BOTH))
    world.ask(join(instance_id="one", protocols=BOTH[1:]))
    assert world.state is PREPARING
    world.ask(join(two, protocols=BOTH))
    assert (world.state, world.group.protocol) == (COMPLETING, "sticky")


def test_a_static_member_returning_during_a_rebalance_fences_its_old_client() -> None:
    world = GroupWorld()
    leader, static = world.with_members(join(), join(instance_id="static"))
    syncing = world.sync(static)
    joining = world.ask(join(instance_id="static"))
    assert world.synced(syncing).error is ErrorCode.FENCED_INSTANCE_ID
    assert (world.state, static in world.group.members) == (PREPARING, False)
    again = world.ask(join(instance_id="static"))
    assert world.joined(joining).error is ErrorCode.FENCED_INSTANCE_ID
    world.ask(join(leader))
    assert (world.joined(again).generation, world.state) == (2, COMPLETING)
