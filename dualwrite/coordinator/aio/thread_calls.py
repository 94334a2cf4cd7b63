"""Calls in the threads of an executor."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def submitted(threads: Executor, act: Callable[[], T]) -> Future[T]:
    """The call of ``act`` in one of ``threads``.

    An executor that can start no thread raises RuntimeError, and keeps the call: a thread that is busy now would make
    it later. Here such a call is never made.

    :raises RuntimeError: if no thread can be started, and none has the call.
    """
    call: Future[T] = Future()
    try:
        threads.submit(_carry_out, call, act)
    except BaseException as error:
        if call.cancel() or type(error) is not RuntimeError:  # no interrupt is lost
            raise
    return call


def _carry_out(call: "Future[T]", act: Callable[[], T]) -> None:
    try:
        if call.set_running_or_notify_cancel():
            call.set_result(act())
    except BaseException as error:  # noqa: BLE001 - raised to the one who waits
        call.set_exception(error)
    finally:
        del call  # the error's traceback has this frame
