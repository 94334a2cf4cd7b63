"""Consumer groups among all groups: deletion, expiry, commits, and requests of the classic protocol."""

import pytest

from dualwrite.broker.core.group_table import GroupTable
from dualwrite.broker.core.groups import Group
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition, decide_commit, fetch_error
from dualwrite.broker.facts.consumer_groups import ConsumerGroupPartForgotten, MemberAssigned, MemberState, RecordType
from dualwrite.broker.facts.groups import GroupForgotten
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, ConsumerWorld, join, partitions

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
HOUR_MS = 3_600_000


def committed(partition: TopicPartition, at_ms: int = 0) -> OffsetCommitted:
    return OffsetCommitted(GROUP, partition, 5, -1, "", at_ms)


def with_offsets(*members: str) -> ConsumerWorld:
    """A group of ``t`` with offsets in ``t`` and ``u``."""
    world = ConsumerWorld({"t": 4, "u": 1})
    for member in members or ("m1",):
        world.ask(join(member, "t"))
    world.apply(committed(T0), committed(U0))
    if not members:
        world.beat("m1", -1)
    return world


# --- deletion and expiry


@pytest.mark.parametrize("compacted", [False, True])
def test_an_empty_group_is_deleted_with_its_offsets_and_leaves_no_record(compacted: bool) -> None:
    world = with_offsets()
    error, facts = world.table.decide_deletion(GROUP)
    assert error is ErrorCode.NONE
    world.apply(*facts)
    for table in (world.table, world.replayed(compacted=compacted)):
        assert (table.groups, table.consumers, table.offsets.groups) == ({}, {}, {})


def test_a_group_with_members_is_not_deleted() -> None:
    assert with_offsets("m1").table.decide_deletion(GROUP) == (ErrorCode.NON_EMPTY_GROUP, ())


def test_a_deleted_group_begins_anew() -> None:
    world = with_offsets()
    world.apply(*world.table.decide_deletion(GROUP)[1])
    assert world.ask(join("m1", "t")).epoch == 2
    assert world.replayed(compacted=True).consumers[GROUP].epoch == 2


def test_offsets_of_topics_that_are_read_are_not_deleted() -> None:
    error, errors, facts = with_offsets("m1").table.decide_offset_deletion(GROUP, (T0, U0))
    assert (error, errors) == (
        ErrorCode.NONE,
        {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: ErrorCode.NONE},
    )
    assert [fact.partition for fact in facts] == [U0]


def test_offsets_expire_in_topics_that_no_member_reads() -> None:
    world = with_offsets("m1")
    ((forgotten,),) = world.table.expired(HOUR_MS, HOUR_MS)
    assert forgotten.group == GROUP
    assert list(world.table.expired(HOUR_MS - 1, HOUR_MS)) == [()]
    world.apply(forgotten)
    assert world.table.offsets.known_in(GROUP) == {T0}


def test_an_empty_group_expires_with_its_last_offset() -> None:
    world = with_offsets()
    world.apply(committed(T1, HOUR_MS))
    (facts,) = world.table.expired(HOUR_MS, HOUR_MS)
    assert len(facts) == 2
    world.apply(*facts)
    (facts,) = world.table.expired(2 * HOUR_MS, HOUR_MS)
    world.apply(*facts)
    assert (world.table.consumers, world.replayed(compacted=True).consumers) == ({}, {})


def test_a_pending_offset_keeps_an_empty_group() -> None:
    world = with_offsets()
    world.table.apply(committed(T1), 9, producer_id=7)
    (facts,) = world.table.expired(HOUR_MS, HOUR_MS)
    assert len(facts) == 2
    world.apply(*facts)
    assert GROUP in world.table.consumers


def test_groups_may_end_while_others_expire() -> None:
    world = with_offsets("m1")
    expiring = world.table.expired(HOUR_MS, HOUR_MS)
    assert [fact.partition for fact in next(expiring)] == [U0]  # type: ignore[union-attr]
    world.beat("m1", -1)
    world.apply(*world.table.decide_deletion(GROUP)[1])
    assert list(expiring) == []


def test_a_consumer_group_has_the_name_for_itself_also_if_offsets_had_it_before() -> None:
    """As a group without members it would lose the offsets that its members read. Compaction has removed the tombstone
    of the group that had the name."""
    world = ConsumerWorld({"t": 4})
    world.apply(committed(T0))
    world.ask(join("m1", "t"))
    replayed = GroupTable()
    for fact in world.facts:
        if not isinstance(fact, GroupForgotten):
            replayed.apply(fact)
    for table in (world.table, replayed):
        assert (table.groups, set(table.consumers)) == ({}, {GROUP})
        assert list(table.expired(HOUR_MS, HOUR_MS)) == [()]


@pytest.mark.parametrize("record_type", RecordType)
def test_a_tombstone_that_outlived_its_group_is_ignored(record_type: RecordType) -> None:
    world = ConsumerWorld({"t": 4})
    world.apply(ConsumerGroupPartForgotten(GROUP, record_type, "m1"))
    assert (world.table.groups, world.table.consumers) == ({}, {})


@pytest.mark.parametrize(
    ("producer_ids", "exists"), [((), False), ((-1,), True), ((7,), True)], ids=["none", "committed", "pending"]
)
def test_the_name_of_a_group_that_ended_is_known_for_as_long_as_it_has_offsets(
    producer_ids: tuple[int, ...], exists: bool
) -> None:
    world = ConsumerWorld({"t": 4})
    world.ask(join("m1", "t"))
    world.beat("m1", -1)
    for producer_id in producer_ids:
        world.table.apply(committed(T0), 9, producer_id)
    world.apply(*world.group.end())
    assert world.table.group(GROUP) == (Group(GROUP) if exists else None)


# --- commits


def errors(world: ConsumerWorld, *of: TopicPartition, **fields: object) -> set[ErrorCode]:
    """The errors of a commit for ``of``."""
    known = {
        TopicPartition(name, number): topic.topic_id for name, topic in world.topics.items() for number in range(4)
    }
    command = CommitOffsets(GROUP, dict.fromkeys(of or (T0,), CommittedPosition(1)), **fields)  # type: ignore[arg-type]
    return set(decide_commit(world.table.group(GROUP), command, known, 0).errors.values())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 2, "member_id": "m1"}, ErrorCode.NONE),
        ({"generation": 2, "member_id": "m1", "is_transactional": True}, ErrorCode.NONE),
        ({"generation": 2, "member_id": "m1", "knows_epochs": False}, ErrorCode.UNSUPPORTED_VERSION),
        ({"generation": 3, "member_id": "m1"}, ErrorCode.STALE_MEMBER_EPOCH),
        ({"generation": 1, "member_id": "m1"}, ErrorCode.STALE_MEMBER_EPOCH),
        ({"generation": 1, "member_id": "m1", "is_transactional": True}, ErrorCode.STALE_MEMBER_EPOCH),
        ({"generation": 2, "member_id": "m9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2, "member_id": "m9", "is_transactional": True}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"is_transactional": True}, ErrorCode.NONE),
        ({"is_transactional": True, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit_for_a_group_with_a_member_in_epoch_2(fields: dict[str, object], error: ErrorCode) -> None:
    assert errors(with_offsets("m1"), **fields) == {error}


def test_anyone_may_commit_for_an_empty_group() -> None:
    assert errors(with_offsets()) == {ErrorCode.NONE}
    assert errors(with_offsets(), generation=2, member_id="m1") == {ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_late_commit_counts_for_what_the_member_has_held_all_the_time() -> None:
    world = with_offsets("m1", "m2")
    topic = world.topics["t"]
    late = {"generation": 2, "member_id": "m1"}
    world.beat("m1", 2, *partitions(topic))
    assert errors(world, T0, TopicPartition("t", 3), **late) == {ErrorCode.NONE}, (
        "it gives partition 3 up, and holds it"
    )
    world.beat("m1", 2, *partitions(topic, 0, 1))
    assert errors(world, T0, **late) == {ErrorCode.NONE}
    assert errors(world, T0, TopicPartition("t", 3), **late) == {ErrorCode.STALE_MEMBER_EPOCH}
    world.beat("m2", -1)
    world.beat("m1", 3, *partitions(topic, 0, 1))
    assert world.group.current("m1").epoch == 4
    assert errors(world, TopicPartition("t", 3), **late) == {ErrorCode.STALE_MEMBER_EPOCH}, "another may have had it"
    assert errors(world, T0, **late) == {ErrorCode.NONE}


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, ErrorCode.NONE),
        ("m1", 2, ErrorCode.NONE),
        ("m1", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m1", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("m9", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_fetch_offsets(member_id: str | None, epoch: int, error: ErrorCode) -> None:
    assert fetch_error(with_offsets("m1").table.group(GROUP), member_id, epoch) is error


def test_a_classic_or_unknown_group_asks_no_member_that_fetches_offsets() -> None:
    assert fetch_error(Group(GROUP), "m9", 5) is ErrorCode.NONE
    assert fetch_error(None, "m9", 5) is ErrorCode.NONE


def test_a_restart_knows_the_assignment_epochs() -> None:
    world = with_offsets("m1")
    held = dict.fromkeys(partitions(world.topics["t"]), 2)
    world.restart(compacted=True)
    assert world.group.current("m1") == MemberAssigned(GROUP, "m1", 2, 0, MemberState.STABLE, held)
