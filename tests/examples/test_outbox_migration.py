"""The migration from an outbox: nothing is lost, doubled or overtaken, whichever step of a unit of work fails."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select

from dualwrite import DualWrite
from dualwrite.testing.kafka import KafkaBroker
from examples.outbox_migration import TOPIC, metadata, orders, outbox, place_order, place_order_by_outbox, relay
from tests.support.examples.programs import EXAMPLES

STEPS = ["BEGIN_DATABASE", "BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]


class FailedOnPurposeError(Exception):
    """What the step that is to fail raises."""


@pytest.fixture
def engine(dualwrite_engine: Engine) -> Engine:
    metadata.create_all(dualwrite_engine)
    return dualwrite_engine


@pytest.fixture
def customer() -> str:
    """Whose orders no other test places: the tests share a broker, and so the topic."""
    return uuid.uuid4().hex


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
    place_order_by_outbox(engine, "another", "coffee")
    place_order_by_outbox(engine, customer, "cake")
    place_order(dualwrite, customer, "milk")
    assert sent(kafka_broker, customer) == ["tea", "cake", "milk"]
    assert waiting(engine) == ["coffee"]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(orders)) == 4


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
def test_it_runs_as_it_stands(tmp_path: Path) -> None:
    program = str(EXAMPLES / "outbox_migration.py")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("the outbox is empty and gone\n", "")
