"""An exception out of a signal handler that strikes an observer is the caller's; what the observer raises is not."""

import functools
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.process.signal_handlers import is_from_signal_handler
from dualwrite.errors import CommittedError
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.recorder import Recorder, write
from tests.support.user_errors import LimitError

SIGNAL = signal.SIGUSR1


def strike(number: int, frame: FrameType | None) -> None:
    raise LimitError


def strike_as(kind: type[Exception], number: int, frame: FrameType | None) -> None:
    raise kind


class HandlerLimit:
    """As RQ's, whose handler is a method; or an object that is a handler itself."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        raise LimitError

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise LimitError


HANDLERS: dict[str, Any] = {
    "function": strike,
    "method": HandlerLimit().handle,
    "object": HandlerLimit(),
    "partial": functools.partial(strike_as, LimitError),
}


@pytest.fixture
def handle() -> Iterator[Callable[[Any], Any]]:
    before = signal.getsignal(SIGNAL)
    yield functools.partial(signal.signal, SIGNAL)
    signal.signal(SIGNAL, before)


class Struck(Recorder):
    """An observer that a signal strikes as it is told for the ``at``-th time."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at

    def note(self, what: Any) -> None:
        super().note(what)
        if len(self.told) == self.at:
            signal.raise_signal(SIGNAL)


def test_a_limit_that_strikes_an_observer_is_raised_with_the_units_outcome(
    make_dual_write: Callable[..., DualWrite], sqlite_engine: Engine, kafka: FakeKafka, handle: Callable[[Any], Any]
) -> None:
    handle(strike)
    dual_write = make_dual_write(lease_timeout=3600)
    struck: list[str] = []
    observer = Struck()
    dual_write.add_observer(observer)
    for at in range(1, 100):
        observer.told.clear()
        observer.at = at
        value = f"one {at}"
        try:
            write(dual_write, value)
        except LimitError:
            assert value not in stored_values(sqlite_engine), observer.told
        except CommittedError:
            assert value in stored_values(sqlite_engine), observer.told
        else:
            assert len(observer.told) < at, f"swallowed at {observer.told[-1]}"
            break
        struck.append(str(observer.told[at - 1]))
        observer.at = 0
        write(dual_write, f"after {at}")
        assert sorted(kafka.committed) == sorted(stored_values(sqlite_engine))
        assert kafka.ongoing is None
        assert sqlite_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert {"began", "orders-0", "BEGIN_DATABASE", "/STORE_STATE", "/COMMIT_DATABASE", "/COMMIT_KAFKA"} < set(struck)


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_limit_from_any_kind_of_signal_handler_is_raised(
    dual_write: DualWrite, handle: Callable[[Any], Any], kind: str
) -> None:
    handle(HANDLERS[kind])
    dual_write.add_observer(Struck(3))
    with pytest.raises(LimitError):
        write(dual_write)


def test_an_observers_own_error_is_swallowed_while_handlers_are_set(
    dual_write: DualWrite, handle: Callable[[Any], Any], sqlite_engine: Engine
) -> None:
    handle(strike)
    dual_write.add_observer(Recorder(raises=LimitError))
    write(dual_write)
    assert stored_values(sqlite_engine) == ["one"]


def test_an_exception_without_a_traceback_is_not_from_a_signal_handler(handle: Callable[[Any], Any]) -> None:
    handle(strike)
    assert not is_from_signal_handler(LimitError())
