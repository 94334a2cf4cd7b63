"""The FastStream example as a process: each order is used once, through kill -9, an outage and orders of no use."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.faststream_shipments import DEAD_LETTERS, INPUT, OUTPUT, metadata, packed
from tests.support.examples.programs import environment
from tests.support.examples.strikes import Strikes
from tests.support.waiting import PATIENCE_SECONDS, eventually

LOG = "service.log"

pytestmark = pytest.mark.slow


@pytest.fixture
def partitions() -> int:
    """Of the input."""
    return 1


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker], partitions: int) -> KafkaBroker:
    broker = kafka_broker_factory()
    broker.create_topic(INPUT, partitions=partitions)
    for topic in (OUTPUT, DEAD_LETTERS):
        broker.create_topic(topic)
    return broker


@pytest.fixture
def start(
    dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts the service, with these strikes before it; whatever still runs at the end is killed."""
    metadata.create_all(dualwrite_engine)
    url = dualwrite_engine.url.set(drivername="sqlite+aiosqlite")
    given = {"DATABASE_URL": str(url), "KAFKA": broker.bootstrap_servers}
    command = [sys.executable, "-m", "tests.support.examples.struck_faststream"]
    started = []

    def start(strikes: Strikes) -> "subprocess.Popen[bytes]":
        with (tmp_path / LOG).open("ab") as log:
            variables = environment(**given, **strikes.environment)
            started.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
    print((tmp_path / LOG).read_text(encoding="utf-8", errors="replace"))


def place(broker: KafkaBroker, orders: Sequence[dict[str, Any]], **more: Any) -> None:
    producer = Producer(broker.client_config)
    for order in orders:
        producer.produce(INPUT, key=order["number"], value=json.dumps(order), **more)
    assert producer.flush(30) == 0


def orders_to(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"number": f"o-{number:03}", "kilograms": 1 + number % 30} for number in range(first, count)]


def assert_packed(engine: Engine, broker: KafkaBroker, orders: Sequence[dict[str, Any]]) -> None:
    """Both sides have each of ``orders`` once."""
    records = broker.read(OUTPUT, minimum=len(orders), timeout=PATIENCE_SECONDS)
    sent = [json.loads(record.value or b"") for record in records]
    assert sorted(sent, key=lambda order: str(order["number"])) == list(orders)
    with engine.connect() as connection:
        rows = connection.execute(select(packed).order_by(packed.c.number))
        assert [dict(row._mapping) for row in rows] == list(orders)


def committed_offset(broker: KafkaBroker) -> int:
    """How far the group has read the input, as Kafka's own tools would show it."""
    consumer = Consumer({**broker.client_config, "group.id": "packing", "isolation.level": "read_committed"})
    (position,) = consumer.committed([TopicPartition(INPUT, 0)], timeout=30)
    consumer.close()
    return int(position.offset)


@pytest.mark.crash
def test_each_order_is_used_once_though_the_service_is_killed_within_and_behind_its_unit_of_work(
    start: Callable[..., "subprocess.Popen[bytes]"], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    orders = orders_to(60)
    place(broker, orders)
    strikes = Strikes(tmp_path / "strikes", ["within-o-005", "behind-o-009", "within-o-030"])
    for left in (2, 1, 0):
        assert start(strikes).wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert len(strikes.left) == left
    service = start(strikes)
    assert_packed(dualwrite_engine, broker, orders)
    service.terminate()
    assert service.wait(PATIENCE_SECONDS) == 0
    assert_packed(dualwrite_engine, broker, orders)
    assert committed_offset(broker) == len(orders)


@pytest.mark.parametrize("partitions", [3])
def test_each_order_is_used_once_though_services_join_and_leave(
    start: Callable[..., "subprocess.Popen[bytes]"], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    strikes = Strikes(tmp_path / "strikes", ["within-o-250"])
    place(broker, orders_to(200))
    services = [start(strikes)]
    for placed in (200, 300, 400):
        broker.read(OUTPUT, minimum=placed - 150, timeout=PATIENCE_SECONDS)
        services.append(start(strikes))
        place(broker, orders_to(placed + 100, first=placed))
    assert_packed(dualwrite_engine, broker, orders_to(500))
    assert strikes.left == []
    log = tmp_path / LOG
    assert eventually(lambda: log.read_text(encoding="utf-8").count("app started successfully") == 4)
    living = [service for service in services if service.poll() is None]
    assert len(living) == 3
    for service in living:
        service.terminate()
        assert service.wait(PATIENCE_SECONDS) == 0
    assert_packed(dualwrite_engine, broker, orders_to(500))


def test_in_an_outage_of_kafka_the_service_waits_and_goes_on(
    start: Callable[..., "subprocess.Popen[bytes]"], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    place(broker, orders_to(200))
    service = start(Strikes(tmp_path / "strikes", []))
    broker.read(OUTPUT, minimum=20, timeout=PATIENCE_SECONDS)
    broker.stop()
    log = tmp_path / LOG
    assert eventually(lambda: "nothing was written, once more" in log.read_text(encoding="utf-8"))
    broker.start()
    place(broker, orders_to(220, first=200))
    assert_packed(dualwrite_engine, broker, orders_to(220))
    assert service.poll() is None


def test_orders_that_nothing_can_use_are_put_aside_in_their_own_units_of_work(
    start: Callable[..., "subprocess.Popen[bytes]"], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    good = orders_to(4)
    invalid, too_heavy = {"number": "invalid", "kilograms": "many"}, {"number": "too heavy", "kilograms": 31}
    place(broker, [good[0], invalid, good[1], too_heavy, good[0], *good[2:]])
    start(Strikes(tmp_path / "strikes", []))
    assert_packed(dualwrite_engine, broker, good)
    letters = broker.read(DEAD_LETTERS, minimum=3, timeout=PATIENCE_SECONDS)
    assert [json.loads(letter.value or b"") for letter in letters] == [invalid, too_heavy, good[0]]
    errors = [dict(letter.headers)["__connect.errors.exception.class.name"] for letter in letters]
    assert errors == [
        b"pydantic_core._pydantic_core.ValidationError",
        b"sqlalchemy.exc.IntegrityError",
        b"sqlalchemy.exc.IntegrityError",
    ]


def test_a_message_that_faststream_cannot_parse_stops_the_service_and_is_not_skipped(
    start: Callable[..., "subprocess.Popen[bytes]"], dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    place(broker, orders_to(1))
    place(broker, orders_to(2, first=1), headers={"trace": b"\xff"})
    place(broker, orders_to(3, first=2))
    strikes = Strikes(tmp_path / "strikes", [])
    for _ in range(2):
        assert start(strikes).wait(PATIENCE_SECONDS) == 1
        assert_packed(dualwrite_engine, broker, orders_to(1))
        assert committed_offset(broker) == 1


def test_the_service_without_its_settings_names_them() -> None:
    given = {key: value for key, value in environment().items() if key not in ("DATABASE_URL", "KAFKA")}
    command = [sys.executable, "-m", "examples.faststream_shipments"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("set DATABASE_URL and KAFKA: ")
