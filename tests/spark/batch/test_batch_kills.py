"""Whole batches whose driver is killed, paused or cut off at every step: each is on both sides, once, or on neither."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.coordinator.sql.lease_transfer import TransferredLeases
from dualwrite.errors import DualWriteError
from dualwrite.schema import upgrade_engine
from dualwrite.spark.batch import whole_batch
from dualwrite.spark.workers import engine_of
from tests.spark.conftest import ready
from tests.support.breaking.spark import END, KNOWN_BATCH, RECORD_BATCH, REQUIRE_OPEN
from tests.support.servers.postgresql import PostgreSQL
from tests.support.spark.batch_kills import ROWS, BatchKillWorld
from tests.support.spark.batch_process import go_on, running, said
from tests.support.spark.batches import begun, both_or_neither, options_for, rows, staged_rows, write, written

STEPS = (
    "BEGIN_RUN",
    "STAGE_ROWS",
    "PREPARE_KAFKA",
    "TRANSFER_LEASE",
    "DECIDE",
    "MOVE_ROWS",
    "STORE_STATES",
    "COMMIT_DATABASE",
    "COMPLETE_KAFKA",
)
RETURNED = 2**20
"""The option driverBytes with which the driver writes all rows."""


@pytest.fixture
def world(postgresql: Engine, tmp_path: Path) -> Iterator[BatchKillWorld]:
    made = BatchKillWorld(postgresql, tmp_path)
    yield made
    made.close()


@pytest.fixture
def small_world(sqlite: Engine, tmp_path: Path) -> Iterator[BatchKillWorld]:
    made = BatchKillWorld(sqlite, tmp_path)
    yield made
    made.close()


@pytest.mark.slow_cases
@pytest.mark.parametrize("driver_bytes", [0, RETURNED])
@pytest.mark.parametrize("step", ["TRANSFER_LEASE", "COMMIT_DATABASE", "COMPLETE_KAFKA"])
def test_a_driver_that_is_killed_and_started_again_writes_the_batch_once(
    small_world: BatchKillWorld, step: str, driver_bytes: int
) -> None:
    small_world.kill_at(step, driverBytes=driver_bytes)
    small_world.write(driverBytes=driver_bytes)
    assert small_world.judge() == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes", [0, RETURNED])
@pytest.mark.parametrize(
    ("server", "producer"),
    [
        pytest.param("postgresql", "native", marks=pytest.mark.postgresql),
        pytest.param("mariadb", "librdkafka", marks=pytest.mark.mariadb),
    ],
)
def test_a_driver_may_be_killed_at_every_step(
    server: str, producer: str, driver_bytes: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for engine in ready(request.getfixturevalue(f"{server}_url")):
        world = BatchKillWorld(engine, tmp_path)
        for number, step in enumerate(STEPS):
            world.batches = number
            world.kill_at(step, producer=producer, driverBytes=driver_bytes)
            world.write(producer=producer, driverBytes=driver_bytes)
            assert world.judge() == (number + 1) * ROWS, step
        world.close()


@pytest.mark.slow
@pytest.mark.postgresql
def test_any_process_completes_decided_transactions_without_another_run(world: BatchKillWorld) -> None:
    world.kill_at("COMPLETE_KAFKA")
    told = world.told
    batch, _ = begun(options_for(told.url, told.servers, job="another"), 0)
    batch.complete()
    assert both_or_neither(world.engine, world.broker.bootstrap_servers, rows(0, ROWS)) == ROWS


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("driver_bytes", [0, RETURNED])
@pytest.mark.parametrize("step", ["STAGE_ROWS", "TRANSFER_LEASE", "DECIDE"])
def test_a_zombie_driver_decides_nothing_after_another_has_written_the_batch(
    world: BatchKillWorld, step: str, driver_bytes: int
) -> None:
    with running(replace(world.told, pause=step, options={"driverBytes": driver_bytes})) as zombie:
        assert said(zombie) == "paused"
        world.suspend(zombie)
        world.write()
        zombie.send_signal(signal.SIGCONT)
        go_on(zombie)
        assert said(zombie).startswith("FencedError")
        zombie.wait(60)
    world.write()  # recovers what it has left; the batch itself is written
    assert both_or_neither(world.engine, world.broker.bootstrap_servers, rows(0, ROWS)) == ROWS
    assert staged_rows(world.engine) == 0


@pytest.mark.slow
def test_a_broker_killed_after_the_decision_gets_every_record_after_its_restart(small_world: BatchKillWorld) -> None:
    def kill_broker(step: str) -> None:
        if step == "COMPLETE_KAFKA" and not killed:
            killed.append(step)
            small_world.broker.kill()
            small_world.broker.start()

    killed: list[str] = []
    told = small_world.told
    write(options_for(told.url, told.servers), [rows(0, 10), rows(10, ROWS)], 0, kill_broker)
    assert killed
    assert small_world.judge() == ROWS


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("step", ["STORE_STATES", "COMPLETE_KAFKA"])
def test_a_database_that_is_killed_loses_a_batch_or_keeps_it_on_both_sides(
    own_postgresql: PostgreSQL, tmp_path: Path, step: str
) -> None:
    def kill_database(name: str) -> None:
        if name == step and not killed:
            killed.append(name)
            own_postgresql.kill()
            own_postgresql.start()

    killed: list[str] = []
    engine = engine_of(options_for(own_postgresql.url, "nowhere:9092"))
    upgrade_engine(engine)
    world = BatchKillWorld(engine, tmp_path)
    told = world.told
    try:
        write(options_for(told.url, told.servers), [rows(0, 10), rows(10, ROWS)], 0, kill_database)
    except (DualWriteError, SQLAlchemyError):
        assert step == "STORE_STATES"
    assert killed
    world.write()
    assert world.judge() == ROWS
    world.close()
    engine.dispose()


class TestNegativeControls:
    """Each breaks the protocol in one place, and must be found."""

    @pytest.mark.parametrize("driver_bytes", [0, RETURNED])
    def test_unstored_states_would_be_noticed(
        self, small_world: BatchKillWorld, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
    ) -> None:
        monkeypatch.setattr(TransferredLeases, "store_all", lambda *given: None)
        small_world.write(driverBytes=driver_bytes)
        with pytest.raises(AssertionError):
            small_world.judge()

    @pytest.mark.slow
    def test_forgotten_batches_would_be_noticed(
        self, small_world: BatchKillWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        KNOWN_BATCH.broken_by(monkeypatch, lambda *given: None)
        RECORD_BATCH.broken_by(monkeypatch, lambda *given: None)
        small_world.write(upsertKeys="id")
        small_world.write(upsertKeys="id")
        with pytest.raises(AssertionError):
            small_world.judge()

    def test_an_unfenced_zombie_would_be_noticed(
        self, small_world: BatchKillWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = small_world.told
        zombie, old = begun(options_for(told.url, told.servers, upsertKeys="id"), None)
        sides = written(old, [rows(0, ROWS)])
        END.broken_by(monkeypatch, lambda *given: None)
        REQUIRE_OPEN.broken_by(monkeypatch, lambda *given: None)
        small_world.write(upsertKeys="id")
        zombie.commit(old, sides, None)
        with pytest.raises(AssertionError):
            small_world.judge()

    def test_rows_moved_before_the_decision_would_be_noticed(
        self, small_world: BatchKillWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        move = whole_batch.move_rows

        def move_at_once(connection: Any, *given: Any) -> int:
            move(connection, *given)
            connection.commit()
            raise RuntimeError("then it died")

        monkeypatch.setattr(whole_batch, "move_rows", move_at_once)
        with pytest.raises(RuntimeError):
            small_world.write()
        with pytest.raises(AssertionError):
            small_world.judge()
