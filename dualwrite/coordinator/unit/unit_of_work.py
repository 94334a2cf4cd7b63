"""One unit of work, as the user of a slot, and the object that begins and ends it."""

from asyncio import Future
from typing import Protocol

from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.steps.observers import UnitObservers
from dualwrite.coordinator.unit.offsets import UnitOffsets
from dualwrite.coordinator.unit.serializers import Serializers


class Unit:
    """One unit of work: the user of a slot in the pool, and its driver. It may outlive its block.

    :param owner: the thread, or the task of an event loop, that began it.
    :param is_repeated: the caller will begin it again, with the same records, if it does not come to run.
    """

    def __init__(self, owner: object, *, is_repeated: bool = False) -> None:
        self.owner = owner
        self.driver: UnitDriver | None = None
        self.watch: UnitObservers | None = None
        """Its observers; None without any."""
        self.offsets: UnitOffsets | None = None
        """The consumers' offsets in it; None before it begins."""
        self.serializers: Serializers | None = None
        self.is_repeated = is_repeated
        self.has_run = False
        self.is_over = False
        """True once it has given back all that it held."""
        self.cancelled: BaseException | None = None
        """The cancellation of its task during its end: the reason to roll it back, if that is still possible."""
        self.ending: Future[None] | None = None
        """The task that ends it, or has tried to; None for a unit of a thread."""

    @property
    def is_undone(self) -> bool:
        """False if it has ended and may have left rows, which its block committed past the library."""
        return self.driver is None or not self.driver.may_have_left_rows


class UnitLifecycle(Protocol):
    """The UnitManager, as blocks use it."""

    def enter(self, unit: Unit) -> None:
        """Begin ``unit``, and give it its driver."""

    def leave(self, unit: Unit, error: BaseException | None) -> None:
        """End ``unit``, with the block's exception or None, and raise the exception for the caller."""

    def force_end(self, unit: Unit, error: BaseException) -> None:
        """End what is left of ``unit``, if anything: ``error`` came while it began or ended."""

    def outcome_error(self, unit: Unit, raised: BaseException) -> BaseException:
        """The exception that leaves the block of ``unit``, which has ended, in place of ``raised``; see
        outgoing_error.py."""

    def force_end_later(self, unit: Unit, error: BaseException) -> None:
        """Schedule :meth:`force_end`; called from a finalizer, which may run anywhere."""
