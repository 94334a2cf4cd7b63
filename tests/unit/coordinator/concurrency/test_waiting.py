"""Waiting and waking: what is waited for is noticed, and an exception at any place leaves nothing locked."""

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from dualwrite.coordinator.concurrency import waiting
from dualwrite.coordinator.concurrency.waiting import Bell, Flag, TaskThread, Ticket
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS, ThisProcess
from tests.support.striking import PACKAGE, Striker
from tests.support.user_errors import LimitError

LONG = 20.0
MODULE = str(Flag.set.__code__.co_filename)

T = TypeVar("T")


def ends_in_a_thread(act: Callable[[], object]) -> bool:
    """True if ``act`` returns in another thread."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def strike_everywhere(
    make: Callable[[], T], act: Callable[[T], object], check: Callable[[T, str], None], package: str
) -> list[str]:
    """Strike ``act`` at each of its places, one run for each, and ``check`` after each run; the places."""
    places: list[str] = []
    while True:
        made = make()
        striker = Striker(len(places) + 1, LimitError(), package)
        with suppress(LimitError), striker:
            act(made)
        if not striker.where:
            return places
        check(made, striker.where)
        places.append(striker.where)


def test_negative_control_the_striker_finds_pythons_condition_left_locked() -> None:
    torn: list[str] = []

    def use(condition: threading.Condition) -> None:
        with condition:
            pass

    def check(condition: threading.Condition, where: str) -> None:
        taken: list[bool] = []
        assert ends_in_a_thread(lambda: taken.append(condition.acquire(blocking=False)))
        if not taken[0]:
            torn.append(where)

    strike_everywhere(threading.Condition, use, check, __file__)
    assert any("(__enter__" in where for where in torn)


def test_a_flag_that_was_struck_can_be_set_and_waited_for() -> None:
    def use(flag: Flag) -> None:
        flag.wait(0)
        flag.set()
        flag.wait(LONG)
        flag.clear()

    def check(flag: Flag, where: str) -> None:
        assert ends_in_a_thread(flag.set), where
        assert ends_in_a_thread(lambda: flag.wait(LONG)), where

    assert len(strike_everywhere(lambda: Flag(THIS_PROCESS), use, check, MODULE)) > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Thread.start's own, cut short
def test_a_worker_whose_start_was_struck_can_be_started_and_never_runs_twice_at_once() -> None:
    ran = threading.Semaphore(0)

    def make() -> TaskThread:
        inside = threading.Lock()  # of this worker: on a busy machine the last one's thread may come late

        def act() -> None:
            assert inside.acquire(blocking=False), "two at once"
            inside.release()
            ran.release()

        return TaskThread(THIS_PROCESS, act, "test")

    def check(worker: TaskThread, where: str) -> None:
        for _ in range(2):
            worker.start()
            assert worker.join(LONG), where
        assert not worker.is_running, where
        assert ran.acquire(timeout=LONG), where

    places = strike_everywhere(make, TaskThread.start, check, PACKAGE)
    assert any("threading.py" in where for where in places)


def test_a_flag_wakes_the_threads_that_wait_and_lets_later_ones_pass() -> None:
    flag = Flag(THIS_PROCESS)
    woken = threading.Semaphore(0)
    threads = [threading.Thread(target=lambda: flag.wait(LONG) and woken.release(), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.wait(0)
    flag.set()
    for _ in threads:
        assert woken.acquire(timeout=LONG)
    assert flag.is_set()
    assert flag.wait(0)
    flag.clear()
    assert not flag.wait(0.001)


def test_a_change_after_a_look_wakes_the_ticket_drawn_before_it() -> None:
    bell = Bell(THIS_PROCESS)
    changed: list[bool] = []

    def look() -> bool:
        if not changed:
            changed.append(True)
            bell.ring()
            return False
        return True

    assert bell.wait(look, LONG)


def test_a_lost_wake_up_is_made_up_for_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.coordinator.concurrency.waiting.LOOK_INTERVAL", 0.001)
    looks: list[int] = []
    assert Bell(THIS_PROCESS).wait(lambda: looks.append(1) or len(looks) > 5, LONG)  # type: ignore[func-returns-value]


def test_a_wait_that_lasts_keeps_no_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat waits for a flag that is set at the end of the process: a ticket a second would be kept."""
    drawn: list[weakref.ref[Ticket]] = []

    def noted(runtime: Runtime) -> Ticket:
        ticket = Ticket(runtime)
        drawn.append(weakref.ref(ticket))
        return ticket

    monkeypatch.setattr(waiting, "LOOK_INTERVAL", 0.001)
    monkeypatch.setattr(waiting, "Ticket", noted)
    bell, looks = Bell(THIS_PROCESS), iter([False] * 20)
    assert bell.wait(lambda: next(looks, True), LONG)
    assert not bell.wait(lambda: False, 0.01)
    assert len(drawn) > 10
    assert not [ticket for ticket in drawn if ticket() is not None]


def test_a_bell_that_rings_in_many_threads_rings_once_for_each_ticket() -> None:
    bell = Bell(THIS_PROCESS)
    tickets = [bell.draw() for _ in range(200)]
    threads = [threading.Thread(target=bell.ring) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ticket in tickets:
        ticket.wait(0)
        ticket.ring()
    assert not bell.wait(lambda: False, 0)


def test_a_worker_runs_once_more_if_there_is_more_and_tells_when_it_is_idle() -> None:
    left = [1, 2, 3]
    idle = threading.Event()
    worker = TaskThread(
        THIS_PROCESS, lambda: None if not left else left.pop() and None, "test", lambda: bool(left), idle.set
    )
    assert worker.start()
    assert idle.wait(LONG)
    assert worker.join(LONG)
    assert left == []


class LateThreads(ThisProcess):
    """Threads that begin when the test runs them. The first start is interrupted after it has made its thread."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def start_thread(self, act: Callable[[], object], name: str) -> object:  # type: ignore[override]
        thread = threading.Thread(target=act, name=name, daemon=True)
        self.threads.append(thread)
        if len(self.threads) == 1:
            raise LimitError
        return thread


def test_a_thread_that_was_started_in_vain_does_no_work_and_leaves_the_worker_to_the_other() -> None:
    runtime, begun, released, runs = LateThreads(), threading.Event(), threading.Event(), []

    def act() -> None:
        runs.append(threading.current_thread())
        begun.set()
        released.wait(LONG)

    worker = TaskThread(runtime, act, "test")
    with pytest.raises(LimitError):
        worker.start()
    assert worker.start()
    assert (worker.is_running, worker.start()) == (True, False), "its thread is about to begin"
    first, second = runtime.threads
    first.start()
    assert begun.wait(LONG)
    second.start()
    second.join(LONG)
    assert (runs, worker.is_running) == ([first], True)
    assert not worker.start()
    released.set()
    first.join(LONG)
    assert worker.join(LONG)


def test_a_worker_whose_work_raised_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def fail() -> None:
        raise LimitError

    worker = TaskThread(THIS_PROCESS, fail, "test")
    for count in (1, 2):
        assert worker.start()
        assert worker.join(LONG)
        assert Bell(THIS_PROCESS).wait(lambda count=count: len(raised) == count, LONG)  # type: ignore[misc]
