"""Several processes share one application: none disturbs another, and no death or pause tears a unit of work."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.coordinator.event_table import expire_leases, slot_rows
from tests.support.crash.world import CrashWorld
from tests.support.frozen import freeze, thaw

pytestmark = pytest.mark.crash

PATIENCE = 60.0
STEPS = [
    "RECOVER_TAKE_OVER",
    "RECOVER_LOCK",
    "RECOVER_FENCE_KAFKA",
    "RECOVER_COMPLETE",
    "RECOVER_INIT",
    "BEGIN_DATABASE",
    "BEGIN_KAFKA",
    "PREPARE_KAFKA",
    "STORE_STATE",
    "COMMIT_DATABASE",
    "COMMIT_KAFKA",
]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgresql, pytest.mark.slow])])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashWorld]:
    url = f"sqlite:///{tmp_path}/items.db"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql_url"))
    made = CrashWorld(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def postgresql_world(tmp_path: Path, postgresql_url: str) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, postgresql_url)
    yield made
    made.close()


def owned(world: CrashWorld) -> set[str]:
    """The slots that somebody holds."""
    return {name for name, row in slot_rows(world.engine).items() if row.owner}


def test_two_processes_of_two_threads_share_an_application(world: CrashWorld) -> None:
    task = replace(world.task, units=8, threads=2)
    with world.running(task), world.running(replace(task, seed=1)):
        pass
    assert world.judge() == []
    assert len(world.told.ok) >= 20
    assert owned(world) == set(), "every slot was given back"


@pytest.mark.slow
def test_four_processes_of_four_threads_share_an_application(world: CrashWorld) -> None:
    with ExitStack() as stack:
        for seed in range(4):
            stack.enter_context(world.running(replace(world.task, units=25, threads=4, seed=seed)))
    assert world.judge() == []
    assert len(world.told.ok) >= 300
    assert owned(world) == set()


def test_an_idle_process_recovers_a_killed_processs_transaction(world: CrashWorld) -> None:
    idle = replace(world.task, units=1, lingers=True, lease_timeout=1.5)
    with world.running(idle) as survivor:
        survivor.until("idle")
        world.kill_at("COMMIT_KAFKA", unit=2)
        deadline = time.monotonic() + PATIENCE
        while world.judge():  # its heartbeat looks every half second
            assert time.monotonic() < deadline, "nobody recovered it"
    assert world.judge() == []
    assert owned(world) == set()


def test_forked_children_use_what_their_parent_made(world: CrashWorld) -> None:
    with world.running(replace(world.task, units=4, children=2)):
        pass
    assert world.judge() == []
    assert len(world.told.ok) >= 8
    assert owned(world) == set()


def pause_past_the_lease(world: CrashWorld, step: str) -> None:
    """A process is stopped right before ``step`` of its second unit; another takes what is its, works, and lets it go
    on."""
    unit = 0 if step.startswith("RECOVER") else 2
    with world.running(replace(world.task, units=3, pause_step=step, pause_unit=unit)) as zombie:
        zombie.until("paused")
        freeze(zombie.process.pid)
        if step == "RECOVER_TAKE_OVER" or step in STEPS[5:9]:  # the row is not locked
            expire_leases(world.engine)
        assert world.run(replace(world.task, units=2, seed=7)) == 0
        thaw(zombie.process.pid)
    assert world.judge() == [], step


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_zombie_that_goes_on_after_its_lease_commits_on_neither_side(postgresql_world: CrashWorld) -> None:
    pause_past_the_lease(postgresql_world, "STORE_STATE")
    assert len(postgresql_world.told.no) >= 1


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_zombie_that_goes_on_at_any_step_commits_on_both_sides_or_on_neither(postgresql_world: CrashWorld) -> None:
    for step in STEPS:
        pause_past_the_lease(postgresql_world, step)
