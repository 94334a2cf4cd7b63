"""Units of work as FastAPI dependencies. The commit comes after the handler has made the response, and before it is
sent.

A hand-written dependency with ``yield`` has three traps. By default FastAPI runs the code after ``yield`` when the
response has been sent, so a client sees success before a commit that may fail. A plain generator is entered and left in
threads other than the handler's, so a unit of work in the handler does not join it. And a unit that waits for a slot
occupies one of the threads that other handlers need.
"""

import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import UnitManager, manager_of
from dualwrite.coordinator.unit.block import Block
from dualwrite.coordinator.unit.transaction import Transaction, require_no_loop
from dualwrite.coordinator.unit.unit_of_work import Unit, UnitLifecycle
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from dualwrite.extras import brought_by

with brought_by("fastapi"):
    import fastapi
    from anyio import CancelScope, CapacityLimiter, to_thread
    from anyio.lowlevel import RunVar
    from fastapi.requests import HTTPConnection

    from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
    from dualwrite.coordinator.aio.transaction import AsyncTransaction

WAITING = 40
"""How many requests may wait for a slot in separate threads. Further requests wait in the event loop."""

Units = DualWrite | AsyncDualWrite

_request_scope: ContextVar["_Scope | None"] = ContextVar("dualwrite_request", default=None)
_waiting: RunVar[CapacityLimiter] = RunVar("dualwrite_waiting")

P = ParamSpec("P")
R = TypeVar("R")


def _alone(
    method: Callable[Concatenate[Transaction, P], R],
) -> Callable[Concatenate["_RequestTransaction", P], R]:
    """Decorate ``method`` so that its calls and the end of the unit exclude each other."""

    @functools.wraps(method)
    def call(transaction: "_RequestTransaction", /, *args: P.args, **kwargs: P.kwargs) -> R:
        require_no_loop()  # before the wait, which would block the loop
        with transaction._calls:
            return method(transaction, *args, **kwargs)

    return call


def unit_of_work(dual_write: Units | Callable[[HTTPConnection], Units]) -> Any:
    """A FastAPI dependency: a unit of work for one request.

    Use ``tx: Annotated[Transaction, unit_of_work(dual_write)]`` in a handler and in its other dependencies: they all
    get the same ``tx``. The unit of work is committed when the handler has returned its response, before the response
    is sent. Any exception of the handler, including HTTPException, rolls both sides back. An error of the commit goes
    to the application's exception handlers and becomes the response. ``dual_write.transaction()`` in the handler joins
    the unit.

    :param dual_write: a DualWrite, for plain handlers (``def``); an AsyncDualWrite, for ``async def`` handlers; or a
        function of the request that returns one of them, like ``lambda request: request.app.state.dual_write``. In an
        ``async def`` handler the ``tx`` of a DualWrite, which would block the event loop, raises
        InvalidTransactionStateError.
    :raises ConfigurationError: for any other argument; if FastAPI is older than 0.121 and would send the response
        first; or for a DualWrite whose ``session_factory`` is a scoped_session, at the first request: a handler runs in
        another thread than the beginning of its unit, so it would find another session.
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
            raise ConfigurationError(f"unit_of_work: the function has returned {units!r:.80}, which is not a DualWrite")
        manager = manager_of(units)
        if manager.settings.sessions.registry is not None:
            raise ConfigurationError(
                "unit_of_work: the session_factory is a scoped_session, and FastAPI runs a handler in another thread "
                "than the beginning of its unit: give the DualWrite the scoped_session's own session_factory, and use "
                "tx.session"
            )
        block = _RequestBlock(manager, connection)
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


class _RequestTransaction(Transaction):
    """The ``tx`` of a request.

    :param calls: held during each call, and during the end of the unit.
    """

    def __init__(self, unit: Unit, calls: AbstractContextManager[object]) -> None:
        super().__init__(unit)
        self._calls = calls

    execute = _alone(Transaction.execute)
    scalars = _alone(Transaction.scalars)
    scalar = _alone(Transaction.scalar)
    produce = _alone(Transaction.produce)
    send_offsets = _alone(Transaction.send_offsets)
    store_offsets = _alone(Transaction.store_offsets)


class _Scope:
    """What the units of work of one request have in common. It is in the context of the request's task, and of the
    thread of its handler."""

    def __init__(self, request: HTTPConnection) -> None:
        self.request = request
        self.cancelled: list[_RequestBlock] = []
        """The blocks that a cancellation has ended: the thread of the handler may go on, and look for them."""


class _RequestBlock(Block):
    """A unit of work that belongs to a request: it is entered, used and left in different threads, one at a time.

    A time limit of asyncio's around the application cancels a request, but not the thread that enters its unit or runs
    its handler. So the end of the unit waits for a call in progress: a producer is not thread-safe, and a record that
    is added after the abort would be in the next unit's transaction. And ``dual_write.transaction()`` is refused in the
    handler's thread from then on: a part of the handler would be committed without the rest.
    """

    def __init__(self, manager: UnitManager, request: HTTPConnection) -> None:
        super().__init__(manager)
        self._pool = manager.process.pool
        current = _request_scope.get()
        self._scope = current if current is not None and current.request is request else _Scope(request)
        self._calls = threading.RLock()
        self._has_ended = False

    @staticmethod
    def _current_context() -> object:
        return _request_scope.get()

    def announce(self) -> None:
        """Announce the block, with the request as its scope; see Block.announce."""
        _request_scope.set(self._scope)
        super().announce()

    def open_here(self, units: UnitLifecycle) -> Transaction | None:
        """The unit of work, if it is open here; see Block.open_here.

        :raises InvalidTransactionStateError: if its request was cancelled.
        """
        if units is self._units and self in self._scope.cancelled and self._current_context() is self._scope:
            raise InvalidTransactionStateError(
                "the request was cancelled, and its unit of work is rolled back: its handler can begin no other one"
            )
        return super().open_here(units)

    def __enter__(self) -> Transaction:
        with self._calls:
            if self._has_ended:
                raise InvalidTransactionStateError("the request was cancelled before its unit of work began")
            return super().__enter__()

    def _make_transaction(self, unit: Unit) -> Transaction:
        return _RequestTransaction(unit, self._calls)

    @property
    def is_open(self) -> bool:
        """True from the entry of the block to its exit; also while another thread enters it, or is in a call."""
        if not self._calls.acquire(blocking=False):
            return True
        try:
            return self._unit is not None and not self._unit.is_over
        finally:
            self._calls.release()

    def give_up(self, error: BaseException | None) -> None:
        """Let a thread that waits to enter the block not enter it."""
        self._has_ended = True
        if error is not None and not isinstance(error, Exception):
            self._scope.cancelled.append(self)
        if self._unit is not None:
            self._pool.give_up(self._unit)

    def end(self, error: BaseException | None) -> None:
        """Leave the block, if it was entered, once no other thread is in a call."""
        with self._calls:
            if self.is_open:
                kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
                self.__exit__(kind, error, traceback)

    def forget(self) -> None:
        """Let later blocks in this context, the task's, begin units of their own: a middleware's, for example."""
        self._unregister()


async def _leave(block: _RequestBlock, error: BaseException | None) -> None:
    """Leave ``block``, if it was entered, in its own thread, even if the task is cancelled meanwhile."""
    block.give_up(error)
    try:
        if block.is_open:
            with CancelScope(shield=True):
                await to_thread.run_sync(block.end, error, limiter=CapacityLimiter(1))
    finally:
        block.forget()


def _limiter() -> CapacityLimiter:
    """The limiter of requests that wait for a slot in this event loop."""
    try:
        return _waiting.get()
    except LookupError:
        limiter = CapacityLimiter(WAITING)
        _waiting.set(limiter)
        return limiter
