"""A driver that is paused after its decision while another process completes the batch, and a broker that is down."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import spark_run
from dualwrite.errors import KafkaUnavailableError
from dualwrite.spark import recover_job
from dualwrite.spark.batch import completing
from dualwrite.spark.batch.runs import RunState
from tests.support.spark.batch_kills import ROWS, BatchKillWorld
from tests.support.spark.batch_process import go_on, running, said
from tests.support.spark.batches import begun, open_slots, options_for, rows, staged_rows, stored


class FakeSweeps:
    """In place of a worker, its branches and the runs: one slot is to be completed, and each sweep ends as given."""

    def __init__(self, *ends: tuple[dict[str, Outcome], list[Exception]]) -> None:
        self.left = list(ends)
        self.branches = self

    def completable(self) -> list[str]:
        return ["a-0"]

    def sweep_left(self, *, is_any_left: bool) -> tuple[dict[str, Outcome], list[Exception]]:
        assert is_any_left
        return self.left.pop(0)


@pytest.mark.parametrize("patience", [60.0, 0.0])
def test_a_driver_tries_again_if_its_own_slot_is_not_completed(
    patience: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(completing, "PATIENCE", patience)
    sweeps: Any = FakeSweeps(({}, [KafkaUnavailableError("gave up")]), ({"a-0": Outcome.COMMITTED}, []))
    completing.complete(sweeps, sweeps, lambda _: None)
    assert len(sweeps.left) == (0 if patience else 1)
    assert ("recovery will end them later: gave up" in caplog.text) is not bool(patience)


def test_a_driver_does_not_wait_for_the_slots_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(completing, "PATIENCE", 0.0)
    sweeps: Any = FakeSweeps(({"a-0": Outcome.COMMITTED}, [KafkaUnavailableError("b-0: gave up")]))
    completing.complete(sweeps, sweeps, lambda _: None)
    assert caplog.text == ""


BRIEFLY = 2
"""Seconds after which the leases of a driver run out that says nothing."""


@pytest.fixture
def world(sqlite: Engine, tmp_path: Path) -> Iterator[BatchKillWorld]:
    made = BatchKillWorld(sqlite, tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
@pytest.mark.parametrize("who", ["the same batch", "recovery"])
def test_a_driver_accepts_what_another_process_has_completed(world: BatchKillWorld, producer: str, who: str) -> None:
    brief = {"producer": producer, "leaseTimeout": BRIEFLY}
    with running(replace(world.told, pause="COMPLETE_KAFKA", options=brief)) as paused:
        assert said(paused) == "paused"
        world.suspend(paused)
        deadline = time.monotonic() + 60
        while open_slots(world.engine):
            assert time.monotonic() < deadline, "nobody completes it"
            if who == "recovery":
                recover_job(**keywords(world, **brief))
            else:
                world.write(**brief)
        paused.send_signal(signal.SIGCONT)
        go_on(paused)
        began = time.monotonic()
        assert said(paused) == "done"
        assert paused.wait(60) == 0
        assert time.monotonic() - began < 30
    assert world.judge() == ROWS
    world.write(**brief)
    assert world.judge() == ROWS


def keywords(world: BatchKillWorld, **changed: object) -> dict[str, object]:
    told = world.told
    return {
        "url": told.url,
        "dbtable": "things",
        "topic": "things",
        "application": "batches",
        "job": "job",
        "kafka.bootstrap.servers": told.servers,
        **changed,
    }


@pytest.mark.slow
def test_a_broker_that_is_down_at_the_start_is_an_error_before_anything_is_begun(world: BatchKillWorld) -> None:
    told = world.told
    world.broker.kill()
    given = options_for(told.url, told.servers, **{"kafka.delivery.timeout.ms": "2000"})
    began = time.monotonic()
    with pytest.raises(KafkaUnavailableError, match=r"job 'job': nothing was begun: .*gave up after 2 s") as caught:
        begun(given, 0)
    assert caught.value.retriable
    assert time.monotonic() - began < 15
    assert nothing_is_there(world)
    world.broker.start()
    world.write()
    assert world.judge() == ROWS


def nothing_is_there(world: BatchKillWorld) -> bool:
    with world.engine.connect() as connection:
        runs = connection.scalar(select(spark_run.c.state).where(spark_run.c.state == RunState.OPEN.value))
        tables = connection.dialect.get_table_names(connection)
    staged = [name for name in tables if name.startswith("dualwrite_staged")]
    return (runs, staged, open_slots(world.engine), stored(world.engine)) == (None, [], [], {})


@pytest.mark.slow
def test_a_batch_that_is_committed_needs_no_broker(world: BatchKillWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.write()
    told = world.told
    world.broker.kill()
    given = options_for(told.url, told.servers, **{"kafka.delivery.timeout.ms": "2000"})
    _, work = begun(given, 0)
    assert work.run is None
    assert caplog.text == "", "no transaction is to be completed, so no broker is waited for"
    assert staged_rows(world.engine) == 0
    assert list(stored(world.engine)) == [row[0] for row in rows(0, ROWS)]
    world.broker.start()
