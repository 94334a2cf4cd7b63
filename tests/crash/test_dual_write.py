"""Dual writes through SIGKILL of the application, the broker, or both: whole on both sides or on neither, always."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.crash.kills import PRODUCERS, RECOVERY_STEPS, STEPS, chaos, either_producer
from tests.support.crash.oracle import CallerReports, anomalies
from tests.support.crash.world import CrashWorld

pytestmark = pytest.mark.crash


@pytest.fixture(params=["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
def producer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path, producer: str) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, f"sqlite:///{tmp_path}/items.db", producer)
    yield made
    made.close()


@pytest.fixture
def librdkafkas_world(tmp_path: Path) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, f"sqlite:///{tmp_path}/items.db", "librdkafka")
    yield made
    made.close()


@pytest.fixture
def postgresql_world(tmp_path: Path, postgresql_url: str, producer: str) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, postgresql_url, producer)
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
@pytest.mark.postgresql
def test_application_killed_at_each_step_on_postgresql(postgresql_world: CrashWorld) -> None:
    for step in STEPS:
        postgresql_world.kill_at(step, unit=2)
    postgresql_world.recover()
    assert postgresql_world.judge() == []


@pytest.mark.slow
def test_application_killed_at_each_step_of_recovery(world: CrashWorld) -> None:
    for step in RECOVERY_STEPS:
        world.kill_at("COMMIT_KAFKA", unit=2)
        assert world.run(replace(world.task, pause_step=step)) < 0
    world.recover()
    assert world.judge() == []


@either_producer
def test_a_decision_of_the_database_is_carried_to_kafka_by_the_next_start(world: CrashWorld) -> None:
    world.kill_at("COMMIT_KAFKA")
    lost = world.judge()
    assert lost, "nothing was left to recover"
    assert all(line.startswith("lost write") for line in lost)
    world.recover()
    assert world.judge() == []


@pytest.mark.slow
@either_producer
def test_a_decision_under_one_producer_is_carried_to_kafka_by_the_other(world: CrashWorld, producer: str) -> None:
    (other,) = {*PRODUCERS} - {producer}
    world.kill_at("COMMIT_KAFKA", unit=2)
    world.recover(producer=other)
    assert world.judge() == []
    world.task = replace(world.task, producer=other)
    world.kill_at("COMMIT_DATABASE", unit=2)
    world.recover(producer=producer)
    assert world.judge() == []


def test_broker_and_application_killed_between_the_two_commits(world: CrashWorld) -> None:
    world.kill_at("COMMIT_KAFKA", on_pause=world.broker.kill)
    world.broker.start()
    world.recover()
    assert world.judge() == []


@pytest.mark.slow
def test_random_kills_of_application_and_broker(world: CrashWorld) -> None:
    chaos(world, seed=1, kills=4, units=20)
    assert world.judge() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_many_random_kills_of_application_and_broker(world: CrashWorld, seed: int) -> None:
    chaos(world, seed, kills=20, units=100)
    assert world.judge() == []


@pytest.mark.slow
@pytest.mark.postgresql
def test_random_kills_on_postgresql(postgresql_world: CrashWorld) -> None:
    chaos(postgresql_world, seed=7, kills=20, units=100)
    assert postgresql_world.judge() == []


@either_producer
def test_transaction_n_in_the_database_does_not_commit_transaction_n_plus_1(world: CrashWorld) -> None:
    world.kill_at("STORE_STATE", unit=2)  # every record of it is in the broker
    world.recover()
    assert world.judge() == []


@pytest.mark.slow
def test_comparing_pairs_alone_would_commit_transaction_n_plus_1_of_librdkafka(librdkafkas_world: CrashWorld) -> None:
    """The control of the test above: without the anchor, the unit that nobody decided becomes visible."""
    world = librdkafkas_world
    world.kill_at("STORE_STATE", unit=2)  # every record of it is in the broker
    world.recover(sabotage="pairs-only")
    assert any(line.startswith("aborted read") for line in world.judge())


def test_a_plain_init_before_recovery_would_lose_the_decided_unit(world: CrashWorld) -> None:
    """The control of the tests above: without KeepPreparedTxn, what the database has decided is aborted."""
    world.kill_at("COMMIT_KAFKA")
    world.recover(sabotage="keep-nothing")
    assert any(line.startswith("lost write") for line in world.judge())


def told(ok: set[str] = frozenset(), no: set[str] = frozenset()) -> CallerReports:  # type: ignore[assignment]
    return CallerReports(ok=set(ok), no=set(no))


@pytest.mark.parametrize(
    ("database", "topic", "callers", "found"),
    [
        ({("a", 0)}, {("a", 0): 1}, told(ok={"a"}), []),
        ({("a", 0)}, {}, told(), ["lost write: ('a', 0)"]),
        (set(), {("a", 0): 1}, told(), ["aborted read: ('a', 0)"]),
        ({("a", 0)}, {("a", 0): 2}, told(), ["duplicate: ('a', 0)"]),
        ({("a", 0), ("a", 1)}, {("a", 0): 1}, told(), ["lost write: ('a', 1)", "torn transaction: a"]),
        (set(), {}, told(ok={"a"}), ["lost write: a was acknowledged"]),
        ({("a", 0)}, {("a", 0): 1}, told(no={"a"}), ["aborted read: a was said to be undone"]),
    ],
)
def test_the_oracle_names_every_anomaly(
    database: set[tuple[str, int]], topic: dict[tuple[str, int], int], callers: CallerReports, found: list[str]
) -> None:
    assert anomalies(database, [Counter(topic)], callers) == found
