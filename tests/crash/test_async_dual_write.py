"""Dual writes on asyncio through SIGKILL of the application and the broker: as test_dual_write.py, same oracle."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.crash.kills import RECOVERY_STEPS, STEPS, chaos, either_producer
from tests.support.crash.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MODULE = "tests.support.crash.async_application"


def on_asyncio(world: World, tasks: int = 1) -> World:
    world.task = replace(world.task, module=MODULE, threads=tasks)
    return world


@pytest.fixture
def world(tmp_path: Path, producer: str) -> Iterator[World]:
    made = World(tmp_path, f"sqlite:///{tmp_path}/items.db", producer)
    yield on_asyncio(made)
    made.close()


@pytest.fixture
def producer() -> str:
    return "native"


@pytest.fixture
def postgresql_world(tmp_path: Path, postgresql_url: str, producer: str) -> Iterator[World]:
    made = World(tmp_path, postgresql_url, producer)
    yield on_asyncio(made, tasks=8)
    made.close()


@either_producer
def test_application_killed_at_each_step_of_a_unit(world: World) -> None:
    for step in STEPS:
        world.kill_at(step, unit=2)
    world.recover()
    assert world.judge() == []
    assert len(world.told.ok) >= 5


@pytest.mark.postgresql
def test_application_of_many_tasks_killed_at_each_step_on_postgresql(postgresql_world: World) -> None:
    for step in STEPS:
        postgresql_world.kill_at(step, unit=12)
    postgresql_world.recover()
    assert postgresql_world.judge() == []


def test_application_killed_at_each_step_of_recovery(world: World) -> None:
    for step in RECOVERY_STEPS:
        world.kill_at("COMMIT_KAFKA", unit=2)
        assert world.run(replace(world.task, pause_step=step)) < 0
    world.recover()
    assert world.judge() == []


def test_a_decision_of_one_kind_of_application_is_carried_to_kafka_by_the_other(world: World) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    assert world.judge(), "nothing was left to recover"
    world.task = replace(world.task, module="tests.support.crash.application")
    world.recover()
    world.kill_at("COMMIT_KAFKA", unit=2)
    on_asyncio(world).recover()
    assert world.judge() == []


@pytest.mark.postgresql
def test_random_kills_on_postgresql(postgresql_world: World) -> None:
    chaos(postgresql_world, seed=5, kills=8, units=50, longest=2.5)  # eight tasks have eight slots to be recovered
    assert postgresql_world.judge() == []
