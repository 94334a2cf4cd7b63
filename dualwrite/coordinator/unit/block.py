"""``with dw.transaction() as tx``: the block that begins a unit of work, and ends it in every case."""

import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from dualwrite.coordinator.unit.transaction import BaseTransaction, Transaction, driver_of, require_no_loop
from dualwrite.coordinator.unit.unit_of_work import Unit, UnitLifecycle
from dualwrite.errors import InvalidTransactionStateError

T = TypeVar("T", bound=BaseTransaction)

_USED = "this unit of work has ended: its block cannot be left twice"

_open: ContextVar[tuple["weakref.ref[BaseBlock[Any]]", ...]] = ContextVar("dualwrite_open_units", default=())
"""The units of work of all DualWrites that are open in this context. Not per thread: two tasks of an event loop share a
thread, and have units of their own."""


class NamesTheBlock:
    """An object on which a user may look for what only the transaction inside the block has: the error says where."""

    _statement = "with dw.transaction() as tx"
    """How the block begins."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or not hasattr(Transaction, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{name}: use it inside the block: {self._statement}: tx.{name}")


class NamesTheAsyncBlock(NamesTheBlock):
    """As NamesTheBlock, where the block is an ``async with`` block."""

    _statement = "async with dw.transaction() as tx"


class BaseBlock(NamesTheBlock, Generic[T]):
    """A unit of work as a ``with`` block, entered once; the subclasses define entering and leaving."""

    _unit: Unit | None = None
    _is_joining = False
    """True from joining a unit of work to leaving the block."""

    def __init__(self, units: UnitLifecycle) -> None:
        self._units = units
        self._transaction: T | None = None
        self._joined: T | None = None

    @staticmethod
    def _current_context() -> object:
        """The thread, or the task of an event loop, that owns a unit of work which begins now."""
        return threading.get_ident()

    def _join(self) -> T | None:
        """The unit of work that is open here, if any; this block then joins it."""
        if self._unit is not None or self._joined is not None:
            raise InvalidTransactionStateError("this unit of work has been used: call transaction() for each one")
        joined: T | None = open_unit(self._units)
        self._joined = joined
        if joined is not None:
            driver_of(joined).require_user_code()
            self._is_joining = True
        return joined

    def _leave_joined(self, joined: T, error: BaseException | None) -> None:
        if error is not None:
            driver_of(joined).require_rollback(error)
        self._is_joining = False

    def _to_leave(self) -> Unit:
        unit = self._unit
        if unit is None or unit.is_over:
            raise InvalidTransactionStateError(_USED)
        return unit

    def _register(self, transaction: T) -> None:
        self._transaction = transaction
        self.announce()

    def announce(self) -> None:
        """Let later blocks in this context join this unit of work, once it is open."""
        _open.set((*self._others(), weakref.ref(self)))

    def _unregister(self) -> None:
        _open.set(self._others())

    def __del__(self) -> None:
        if self._unit is not None and not self._unit.is_over:
            self._units.force_end_later(self._unit, InvalidTransactionStateError("the block was never left"))
        if self._is_joining and self._joined is not None:
            self._leave_joined(self._joined, InvalidTransactionStateError("the block was never left"))

    def _others(self) -> tuple["weakref.ref[BaseBlock[Any]]", ...]:
        """All other blocks that are open here."""
        blocks = ((reference, reference()) for reference in _open.get())
        return tuple(
            reference
            for reference, block in blocks
            if block is not None and block is not self and block._unit is not None and not block._unit.is_over
        )

    def open_here(self, units: UnitLifecycle) -> T | None:
        """The unit of work, if it belongs to ``units``, began here and in this process, and has not ended."""
        unit = self._unit
        if self._units is not units or unit is None or unit.owner != self._current_context():
            return None
        driver = unit.driver
        if driver is None or driver.is_inherited or driver.is_released:
            return None
        if self._was_left():
            self._units.force_end(unit, InvalidTransactionStateError("the block was never left"))
            return None
        return self._transaction

    def _was_left(self) -> bool:
        """True if the exception being handled came while the block was left, before that could do anything."""
        return False


class _Exit:
    """``Block.__exit__``, bound so that the function it calls holds no strong reference to the block.

    CPython runs signal handlers at the entry of a Python function, before any ``try`` in it. An exception that a
    handler raises there keeps that function's frame in its traceback, and with it the function's arguments, as long as
    the exception is kept. So the function gets a weak reference to the block. The callable of the ``with`` statement
    holds the block; it is a C object and has no frame: the statement drops both as the exception leaves it, and the
    block's ``__del__`` ends the unit of work.

    Read from the class, as contextlib.ExitStack does, it is a plain function of the block.
    """

    def __get__(self, block: "Block | None", owner: "type[Block]") -> Callable[..., None]:
        if block is None:
            return owner.leave
        bound = partial(block.leave, weakref.ref(block))
        vars(bound)["block"] = block
        return bound


class Block(BaseBlock[Transaction]):
    """``with dw.transaction() as tx``: a unit of work, entered once. Leaving the block commits both sides; an exception
    rolls both back.

    Entered inside another block of the same DualWrite, in the same thread, it joins that one: it returns the outer
    Transaction, leaving it commits nothing, and an exception that leaves it rolls back the whole unit.

    Only the ``with`` statement holds the block, ``tx`` does not: if a signal handler raises as ``__exit__`` begins,
    where no code can handle it, the unit of work is ended as that exception leaves the statement.
    """

    def __init__(self, units: UnitLifecycle, *, is_repeated: bool = False) -> None:
        super().__init__(units)
        self._is_repeated = is_repeated

    def __enter__(self) -> Transaction:
        joined = self._join()
        if joined is not None:
            return joined
        require_no_loop()
        self._unit = unit = Unit(self._current_context(), is_repeated=self._is_repeated)
        try:
            self._units.enter(unit)
            transaction = self._make_transaction(unit)
            self._register(transaction)
            unit.has_run = True
            return transaction
        except BaseException as error:
            self._let_go(unit, error)
            raise

    def _make_transaction(self, unit: Unit) -> Transaction:
        return Transaction(unit)

    @staticmethod
    def leave(
        held: "Block | weakref.ref[Block]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the block; called by ``__exit__``, see _Exit.

        :param held: the block; a weak reference if a ``with`` statement leaves it.
        """
        block = held() if isinstance(held, weakref.ref) else held
        # No call between this line and ``try``: an exception could come there, with the block in this frame and the
        # unit not ended.
        if block is None:  # Python collects it, with the generator that it was entered in: its __del__ ends the unit
            return
        unit, joined = block._unit, block._joined
        if joined is not None:
            block._leave_joined(joined, error)
            return
        if unit is None or unit.is_over:
            raise InvalidTransactionStateError(_USED)
        try:
            block._units.leave(unit, error)
            block._unregister()
        except BaseException as raised:
            try:
                block._let_go(unit, raised)
            except BaseException as again:
                leaving_error = block._units.outcome_error(unit, again)
                if leaving_error is again:
                    raise
                raise leaving_error from again
            leaving_error = block._units.outcome_error(unit, raised)
            if leaving_error is raised:
                raise
            raise leaving_error from raised

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None:
            """Commit both sides if ``error`` is None, roll both back otherwise."""

    else:
        __exit__ = _Exit()

        def __aenter__(self) -> NoReturn:
            raise TypeError("a unit of work of a DualWrite is a `with` block; `async with` is AsyncDualWrite's")

        async def __aexit__(self, *_: object) -> None:
            """Never called: ``async with`` asks for it first, and then fails."""

    def _let_go(self, unit: Unit, error: BaseException) -> None:
        """End what is left of ``unit``; if that is interrupted, too, leave it to another thread."""
        try:
            self._units.force_end(unit, error)
        except BaseException:
            self._units.force_end_later(unit, error)
            raise
        finally:
            self._unregister()

    def _was_left(self) -> bool:
        """True if the exception being handled came out of :meth:`leave` before that could do anything, and the block is
        still referenced."""
        error = sys.exc_info()[1]
        while error is not None:
            for frame, _ in walk_tb(error.__traceback__):
                if frame.f_code is Block.leave.__code__ and frame.f_locals["held"] in (self, weakref.ref(self)):
                    return True
            error = error.__context__
        return False


def open_unit(units: UnitLifecycle) -> Any:
    """The BaseTransaction of the unit of work of ``units`` that is open in this thread or task; None without one."""
    blocks = (block() for block in reversed(_open.get()))
    transactions = (block.open_here(units) for block in blocks if block is not None)
    return next((transaction for transaction in transactions if transaction is not None), None)
