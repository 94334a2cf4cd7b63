"""A verb of the native producer that is not done yet, and the event that it waits for."""

from collections.abc import Callable

from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.errors import DualWriteError


class PendingOperation:
    """A verb that is not done yet."""

    __slots__ = ("flushed", "operation", "until", "wants_report", "wants_room")

    def __init__(self) -> None:
        self.operation = Operation()
        self.wants_room = False
        """True if the verb waits for room for another record."""
        self.flushed: Callable[[float], None] | None = None
        """The next step once every record is acknowledged; None if the verb does not wait for that."""
        self.wants_report = False
        """True if the verb waits for a delivery callback that is due, or until none can come."""
        self.until = NEVER
        """When the wait ends even if the event has not come."""

    def fail(self, error: DualWriteError) -> None:
        """End the wait: the event will not come."""
        if self.operation.is_done:
            return
        if self.wants_report:
            self.operation.succeed()  # the next verb raises the error
        else:
            self.operation.fail(error)
