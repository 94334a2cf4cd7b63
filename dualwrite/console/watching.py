"""Looks again and again while a page is open. All open pages share one look, and each look has a thread of its own, so
that one that hangs holds up nothing but itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from dualwrite.client.threads import start_thread
from dualwrite.coordinator.sql.engine.database_errors import first_line
from dualwrite.errors import DualWriteError

_LOG = logging.getLogger("dualwrite.console")

TICK = 1.0
"""How often the page is made again at least, in seconds: ages go on, and a look may be overdue."""

LINGER = 10.0
"""How long the looks go on after the last page was closed, in seconds: a page that loads again finds them done."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """What is known from one look.

    :param value: of the last look that succeeded; None if none has.
    :param reason: why the last look failed; empty if it succeeded, or there was none.
    :param age: seconds since that success; None if there was none.
    :param waited: seconds since the look in progress began; 0 if none is in progress.
    """

    value: Any = None
    reason: str = ""
    age: float | None = None
    waited: float = 0.0


@dataclass(slots=True)
class Part:
    """One look, which is repeated.

    :param look: blocks until it has its value, or raises.
    :param interval: seconds from the end of a look to the next one. A look that took longer rests as long as it took.
    """

    name: str
    look: Callable[[], object]
    interval: float
    value: object = None
    reason: str = ""
    began: float | None = None
    succeeded: float | None = None
    due: float = 0.0

    def answer(self, now: float) -> LookAnswer:
        """What is known at the moment ``now``."""
        age = None if self.succeeded is None else max(0.0, now - self.succeeded)
        return LookAnswer(self.value, self.reason, age, 0.0 if self.began is None else max(0.0, now - self.began))


Render = Callable[[Mapping[str, LookAnswer]], Mapping[str, str]]
"""Makes the page's sections, by name, from the answers of all parts."""


@dataclass(slots=True)
class Watch:
    """Repeats the looks of ``parts`` while it has subscribers, and keeps the page's newest sections."""

    parts: Sequence[Part]
    render: Render
    sections: Mapping[str, str] = field(default_factory=dict)
    _subscribers: int = 0
    _left: float = 0.0
    _task: "asyncio.Task[None] | None" = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _looks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None
    _closed: bool = False

    @property
    def subscribers(self) -> int:
        """How many pages are open."""
        return self._subscribers

    @property
    def is_looking(self) -> bool:
        """True while looks are repeated."""
        return self._task is not None and not self._task.done()

    def close(self) -> None:
        """End every subscription: the server stops."""
        self._closed = True
        self._wake.set()
        self._changed.set()

    def look_again(self, name: str) -> None:
        """Let the part ``name`` look at once, as something was changed."""
        for part in self.parts:
            if part.name == name:
                part.due = 0.0
        self._wake.set()

    async def first_sections(self, seconds: float, names: Collection[str]) -> Mapping[str, str]:
        """The page's sections, once the parts ``names`` have answered, but after ``seconds`` in any case."""
        deadline = monotonic() + seconds
        async with contextlib.aclosing(self.subscribe()) as news:
            async for sections in news:
                asked = [part for part in self.parts if part.name in names]
                has_answers = all(part.reason or part.succeeded is not None for part in asked)
                if has_answers or monotonic() >= deadline:
                    return sections
        return self.sections

    async def subscribe(self) -> AsyncGenerator[Mapping[str, str], None]:
        """The newest sections now, and whenever they were made again. A slow reader misses those in between, so that
        nothing is kept for it. Ends when the watch is closed, and when the sections cannot be made."""
        self._subscribers += 1
        try:
            self._start()
            seen: Mapping[str, str] | None = None
            while not self._closed:
                if self.sections and self.sections is not seen:
                    seen = self.sections
                    yield seen
                elif self.is_looking:
                    await self._changed.wait()
                else:
                    return
        finally:
            self._subscribers -= 1
            self._left = monotonic()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what another loop has begun will never end
            self._loop, self._task, self._looks = loop, None, set()
            for part in self.parts:
                part.began = None
        if self._task is None or self._task.done():
            self._wake, self._changed = asyncio.Event(), asyncio.Event()
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._repeat()
        except Exception as error:  # noqa: BLE001  a bug; a page that stands still would be green for ever
            _LOG.error("the page cannot be made", exc_info=error)
        finally:
            self._changed.set()

    async def _repeat(self) -> None:
        while not self._closed and (self._subscribers or monotonic() - self._left < LINGER):
            self._wake.clear()
            for part in self.parts:
                if part.began is None and monotonic() >= part.due:
                    part.began = monotonic()
                    task = asyncio.get_running_loop().create_task(self._look(part, part.began))
                    self._looks.add(task)
                    task.add_done_callback(self._looks.discard)
            now = monotonic()
            self.sections = self.render({part.name: part.answer(now) for part in self.parts})
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause())

    def _pause(self) -> float:
        """Seconds until the next part is due, at most TICK."""
        now = monotonic()
        return max(0.0, min([TICK, *(part.due - now for part in self.parts if part.began is None)]))

    async def _look(self, part: Part, began: float) -> None:
        try:
            part.value = await in_thread(part.look, f"dualwrite console: {part.name}")
            part.reason, part.succeeded = "", monotonic()
        except Exception as error:  # noqa: BLE001  the page shows it
            part.reason = reason_of(error)
        finally:
            part.began = None
            now = monotonic()
            part.due = now + max(part.interval, now - began)
            self._wake.set()


async def in_thread(call: Callable[[], T], name: str) -> T:
    """The value of ``call``, which runs in a thread of its own. Unlike an executor's, the thread does not keep the
    process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def give(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = call()
        except Exception as raised:  # noqa: BLE001  the awaiting task gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits any more
            loop.call_soon_threadsafe(give, value, error)

    start_thread(run, name)
    return await future


def reason_of(error: Exception) -> str:
    """Why a look or an action failed, in a line. An unforeseen error is logged, too."""
    if isinstance(error, SQLAlchemyError):
        return first_line(error)
    if not isinstance(error, DualWriteError):
        _LOG.error("the console failed", exc_info=error)
        return f"{type(error).__name__}: see the log"
    return " ".join(str(error).split())
