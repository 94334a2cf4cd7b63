"""The whole recipe under a simulated scheduler: units of work, leases, heartbeat, sweeper, recovery and background of
several processes, which are killed and stalled at any step, with a virtual clock. One seed is one run.
"""

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.machine import Event, Step
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from tests.support.breaking.coordinator import COLLECTED_COMMIT, STEP_ACTIONS, commit_whose_failure_is_forgotten
from tests.support.coordinator.fake_kafka import FakeParticipant
from tests.support.coordinator.simulation.memory_database import MemoryStore, MemoryUnit
from tests.support.coordinator.simulation.world import SimulationWorld

SEEDS = 300
OFTEN = (30, 1 / 15)
"""Stalls, most of them longer than a lease."""
TRACES = "import sys; from tests.coordinator.simulation.test_simulation import print_traces; print_traces(5)"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dualwrite").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("dualwrite").setLevel(logging.NOTSET)


def search(seeds: int = SEEDS, **options: Any) -> Counter[str]:
    """What was seen in how many runs.

    :raises AssertionError: naming the first seed that finds an anomaly.
    """
    seen: Counter[str] = Counter()
    for seed in range(seeds):
        try:
            seen.update(SimulationWorld(seed, **options).run().seen.keys())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return seen


def print_traces(seeds: int) -> None:
    """For another Python process."""
    logging.getLogger("dualwrite").setLevel(logging.CRITICAL + 1)
    for seed in range(seeds):
        sys.stdout.write("\n".join(SimulationWorld(seed).run().scheduler.trace))


def test_after_any_crashes_every_unit_of_work_is_on_both_sides_or_on_neither() -> None:
    seen = search()
    for what in ("kill", "stall", "fault", "recovery commits", "recovery aborts", "ROLLED_BACK"):
        assert seen[what] > 9, f"no run has {what}: {seen}"
    assert seen["SUCCEEDED"] == SEEDS


def test_processes_that_stall_for_longer_than_their_leases_lose_units_on_both_sides_alike() -> None:
    assert search(100, stalls=OFTEN)["LeaseLostError"] > 10


@pytest.mark.slow
def test_commits_that_are_sent_and_not_awaited_are_complete_after_any_crashes() -> None:
    for stalls in ((4, 1 / 150), OFTEN):
        seen = search(200, stalls=stalls, sends_commit=True)
        for what in ("kill", "stall", "fault", "recovery commits", "recovery aborts", "ROLLED_BACK"):
            assert seen[what] > 9, f"no run has {what}: {seen}"


def test_the_simulation_notices_a_state_that_travels_with_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one message, which locks the row as late as it arrives: another reader may have found the old state before."""

    def remember(self: MemoryUnit, state: PreparedTxnState) -> None:
        unsent[self] = state

    def store_and_carry_out(self: MemoryUnit) -> None:
        has_client = not self.connection.is_in_flight
        try:
            if self in unsent:
                self.connection.store(self.lease, unsent[self])
            carry_out(self)
        except (LeaseLostError, OSError):
            if has_client:
                raise
            self.connection.is_in_flight = False
            self.connection.rollback()

    unsent: dict[MemoryUnit, PreparedTxnState] = {}
    carry_out = MemoryUnit.carry_out
    monkeypatch.setattr(MemoryUnit, "store", remember)
    monkeypatch.setattr(MemoryUnit, "carry_out", store_and_carry_out)
    with pytest.raises(AssertionError, match="torn transaction"):
        search()


def test_the_simulation_notices_a_begin_before_the_last_commit_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(self: FakeParticipant) -> None:
        self.spent = self.is_committing = False
        self.begun, self.anchor = True, None

    monkeypatch.setattr(FakeParticipant, "begin_transaction", hasty)
    with pytest.raises(AssertionError, match=r"aborted read|lost write|torn"):
        search(sends_commit=True)


def test_the_simulation_notices_a_commit_whose_failure_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    COLLECTED_COMMIT.broken_by(monkeypatch, commit_whose_failure_is_forgotten)
    with pytest.raises(AssertionError, match="lost write"):
        search(sends_commit=True)


def test_one_seed_is_one_run() -> None:
    traces = [SimulationWorld(seed).run().scheduler.trace for seed in (7, 7, 8)]
    assert traces[0] == traces[1] != traces[2]
    assert len(traces[0]) > 50


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_another_python_process() -> None:
    hashes = [dict(os.environ, PYTHONHASHSEED=number) for number in ("1", "2")]
    command = [sys.executable, "-c", TRACES]
    one, other = (
        subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout
        for variables in hashes
    )
    assert one == other != ""


def test_the_simulation_notices_an_identity_without_the_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_producer(self: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
        return bool(self) and self.producer == ongoing.producer

    monkeypatch.setattr(PreparedTxnState, "identifies", same_producer)
    with pytest.raises(AssertionError, match="aborted read"):
        search()


def test_the_simulation_notices_a_plain_init_before_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = slots.recover

    def careless(store: Any, lease: Any, factory: Any, observe: Any) -> Any:
        def initialized() -> Any:
            participant = factory()
            participant.init_transactions()
            return participant

        return recover(store, lease, initialized, observe)

    monkeypatch.setattr(slots, "recover", careless)
    with pytest.raises(AssertionError, match="lost write"):
        search()


def test_the_simulation_notices_a_driver_that_guesses_how_a_commit_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def guess(driver: UnitDriver) -> Event:
        driver.release_database()
        return Event.NOT_COMMITTED

    STEP_ACTIONS.broken_by(monkeypatch, {**STEP_ACTIONS.original, Step.READ_DECISION: guess})
    with pytest.raises(AssertionError, match="torn transaction"):
        search()


def test_the_simulation_notices_recovery_without_the_lock_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a slow process recovers while its successor works."""

    class Unlocked(NamedTuple):
        state: PreparedTxnState

        def verify(self) -> None:
            """Read nothing."""

    @contextmanager
    def unlocked(store: MemoryStore, lease: Any) -> Iterator[Any]:
        with locked(store, lease) as held:
            held.transaction.rollback()
            yield Unlocked(held.state)

    locked = MemoryStore.locked
    monkeypatch.setattr(MemoryStore, "locked", unlocked)
    with pytest.raises(AssertionError, match=r"lost write|torn transaction"):
        search(1000, stalls=OFTEN)  # about one seed in two hundred finds it
