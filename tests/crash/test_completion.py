"""Commits that are sent and not awaited (completion="background"), when the application or the broker is killed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.crash.kills import STEPS, chaos
from tests.support.crash.world import CrashWorld

pytestmark = pytest.mark.crash


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, f"sqlite:///{tmp_path}/items.db", "native")
    made.task = replace(made.task, completion="background")
    yield made
    made.close()


@pytest.fixture
def postgresql_world(tmp_path: Path, postgresql_url: str) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, postgresql_url, "native")
    made.task = replace(made.task, completion="background", threads=3)
    yield made
    made.close()


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", STEPS)
def test_application_killed_at_each_step_of_a_unit(world: CrashWorld, step: str) -> None:
    for unit in (1, 3):
        world.kill_at(step, unit)
    world.recover()
    assert world.judge() == []
    assert len(world.told.ok) >= 2


@pytest.mark.slow
def test_application_killed_as_soon_as_its_caller_was_told_of_a_commit(world: CrashWorld) -> None:
    for _ in range(8):
        assert world.run(world.task, kill_after_units=1) < 0
    world.recover()
    assert world.judge() == []
    assert len(world.told.ok) >= 8


def test_broker_killed_right_before_commits_are_sent_to_it(world: CrashWorld) -> None:
    for unit in (1, 2):
        world.kill_at("COMMIT_KAFKA", unit, on_pause=world.restart_broker)
    world.recover()
    assert world.judge() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_kills_of_application_and_broker(world: CrashWorld, seed: int) -> None:
    chaos(world, seed, kills=15, units=80)
    assert world.judge() == []


@pytest.mark.slow
@pytest.mark.postgresql
def test_random_kills_of_threads_on_postgresql(postgresql_world: CrashWorld) -> None:
    chaos(postgresql_world, seed=7, kills=15, units=80)
    assert postgresql_world.judge() == []
