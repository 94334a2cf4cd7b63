"""A verb of the native producer that is not done yet, and what it waits for."""

from collections.abc import Callable

from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.errors import DualWriteError


class PendingOperation:
    """A verb that is not done yet."""

    __slots__ = ("flushed", "operation", "until", "wants_report", "wants_room")

    def __init__(self) -> None:
        self.operation = Operation()
        self.wants_room = False
        """True if what is waited for is room for another record."""
        self.flushed: Callable[[float], None] | None = None
        """What comes next when every record is acknowledged; None if that is not what is waited for."""
        self.wants_report = False
        """True if what is waited for is a delivery callback that is due, or that there is none to wait for."""
        self.until = NEVER
        """When the wait ends though nothing has come."""

    def fail(self, error: DualWriteError) -> None:
        """What it waits for will not come."""
        if self.operation.is_done:
            return
        if self.wants_report:
            self.operation.succeed()  # the next verb raises it
        else:
            self.operation.fail(error)
