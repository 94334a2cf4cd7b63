"""The Celery example in a real worker: each task is on both sides once, though processes of the pool are killed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.testing.kafka import KafkaBroker
from examples.celery_shipments import TOPIC, announce, announced, done_tasks
from tests.support.examples.celery_worker import CeleryWorker
from tests.support.examples.strikes import Strikes

NUMBERS = [f"o-{number}" for number in range(20)]

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def work(dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path) -> Iterator[Callable[..., CeleryWorker]]:
    """Starts the worker, with these strikes before it."""
    with ExitStack() as stack:

        def start(strikes: Strikes) -> CeleryWorker:
            urls = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
            module = "tests.support.examples.struck_celery"
            return stack.enter_context(CeleryWorker(module, {**urls, **strikes.environment}, tmp_path / "celery"))

        yield start


def in_both(engine: Engine, broker: KafkaBroker, count: int) -> list[str]:
    """The numbers on both sides, which are the same."""
    records = [(record.key or b"").decode() for record in broker.read(TOPIC, minimum=count, timeout=60)]
    with engine.connect() as connection:
        rows = list(connection.scalars(select(announced.c.number).order_by(announced.c.number)))
        assert connection.scalar(select(func.count()).select_from(done_tasks)) == len(rows)
    assert sorted(records) == rows
    return rows


@pytest.mark.crash
def test_each_task_is_done_once_though_processes_are_killed_within_and_behind_its_unit_of_work(
    work: Callable[..., CeleryWorker], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    strikes = Strikes(tmp_path / "strikes", ["within-o-3", "behind-o-4", "behind-o-12"])
    worker = work(strikes)
    for number in NUMBERS:
        worker.send(announce, [number, 2])
    worker.wait_for("succeeded in", count=len(NUMBERS))
    assert strikes.left == []
    log = worker.log()
    assert log.count("exited with 'signal 9 (SIGKILL)'") == 3
    assert log.count("'done already'") == 2, "the second runs of the tasks that were struck behind their units"
    assert in_both(dualwrite_engine, broker, len(NUMBERS)) == sorted(NUMBERS)
    assert worker.stop() == 0


def test_a_task_that_celery_delivers_twice_is_done_once(
    work: Callable[..., CeleryWorker], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    worker = work(Strikes(tmp_path / "strikes", []))
    for _ in range(2):
        worker.send(announce, ["o-1", 2], task_id="the same")
    worker.wait_for("succeeded in", count=2)
    assert worker.log().count("'done already'") == 1
    assert in_both(dualwrite_engine, broker, 1) == ["o-1"]


def test_an_outage_of_kafka_is_retried_by_celery(
    work: Callable[..., CeleryWorker], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    worker = work(Strikes(tmp_path / "strikes", []))
    worker.send(announce, ["o-1", 2])
    worker.wait_for("succeeded in")
    broker.stop()
    worker.send(announce, ["o-2", 2])
    worker.wait_for("retry: Retry in 1s")
    with dualwrite_engine.connect() as connection:
        assert list(connection.scalars(select(announced.c.number))) == ["o-1"]
    broker.start()
    worker.wait_for("succeeded in", count=2)
    assert in_both(dualwrite_engine, broker, 2) == ["o-1", "o-2"]


def test_a_worker_that_is_stopped_gives_its_slots_back(
    work: Callable[..., CeleryWorker], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    worker = work(Strikes(tmp_path / "strikes", []))
    for number in NUMBERS[:10]:
        worker.send(announce, [number, 2])
    worker.wait_for("succeeded in", count=10)
    with dualwrite_engine.connect() as connection:
        owners = select(kafka_transaction_state.c.owner)
        assert any(connection.scalars(owners))
    assert worker.stop() == 0
    with dualwrite_engine.connect() as connection:
        assert set(connection.scalars(owners)) == {""}
    assert in_both(dualwrite_engine, broker, 10) == sorted(NUMBERS[:10])
