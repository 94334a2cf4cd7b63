"""The verb in progress: it forbids a second one, and its wait ends with its event."""

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.errors import InvalidTransactionStateError, PrepareFailedError
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver

_LATER = 10.0


@pytest.fixture
def driver() -> SimulatedDriver:
    """A producer in a transaction, in which each record is a batch of its own."""
    made = SimulatedDriver(SimulatedCluster(), batch_records=1)
    made.init()
    made.begin(b"first")
    made.commit()
    made.begin()
    return made


def ignore(error: Any, record: Any) -> None:
    """A delivery callback."""


@pytest.mark.parametrize(
    ("called", "call"),
    [
        ("abort_transaction()", lambda engine, now: engine.abort_transaction(now)),
        ("flush()", lambda engine, now: engine.flush(now)),
        ("produce()", lambda engine, now: engine.room(now)),
        ("poll()", lambda engine, now: engine.await_report(now, now)),
    ],
)
def test_a_second_call_is_refused_by_its_own_name(
    driver: SimulatedDriver, called: str, call: Callable[[Engine, float], object]
) -> None:
    driver.produce(b"a")
    operation = driver.engine.prepare_transaction(driver.now)
    with pytest.raises(InvalidTransactionStateError) as refused:
        call(driver.engine, driver.now)
    assert str(refused.value) == f"{called}: another call of the producer is in progress"
    assert driver.run(operation)


def test_a_wait_for_a_callback_ends_with_the_first_that_is_due(driver: SimulatedDriver) -> None:
    driver.produce(b"a", b"b", on_delivery=ignore)
    began = driver.now
    driver.run(driver.engine.await_report(began, began + _LATER))
    assert driver.engine.has_reports
    assert driver.engine.unacknowledged == 1
    assert driver.now == began, "it waited for its last moment"


def test_a_wait_for_a_callback_ends_when_none_can_come(driver: SimulatedDriver) -> None:
    driver.produce(b"a", b"b")
    began = driver.now
    driver.run(driver.engine.await_report(began, began + _LATER))
    assert driver.engine.unacknowledged == 0
    assert driver.now == began, "it waited for its last moment"


def test_an_interrupt_before_a_call_has_its_result_ends_its_wait(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def struck(_operation: Operation, _result: object = None) -> None:
        raise KeyboardInterrupt

    driver.produce(b"a")
    operation = driver.engine.flush(driver.now)
    with monkeypatch.context() as patched:
        patched.setattr(Operation, "succeed", struck)
        with pytest.raises(KeyboardInterrupt):
            driver.run(operation)
    driver.engine.interrupted()
    assert operation.is_done, "a task would wait for it for ever"
    with pytest.raises(PrepareFailedError, match="interrupted"):
        operation.outcome()
