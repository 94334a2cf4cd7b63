"""Groups and their offsets together: what a replay gives, who may commit, what is pending, what goes out of date."""

import struct
from dataclasses import replace
from unittest.mock import Mock

import pytest

from dualwrite.broker.core import group_table, subscriptions
from dualwrite.broker.core.group_commands import GroupDecision
from dualwrite.broker.core.group_table import GroupTable
from dualwrite.broker.core.groups import TRANSITIONS, Group, GroupState, IllegalGroupError
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition, commit_error
from dualwrite.broker.core.subscriptions import read_among, subscribed_topics
from dualwrite.broker.facts.groups import GroupForgotten
from dualwrite.broker.facts.offsets import OffsetCommitted, OffsetForgotten
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.classic import GROUP, GroupWorld, join

P0, P1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
DAY_MS = 86_400_000


def at(partition: TopicPartition, offset: int, committed_ms: int = 0) -> OffsetCommitted:
    return OffsetCommitted(GROUP, partition, offset, -1, "", committed_ms)


def subscribed_to(*topics: str) -> tuple[tuple[str, bytes], ...]:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return (("range", struct.pack(">hi", 3, len(topics)) + names + b"whatever follows"),)


def offsets(table: GroupTable) -> dict[TopicPartition, int]:
    return {name: fact.offset for name, fact in table.offsets.groups.get(GROUP, {}).items()}


# --- a restart


def test_a_stable_group_comes_back_with_its_members_and_an_empty_one_empty() -> None:
    world = GroupWorld()
    members = world.stable(join(), join(instance_id="static"))
    again = GroupTable()
    for fact in world.facts:
        again.apply(fact)
    assert again.groups == world.table.groups
    world.leave((members[0], None), (members[1], None))
    again.apply(world.facts[-1])
    assert again.groups == world.table.groups
    again.apply(GroupForgotten(GROUP))
    assert again.groups == {}


def test_an_offset_alone_makes_a_group_without_a_protocol_type() -> None:
    table = GroupTable()
    table.apply(at(P0, 5))
    assert table.groups == {GROUP: Group(GROUP)}


def test_a_group_that_nothing_leads_to_is_not_adopted() -> None:
    world = GroupWorld()
    world.stable(join(), join())
    good = world.group
    stranger = Group(GROUP, GroupState.STABLE, 5, "consumer", "range", "nobody", 0, dict(good.members))
    older = replace(good.copy(), generation=0)
    leaderless = replace(good.copy(), state=GroupState.EMPTY)
    for group in (stranger, older, leaderless):
        with pytest.raises(IllegalGroupError):
            world.table.adopt(GroupDecision(group))
    with pytest.raises(IllegalGroupError, match="is not"):
        world.table.adopt(GroupDecision(good.copy(), (older.recorded(),)))
    assert world.group is good


@pytest.mark.parametrize("state", GroupState)
def test_only_transitions_of_the_table_are_possible(state: GroupState) -> None:
    for following in GroupState:
        group = Group(GROUP, state)
        if state in TRANSITIONS[following]:
            group.move_to(following, 7)
            assert (group.state, group.since_ms) == (following, 7)
        else:
            with pytest.raises(IllegalGroupError, match="illegal transition"):
                group.move_to(following, 7)


# --- who may commit


def commit(
    generation: int = -1, member_id: str = "", instance_id: str | None = None, txn: bool = False
) -> CommitOffsets:
    return CommitOffsets(GROUP, {P0: CommittedPosition(5)}, generation, member_id, instance_id, txn)


NONE, ILLEGAL, UNKNOWN = ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
FENCED, REBALANCING = ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("command", "plain", "transactional"),
    [
        (commit(1, "MEMBER"), NONE, NONE),
        (commit(1, "STATIC", "static"), NONE, NONE),
        (commit(0, "MEMBER"), ILLEGAL, ILLEGAL),
        (commit(2, "MEMBER"), ILLEGAL, ILLEGAL),
        (commit(-1, "MEMBER"), ILLEGAL, ILLEGAL),
        (commit(1, "unknown"), UNKNOWN, UNKNOWN),
        (commit(1, "MEMBER", "unknown"), UNKNOWN, UNKNOWN),
        (commit(1, "MEMBER", "static"), FENCED, FENCED),
        (commit(), UNKNOWN, NONE),
    ],
)
def test_only_current_members_may_commit_in_a_group_with_members(
    command: CommitOffsets, plain: ErrorCode, transactional: ErrorCode
) -> None:
    """KIP-447: a transaction of a consumer that is not in the present generation any more cannot commit."""
    world = GroupWorld()
    member, static = world.stable(join(), join(instance_id="static"))
    command = replace(command, member_id=command.member_id.replace("MEMBER", member).replace("STATIC", static))
    assert commit_error(world.group, command) is plain
    assert commit_error(world.group, replace(command, is_transactional=True)) is transactional


def test_while_a_generation_is_not_complete_only_transactions_commit() -> None:
    world = GroupWorld()
    (member,) = world.with_members(join())
    assert commit_error(world.group, commit(1, member)) is REBALANCING
    assert commit_error(world.group, commit(1, member, txn=True)) is NONE
    world.sync(member, {})
    world.ask(join())
    assert world.state is GroupState.PREPARING_REBALANCE
    assert commit_error(world.group, commit(1, member)) is NONE, "what it has read it may still commit"


def test_the_clients_that_may_commit_in_a_group_without_members() -> None:
    empty = Group(GROUP)
    for group, generation, txn, error in (
        (None, -1, False, NONE),
        (None, -1, True, NONE),
        (None, 0, False, ErrorCode.GROUP_ID_NOT_FOUND),
        (None, 0, True, ErrorCode.GROUP_ID_NOT_FOUND),
        (empty, -1, False, NONE),
        (empty, 0, False, UNKNOWN),
        (empty, 0, True, UNKNOWN),
    ):
        assert commit_error(group, commit(generation, txn=txn)) is error
    assert commit_error(None, replace(commit(), group="")) is NONE
    assert commit_error(None, replace(commit(txn=True), group="")) is ErrorCode.INVALID_GROUP_ID


# --- offsets in transactions


def test_a_transactions_offsets_are_pending_until_its_marker() -> None:
    table = GroupTable()
    table.apply(at(P0, 1), 0)
    table.apply(at(P0, 2), 1, producer_id=7)
    table.apply(at(P1, 3), 2, producer_id=7)
    table.apply(at(P1, 4), 3, producer_id=8)
    assert offsets(table) == {P0: 1}
    assert table.offsets.pending_in(GROUP) == {P0, P1}
    table.offsets.end_transaction(8, is_committed=False)
    assert (offsets(table), table.offsets.pending_in(GROUP)) == ({P0: 1}, {P0, P1})
    table.offsets.end_transaction(7, is_committed=True)
    assert (offsets(table), table.offsets.pending_in(GROUP)) == ({P0: 2, P1: 3}, set())
    table.offsets.end_transaction(7, is_committed=True)
    assert offsets(table) == {P0: 2, P1: 3}, "a marker that is written again changes nothing"


def test_the_later_of_a_pending_and_a_plain_offset_wins() -> None:
    table = GroupTable()
    table.apply(at(P0, 2), 1, producer_id=7)
    table.apply(at(P0, 5), 2)
    table.apply(at(P1, 6), 3)
    table.apply(at(P1, 3), 4, producer_id=7)
    table.offsets.end_transaction(7, is_committed=True)
    assert offsets(table) == {P0: 5, P1: 3}


def test_a_pending_offset_that_was_forgotten_does_not_come_back() -> None:
    table = GroupTable()
    table.apply(at(P0, 2), 1, producer_id=7)
    table.apply(OffsetForgotten(GROUP, P0), 2)
    table.offsets.end_transaction(7, is_committed=True)
    assert offsets(table) == {}


# --- subscriptions


def test_only_consumers_subscriptions_are_read() -> None:
    world = GroupWorld()
    world.stable(join(protocols=subscribed_to("t")), join(protocols=subscribed_to("u", "t")))
    assert subscribed_topics(world.group) == {"t", "u"}
    for protocols in (
        (("range", b""),),
        (("range", b"\x00\x00\x00\x00\x00\x09"),),
        (("range", b"\0\0\0\0\0\1\0\1\xff"),),
    ):
        garbled = GroupWorld()
        garbled.stable(join(protocols=protocols))
        assert subscribed_topics(garbled.group) is None
        assert read_among(garbled.group, frozenset({"anything"})) == {"anything"}
    connect = GroupWorld()
    connect.stable(join(protocol_type="connect", protocols=subscribed_to("t")))
    assert subscribed_topics(connect.group) is None
    assert read_among(connect.group, frozenset({"t"})) == frozenset()


# --- ends


def test_a_group_without_members_is_deleted_with_all_its_offsets() -> None:
    world = GroupWorld()
    table = world.table
    assert table.decide_deletion(GROUP) == (ErrorCode.GROUP_ID_NOT_FOUND, ())
    (member,) = world.stable(join())
    table.apply(at(P0, 1), 0)
    table.apply(at(P1, 1), 1, producer_id=7)
    assert table.decide_deletion(GROUP) == (ErrorCode.NON_EMPTY_GROUP, ())
    world.leave((member, None))
    error, facts = table.decide_deletion(GROUP)
    assert (error, facts) == (NONE, (OffsetForgotten(GROUP, P0), OffsetForgotten(GROUP, P1), GroupForgotten(GROUP)))
    for fact in facts:
        table.apply(fact)
    table.offsets.end_transaction(7, is_committed=True)
    assert (table.groups, table.offsets.groups) == ({}, {})


def test_offsets_are_deleted_but_for_topics_that_are_read() -> None:
    world = GroupWorld()
    assert world.table.decide_offset_deletion("", (P0,)) == (ErrorCode.INVALID_GROUP_ID, {}, ())
    assert world.table.decide_offset_deletion(GROUP, (P0,)) == (ErrorCode.GROUP_ID_NOT_FOUND, {}, ())
    (member,) = world.stable(join(protocols=subscribed_to("t")))
    for partition in (P0, U0):
        world.table.apply(at(partition, 1))
    read = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    absent = TopicPartition("absent", 0)
    expected = (NONE, {P0: read, U0: NONE, absent: NONE}, (OffsetForgotten(GROUP, U0),))
    assert world.table.decide_offset_deletion(GROUP, (P0, U0, absent)) == expected
    world.leave((member, None))
    assert world.table.decide_offset_deletion(GROUP, (P0,)) == (NONE, {P0: NONE}, (OffsetForgotten(GROUP, P0),))
    connect = GroupWorld()
    connect.stable(join(protocol_type="connect"))
    assert connect.table.decide_offset_deletion(GROUP, (P0,)) == (ErrorCode.NON_EMPTY_GROUP, {}, ())


def test_a_pending_offset_is_deleted_too() -> None:
    table = GroupTable()
    table.apply(at(P0, 1), 1, producer_id=7)
    assert table.decide_offset_deletion(GROUP, (P0, P1)) == (NONE, {P0: NONE, P1: NONE}, (OffsetForgotten(GROUP, P0),))


def test_offsets_of_partitions_that_are_no_more_are_forgotten() -> None:
    table = GroupTable()
    table.apply(at(P0, 1))
    table.apply(replace(at(P1, 1), group="other"), 1, producer_id=7)
    table.apply(at(U0, 1))
    assert set(table.without({P0, P1}.__contains__)) == {OffsetForgotten(GROUP, P0), OffsetForgotten("other", P1)}


# --- time


def expired(table: GroupTable, now_ms: int) -> list[object]:
    return [fact for facts in table.expired(now_ms, DAY_MS) for fact in facts]


def test_a_group_deleted_during_expiry_is_skipped() -> None:
    """Other tasks run between two groups: with very many groups the broker could otherwise answer no client."""
    table = GroupTable()
    for name in ("first", "second", "third"):
        table.apply(replace(at(P0, 1), group=name))
    coming = table.expired(DAY_MS + 1_000_000_000_000_000, DAY_MS)
    found = [next(coming)]
    table.apply(OffsetForgotten("second", P0))
    table.apply(GroupForgotten("second"))
    found += coming
    assert found == [(OffsetForgotten(name, P0), GroupForgotten(name)) for name in ("first", "third")]


def test_the_subscriptions_of_a_group_are_read_once_for_all_of_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GroupWorld()
    world.stable(join(protocols=subscribed_to("t")))
    for index in range(9):
        world.table.apply(at(TopicPartition("t", index), 1, committed_ms=0))
    read = Mock(wraps=group_table.subscribed_topics)
    monkeypatch.setattr(group_table, "subscribed_topics", read)
    assert expired(world.table, world.now_ms + 9 * DAY_MS) == []
    read.assert_called_once_with(world.group)


def test_the_subscriptions_of_a_group_are_read_once_for_a_request_to_delete_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = GroupWorld()
    world.stable(join(protocols=subscribed_to("t")))
    read = Mock(wraps=subscriptions.subscribed_topics)
    monkeypatch.setattr(subscriptions, "subscribed_topics", read)
    partitions = tuple(TopicPartition(f"t{index}", 0) for index in range(9))
    assert world.table.decide_offset_deletion(GROUP, partitions) == (NONE, dict.fromkeys(partitions, NONE), ())
    read.assert_called_once_with(world.group)


def test_offsets_of_a_group_expire_when_it_has_been_empty_for_long_enough() -> None:
    world = GroupWorld()
    (member,) = world.stable(join(protocols=subscribed_to("t")))
    world.table.apply(at(P0, 1, committed_ms=0))
    assert expired(world.table, world.now_ms + 9 * DAY_MS) == [], "it is read"
    world.leave((member, None))
    assert expired(world.table, world.now_ms + DAY_MS - 1) == []
    assert expired(world.table, world.now_ms + DAY_MS) == [OffsetForgotten(GROUP, P0), GroupForgotten(GROUP)]


def test_offsets_of_topics_that_a_group_does_not_read_any_more_expire_after_their_commit() -> None:
    world = GroupWorld()
    world.stable(join(protocols=subscribed_to("t")))
    for partition in (P0, U0):
        world.table.apply(at(partition, 1, committed_ms=100))
    assert expired(world.table, 100 + DAY_MS - 1) == []
    assert expired(world.table, 100 + DAY_MS) == [OffsetForgotten(GROUP, U0)]
    world.ask(join())
    assert expired(world.table, 100 + DAY_MS) == [], "during a rebalance its subscriptions are unknown"


def test_offsets_of_a_consumer_without_a_group_expire_after_their_commit() -> None:
    table = GroupTable()
    table.apply(at(P0, 1, committed_ms=100))
    table.apply(at(P1, 1, committed_ms=200))
    assert expired(table, 100 + DAY_MS) == [OffsetForgotten(GROUP, P0)]
    assert len(expired(table, 200 + DAY_MS)) == 3, "and with the last of them the group"


def test_pending_offsets_do_not_expire_nor_does_their_group() -> None:
    table = GroupTable()
    table.apply(at(P0, 1), 0)
    table.apply(at(P0, 2), 1, producer_id=7)
    assert expired(table, 9 * DAY_MS) == []
    table.offsets.end_transaction(7, is_committed=False)
    assert expired(table, 9 * DAY_MS) == [OffsetForgotten(GROUP, P0), GroupForgotten(GROUP)]


def test_an_empty_group_without_offsets_is_forgotten_unless_a_client_is_about_to_join() -> None:
    world = GroupWorld()
    pending = world.joined(world.ask(join(needs_member_id=True))).member_id
    assert expired(world.table, world.now_ms) == []
    world.leave((pending, None))
    assert expired(world.table, world.now_ms) == [GroupForgotten(GROUP)]
