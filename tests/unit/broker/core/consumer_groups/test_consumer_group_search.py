"""Random histories of groups whose members speak one protocol or both; see group_worlds/walking.py for the rules."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from dualwrite.broker.core.consumer_groups import classic_rules, heartbeat_rules, step, upgrading
from dualwrite.broker.core.consumer_groups.commands import ConsumerGroupDecision
from dualwrite.broker.core.consumer_groups.reconciling import Goal
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.consumer_protocol import ConsumerSubscription, read_subscription
from dualwrite.broker.core.groups import GroupState
from tests.support.broker.group_worlds.mixed import MixedWorld
from tests.support.broker.group_worlds.walking import walk

Breach = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.slow_cases("consumer protocol")
@pytest.mark.parametrize("with_classic", [False, True], ids=["consumer protocol", "both protocols"])
def test_no_history_breaks_a_rule_of_the_group(with_classic: bool) -> None:
    walk_all(range(300), with_classic=with_classic)


@pytest.mark.slow
def test_no_long_row_of_histories_breaks_a_rule_of_the_group() -> None:
    walk_all(range(300, 3_000), with_classic=True)


@pytest.mark.slow
def test_histories_change_the_protocol_at_every_stage_of_a_classic_group(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[object] = Counter()
    carry_out = MixedWorld.carry_out

    def count(world: MixedWorld, decision: ConsumerGroupDecision) -> None:
        if decision.upgraded is not None:
            seen[decision.upgraded.state] += 1
        seen["downgrade"] += decision.downgraded is not None
        carry_out(world, decision)

    monkeypatch.setattr(MixedWorld, "carry_out", count)
    walk_all(range(100), with_classic=True)
    stages = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE, "downgrade")
    assert {stage for stage in stages if seen[stage] < 3} == set()


def walk_all(seeds: Iterable[int], *, with_classic: bool) -> None:
    for seed in seeds:
        walk(seed, with_classic=with_classic)


def nothing_is_asked_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Goal, "has_given_up", lambda self, partitions: True)


def nothing_is_held_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "Goal", lambda epoch, target, topics, owned, _: Goal(epoch, target, topics, owned, ()))


def no_state_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroupStep, "hold", lambda working, current: working.group.apply(current))


def missed_answers_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Apache Kafka, whose clients ask again after an error."""
    monkeypatch.setattr(heartbeat_rules, "asks", lambda command, _: command.epoch == 0)


def only_assignments_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Apache Kafka."""

    def read(data: bytes) -> ConsumerSubscription:
        return replace(read_subscription(data), owned=frozenset())

    monkeypatch.setattr(upgrading, "read_subscription", read)


def strangers_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Apache Kafka."""
    monkeypatch.setattr(classic_rules, "is_stranger", lambda *_: False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breach", "seeds", "with_classic"),
    [
        (nothing_is_asked_back, range(40), False),
        (nothing_is_held_by_others, range(40), False),
        (no_state_is_recorded, range(5), False),
        (missed_answers_are_not_repeated, range(80), False),
        (only_assignments_are_held, range(605, 615), True),
        (strangers_are_let_in, range(126, 136), True),
    ],
)
def test_the_search_finds_a_broken_rule(
    breach: Breach, seeds: Iterable[int], with_classic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_all(seeds, with_classic=with_classic)
    breach(monkeypatch)
    with pytest.raises(AssertionError, match=r"walk\("):
        walk_all(seeds, with_classic=with_classic)
