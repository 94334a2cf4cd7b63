"""A deadline from outside: a call that does not return is abandoned, together with its caller's producer."""

import gc
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.librdkafka.deadline_calls import DeadlineCalls, HeldCallbacks, WedgedError
from dualwrite.client.threads import start_thread
from dualwrite.errors import KafkaUnavailableError


def test_a_bounded_call_passes_on_the_result_and_the_exception() -> None:
    calls = DeadlineCalls(grace=20)
    assert calls.call("one", 1, lambda: 7) == 7
    with pytest.raises(KeyError, match="lost"):
        calls.call("two", 1, lambda: {}["lost"])
    assert not calls.is_wedged
    calls.close()


def test_all_calls_are_made_in_one_thread_that_ends_when_it_is_closed() -> None:
    calls = DeadlineCalls(grace=20)
    threads = {calls.call("x", 1, threading.current_thread) for _ in range(3)}
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.daemon
    calls.close()
    thread.join(20)
    assert not thread.is_alive()
    calls.close()


def test_a_call_after_a_close_is_made_in_another_thread() -> None:
    calls = DeadlineCalls(grace=20)
    first = calls.call("x", 1, threading.current_thread)
    calls.close()
    first.join(20)
    assert calls.call("x", 1, threading.current_thread) is not first
    calls.close()


def test_an_exit_that_a_users_function_asks_for_in_a_call_is_the_callers() -> None:
    calls = DeadlineCalls(grace=20)
    with pytest.raises(SystemExit, match="stop"):
        calls.call("send", 1, lambda: sys.exit("stop"))
    assert calls.call("abort", 1, lambda: 7) == 7
    calls.close()


def test_after_a_hanging_call_every_later_call_is_refused() -> None:
    calls, ended = DeadlineCalls(grace=0.01), threading.Event()
    made: list[str] = []
    with pytest.raises(WedgedError, match=r"send: librdkafka did not return within 0.02 s") as raised:
        calls.call("send", 0.01, ended.wait)
    assert isinstance(raised.value, KafkaUnavailableError)
    assert raised.value.retriable
    with pytest.raises(WedgedError, match="abort: an earlier call"):
        calls.call("abort", 20, lambda: made.append("abort"))
    calls.close()
    ended.set()
    assert not made


def test_a_call_has_the_grace_beyond_its_own_timeout() -> None:
    calls = DeadlineCalls(grace=20)
    assert calls.call("send", 0, lambda: threading.Event().wait(0.1)) is False
    assert not calls.is_wedged
    calls.close()


class StruckQueue(queue.SimpleQueue[Any]):
    """A queue that a signal handler strikes in the main thread, right after it has taken something."""

    is_struck = False

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        if StruckQueue.is_struck and threading.current_thread() is threading.main_thread():
            StruckQueue.is_struck = False
            raise KeyboardInterrupt


def test_an_interrupt_as_a_call_is_handed_over_leaves_it_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.client.librdkafka.deadline_calls.queue.SimpleQueue", StruckQueue)
    calls, ended = DeadlineCalls(grace=20), threading.Event()
    calls.call("first", 1, lambda: None)
    monkeypatch.setattr(StruckQueue, "is_struck", True)
    with pytest.raises(KeyboardInterrupt):
        calls.call("send", 20, lambda: ended.wait(20))
    with pytest.raises(WedgedError, match="abort: an earlier call"):
        calls.call("abort", 20, lambda: None)
    ended.set()
    calls.close()


class InterruptedQueue:
    """Stands for the queue of an answer: the wait for it is interrupted."""

    def get(self, timeout: float) -> Any:
        raise KeyboardInterrupt

    def put(self, answer: Any) -> None:
        pass


def interrupt_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.client.librdkafka.deadline_calls.queue.SimpleQueue", InterruptedQueue)


def test_an_interrupt_leaves_the_call_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ended = DeadlineCalls(grace=20), threading.Event()
    calls.call("first", 1, lambda: None)
    interrupt_waits(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        calls.call("send", 20, ended.wait)
    with pytest.raises(WedgedError):
        calls.call("abort", 20, lambda: None)
    ended.set()


class Reports:
    """The delivery reports that a user's callback has got, each with its thread."""

    def __init__(self) -> None:
        self.callbacks = HeldCallbacks()
        self.seen: list[tuple[str, threading.Thread]] = []
        self.report = self.callbacks.to(lambda _, message: self.seen.append((message, threading.current_thread())))


def test_a_call_that_fails_keeps_no_report_back() -> None:
    calls, reports = DeadlineCalls(grace=20), Reports()

    def abort() -> None:
        reports.report(None, "purged")
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"), reports.callbacks.held(calls):
        calls.call("abort", 1, abort)
    reports.report(None, "later")
    calls.close()
    here = threading.current_thread()
    assert reports.seen == [("purged", here), ("later", here)]


def test_a_callback_that_raises_after_a_call_keeps_no_report_of_the_others_back() -> None:
    calls, reports = DeadlineCalls(grace=20), Reports()

    def fails(_error: object, _message: object) -> None:
        raise ZeroDivisionError("a callback's")

    def abort() -> None:
        reports.report(None, "first")
        reports.callbacks.to(fails)(None, "second")
        reports.report(None, "third")

    with pytest.raises(ZeroDivisionError, match="a callback's"), reports.callbacks.held(calls):
        calls.call("abort", 1, abort)
    calls.close()
    assert [message for message, _ in reports.seen] == ["first", "third"]


def test_a_call_that_an_interrupt_left_behind_reports_nothing_in_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, reports = DeadlineCalls(grace=20), Reports()
    goes_on, has_reported = threading.Event(), threading.Event()

    def abort() -> None:
        assert goes_on.wait(20)
        reports.report(None, "purged")
        has_reported.set()

    calls.call("first", 1, lambda: None)
    interrupt_waits(monkeypatch)
    with pytest.raises(KeyboardInterrupt), reports.callbacks.held(calls):
        calls.call("abort", 20, abort)
    goes_on.set()
    assert has_reported.wait(20)
    assert reports.seen == []


def test_a_call_that_has_returned_keeps_no_object_alive() -> None:
    class Producer:
        def send(self) -> None:
            pass

    calls, gone = DeadlineCalls(grace=20), threading.Event()
    producer = Producer()
    weakref.finalize(producer, gone.set)
    calls.call("send", 1, producer.send)
    del producer
    assert gone.wait(20), "the thread still refers to it while it waits for the next call"
    calls.close()


def test_an_interrupted_start_of_the_thread_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def struck(target: Callable[..., object], name: str, *arguments: Any) -> threading.Thread:
        started.append(start_thread(target, name, *arguments))
        raise KeyboardInterrupt

    calls = DeadlineCalls(grace=20)
    with monkeypatch.context() as patched:
        patched.setattr("dualwrite.client.librdkafka.deadline_calls.start_thread", struck)
        with pytest.raises(KeyboardInterrupt):
            calls.call("send", 1, lambda: None)
    (thread,) = started
    thread.join(20)
    assert not thread.is_alive()
    assert calls.call("send", 1, lambda: 7) == 7
    calls.close()


def test_a_late_call_releases_its_object_when_it_returns() -> None:
    class Producer:
        def send(self) -> None:
            ended.wait(20)

    calls, ended = DeadlineCalls(grace=0.01), threading.Event()
    producer = Producer()
    gone = threading.Event()
    weakref.finalize(producer, gone.set)
    with pytest.raises(WedgedError):
        calls.call("send", 0.01, producer.send)
    calls.close()
    del producer
    gc.collect()
    assert not gone.is_set()
    ended.set()
    assert gone.wait(20)
