"""What a transaction of a librdkafka session needs to know of the one before, as both have one identity."""

import time
from collections.abc import Callable

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.transaction_fate import ended_transaction
from dualwrite.errors import PrepareFailedError
from dualwrite.ids import Ending, PreparedTxnState

_START_TIMES_APART = 0.002
"""Seconds between two transactions of a session, at least: their start times are in milliseconds."""


class TransactionBefore:
    """The last transaction of a session.

    :param control: of the session alone; it has lost no connection yet.
    :param timeout: seconds that a question may take.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        control: ControlPlane,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.is_lost = False
        """True if the cluster has not got it any more: recovery puts that on record."""
        self._control = control
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._asked_at = -_START_TIMES_APART
        self._committed = PreparedTxnState()
        self._lost_connections = 0

    def was_dated(self) -> None:
        """The coordinator has just said when the open transaction began."""
        self._asked_at = self._clock()

    def was_committed(self, state: PreparedTxnState) -> None:
        """The transaction with ``state`` has ended well."""
        self._committed = state

    def let_the_clock_move_on(self) -> None:
        """Wait until the next transaction cannot have the start time of this one (ids.py). Both are told by the
        coordinator's clock, in milliseconds; the database's COMMIT takes longer than that, mostly."""
        left = self._asked_at + _START_TIMES_APART - self._clock()
        if left > 0:
            self._sleep(left)

    def require_kept(self, transactional_id: str) -> None:
        """Pass if the last transaction that was committed is where it was acknowledged. It is looked at once
        connections were lost meanwhile.

        A cluster that was set back to an older copy of itself takes a session that goes on for what it knows, as the
        identity is the same. The state that is stored next would hide what is missing.

        :raises PrepareFailedError: if it is not there.
        """
        if self._control.lost_connections == self._lost_connections:
            return
        if ended_transaction(self._control, self._committed, self._timeout).ending is Ending.LOST:
            self.is_lost = True
            raise PrepareFailedError(
                f"transaction of {transactional_id}: the cluster has lost the one before, {self._committed}: it was "
                "set back to an older copy of itself, or has lost data"
            )
        self._lost_connections = self._control.lost_connections
