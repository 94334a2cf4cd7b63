"""Any history of a group: members that come, go, die and repeat themselves, with every timer at any time.

Always: no request is answered twice; every waiting client is a member that will be answered; the members of a complete
generation all got the same generation, protocol and leader; the disk has everything that a restart needs.
"""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dualwrite.broker.core.group_commands import JoinReply, TimerKind
from dualwrite.broker.core.group_table import GroupTable
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.groups import GroupRecorded
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.classic import BOTH, GROUP, RANGE, GroupWorld, join

members = st.integers(0, 9)
protocols = st.sampled_from([RANGE, BOTH])
instances = st.sampled_from([None, None, "one", "two"])


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(max_size=4)
        self.asked: dict[int, str] = {}
        """ticket -> kind, of what may wait."""

    def known(self, number: int) -> str:
        """A member id: one of the group's, or one that a client once got."""
        ids = [reply.member_id for reply in self.world.answers.values() if isinstance(reply, JoinReply)]
        everybody = sorted({member for member in ids if member}) or ["nobody"]
        return everybody[number % len(everybody)]

    @rule(protocols=protocols, instance=instances, needs=st.booleans())
    def somebody_comes(self, protocols: tuple[tuple[str, bytes], ...], instance: str | None, needs: bool) -> None:
        self.world.ask(join("", instance, protocols=protocols, needs_member_id=needs))

    @rule(number=members, protocols=protocols, instance=instances)
    def somebody_joins_again(self, number: int, protocols: tuple[tuple[str, bytes], ...], instance: str | None) -> None:
        self.world.ask(join(self.known(number), instance, protocols=protocols))

    @rule(number=members, back=st.integers(0, 1))
    def somebody_syncs(self, number: int, back: int) -> None:
        if GROUP in self.world.table.groups:
            self.world.sync(self.known(number), {}, generation=self.world.group.generation - back)

    @rule()
    def everybody_syncs(self) -> None:
        if GROUP in self.world.table.groups and self.world.state is GroupState.COMPLETING_REBALANCE:
            for member in list(self.world.group.members):
                self.world.sync(member, {name: name.encode() for name in self.world.group.members})

    @rule()
    def everybody_joins_again(self) -> None:
        if GROUP in self.world.table.groups and self.world.state is GroupState.PREPARING_REBALANCE:
            for member in [name for name in self.world.group.members if name not in self.world.group.joining]:
                instance = self.world.group.members[member].instance_id
                self.world.ask(join(member, instance, protocols=self.world.group.members[member].protocols))

    @rule(number=members)
    def somebody_leaves(self, number: int) -> None:
        self.world.leave((self.known(number), None))

    @rule(instance=st.sampled_from(["one", "two"]))
    def somebody_is_sent_away(self, instance: str) -> None:
        self.world.leave(("", instance))

    @rule(number=members)
    def somebody_lives(self, number: int) -> None:
        if GROUP in self.world.table.groups:
            self.world.heartbeat(self.known(number))

    @rule(number=members)
    def time_is_up(self, number: int) -> None:
        timers = list(self.world.timers)
        if timers:
            key = timers[number % len(timers)]
            self.world.fire(key.kind, key.member_id)

    @invariant()
    def whoever_waits_will_be_answered(self) -> None:
        group = self.world.table.groups.get(GROUP)
        waiting = set() if group is None else {*group.joining.values(), *group.syncing.values()}
        asked = set(range(1, self.world.asked + 1))
        assert asked - self.world.answers.keys() == waiting

    @invariant()
    def something_is_waited_for(self) -> None:
        """No group is stuck: while it rebalances a timer runs, and every member has a session or waits."""
        group = self.world.table.groups.get(GROUP)
        if group is None:
            return
        if group.state is GroupState.PREPARING_REBALANCE:
            assert self.world.delay(TimerKind.JOIN) is not None
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert self.world.delay(TimerKind.SYNC) is not None
        waiting = group.joining.keys() | group.syncing.keys()
        sessions = {key.member_id for key in self.world.timers if key.kind is TimerKind.SESSION}
        assert group.members.keys() - waiting <= sessions
        assert sessions <= group.members.keys() | group.pending, "no timer is left behind"

    @invariant()
    def a_generation_is_one_and_the_same_for_everybody(self) -> None:
        replies = [reply for reply in self.world.answers.values() if isinstance(reply, JoinReply)]
        good = [reply for reply in replies if reply.error is ErrorCode.NONE and not reply.skip_assignment]
        for generation in {reply.generation for reply in good}:
            assert len({reply.protocol for reply in good if reply.generation == generation}) == 1

    @invariant()
    def a_restart_finds_what_was_told(self) -> None:
        group = self.world.table.groups.get(GROUP)
        if group is None or group.state not in (GroupState.STABLE, GroupState.EMPTY) or not self.world.facts:
            return
        again = GroupTable()
        for fact in self.world.facts:
            again.apply(fact)
        assert _durable(again.groups[GROUP].recorded()) == _durable(group.recorded())


def _durable(fact: GroupRecorded) -> GroupRecorded:
    """The state that a restart must find. A member sends a subscription that changed without a rebalance again."""
    return replace(fact, members=tuple(sorted(_without_subscriptions(fact), key=lambda member: member.member_id)))


def _without_subscriptions(fact: GroupRecorded) -> Iterable[object]:
    return [replace(member, subscription=b"") for member in fact.members]


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
