"""Members of the classic protocol in a consumer group, request by request."""

from dataclasses import replace

import pytest

from dualwrite.broker.core.consumer_groups.commands import ConsumerTimerKind
from dualwrite.broker.core.consumer_protocol import read_assignment, write_assignment
from dualwrite.broker.core.group_commands import JoinReply, SyncReply
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition, decide_commit
from dualwrite.broker.facts.consumer_groups import MemberState
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, REBALANCE_MS, join, partitions
from tests.support.broker.group_worlds.mixed import (
    CLASSIC_SESSION_MS,
    COOPERATIVE,
    EAGER,
    MixedWorld,
    classic_join,
    metadata,
)

T = [TopicPartition("t", number) for number in range(4)]
JOIN, SYNC, SESSION = ConsumerTimerKind.JOIN, ConsumerTimerKind.SYNC, ConsumerTimerKind.SESSION


def with_consumer(**settings: object) -> MixedWorld:
    """A group with m1, which has all of ``t``."""
    world = MixedWorld(**settings)
    world.ask(join("m1", "t"))
    return world


def with_both() -> tuple[MixedWorld, str, int]:
    """m1 and a member of the classic protocol, which is in its epoch and has half of ``t``."""
    world = with_consumer()
    world.joined(classic_join("m2", "t"))
    world.beat("m1", 2, *partitions(world.topics["t"]))
    world.beat("m1", 2, *partitions(world.topics["t"], 0, 1))
    reply = world.joined(classic_join("m2", "t"))
    world.synced("m2", reply.generation)
    return world, "m2", reply.generation


# --- JoinGroup


def test_a_new_member_joins_at_once_and_nobody_leads() -> None:
    world = with_consumer()
    reply = world.joined(classic_join("", "t"))
    assert reply == JoinReply(ErrorCode.NONE, "client-id1", 3, "consumer", EAGER)
    assert (world.delay(SESSION, "client-id1"), world.delay(SYNC, "client-id1")) == (CLASSIC_SESSION_MS, REBALANCE_MS)
    assert world.group.subscriptions["client-id1"].client_host == "/host"
    assert world.group.current("client-id1").state is MemberState.UNRELEASED_PARTITIONS
    assert read_assignment(world.synced("client-id1", 3).assignment).partitions == frozenset()
    assert world.delay(SYNC, "client-id1") is None


def test_a_client_gets_a_member_id_before_it_joins() -> None:
    world = with_consumer()
    reply = world.joined(classic_join("", "t", needs_member_id=True))
    assert reply == JoinReply(ErrorCode.MEMBER_ID_REQUIRED, "client-id1")
    assert world.members() == {"m1"}
    assert world.joined(classic_join(reply.member_id, "t", needs_member_id=True)).error is ErrorCode.NONE


def test_a_client_that_was_removed_and_still_owns_partitions_is_unknown() -> None:
    world = with_consumer()
    owned = ((COOPERATIVE, metadata(["t"], T[:1], 3)),)
    assert world.joined(classic_join("m2", "t", protocols=owned)) == JoinReply(ErrorCode.UNKNOWN_MEMBER_ID)
    assert world.members() == {"m1"}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", metadata(["t"])),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ((EAGER, b"\x00"),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2_000_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"instance_id": "i" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "i9", "member_id": "m2"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i1", "member_id": "m9"}, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_join_that_is_refused_changes_nothing(more: dict[str, object], error: ErrorCode) -> None:
    world, member_id, _ = with_both()
    world.joined(classic_join("", "t", instance_id="i1"))
    facts = len(world.facts)
    reply = world.joined(classic_join(**{"member_id": member_id, **more}))  # type: ignore[arg-type]
    assert (reply.error, len(world.facts)) == (error, facts)


def test_a_full_group_takes_no_new_member_of_the_classic_protocol() -> None:
    world = with_consumer(max_size=2)
    assert world.joined(classic_join("m2", "t")).error is ErrorCode.NONE
    assert world.joined(classic_join("m3", "t")) == JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert world.joined(classic_join("m2", "t")).error is ErrorCode.NONE


def test_a_static_member_that_comes_back_fences_its_predecessor() -> None:
    world = with_consumer()
    first = world.joined(classic_join("", "t", instance_id="i"))
    second = world.joined(classic_join("", "t", instance_id="i"))
    assert second.member_id != first.member_id
    assert world.members() == {"m1", second.member_id}
    assert world.heartbeat(first.member_id, first.generation, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(second.member_id, second.generation, "i") is ErrorCode.NONE


def test_a_member_may_change_its_topics_and_its_protocol() -> None:
    world, member_id, generation = with_both()
    u = world.create("u", 1)
    reply = world.joined(classic_join(member_id, "u"))
    assert reply.generation == generation + 1
    assert read_assignment(world.synced(member_id, reply.generation).assignment).partitions == {TopicPartition("u", 0)}
    answer = world.ask(join(member_id, "u"))
    assert (answer.error, answer.assigned) == (ErrorCode.NONE, partitions(u))
    assert world.group.classic_members == []
    assert world.delay(SESSION, member_id) == 45_000
    assert world.heartbeat(member_id, answer.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.synced(member_id, answer.epoch) == SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)


# --- SyncGroup


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"member_id": "m9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "m1"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": COOPERATIVE}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_that_is_refused(more: dict[str, object], error: ErrorCode) -> None:
    world, member_id, generation = with_both()
    asked = {"member_id": member_id, "generation": generation, **more}
    assert world.synced(**asked) == SyncReply(error)  # type: ignore[arg-type]


def test_a_sync_has_the_members_partitions_in_the_form_that_it_knows() -> None:
    world, member_id, generation = with_both()
    reply = world.synced(member_id, generation)
    assert (reply.error, reply.protocol_type, reply.protocol) == (ErrorCode.NONE, "consumer", EAGER)
    assert reply.assignment == write_assignment(2, T[2:])


def test_a_member_that_syncs_too_late_joins_again() -> None:
    world, member_id, generation = with_both()
    world.ask(join("m3", "t"))
    assert world.synced(member_id, generation) == SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
    assert world.delay(JOIN, member_id) == REBALANCE_MS


# --- Heartbeat


def test_a_heartbeat_tells_to_join_again_when_there_is_something_to_get() -> None:
    world = with_consumer()
    world.joined(classic_join("m2", "t"))
    world.synced("m2", 3)
    assert world.heartbeat("m2", 3) is ErrorCode.NONE, "m1 has everything"
    world.beat("m1", 2, *partitions(world.topics["t"]))
    assert world.heartbeat("m2", 3) is ErrorCode.NONE, "m1 has not given anything up"
    world.beat("m1", 2, *partitions(world.topics["t"], 0, 1))
    assert world.heartbeat("m2", 3) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.joined(classic_join("m2", "t")).generation == 3
    assert read_assignment(world.synced("m2", 3).assignment).partitions == set(T[2:])
    assert world.heartbeat("m2", 3) is ErrorCode.NONE


def test_a_cooperative_member_gives_up_what_it_has_to_by_joining_without_it() -> None:
    world = MixedWorld()
    world.ask(join("m1"))
    cooperative = replace(classic_join("m2", "t"), protocols=((COOPERATIVE, metadata(["t"])),))
    generation = world.joined(cooperative).generation
    assert read_assignment(world.synced("m2", generation, protocol=COOPERATIVE).assignment).partitions == set(T)
    told = world.beat("m1", world.group.current("m1").epoch, topics=("t",))
    assert world.heartbeat("m2", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    owning = replace(cooperative, protocols=((COOPERATIVE, metadata(["t"], T, generation)),))
    assert world.joined(owning).generation == generation
    assert read_assignment(world.synced("m2", generation, protocol=COOPERATIVE).assignment).partitions == set(T[:2])
    assert world.beat("m1", told.epoch).assigned is None, "m2 still has them"
    assert world.heartbeat("m2", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    without = replace(cooperative, protocols=((COOPERATIVE, metadata(["t"], T[:2], generation)),))
    assert world.joined(without).generation == told.epoch
    assert world.beat("m1", told.epoch).assigned == partitions(world.topics["t"], 2, 3)


@pytest.mark.parametrize(
    ("member_id", "generation", "instance_id", "error"),
    [
        ("m9", 3, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 3, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m2", 2, None, ErrorCode.ILLEGAL_GENERATION),
        ("m2", 4, None, ErrorCode.ILLEGAL_GENERATION),
        ("m2", 3, "i9", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_that_is_refused(
    member_id: str, generation: int, instance_id: str | None, error: ErrorCode
) -> None:
    world, _, _ = with_both()
    assert world.heartbeat(member_id, generation, instance_id) is error


def test_members_of_the_classic_protocol_hear_of_new_partitions_by_their_own_heartbeats() -> None:
    world, member_id, generation = with_both()
    world.create("t", 6)
    assert world.heartbeat(member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    reply = world.joined(classic_join(member_id, "t"))
    assert len(read_assignment(world.synced(member_id, reply.generation).assignment).partitions) == 3


@pytest.mark.parametrize("kind", [JOIN, SYNC, SESSION])
def test_a_member_that_is_late_is_removed(kind: ConsumerTimerKind) -> None:
    world, member_id, generation = with_both()
    world.ask(join("m3", "t"))
    if kind is SYNC:
        world.joined(classic_join(member_id, "t"))
    else:
        world.heartbeat(member_id, generation)
    world.fire(kind, member_id)
    assert world.members() == {"m1", "m3"}
    assert not [key for key in world.timers if key.member_id == member_id]
    assert world.heartbeat(member_id, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_do_not_put_off_the_time_to_join() -> None:
    world, member_id, generation = with_both()
    world.ask(join("m3", "t"))
    world.heartbeat(member_id, generation)
    world.timers = dict.fromkeys(world.timers, 1)
    world.heartbeat(member_id, generation)
    assert (world.delay(JOIN, member_id), world.delay(SESSION, member_id)) == (1, CLASSIC_SESSION_MS)


# --- offsets


@pytest.mark.parametrize(
    ("generation", "knows_epochs", "error"),
    [
        (3, False, ErrorCode.NONE),
        (3, True, ErrorCode.NONE),
        (2, False, ErrorCode.ILLEGAL_GENERATION),
        (2, True, ErrorCode.ILLEGAL_GENERATION),
        (4, True, ErrorCode.ILLEGAL_GENERATION),
        (-1, True, ErrorCode.ILLEGAL_GENERATION),
    ],
)
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_member_of_the_classic_protocol_commits_in_its_generation(
    generation: int, knows_epochs: bool, error: ErrorCode, is_transactional: bool
) -> None:
    world, member_id, _ = with_both()
    command = CommitOffsets(
        GROUP, {T[2]: CommittedPosition(1)}, generation, member_id,
        is_transactional=is_transactional, knows_epochs=knows_epochs,
    )  # fmt: skip
    known = {T[2]: world.topics["t"].topic_id}
    assert decide_commit(world.group, command, known, 0).errors == {T[2]: error}


def test_the_settings_of_classic_groups_hold_for_members_of_the_classic_protocol() -> None:
    world = with_consumer(classic=GroupSettings(min_session_timeout_ms=20_000))
    assert world.joined(classic_join("m2", "t")).error is ErrorCode.INVALID_SESSION_TIMEOUT
