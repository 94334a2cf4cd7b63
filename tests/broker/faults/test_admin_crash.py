"""Administration among transactions while the broker dies: what was deleted stays away, and all else stays.

A failing seed is repeated by ``simulate(seed, durable)`` of ``admin_simulation``, as the message says.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dualwrite.broker.runtime.partition import Partition
from tests.support.breaking.breakable import Breakable
from tests.support.breaking.broker import FORGET_TOPIC, PLAN_RECOVERY_POINT, TRUNCATE_BEFORE
from tests.support.broker.admin_simulation import simulate

SEEDS = 10
SEEDS_OF_A_BROKEN_BROKER = 60
EVERYTHING = {"altered", "ended", "grown", "kept", "outlived its work", "records deleted", "topic deleted"}


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_administration_among_transactions_survives_every_crash(durable: bool) -> None:
    events = sum((simulate(seed, durable).events for seed in range(SEEDS)), Counter[str]())
    assert events.keys() >= EVERYTHING
    assert min(events[name] for name in EVERYTHING) > SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_administration_among_transactions_survives_very_many_crashes(durable: bool) -> None:
    for seed in range(SEEDS, 20 * SEEDS):
        simulate(seed, durable)


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["fsync", "os"])
def test_administration_among_transactions_survives_every_error_of_the_disk(durable: bool) -> None:
    events = sum((simulate(seed, durable, failing=True).events for seed in range(SEEDS)), Counter[str]())
    assert events.keys() >= EVERYTHING


# --- negative controls: a broker that is broken on purpose


def nothing(*_: Any) -> None:
    return None


def begin_in_memory_only(self: Partition, offset: int) -> None:
    self.log.start_offset = max(self.log.start_offset, offset)


BROKEN: list[tuple[Breakable, Callable[..., Any], str]] = [
    (FORGET_TOPIC, nothing, "inherited offset"),
    (PLAN_RECOVERY_POINT, nothing, "memory is not the replay"),
    (TRUNCATE_BEFORE, begin_in_memory_only, "memory is not the replay|deleted records came back"),
]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("place", "broken", "finding"), BROKEN, ids=[case[0].name for case in BROKEN])
def test_the_simulation_finds_a_broken_broker(
    monkeypatch: pytest.MonkeyPatch, place: Breakable, broken: Callable[..., Any], finding: str
) -> None:
    place.broken_by(monkeypatch, broken)
    with pytest.raises(AssertionError, match=rf"^simulate\(seed=\d+, durable=False, failing=False\): .*({finding})"):
        list(map(partial(simulate, durable=False), range(SEEDS_OF_A_BROKEN_BROKER)))
