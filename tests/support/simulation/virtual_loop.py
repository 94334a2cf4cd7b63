"""An event loop of asyncio without sockets, selector and threads: its time is the scheduler's.

A turn of the loop is an event of the scheduler. Between two steps of a turn the process may be killed. What would run
in a worker thread runs later, in one piece; its end is known later still.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from tests.support.simulation.scheduler import SimulatedProcess

WORK = 0.004
"""The longest time in seconds until work in a thread has its effect, and from there to its end."""
_TURNS_TO_END = 10_000


class LoopStep:
    """One call that the loop makes, in place of asyncio.Handle, which asks the loop whether it is debugged."""

    __slots__ = ("_args", "_callback", "_context", "_is_cancelled", "_loop")

    def __init__(self, callback: Callable[..., Any], args: Any, loop: "VirtualLoop", context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  as asyncio.Handle
            self._loop.call_exception_handler({"message": "a step has failed", "exception": error})


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process. It never ends by itself: it runs whenever there is something to run.

    :param before_step: called before each step; it may kill or stall the process.
    :param on_error: called with an exception that no task has handled.
    """

    def __init__(
        self,
        process: SimulatedProcess,
        before_step: Callable[[], None],
        on_error: Callable[[BaseException | None, str], None],
    ) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._before_step = before_step
        self._on_error = on_error
        self._ready: deque[LoopStep | asyncio.TimerHandle] = deque()
        self._is_arranged = False

    def time(self) -> float:
        return self._process.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        return asyncio.Task(coro, loop=self, **options)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        step = LoopStep(callback, args, self, context)
        self._ready.append(step)
        if not self._is_arranged:
            self._arrange()
        return step

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduler.call_at(self._process.when(when), partial(self._ripen, timer))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run ``func`` at some moment from now on; its result is known some time after that."""
        future, scheduler = self.create_future(), self._scheduler

        def act() -> None:
            if not self._process.is_alive:
                return
            if self._process.stalled_until > scheduler.now:
                scheduler.call_at(self._process.stalled_until, act)
                return
            try:
                settle = partial(future.set_result, func(*args))
            except BaseException as error:  # noqa: BLE001  as a worker hands over what it meets
                settle = partial(future.set_exception, error)
            scheduler.call_at(scheduler.now + scheduler.chance() * WORK, partial(self._settle, future, settle))

        scheduler.call_at(scheduler.now + scheduler.chance() * WORK, act)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.is_alive:
            self._on_error(context.get("exception"), context["message"])

    def end(self) -> None:
        """Unwind the tasks of a process that is dead: nothing that they do has an effect."""
        asyncio._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                task.cancel()
            for _ in range(_TURNS_TO_END):
                if not self._ready:
                    break
                self._run_one()
        finally:
            asyncio._set_running_loop(None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A timer that is cancelled does nothing when its time comes."""

    def _ripen(self, timer: asyncio.TimerHandle) -> None:
        if self._process.is_alive and not timer.cancelled():
            self._ready.append(timer)
            if not self._is_arranged:
                self._arrange()

    def _settle(self, future: "asyncio.Future[Any]", settle: Callable[[], None]) -> None:
        if self._process.is_alive and not future.done():
            settle()

    def _arrange(self) -> None:
        self._is_arranged = True
        self._scheduler.call_at(max(self._scheduler.now, self._process.stalled_until), self._turn)

    def _turn(self) -> None:
        """Run what is ready now. What that makes ready runs in the next turn."""
        process, scheduler, ready = self._process, self._scheduler, self._ready
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if not process.is_alive or process.stalled_until > scheduler.now:
                    break
                self._before_step()
                if process.is_alive and process.stalled_until <= scheduler.now:
                    step = ready.popleft()
                    if not step.cancelled():
                        step._run()
        finally:
            asyncio._set_running_loop(None)
        self._is_arranged = False
        if ready and process.is_alive:
            self._arrange()

    def _run_one(self) -> None:
        step = self._ready.popleft()
        if not step.cancelled():
            step._run()
