"""Units of work as FastAPI dependencies: committed after the answer is made, and before it is sent.

A dependency with ``yield`` of one's own has three traps. By default FastAPI runs what comes after ``yield`` when the
answer has been sent, so that a client is told of a success that the commit then refuses. A plain generator is entered
and left in threads other than the handler's, so that a unit of work that the handler begins does not join it. And a
unit that waits for a slot keeps one of the threads that the handlers of the others need.
"""

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Block, Transaction
from dualwrite.errors import ConfigurationError
from dualwrite.extras import brought_by

with brought_by("fastapi"):
    import fastapi
    from anyio import CancelScope, CapacityLimiter, to_thread
    from anyio.lowlevel import RunVar
    from fastapi.requests import HTTPConnection

    from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
    from dualwrite.coordinator.aio.transaction import AsyncTransaction

WAITING = 40
"""Requests that wait for a slot in threads of their own, which no handler needs; the others wait in the event loop."""

Units = DualWrite | AsyncDualWrite

_place: ContextVar[object] = ContextVar("dualwrite_request", default=None)
_waiting: RunVar[CapacityLimiter] = RunVar("dualwrite_waiting")


def unit_of_work(dual_write: Units | Callable[[HTTPConnection], Units]) -> Any:
    """A FastAPI dependency: a unit of work for one request.

    ``tx: Annotated[Transaction, unit_of_work(dual_write)]`` in a handler, and in its other dependencies: they all get
    the same ``tx``. The unit of work is committed when the handler has returned and its answer has been made, and
    before the answer is sent. What the handler raises, HTTPException among it, rolls both sides back. An error of the
    commit goes to the application's exception handlers and becomes the answer. ``dual_write.transaction()`` in the
    handler joins the unit.

    :param dual_write: a DualWrite, for plain handlers (``def``); an AsyncDualWrite, whose handlers are ``async def``;
        or a function of the request that returns one, as ``lambda request: request.app.state.dual_write``.
    :raises ConfigurationError: if it is something else, or FastAPI is older than 0.121 and would send the answer first.
    """
    if not isinstance(dual_write, DualWrite | AsyncDualWrite) and not callable(dual_write):
        raise ConfigurationError(f"unit_of_work({dual_write!r:.80}): pass a DualWrite, or a function that returns one")

    async def unit(connection: HTTPConnection) -> AsyncIterator[Transaction | AsyncTransaction]:
        units = dual_write if isinstance(dual_write, DualWrite | AsyncDualWrite) else dual_write(connection)
        if isinstance(units, AsyncDualWrite):
            async with units.transaction() as transaction:
                yield transaction
            return
        if not isinstance(units, DualWrite):
            raise ConfigurationError(f"unit_of_work: the function has returned {units!r:.80}, which is no DualWrite")
        block = _RequestBlock(units)
        block.announce()
        try:
            yield await to_thread.run_sync(block.__enter__, limiter=_limiter())
        except BaseException as error:
            await _leave(block, error)
            raise
        else:
            await _leave(block, None)

    try:
        return fastapi.Depends(unit, scope="function")
    except TypeError:
        raise ConfigurationError(
            f"FastAPI {fastapi.__version__} sends the answer before the commit: use 0.121 or newer"
        ) from None


class _RequestBlock(Block):
    """A unit of work whose place is the request: it is entered, used and left in one thread after the other."""

    @staticmethod
    def _here() -> object:
        return _place.get()

    def announce(self) -> None:
        """See Block.announce; the place begins with it."""
        if self._unit is None:
            _place.set(object())
        super().announce()

    @property
    def is_open(self) -> bool:
        """True from entering to leaving."""
        return self._unit is not None and not self._unit.is_over


async def _leave(block: _RequestBlock, error: BaseException | None) -> None:
    """Leave ``block``, if it was entered: in a thread that waits for no other, and whoever cancels meanwhile."""
    if block.is_open:
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        with CancelScope(shield=True):
            await to_thread.run_sync(block.__exit__, kind, error, traceback, limiter=CapacityLimiter(1))


def _limiter() -> CapacityLimiter:
    """How many may wait for a slot; of this event loop."""
    try:
        return _waiting.get()
    except LookupError:
        limiter = CapacityLimiter(WAITING)
        _waiting.set(limiter)
        return limiter
