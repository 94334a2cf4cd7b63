"""The rules of heartbeats, case by case; Apache Kafka's answers are compared in tests/conformance."""

from dataclasses import replace

import pytest

from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupDecision,
    ConsumerTimerKey,
    ConsumerTimerKind,
    RemoveMembers,
)
from dualwrite.broker.core.consumer_groups.group import ConsumerGroupState, PartitionConflictError
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState
from dualwrite.broker.facts.groups import GroupForgotten
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, REBALANCE_MS, ConsumerWorld, join, partitions

SESSION, REBALANCE = ConsumerTimerKind.SESSION, ConsumerTimerKind.REBALANCE


def two_members() -> ConsumerWorld:
    """A group in which m1 has all of ``t``, and m2 has just joined."""
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    world.ask(join("m2", "t"))
    return world


# --- joining


def test_the_first_member_gets_everything_and_the_groups_epoch() -> None:
    world = ConsumerWorld()
    reply = world.ask(join("m1", "t"))
    assert (reply.error, reply.member_id, reply.epoch) == (ErrorCode.NONE, "m1", 2)
    assert reply.assigned == partitions(world.topics["t"])
    assert reply.heartbeat_interval_ms == 5_000
    assert world.group.state is ConsumerGroupState.STABLE
    assert world.delay(SESSION, "m1") == 45_000


def test_a_client_of_the_first_version_gets_a_member_id() -> None:
    world = ConsumerWorld()
    assert world.ask(join("", "t", names_itself=False)).member_id == "fresh"
    assert world.group.subscriptions.keys() == {"fresh"}


def test_a_member_of_topics_that_do_not_exist_gets_nothing_until_they_do() -> None:
    world = ConsumerWorld({})
    assert world.ask(join("m1", "later")).assigned == frozenset()
    assert world.beat("m1", 2).assigned is None
    topic = world.create("later", 2)
    reply = world.beat("m1", 2)
    assert (reply.epoch, reply.assigned) == (3, partitions(topic))


def test_a_member_without_a_subscription_has_an_epoch_too() -> None:
    world = ConsumerWorld()
    reply = world.ask(join("m1"))
    assert (reply.epoch, reply.assigned) == (1, frozenset())
    assert world.replayed().consumers[GROUP].subscriptions.keys() == {"m1"}


def test_a_full_group_takes_no_new_member_but_lets_its_own_join_again() -> None:
    world = ConsumerWorld(max_size=1)
    world.ask(join("m1", "t", instance_id="i"))
    assert world.ask(join("m2", "t")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.ask(join("m1", "t", instance_id="i")).error is ErrorCode.NONE
    world.beat("m1", -2, instance_id="i")
    assert world.ask(join("m2", "t", instance_id="i")).error is ErrorCode.NONE


@pytest.mark.parametrize("field", ["member_id", "group", "instance_id"])
def test_a_name_that_no_record_could_have_is_refused(field: str) -> None:
    world = ConsumerWorld()
    reply = world.ask(replace(join("m1", "t"), **{field: "x" * 32_768}))
    assert (reply.error, world.facts) == (ErrorCode.INVALID_REQUEST, [])
    assert "longer than 32767 bytes" in (reply.message or "")


# --- rebalancing


def test_a_new_member_waits_until_the_other_has_given_partitions_up() -> None:
    world = two_members()
    topic = world.topics["t"]
    assert world.group.state is ConsumerGroupState.RECONCILING
    assert world.group.current("m2").state is MemberState.UNRELEASED_PARTITIONS
    told = world.beat("m1", 2, *partitions(topic))
    assert (told.epoch, told.assigned) == (2, partitions(topic, 0, 1))
    assert world.delay(REBALANCE, "m1") == REBALANCE_MS
    assert world.beat("m2", 3).assigned is None
    given_up = world.beat("m1", 2, *partitions(topic, 0, 1))
    assert (given_up.epoch, given_up.assigned) == (3, None)
    assert world.delay(REBALANCE, "m1") is None
    assert world.beat("m2", 3).assigned == partitions(topic, 2, 3)
    assert world.group.state is ConsumerGroupState.STABLE


def test_a_member_that_does_not_say_what_it_holds_has_not_given_up_anything() -> None:
    world = two_members()
    world.beat("m1", 2, *partitions(world.topics["t"]))
    assert world.beat("m1", 2, owned=None).epoch == 2
    assert world.group.current("m1").state is MemberState.UNREVOKED_PARTITIONS


def test_a_member_that_gives_nothing_up_in_time_is_removed_and_its_partitions_are_free() -> None:
    world = two_members()
    topic = world.topics["t"]
    world.beat("m1", 2, *partitions(topic))
    world.fire(REBALANCE, "m1")
    assert world.group.state is ConsumerGroupState.ASSIGNING
    assert world.delay(SESSION, "m1") is None
    assert world.beat("m2", 3).assigned == partitions(topic)
    assert world.beat("m1", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_does_not_put_the_rebalance_timeout_off() -> None:
    world = two_members()
    all_of_it = partitions(world.topics["t"])
    world.beat("m1", 2, *all_of_it)
    decision = world.step(replace(join("m1"), epoch=2, topics=None, owned=all_of_it))
    assert [timer.key.kind for timer in decision.timers] == [SESSION]


def test_a_member_that_is_silent_for_its_session_is_removed() -> None:
    world = two_members()
    world.fire(SESSION, "m1")
    assert world.group.subscriptions.keys() == {"m2"}
    assert world.beat("m2", 3).assigned == partitions(world.topics["t"])


def test_a_member_that_unsubscribes_while_it_gives_up_gives_up_more() -> None:
    world = ConsumerWorld({"t": 2, "u": 2})
    t, u = world.topics["t"], world.topics["u"]
    world.ask(join("m1", "t", "u"))
    world.ask(join("m2", "t", "u"))
    world.beat("m1", 2, *partitions(t), *partitions(u))
    kept = frozenset(world.group.current("m1").assigned)
    reply = world.beat("m1", 2, *partitions(t), *partitions(u), topics=("u",))
    assert reply.assigned == kept & partitions(u)
    assert frozenset(world.group.current("m1").revoking) == (partitions(t) | partitions(u)) - (kept & partitions(u))


def test_more_partitions_and_a_deleted_topic_lead_to_new_targets() -> None:
    world = ConsumerWorld({"t": 1, "u": 1})
    u = world.topics["u"]
    world.ask(join("m1", "t", "u"))
    grown = world.create("t", 3)
    assert world.beat("m1", 2).assigned == partitions(grown) | partitions(u)
    world.delete("u")
    held = (*partitions(grown), *partitions(u))
    assert world.beat("m1", 3, *held).assigned == partitions(grown)
    assert world.beat("m1", 3, *partitions(grown)).epoch == 4


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    written = len(world.facts)
    assert world.beat("m1", 2, *partitions(world.topics["t"])).assigned is None
    world.create("another", 3)
    world.beat("m1", 2)
    assert len(world.facts) == written


def test_a_request_that_says_everything_is_told_everything() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    everything = partitions(world.topics["t"])
    assert world.beat("m1", 2, *everything, topics=("t",), rebalance_timeout_ms=9).assigned == everything
    assert world.beat("m1", 2, *everything, topics=("t",)).assigned is None


# --- assignors


def test_most_members_choose_the_assignor_and_a_new_choice_makes_new_targets() -> None:
    world = ConsumerWorld()
    assert world.ask(join("m1", "t")).epoch == 2
    assert world.group.assignor(("uniform", "range")) == "uniform"
    assert world.group.assignor(("range", "uniform")) == "range"
    assert world.beat("m1", 2, assignor="range").epoch == 3
    assert world.group.assignor(("uniform", "range")) == "range"


def test_an_assignor_that_the_settings_lack_is_refused() -> None:
    world = ConsumerWorld(assignors=("range",))
    reply = world.ask(join("m1", "t", assignor="uniform"))
    assert reply.error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert reply.message == "ServerAssignor uniform is not supported. Supported assignors: range."


# --- patterns


def test_a_pattern_matches_whole_names_also_of_topics_that_come_later() -> None:
    world = ConsumerWorld({"orders": 1, "orders-old": 1, "other": 1})
    assert world.ask(join("m1", pattern="orders|o.*er")).assigned == (
        partitions(world.topics["orders"]) | partitions(world.topics["other"])
    )
    later = world.create("over", 1)
    world.create("o", 1)
    world.create("officer", 1)
    reply = world.beat("m1", 2)
    assert later.topic_id in {topic_id for topic_id, _ in reply.assigned or ()}
    assert world.group.subscribed_topics() == {"orders", "other", "over", "officer"}


def test_a_pattern_matches_no_topic_that_the_client_may_not_see() -> None:
    world = ConsumerWorld({"open": 1, "secret": 1})
    world.may_see = lambda name: name != "secret"
    assert world.ask(join("m1", pattern=".*")).assigned == partitions(world.topics["open"])


def test_names_and_a_pattern_add_up_and_an_empty_pattern_ends_it() -> None:
    world = ConsumerWorld({"a": 1, "b": 1})
    a, b = partitions(world.topics["a"]), partitions(world.topics["b"])
    assert world.ask(join("m1", "a", pattern="b+")).assigned == a | b
    assert world.beat("m1", 2, *a, *b, pattern="").assigned == a


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "(a{1000}){1000}"])
def test_a_pattern_that_re2_does_not_accept_is_refused(pattern: str) -> None:
    world = ConsumerWorld()
    reply = world.ask(join("m1", pattern=pattern))
    assert (reply.error, world.facts) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])


def test_a_pattern_outlives_a_restart() -> None:
    world = ConsumerWorld({"a": 1})
    world.ask(join("m1", pattern="a|b"))
    world.restart()
    created = world.create("b", 1)
    reply = world.beat("m1", 2)
    assert reply.assigned == partitions(world.topics["a"]) | partitions(created)


# --- fencing


def test_a_client_that_missed_an_answer_may_come_with_the_epoch_before() -> None:
    world = two_members()
    topic = world.topics["t"]
    world.beat("m1", 2, *partitions(topic))
    world.beat("m1", 2, *partitions(topic, 0, 1))
    assert world.group.current("m1").epoch == 3
    assert world.beat("m1", 2, *partitions(topic, 0)).epoch == 3
    assert world.beat("m1", 2, *partitions(topic, 0, 2)).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("m1", 2, owned=None).error is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_epoch_is_fenced(epoch: int) -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    reply = world.beat("m1", epoch, *partitions(world.topics["t"]))
    assert reply.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert ("smaller" if epoch < 2 else "greater") in (reply.message or "")


@pytest.mark.parametrize("compacted", [False, True])
def test_a_restarted_broker_fences_and_continues_as_before(compacted: bool) -> None:
    world = two_members()
    topic = world.topics["t"]
    world.beat("m1", 2, *partitions(topic))
    world.restart(compacted=compacted)
    assert world.beat("m1", 9).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("m2", 3).assigned is None
    assert world.beat("m1", 2, *partitions(topic, 0, 1)).epoch == 3
    assert world.beat("m2", 3).assigned == partitions(topic, 2, 3)


# --- static members


def test_a_static_member_that_left_for_a_while_keeps_its_partitions_for_its_successor() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t", instance_id="i"))
    assert world.beat("m1", -2, instance_id="i").epoch == -2
    assert world.delay(SESSION, "m1") == 45_000
    epoch = world.group.epoch
    reply = world.ask(join("m2", "t", instance_id="i"))
    assert (reply.epoch, reply.assigned) == (2, partitions(world.topics["t"]))
    assert (world.group.epoch, world.group.subscriptions.keys()) == (epoch, {"m2"})
    assert (world.delay(SESSION, "m1"), world.delay(SESSION, "m2")) == (None, 45_000)


def test_a_static_member_that_left_for_a_while_while_it_gave_partitions_up_has_its_whole_session() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t", instance_id="i"))
    world.ask(join("m2", "t"))
    world.beat("m1", 2, *partitions(world.topics["t"]), instance_id="i")
    assert world.delay(REBALANCE, "m1") == REBALANCE_MS
    world.beat("m1", -2, instance_id="i")
    assert (world.delay(REBALANCE, "m1"), world.delay(SESSION, "m1")) == (None, 45_000)


def test_a_static_member_that_does_not_come_back_loses_its_partitions_with_its_session() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t", instance_id="i"))
    world.ask(join("m2", "t"))
    world.beat("m1", -2, instance_id="i")
    assert world.beat("m2", 3).assigned is None
    world.fire(SESSION, "m1")
    assert world.beat("m2", 3).assigned == partitions(world.topics["t"])


def test_an_instance_id_that_is_in_use_is_not_released_but_its_owner_may_join_again() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t", instance_id="i"))
    assert world.ask(join("m2", "t", instance_id="i")).error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.ask(join("m1", "t", instance_id="i")).error is ErrorCode.NONE
    assert world.beat("m2", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("m1", 2, instance_id="j").error is ErrorCode.UNKNOWN_MEMBER_ID


# --- leaving


def test_the_last_member_that_leaves_leaves_an_empty_group_and_no_timers() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    assert world.beat("m1", -1).epoch == -1
    assert (world.group.state, world.timers) == (ConsumerGroupState.EMPTY, {})
    assert (world.group.epoch, world.group.target_epoch) == (3, 3)
    assert (world.group.targets, world.group.currents) == ({}, {})


def test_a_timer_of_a_member_that_has_gone_changes_nothing() -> None:
    world = two_members()
    world.beat("m1", -1)
    late = ConsumerTimerKey(GROUP, SESSION, "m1")
    assert world.step(late) == ConsumerWorld().step(late) == ConsumerGroupDecision()


def test_an_administrator_removes_members_by_either_id() -> None:
    world = ConsumerWorld()
    for number in range(4):
        world.ask(join(f"m{number}", "t", instance_id=f"i{number}" if number < 2 else None))
    leaving = (("", "i0"), ("m9", "i1"), ("m1", "i1"), ("m2", None), ("m2", None), ("m9", None), ("", "i9"))
    assert world.step(RemoveMembers(GROUP, leaving)).removed == (
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert world.group.subscriptions.keys() == {"m3"}


# --- other protocols, and the group's own checks


def test_a_group_of_offsets_alone_becomes_a_consumer_group_with_its_offsets() -> None:
    world = ConsumerWorld()
    world.apply(OffsetCommitted(GROUP, TopicPartition("t", 0), 5, -1, "", 0))
    assert world.ask(join("m1", "t")).error is ErrorCode.NONE
    assert GroupForgotten(GROUP) in world.facts
    for table in (world.table, world.replayed(), world.replayed(compacted=True)):
        assert (table.groups, table.consumers.keys()) == ({}, {GROUP})
        assert table.offsets.groups[GROUP][TopicPartition("t", 0)].offset == 5


def test_a_client_that_holds_something_else_is_told_again_what_it_may_hold() -> None:
    world = two_members()
    topic = world.topics["t"]
    world.beat("m1", 2, *partitions(topic))
    world.beat("m1", 2, *partitions(topic, 0, 1))
    world.beat("m2", 3)  # it gets the rest, and does not hear of it
    assert world.beat("m2", 3).assigned == partitions(topic, 2, 3)
    assert world.beat("m2", 3, *partitions(topic, 2, 3)).assigned is None
    assert world.beat("m2", 3, owned=None).assigned is None


def test_a_partition_of_two_members_stops_the_broker() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    held = dict.fromkeys(partitions(world.topics["t"], 0), 1)
    world.group.apply(MemberAssigned(GROUP, "m2", 3, 2, MemberState.STABLE, held))
    with pytest.raises(PartitionConflictError, match="m1 and another"):
        world.group.check(["m1"])
