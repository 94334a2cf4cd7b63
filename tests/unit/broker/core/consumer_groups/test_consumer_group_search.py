"""Any history of a consumer group: clients that come, go, die and follow late, lost answers, topics, and restarts.

Always: no partition is held by two clients that the group knows; no epoch falls; the records say all that the broker
knows. In the end every partition is held by a client that reads it.
"""

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dualwrite.broker.core.consumer_groups import heartbeat_rules
from dualwrite.broker.core.consumer_groups.commands import ConsumerTimerKind
from dualwrite.broker.core.consumer_groups.group import ConsumerGroupState
from dualwrite.broker.core.consumer_groups.reconciling import Goal
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import MemberAssigned
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, ConsumerWorld, FollowingClient

Breach = Callable[[pytest.MonkeyPatch], None]

clients = st.integers(0, 4)
subscriptions = st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "missing")])


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld({"t": 4, "u": 3})
        self.clients: dict[int, FollowingClient] = {}
        self.made = 0
        self.epochs = (0, 0)

    def known(self) -> list[FollowingClient]:
        """The clients that are members."""
        group = self.world.table.consumers.get(GROUP)
        return [one for one in self.clients.values() if group is not None and one.member_id in group.subscriptions]

    @rule(number=clients, topics=subscriptions, is_static=st.booleans())
    def a_client_starts(self, number: int, topics: tuple[str, ...], is_static: bool) -> None:
        if number not in self.clients:
            self.made += 1
            self.clients[number] = FollowingClient(f"m{self.made}", topics, f"i{number}" if is_static else None)

    @rule(number=clients, is_answer_lost=st.booleans())
    def a_client_sends_a_heartbeat(self, number: int, is_answer_lost: bool) -> None:
        if number in self.clients:
            self.clients[number].beat(self.world, is_answer_lost=is_answer_lost)

    @rule(number=clients)
    def a_client_does_what_it_was_told(self, number: int) -> None:
        if number in self.clients:
            self.clients[number].follow()

    @rule(number=clients, for_a_while=st.booleans())
    def a_client_leaves(self, number: int, for_a_while: bool) -> None:
        client = self.clients.pop(number, None)
        if client is not None:
            epoch = -2 if for_a_while and client.instance_id is not None else -1
            self.world.beat(client.member_id, epoch, instance_id=client.instance_id)

    @rule(number=clients)
    def a_client_dies(self, number: int) -> None:
        self.clients.pop(number, None)

    @rule(index=st.integers(0, 9))
    def a_timer_fires(self, index: int) -> None:
        keys = sorted(self.world.timers, key=lambda key: (key.kind.name, key.member_id))
        if keys:
            key = keys[index % len(keys)]
            self.world.fire(key.kind, key.member_id)

    @rule(size=st.integers(1, 6))
    def a_topic_grows_or_is_created_anew(self, size: int) -> None:
        if "u" in self.world.topics and size < self.world.topics["u"].partitions:
            self.world.delete("u")
        self.world.create("u", size)

    @rule(compacted=st.booleans())
    def the_broker_restarts(self, compacted: bool) -> None:
        self.world.restart(compacted=compacted)

    @invariant()
    def no_partition_is_held_by_two_members(self) -> None:
        held = [partition for client in self.known() for partition in client.held]
        assert len(held) == len(set(held))

    @invariant()
    def no_epoch_falls(self) -> None:
        group = self.world.table.consumers.get(GROUP)
        if group is not None:
            group.check()
            assert group.epoch >= self.epochs[0]
            assert group.target_epoch >= self.epochs[1]
            assert group.target_epoch <= group.epoch
            self.epochs = group.epoch, group.target_epoch

    @invariant()
    def the_records_say_everything(self) -> None:
        for compacted in (False, True):
            group, known = self.world.replayed(compacted=compacted).consumers.get(GROUP), None
            if GROUP in self.world.table.consumers:
                known = self.world.group.copy()
                known.matches, known.topics_version = {}, -1
            assert group == known

    def teardown(self) -> None:
        """Let the dead be noticed and the living follow: every partition gets an owner."""
        living = {client.member_id for client in self.clients.values()}
        for key in sorted(self.world.timers, key=lambda key: key.member_id):
            if key.kind is ConsumerTimerKind.SESSION and key.member_id not in living:
                self.world.fire(key.kind, key.member_id)
        dead = set(self.world.group.subscriptions) - living if GROUP in self.world.table.consumers else set()
        if dead or not self.clients:
            return  # a restart has lost a timer, which the broker's start sets anew
        for _ in range(12):
            errors = [client.beat(self.world) for client in self.clients.values()]
            for client in self.clients.values():
                client.follow()
        assert set(errors) == {ErrorCode.NONE}
        assert self.world.group.state is ConsumerGroupState.STABLE
        topics = self.world.topics
        read = {name for client in self.clients.values() for name in client.topics if name in topics}
        wanted = {
            TopicIdPartition(topics[name].topic_id, number)
            for name in read
            for number in range(topics[name].partitions)
        }
        assert {partition for client in self.clients.values() for partition in client.held} == wanted


SEARCH = settings(max_examples=60, stateful_step_count=40, deadline=None)
ConsumerGroupMachine.TestCase.settings = SEARCH
TestConsumerGroup = ConsumerGroupMachine.TestCase


def nothing_is_held_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        heartbeat_rules, "Goal", lambda epoch, target, topics, owned, _: Goal(epoch, target, topics, owned, ())
    )


def no_state_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(step: ConsumerGroupStep, current: MemberAssigned) -> None:
        step.group.apply(current)

    monkeypatch.setattr(ConsumerGroupStep, "hold", apply)


@pytest.mark.parametrize("breach", [nothing_is_held_by_others, no_state_is_recorded])
def test_the_search_finds_a_broken_rule(breach: Breach, monkeypatch: pytest.MonkeyPatch) -> None:
    breach(monkeypatch)
    found = settings(SEARCH, max_examples=400, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ConsumerGroupMachine, settings=found)


def hand_over(machine: ConsumerGroupMachine) -> None:
    """The second client gets partitions, and takes them before the first has done what it was told."""
    for number in (0, 1):
        machine.a_client_starts(number, ("t",), False)
        machine.a_client_sends_a_heartbeat(number, False)
        machine.a_client_does_what_it_was_told(number)
    for number in (0, 1):
        machine.a_client_sends_a_heartbeat(number, False)
    machine.a_client_does_what_it_was_told(1)
    machine.no_partition_is_held_by_two_members()


def test_the_search_would_notice_a_partition_that_its_owner_has_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over(ConsumerGroupMachine())
    monkeypatch.setattr(Goal, "has_given_up", lambda self, partitions: True)
    with pytest.raises(AssertionError):
        hand_over(ConsumerGroupMachine())
