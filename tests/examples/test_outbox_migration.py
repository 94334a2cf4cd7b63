"""The migration from an outbox: nothing is lost, doubled or overtaken, whichever step of a unit of work fails."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select

from dualwrite import DualWrite, KafkaUnavailableError
from dualwrite.testing.kafka import KafkaBroker
from examples import outbox_migration as example
from examples.outbox_migration import TOPIC, customers, metadata, orders, outbox, place_order, relay
from tests.support.examples.programs import EXAMPLES
from tests.support.spark.lock_waits import await_waiting

STEPS = ["BEGIN_DATABASE", "BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]


class FailedOnPurposeError(Exception):
    """What the step that is to fail raises."""


@pytest.fixture
def engine(dualwrite_engine: Engine) -> Engine:
    metadata.create_all(dualwrite_engine)
    return dualwrite_engine


@pytest.fixture
def customer(engine: Engine) -> str:
    """Whose orders no other test places: the tests share a broker, and so the topic."""
    return known(engine, uuid.uuid4().hex)


def known(engine: Engine, name: str) -> str:
    """Store a customer."""
    with engine.begin() as connection:
        connection.execute(insert(customers).values(name=name))
    return name


def place_order_by_outbox(engine: Engine, customer: str, item: str) -> None:
    with engine.begin() as connection:
        example.place_order_by_outbox(connection, customer, item)


def waiting(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(outbox.c.payload).order_by(outbox.c.id)))


def sent(broker: KafkaBroker, customer: str) -> list[str]:
    return [(record.value or b"").decode() for record in broker.read(TOPIC) if record.key == customer.encode()]


def drain(dw: DualWrite) -> None:
    stopping = threading.Event()
    stopping.set()
    relay(dw, stopping)


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", STEPS)
def test_a_relay_that_fails_loses_and_doubles_nothing(
    step: str, engine: Engine, customer: str, dualwrite_factory: Callable[..., DualWrite], kafka_broker: KafkaBroker
) -> None:
    still_to_fail = [step]

    def fail_once(step: str) -> None:
        if step in still_to_fail:
            still_to_fail.remove(step)
            raise FailedOnPurposeError(step)

    for item in ("tea", "cake", "milk"):
        place_order_by_outbox(engine, customer, item)
    dw = dualwrite_factory(on_step=fail_once)
    try:
        drain(dw)
    except FailedOnPurposeError:
        assert (waiting(engine), sent(kafka_broker, customer)) == (["tea", "cake", "milk"], [])
        drain(dw)
    assert still_to_fail == []
    dw.close()  # what failed after the decision is finished in the background
    assert (waiting(engine), sent(kafka_broker, customer)) == ([], ["tea", "cake", "milk"])


def test_a_dual_write_overtakes_nothing_of_its_customer_in_the_outbox(
    engine: Engine, customer: str, dualwrite: DualWrite, kafka_broker: KafkaBroker
) -> None:
    place_order_by_outbox(engine, customer, "tea")
    place_order_by_outbox(engine, known(engine, "another"), "coffee")
    place_order_by_outbox(engine, customer, "cake")
    place_order(dualwrite, customer, "milk")
    assert sent(kafka_broker, customer) == ["tea", "cake", "milk"]
    assert waiting(engine) == ["coffee"]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(orders)) == 4
        assert connection.scalar(select(customers.c.placed).where(customers.c.name == customer)) == 3


@pytest.mark.postgresql
def test_a_dual_write_waits_for_an_old_instance_that_has_not_committed_its_message(
    postgresql_url: str, dualwrite_factory: Callable[..., DualWrite], kafka_broker: KafkaBroker
) -> None:
    engine = create_engine(postgresql_url)
    metadata.create_all(engine)
    customer = known(engine, uuid.uuid4().hex)
    dw = dualwrite_factory(engine=engine)
    with engine.connect() as old, ThreadPoolExecutor(1) as pool:
        example.place_order_by_outbox(old, customer, "tea")
        placing = pool.submit(place_order, dw, customer, "milk")
        await_waiting(engine, 1, unless=placing)
        old.commit()
        placing.result()
    assert (waiting(engine), sent(kafka_broker, customer)) == ([], ["tea", "milk"])
    dw.close()
    engine.dispose()


def test_the_relay_goes_on_after_an_outage(
    engine: Engine, customer: str, dualwrite_factory: Callable[..., DualWrite], kafka_broker: KafkaBroker
) -> None:
    failed = threading.Event()

    def is_down(step: str) -> None:
        if step == "PREPARE_KAFKA" and not failed.is_set():
            failed.set()
            raise KafkaUnavailableError("as if no broker answered")

    place_order_by_outbox(engine, customer, "tea")
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        relaying = pool.submit(relay, dualwrite_factory(on_step=is_down), stopping, 0.01)
        assert failed.wait(60)
        assert [record.key for record in kafka_broker.read(TOPIC, minimum=1)]
        stopping.set()
        relaying.result()
    assert (waiting(engine), sent(kafka_broker, customer)) == ([], ["tea"])


def test_the_relay_goes_on_until_it_is_stopped_and_nothing_is_left(
    engine: Engine, customer: str, dualwrite: DualWrite, kafka_broker: KafkaBroker
) -> None:
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        relaying = pool.submit(relay, dualwrite, stopping, 0.01)
        for number in range(5):
            place_order_by_outbox(engine, customer, str(number))
        assert [record.key for record in kafka_broker.read(TOPIC, minimum=1)]
        stopping.set()
        relaying.result()
    assert (waiting(engine), sent(kafka_broker, customer)) == ([], ["0", "1", "2", "3", "4"])


@pytest.mark.slow
def test_the_outbox_migration_example_runs(tmp_path: Path) -> None:
    program = str(EXAMPLES / "outbox_migration.py")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("the outbox is empty and gone\n", "")
