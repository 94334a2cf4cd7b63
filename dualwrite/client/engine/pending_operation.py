"""The verb that the native producer is carrying out, and the event that it waits for."""

from collections.abc import Callable

from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.client.engine.sender import Sender
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.terms.verbs import ProducerState, Verb
from dualwrite.errors import DualWriteError, InvalidTransactionStateError


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


class VerbInProgress:
    """At most one call in progress, and its end."""

    __slots__ = ("_machine", "pending")

    def __init__(self, machine: TransactionManager) -> None:
        self._machine = machine
        self.pending: PendingOperation | None = None

    def refuse_a_second(self, called: str) -> None:
        """Raise InvalidTransactionStateError while a verb is in progress."""
        if self.pending is not None:
            raise InvalidTransactionStateError(f"{called}: another call of the producer is in progress")

    def require_producing(self, called: str) -> None:
        """Refuse ``called`` where records cannot be produced."""
        self.refuse_a_second(called)
        self._machine.require(Verb.PRODUCE, called)

    def start(self, verb: Verb) -> ProducerState:
        """Start ``verb``; return the state in which it was called."""
        self.refuse_a_second(verb.value)
        return self._machine.start(verb)

    def wait(self) -> PendingOperation:
        """The verb that was started waits from now on."""
        self.pending = PendingOperation()
        return self.pending

    def wait_until_flushed(self, flushed: Callable[[float], None], sender: Sender, now: float) -> Operation:
        """Send every record, and call ``flushed`` once all are acknowledged."""
        pending = self.wait()
        pending.flushed = flushed
        sender.flush(now)
        self.look(sender, now)
        return pending.operation

    def look(self, sender: Sender, now: float) -> None:
        """Go on with a verb whose event has come."""
        pending = self.pending
        if pending is None:
            return
        has_report = pending.wants_report and (sender.reports or sender.is_empty)
        if has_report or (pending.wants_room and not sender.is_full):
            self.end(None)
        elif pending.flushed is not None and sender.is_empty:
            flushed, pending.flushed = pending.flushed, None
            flushed(now)

    def finish(self, result: object) -> None:
        """End the verb with success."""
        self._machine.finish()
        self.end(result)

    def end(self, result: object) -> None:
        """End the wait; the state stays as it is."""
        pending = self.pending
        assert pending is not None
        pending.operation.succeed(result)  # first: the handler of an interrupt here must find the result
        self.pending = None

    def fail(self, error: DualWriteError) -> None:
        """End the wait, if there is one: the event will not come."""
        if self.pending is not None:
            self.pending.fail(error)
            self.pending = None
