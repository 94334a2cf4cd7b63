"""What nobody decided: a prepared transaction is ended by force, the broker or the database is set back to a copy.

Recovery must find it, once, and call it by its name; the application goes on. That an ordinary crash is never called so
is in the oracle of every crash test (oracle.judge).
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.terms.transaction_states import ONGOING
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.outcome_store import acknowledge, outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from tests.support.crash.application import items
from tests.support.crash.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]

either_producer = pytest.mark.parametrize("producer", ["native", "librdkafka"])


@pytest.fixture
def producer() -> str:
    return "native"


@pytest.fixture
def world(tmp_path: Path, producer: str) -> Iterator[World]:
    made = World(tmp_path, f"sqlite:///{tmp_path}/items.db", producer)
    yield made
    made.close()


@pytest.fixture
def postgresql_world(tmp_path: Path, postgresql_url: str) -> Iterator[World]:
    made = World(tmp_path, postgresql_url, "native")
    yield made
    made.close()


def open_transactions(world: World) -> list[str]:
    control = ControlPlane({"bootstrap.servers": world.broker.bootstrap_servers})
    try:
        return [each.transactional_id for each in control.list_transactions() if each.state == ONGOING]
    finally:
        control.close()


def terminate(world: World) -> None:
    """What ``kafka-transactions --forceTerminateTransaction`` does: a plain InitProducerId (KIP-939)."""
    control = ControlPlane({"bootstrap.servers": world.broker.bootstrap_servers})
    for name in open_transactions(world):
        control.init_producer_id(name, two_phase_commit=True, keep_prepared_txn=False)
    control.close()


def found(world: World) -> list[Outcome]:
    return [each.outcome for each in outcomes(world.engine)]


def run_units(world: World, count: int = 12) -> None:
    assert world.run(replace(world.task, units=count)) == 0


def goes_on_as_if_nothing_had_happened(world: World, before: list[Outcome]) -> None:
    """More crashes and recoveries find nothing more."""
    world.kill_at("COMMIT_KAFKA", unit=2)
    world.recover()
    run_units(world, 3)
    world.recover()
    assert found(world) == before


@either_producer
def test_a_prepared_transaction_that_was_terminated_by_force_is_found(world: World) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    terminate(world)
    world.recover()
    assert found(world) == [Outcome.HEURISTIC_ABORT]
    goes_on_as_if_nothing_had_happened(world, [Outcome.HEURISTIC_ABORT])
    (outcome,) = outcomes(world.engine)
    assert any(line.startswith("lost write") for line in world.judge()), "what it reports did happen"
    acknowledge(world.engine, outcome, by="a test")
    assert found(world) == []


def test_an_outcome_is_found_though_every_recovery_is_killed_half_way(world: World) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    terminate(world)
    for step in ("RECOVER_COMPLETE", "RECOVER_RECORD", "RECOVER_RECORD"):
        assert world.run(replace(world.task, pause_step=step)) < 0
        assert found(world) == []
    world.recover()
    assert found(world) == [Outcome.HEURISTIC_ABORT]


def test_terminating_an_undecided_transaction_breaks_nothing(world: World) -> None:
    world.kill_at("COMMIT_DATABASE", unit=2)
    terminate(world)
    world.recover()
    assert world.judge() == []


@either_producer
def test_a_broker_that_was_set_back_to_an_older_copy_is_found(world: World, tmp_path: Path) -> None:
    run_units(world, 3)
    world.broker.stop()
    shutil.copytree(tmp_path / "broker", tmp_path / "copy")
    world.broker.start()
    run_units(world)
    world.broker.stop()
    shutil.rmtree(tmp_path / "broker")
    shutil.copytree(tmp_path / "copy", tmp_path / "broker")
    world.broker.start()
    world.recover()
    assert found(world) == [Outcome.HEURISTIC_HAZARD]
    goes_on_as_if_nothing_had_happened(world, [Outcome.HEURISTIC_HAZARD])


def test_a_broker_that_has_lost_everything_is_found(world: World, tmp_path: Path) -> None:
    run_units(world)
    world.broker.stop()
    shutil.rmtree(tmp_path / "broker")
    world.broker.start()
    run_units(world, 2)  # there was no topic to be looked at: the epoch tells
    assert found(world) == [Outcome.HEURISTIC_HAZARD]
    goes_on_as_if_nothing_had_happened(world, [Outcome.HEURISTIC_HAZARD])


def test_a_sqlite_file_that_was_set_back_to_an_older_copy_is_found(world: World, tmp_path: Path) -> None:
    run_units(world, 3)
    world.engine.dispose()
    shutil.copy(tmp_path / "items.db", tmp_path / "copy.db")
    run_units(world)
    world.engine.dispose()
    shutil.copy(tmp_path / "copy.db", tmp_path / "items.db")
    world.recover()
    assert found(world) == [Outcome.HEURISTIC_COMMIT]
    goes_on_as_if_nothing_had_happened(world, [Outcome.HEURISTIC_COMMIT])
    assert any(line.startswith("aborted read") for line in world.judge()), "what it reports did happen"


@pytest.mark.postgresql
def test_a_postgresql_that_was_set_back_to_an_older_copy_is_found(postgresql_world: World) -> None:
    world = postgresql_world
    run_units(world, 3)
    tables = (items, kafka_transaction_state)
    with world.engine.connect() as connection:
        copies = [[dict(row) for row in connection.execute(select(table)).mappings()] for table in tables]
    run_units(world)
    with world.engine.begin() as connection:
        for table, rows in zip(tables, copies, strict=True):
            connection.execute(delete(table))
            connection.execute(insert(table), rows)
    world.recover()
    assert found(world) == [Outcome.HEURISTIC_COMMIT]
    goes_on_as_if_nothing_had_happened(world, [Outcome.HEURISTIC_COMMIT])
