"""The example with dead letters: orders that cannot be used are put aside once, through kill -9, and no other is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.dead_letter_worker import DEAD_LETTERS, INPUT, OUTPUT, metadata, shipments
from tests.support.examples.programs import EXAMPLES, environment

PROGRAM = [sys.executable, str(EXAMPLES / "dead_letter_worker.py")]

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    broker = kafka_broker_factory()
    broker.create_topic(INPUT, partitions=2)
    broker.create_topic(DEAD_LETTERS)
    return broker


@pytest.fixture
def engine(dualwrite_engine: Engine) -> Engine:
    metadata.create_all(dualwrite_engine)
    return dualwrite_engine


@pytest.fixture
def start(engine: Engine, broker: KafkaBroker) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts the program; each process is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    variables = environment(DATABASE_URL=str(engine.url), KAFKA=broker.bootstrap_servers)

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(PROGRAM, env=variables))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def order(number: int) -> bytes:
    """Every tenth cannot be used, each for a reason of its own."""
    poison = {0: b"no JSON", 10: b"{}", 20: json.dumps({"number": "20", "address": "a", "kilograms": 0}).encode()}
    return poison.get(number, json.dumps({"number": str(number), "address": "a", "kilograms": 1 + number}).encode())


@pytest.mark.crash
def test_poison_orders_are_put_aside_once(
    engine: Engine, broker: KafkaBroker, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    producer = Producer({**broker.client_config})
    for number in range(40):
        producer.produce(INPUT, key=str(number), value=order(number))
    assert producer.flush(30) == 0
    worker = start()
    broker.read(DEAD_LETTERS, minimum=1, timeout=60)
    worker.kill()
    worker.wait()
    worker = start()
    used = [str(number) for number in range(40) if number not in (0, 10, 20)]
    sent = broker.read(OUTPUT, minimum=len(used), timeout=90)
    assert sorted((record.key or b"").decode() for record in sent) == sorted(used)
    letters = broker.read(DEAD_LETTERS, minimum=3, timeout=60)
    assert sorted(((record.key or b"").decode(), record.value) for record in letters) == [
        ("0", order(0)),
        ("10", order(10)),
        ("20", order(20)),
    ]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    with engine.connect() as connection:
        assert sorted(connection.scalars(select(shipments.c.order_number))) == sorted(used)


def test_without_its_settings_it_names_them() -> None:
    given = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "KAFKA")}
    given["PYTHONPATH"] = environment()["PYTHONPATH"]
    done = subprocess.run(PROGRAM, env=given, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("set DATABASE_URL and KAFKA: ")
