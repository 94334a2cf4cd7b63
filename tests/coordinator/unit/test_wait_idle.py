"""DualWrite.wait_idle: until no unit of work is open and none is pending."""

import gc
import threading
from collections.abc import Callable

import pytest

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.slots.abandoned_units import AbandonedUnits
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import write_unit

Make = Callable[..., DualWrite]


def test_a_dual_write_that_was_never_used_is_idle(dual_write: DualWrite) -> None:
    assert dual_write.wait_idle(0)


def test_wait_idle_returns_when_the_background_has_completed_the_pending_unit(
    dual_write: DualWrite, kafka: FakeKafka
) -> None:
    dual_write.recover()
    down = threading.Event()
    down.set()
    kafka.fault = lambda request: Fault.BEFORE if down.is_set() and request in ("commit", "init-keep") else Fault.NONE
    write_unit(dual_write, "one")
    assert not dual_write.wait_idle(0.05)
    assert dual_write.pending() == 1
    down.clear()
    assert dual_write.wait_idle(20)
    assert dual_write.pending() == 0
    assert kafka.committed == ["one"]


def test_wait_idle_waits_for_a_unit_of_work_of_another_thread(dual_write: DualWrite) -> None:
    in_block, go_on = threading.Event(), threading.Event()

    def unit() -> None:
        with dual_write.transaction():
            in_block.set()
            go_on.wait(20)

    thread = threading.Thread(target=unit)
    thread.start()
    assert in_block.wait(20)
    assert not dual_write.wait_idle(0.05)
    go_on.set()
    assert dual_write.wait_idle(20)
    thread.join()


def test_wait_idle_is_refused_inside_a_unit_of_work(dual_write: DualWrite) -> None:
    with dual_write.transaction(), pytest.raises(InvalidTransactionStateError, match="a unit of work is open"):
        dual_write.wait_idle()


class WatchedUnits(AbandonedUnits):
    """Tells that somebody has looked and found nothing."""

    def __init__(self) -> None:
        super().__init__("a")
        self.was_empty = threading.Event()

    def end(self) -> None:
        super().end()
        self.was_empty.set()


@pytest.mark.slow
def test_wait_idle_ends_a_unit_whose_block_is_collected_during_the_wait(dual_write: DualWrite) -> None:
    pool = manager_of(dual_write).process.pool
    left = [dual_write.transaction()]
    left[0].__enter__()
    pool.abandoned = abandoned = WatchedUnits()
    in_thread = threading.Thread(target=lambda: answers.append(dual_write.wait_idle(5)))  # sooner than a heartbeat
    answers: list[bool] = []
    in_thread.start()
    assert abandoned.was_empty.wait(5), "it has not looked"
    left.clear()
    gc.collect()
    in_thread.join()
    assert answers == [True]
    assert pool.users() == []
