"""Dual writes on Apache Kafka as it is released: the application is killed at each step, and transactions time out.

One cluster and one database for all of it: every test judges all that was ever written there.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.outcome_store import outcomes
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.crash.kills import STEPS
from tests.support.crash.world import CONFIG, World
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

SLOT = "crash-0"
LONG_MS, SHORT_MS = 60_000, 2_000
PATIENCE = 30.0

either_producer = pytest.mark.parametrize("producer", ["native", "librdkafka"])


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("resume")
    quick = {**CONFIG, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    made = World(directory, f"sqlite:///{directory}/items.db", broker=ApacheKafka(directory / "kafka", quick))
    made.task = replace(made.task, timeout_ms=LONG_MS)
    yield made
    made.engine.dispose()
    made.broker.kill()


@pytest.fixture
def world(shared_world: World, producer: str) -> Iterator[World]:
    plain = shared_world.task
    shared_world.task = replace(plain, producer=producer)
    yield shared_world
    shared_world.task = plain


def is_aborted(described: TransactionDescription | None) -> bool:
    return described is not None and described.state == "CompleteAbort"


def until_it_times_out(world: World) -> None:
    control = ControlPlane({"bootstrap.servers": world.broker.bootstrap_servers})
    described = eventually(lambda: control.describe_transaction(SLOT), is_aborted, patience=PATIENCE)
    assert is_aborted(described), f"it did not time out: {described}"
    control.close()


def lose(world: World, *, replay: bool) -> None:
    """The application is killed between the two commits, and is down for longer than its transaction's timeout."""
    world.task = replace(world.task, timeout_ms=SHORT_MS, replay=replay)
    world.kill_at("COMMIT_KAFKA", unit=2)
    until_it_times_out(world)


@either_producer
def test_killed_at_each_step_of_a_unit(world: World) -> None:
    for step in STEPS:
        world.kill_at(step, unit=2)
    world.recover()
    assert world.judge() == []


@pytest.mark.parametrize("producer", ["native"])
def test_killed_at_each_step_of_recovery(world: World) -> None:
    for step in ("RECOVER_COMPLETE", "RECOVER_INIT"):
        world.kill_at("COMMIT_KAFKA", unit=2)
        assert world.run(replace(world.task, pause_step=step)) < 0
    world.recover()
    assert world.judge() == []


@either_producer
def test_a_unit_that_timed_out_after_its_decision_is_replayed(world: World) -> None:
    lose(world, replay=True)
    assert world.judge(), "nothing was left to replay"
    assert world.run(replace(world.task, pause_step="COMMIT_KAFKA")) < 0  # killed in the middle of the replay
    world.recover()
    assert world.judge() == []
    assert outcomes(world.engine) == []
    (*_, seen_to) = outcomes(world.engine, acknowledged=True)
    assert (seen_to.outcome, seen_to.acknowledged_by) == (Outcome.HEURISTIC_ABORT, "replay")


@pytest.mark.parametrize("producer", ["librdkafka"])
def test_without_replay_the_timed_out_unit_is_on_record_and_nothing_else_is_lost(world: World) -> None:
    """The last one in this file: what it loses stays lost."""
    lose(world, replay=False)
    world.recover()
    (found,) = outcomes(world.engine)
    assert found.outcome is Outcome.HEURISTIC_ABORT
    lost = [line for line in world.judge() if line != f"heuristic abort: {SLOT} {found.state}"]
    assert lost
    assert [line for line in lost if not line.startswith("lost write: ('")] == []
    assert len({line.split("'")[1] for line in lost}) == 1, "more than one unit of work is lost"
