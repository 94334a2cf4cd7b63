"""The broker dies at any operation of its disk, by a kill or a power cut, and comes back to what it had told.

A failing seed is repeated by ``simulate(seed, durable)`` of ``crash_simulation``, as the message says.
"""

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker.runtime import cluster
from tests.support.breaking.breakable import Breakable
from tests.support.breaking.broken_broker import BROKEN, RARE
from tests.support.broker.crash_simulation import simulate

SEEDS = 120
SEEDS_OF_A_BROKEN_BROKER = 500

EVERYTHING = {
    "killed",
    "kept",
    "retried",
    "finished a decided transaction",
    "open at the end",
    "outlived its work",
    "NONE",
    "PRODUCER_FENCED",
    "CONCURRENT_TRANSACTIONS",
}


@pytest.fixture(autouse=True)
def small_blocks_of_producer_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PRODUCER_ID_BLOCK", 1)


@pytest.mark.slow_cases
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_acknowledged_state_survives_every_crash(durable: bool) -> None:
    histories = [simulate(seed, durable) for seed in range(SEEDS)]

    # Without fsyncs nothing waits between a transaction's decision and its end, so that no other task can run in
    # between.
    expected = EVERYTHING if durable else EVERYTHING - {"CONCURRENT_TRANSACTIONS"}
    assert set().union(*(history.events for history in histories)) >= expected
    units = [unit for history in histories for unit in history.units]
    assert sum(unit.answered is not None for unit in units) > SEEDS
    assert sum(len(unit.acknowledged) for unit in units) > 10 * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_acknowledged_state_survives_very_many_crashes(durable: bool) -> None:
    for seed in range(SEEDS, 10 * SEEDS):
        simulate(seed, durable)


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["fsync", "os"])
def test_acknowledged_state_survives_every_error_of_the_disk(durable: bool) -> None:
    """A full disk, an exceeded quota, or a failed write or fsync: with fsync, the unsynced bytes may be lost."""
    histories = [simulate(seed, durable, failing=True) for seed in range(SEEDS)]
    events = set().union(*(history.events for history in histories))
    assert events >= {"killed", "could not start", "kept", "finished a decided transaction", "outlived its work"}
    assert sum(len(unit.acknowledged) for history in histories for unit in history.units) > 10 * SEEDS


def test_a_seed_decides_everything() -> None:
    one, other = simulate(5), simulate(5)
    assert [(unit.producer, unit.acknowledged, unit.answered) for unit in one.units] == [
        (unit.producer, unit.acknowledged, unit.answered) for unit in other.units
    ]
    assert one.identities == other.identities


# --- negative controls: a broker that is broken on purpose


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("place", "broken", "finding"),
    [pytest.param(*case, id=case[1].__name__, marks=[pytest.mark.slow] if case[1] in RARE else []) for case in BROKEN],
)
def test_the_simulation_finds_a_broken_broker(
    monkeypatch: pytest.MonkeyPatch, place: Breakable, broken: Callable[..., Any], finding: str
) -> None:
    place.broken_by(monkeypatch, broken)
    with pytest.raises(AssertionError, match=rf"^simulate\(seed=\d+, durable=True, failing=False\): .*({finding})"):
        list(map(simulate, range(SEEDS_OF_A_BROKEN_BROKER)))
