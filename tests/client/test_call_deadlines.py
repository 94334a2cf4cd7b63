"""A deadline from outside: a call that does not return is abandoned, together with its caller's producer."""

import gc
import threading
import weakref
from typing import Any

import pytest

from dualwrite.client.librdkafka.deadline_calls import DeadlineCalls, WedgedError
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


def test_an_interrupt_leaves_the_call_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ended = DeadlineCalls(grace=20), threading.Event()

    class Interrupted:
        def get(self, timeout: float) -> Any:
            raise KeyboardInterrupt

        def put(self, answer: Any) -> None:
            pass

    calls.call("first", 1, lambda: None)
    monkeypatch.setattr("dualwrite.client.librdkafka.deadline_calls.queue.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        calls.call("send", 20, ended.wait)
    with pytest.raises(WedgedError):
        calls.call("abort", 20, lambda: None)
    ended.set()


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
