"""The background: keeps trying, never twice at once, stops when told."""

import threading
from collections.abc import Callable

import pytest

from dualwrite.coordinator.concurrency.background import Background
from dualwrite.coordinator.process.this_process import THIS_PROCESS, ThisProcess
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.waiting import eventually

LONG = 20.0


def failing(times: int, error: Exception) -> tuple[Callable[[], None], list[int]]:
    """An act that fails ``times`` times, and the list of its calls."""
    calls: list[int] = []

    def act() -> None:
        calls.append(threading.get_ident())
        if len(calls) <= times:
            raise error

    return act, calls


def test_the_background_retries_until_it_succeeds() -> None:
    act, calls = failing(3, KafkaUnavailableError("down"))
    background = Background(THIS_PROCESS, act, "orders-0", first_delay=0.001)
    background.start()
    assert background.wait(LONG)
    assert len(calls) == 4
    assert not background.is_running
    assert background.last_error is None
    assert threading.get_ident() not in calls


def test_the_background_gives_up_when_the_lease_is_lost() -> None:
    act, calls = failing(9, LeaseLostError(Lease("a-0", 1)))
    background = Background(THIS_PROCESS, act, "orders-0")
    background.start()
    assert background.wait(LONG)
    assert len(calls) == 1
    assert isinstance(background.last_error, LeaseLostError)


def test_an_unexpected_error_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    act, calls = failing(1, ZeroDivisionError("bug"))
    background = Background(THIS_PROCESS, act, "orders-0", first_delay=0.001)
    background.start()
    assert background.wait(LONG)
    assert len(calls) == 2
    assert "bug" in caplog.text


def test_waiting_wakes_it_from_its_backoff() -> None:
    act, calls = failing(1, KafkaUnavailableError("down"))
    background = Background(THIS_PROCESS, act, "orders-0", first_delay=1000)
    background.start()
    assert background.wait(LONG)
    assert len(calls) == 2


class Crowded(ThisProcess):
    """A process that cannot start its first threads."""

    def __init__(self, refused: int = 1) -> None:
        self._start, self._refused = super().start_thread, refused

    def start_thread(self, act: Callable[[], None], name: str) -> object:  # type: ignore[override]
        if self._refused:
            self._refused -= 1
            raise RuntimeError("can't start new thread")
        return self._start(act, name)


@pytest.mark.parametrize("again", [Background.resume, Background.hurry])
def test_work_whose_thread_did_not_start_is_still_to_be_done(again: Callable[[Background], None]) -> None:
    act, calls = failing(0, KafkaUnavailableError("down"))
    background = Background(Crowded(), act, "orders-0")
    with pytest.raises(RuntimeError, match="can't start"):
        background.start()
    assert background.is_running
    again(background)
    assert eventually(lambda: not background.is_running, bool, LONG)
    assert len(calls) == 1


def test_work_that_finds_no_thread_when_it_is_closed_is_not_done() -> None:
    act, calls = failing(0, KafkaUnavailableError("down"))
    background = Background(Crowded(refused=3), act, "orders-0")
    background.start_or_leave()
    assert background.is_running
    assert not background.wait(0)
    assert not background.close(0)
    assert not calls


def test_an_interrupt_that_is_a_runtime_error_is_raised_where_a_refused_thread_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Crowded, "is_interrupt", lambda _, error: isinstance(error, RuntimeError))
    background = Background(Crowded(), lambda: None, "orders-0")
    with pytest.raises(RuntimeError, match="can't start"):
        background.start_or_leave()
    background.start_or_leave()
    assert background.wait(LONG)


def test_a_background_without_work_is_idle_and_closes_at_once() -> None:
    background = Background(THIS_PROCESS, lambda: pytest.fail("ran"), "orders-0")
    assert background.wait(0)
    assert background.close(0)


def test_a_start_while_it_runs_makes_it_run_once_more_and_never_twice_at_once() -> None:
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)
    at_once: list[int] = []
    inside = threading.Lock()

    def act() -> None:
        assert inside.acquire(blocking=False), "two at once"
        at_once.append(1)
        entered.release()
        assert go_on.acquire(timeout=LONG)
        inside.release()

    background = Background(THIS_PROCESS, act, "orders-0")
    background.start()
    assert entered.acquire(timeout=LONG)
    background.start()
    background.start()
    go_on.release()
    assert entered.acquire(timeout=LONG)
    assert background.is_running
    go_on.release()
    assert background.wait(LONG)
    assert len(at_once) == 2


def test_the_background_can_be_started_again_after_it_has_finished() -> None:
    act, calls = failing(0, KafkaUnavailableError("down"))
    background = Background(THIS_PROCESS, act, "orders-0")
    for _ in range(20):
        background.start()
        assert background.wait(LONG)
    assert len(calls) == 20


def test_close_stops_it_in_its_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.coordinator.concurrency.background.LONGEST_DELAY", 1000.0)
    act, calls = failing(99, KafkaUnavailableError("down"))
    tried = threading.Event()

    def try_once() -> None:
        tried.set()
        act()

    background = Background(THIS_PROCESS, try_once, "orders-0", first_delay=1000)
    background.start()
    assert tried.wait(LONG)
    assert not background.close(0.3), "it tries once more meanwhile"
    background.start()
    assert background.closed
    assert eventually(lambda: not background.is_running, bool, LONG), "the thread ends by itself once closed"
    assert 1 <= len(calls) <= 3


def test_a_wait_shorter_than_the_work_returns_false() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def act() -> None:
        entered.set()
        assert go_on.wait(LONG)

    background = Background(THIS_PROCESS, act, "orders-0")
    background.start()
    assert entered.wait(LONG)
    assert not background.wait(0.01), "the act goes on until it may end"
    go_on.set()
    assert background.wait(LONG)


def test_the_idle_callback_is_called_when_no_work_is_left() -> None:
    told = threading.Event()
    act, _ = failing(2, KafkaUnavailableError("down"))
    background = Background(
        THIS_PROCESS, act, "orders-0", lambda: told.set() if not background.is_running else None, 0.001
    )
    background.start()
    assert told.wait(LONG)


def test_an_error_that_lasts_ends_it_and_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    act, calls = failing(9, ConfigurationError("acks '1'"))
    background = Background(THIS_PROCESS, act, "orders-recovery", lasting=(ConfigurationError,))
    background.start()
    assert background.wait(LONG)
    assert (len(calls), background.is_running) == (1, False)
    assert [(line.levelname, line.getMessage(), line.exc_info) for line in caplog.records] == [
        ("ERROR", "orders-recovery: acks '1'", None)
    ]


def test_an_error_is_logged_once_as_long_as_it_stays_the_same(caplog: pytest.LogCaptureFixture) -> None:
    errors = [KafkaUnavailableError(text) for text in ("down", "down", "down", "refused", "refused", "down")]

    def act() -> None:
        if errors:
            raise errors.pop(0)

    background = Background(THIS_PROCESS, act, "orders-recovery", first_delay=0.001)
    with caplog.at_level("INFO", "dualwrite"):
        background.start()
        assert background.wait(LONG)
        for _ in range(6):
            background.wait(LONG)
    again = "; trying again until it succeeds, at intervals of up to 5 s"
    assert [line.getMessage() for line in caplog.records] == [
        f"orders-recovery: down{again}",
        f"orders-recovery: refused{again}",
        f"orders-recovery: down{again}",
        "orders-recovery: done, after errors",
    ]
    assert not any(line.exc_info for line in caplog.records)


def test_the_error_of_work_that_is_closed_promises_no_further_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dualwrite")
    began, may_fail = threading.Event(), threading.Event()

    def act() -> None:
        began.set()
        assert may_fail.wait(20)
        raise InvalidTransactionStateError("closed")

    background = Background(THIS_PROCESS, act, "orders-0")
    background.start()
    assert began.wait(20)
    assert not background.close(0)
    may_fail.set()
    assert background.wait(20)
    assert caplog.messages == ["orders-0: closed; not tried again, as it is closed"]
