"""The worker example: each order is invoiced once, in the table and in the topic, through kill -9 and rebalances."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.invoice_worker import INPUT, OUTPUT, Worker, invoices, metadata

HOME = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    broker = kafka_broker_factory()
    broker.create_topic(INPUT, partitions=3)
    return broker


@pytest.fixture
def engine(dualwrite_engine: Engine) -> Engine:
    metadata.create_all(dualwrite_engine)
    return dualwrite_engine


def place_orders(broker: KafkaBroker, first: int, count: int) -> None:
    producer = Producer({**broker.client_config})
    for number in range(first, first + count):
        order = {"number": str(number), "quantity": 2, "unit_cents": number}
        producer.produce(INPUT, key=str(number), value=json.dumps(order))
    assert producer.flush(30) == 0


def assert_invoiced_once(engine: Engine, broker: KafkaBroker, count: int) -> None:
    expected = {str(number): 2 * number for number in range(count)}
    sent = [json.loads(record.value or b"") for record in broker.read(OUTPUT, minimum=count, timeout=90)]
    assert len(sent) == count
    assert {invoice["order_number"]: invoice["cents"] for invoice in sent} == expected
    with engine.connect() as connection:
        assert {row.order_number: row.cents for row in connection.execute(select(invoices))} == expected


def test_a_worker_goes_on_where_the_last_one_ended(engine: Engine, broker: KafkaBroker) -> None:
    for run in (0, 1):
        place_orders(broker, first=30 * run, count=30)
        worker = Worker(engine, broker.client_config, "worker-1")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert_invoiced_once(engine, broker, 30 * (run + 1))
        finally:
            worker.stop()
            thread.join()


class Process:
    """The example as a program of its own."""

    def __init__(self, engine: Engine, broker: KafkaBroker, name: str) -> None:
        path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
        variables = {"DATABASE_URL": str(engine.url), "KAFKA": broker.bootstrap_servers, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [sys.executable, str(HOME / "examples" / "invoice_worker.py"), name], env={**os.environ, **variables}
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


@pytest.fixture
def start(engine: Engine, broker: KafkaBroker) -> Iterator[Callable[[str], Process]]:
    """Starts a worker process; whatever still runs at the end is killed."""
    started: list[Process] = []

    def start(name: str) -> Process:
        started.append(Process(engine, broker, name))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.crash
def test_each_order_is_invoiced_once_though_workers_are_killed_and_others_join(
    engine: Engine, broker: KafkaBroker, start: Callable[[str], Process]
) -> None:
    place_orders(broker, first=0, count=500)
    first = start("worker-1")
    broker.read(OUTPUT, minimum=1, timeout=60)
    first.kill()
    first, second = start("worker-1"), start("worker-2")
    for placed in (500, 1000):
        place_orders(broker, first=placed, count=500)
        broker.read(OUTPUT, minimum=placed + 1, timeout=60)
        first.kill()
        first = start("worker-1")
    assert_invoiced_once(engine, broker, 1500)
    assert (first.stop(), second.stop()) == (0, 0)
