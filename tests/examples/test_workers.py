"""The worker examples: each record is used once, in the table and in the topic, through kill -9 and rebalances."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import Engine, Table, create_engine, select

from dualwrite.cli.db import upgrade
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.testing.kafka import KafkaBroker
from examples import invoice_worker, payment_worker
from tests.support.examples.programs import environment
from tests.support.servers.round_trip_proxy import TurnsProxy
from tests.support.waiting import eventually

HOME = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@dataclass
class Example:
    """One of the two: what it is given, and what becomes of it."""

    module: ModuleType
    worker: Callable[..., Any]
    table: Table

    def record(self, number: int) -> dict[str, Any]:
        """One of its input."""
        return {"number": str(number), "quantity": 2, "unit_cents": number, "cents": 2 * number}


EXAMPLES = [
    Example(invoice_worker, invoice_worker.InvoiceWorker, invoice_worker.invoices),
    Example(payment_worker, payment_worker.PaymentWorker, payment_worker.bookings),
]


@pytest.fixture(params=EXAMPLES, ids=["invoices", "payments"])
def example(request: pytest.FixtureRequest) -> Example:
    assert isinstance(request.param, Example)
    return request.param


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker], example: Example) -> KafkaBroker:
    broker = kafka_broker_factory()
    broker.create_topic(example.module.INPUT, partitions=3)
    return broker


@pytest.fixture
def engine(dualwrite_engine: Engine, example: Example) -> Engine:
    example.table.metadata.create_all(dualwrite_engine)
    return dualwrite_engine


def place(example: Example, broker: KafkaBroker, first: int, count: int) -> None:
    producer = Producer({**broker.client_config})
    for number in range(first, first + count):
        producer.produce(example.module.INPUT, key=str(number), value=json.dumps(example.record(number)))
    assert producer.flush(30) == 0


def assert_used_once(example: Example, engine: Engine, broker: KafkaBroker, count: int) -> None:
    expected = {str(number): 2 * number for number in range(count)}
    records = broker.read(example.module.OUTPUT, minimum=count, timeout=90)
    sent = [json.loads(record.value or b"") for record in records]
    assert len(sent) == count
    assert {(record.key or b"").decode(): each["cents"] for record, each in zip(records, sent, strict=True)} == expected
    with engine.connect() as connection:
        assert {row[0]: row[1] for row in connection.execute(select(example.table))} == expected


def test_a_worker_resumes_where_the_last_one_stopped(example: Example, engine: Engine, broker: KafkaBroker) -> None:
    for run in (0, 1):
        place(example, broker, first=30 * run, count=30)
        worker = example.worker(engine, broker.client_config)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert_used_once(example, engine, broker, 30 * (run + 1))
        finally:
            worker.stop()
            thread.join()


@pytest.mark.postgresql
@pytest.mark.parametrize("moment", ["before the assignment", "between two batches"])
def test_a_worker_outlives_a_database_that_is_down(
    example: Example,
    broker: KafkaBroker,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moment: str,
) -> None:
    upgrade(postgresql_url)
    server = create_engine(postgresql_url)
    example.table.metadata.create_all(server)
    way = TurnsProxy(postgresql_url)
    engine = create_engine(way.url)
    recover = DualWrite.recover

    def recover_and_cut(dual_write: DualWrite, **options: Any) -> Any:
        done = recover(dual_write, **options)
        if moment == "before the assignment":
            way.close()
        return done

    monkeypatch.setattr(DualWrite, "recover", recover_and_cut)
    place(example, broker, first=0, count=30)
    worker = example.worker(engine, broker.client_config)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        if moment == "between two batches":
            assert_used_once(example, server, broker, 30)
            way.close()
        place(example, broker, first=30, count=30)
        assert eventually(lambda: sum("once more" in record.getMessage() for record in caplog.records) >= 2)
        way = TurnsProxy(postgresql_url, way.port)
        assert_used_once(example, server, broker, 60)
    finally:
        worker.stop()
        thread.join()
        way.close()
        engine.dispose()
        server.dispose()


class ExampleProcess:
    """The example as a program of its own."""

    def __init__(self, example: Example, engine: Engine, broker: KafkaBroker) -> None:
        path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
        variables = {"DATABASE_URL": str(engine.url), "KAFKA": broker.bootstrap_servers, "PYTHONPATH": path}
        assert example.module.__file__ is not None
        self._process = subprocess.Popen([sys.executable, example.module.__file__], env={**os.environ, **variables})

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


@pytest.fixture
def start(example: Example, engine: Engine, broker: KafkaBroker) -> Iterator[Callable[[], ExampleProcess]]:
    """Starts a worker process; whatever still runs at the end is killed."""
    started: list[ExampleProcess] = []

    def start() -> ExampleProcess:
        started.append(ExampleProcess(example, engine, broker))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.crash
def test_each_record_is_used_once_though_workers_are_killed_and_others_join(
    example: Example, engine: Engine, broker: KafkaBroker, start: Callable[[], ExampleProcess]
) -> None:
    place(example, broker, first=0, count=500)
    first = start()
    broker.read(example.module.OUTPUT, minimum=1, timeout=60)
    first.kill()
    first, second = start(), start()
    for placed in (500, 1000):
        place(example, broker, first=placed, count=500)
        broker.read(example.module.OUTPUT, minimum=placed + 1, timeout=60)
        first.kill()
        first = start()
    assert_used_once(example, engine, broker, 1500)
    assert second.stop() == 0  # the first may not have come to where it listens to signals


@pytest.mark.parametrize("name", ["invoice_worker", "payment_worker"])
def test_a_worker_without_its_settings_names_them(name: str) -> None:
    given = {key: value for key, value in environment().items() if key not in ("DATABASE_URL", "KAFKA")}
    worker = [sys.executable, str(HOME / "examples" / f"{name}.py")]
    done = subprocess.run(worker, env=given, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("set DATABASE_URL and KAFKA: ")
