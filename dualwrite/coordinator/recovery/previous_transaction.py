"""The previous transaction of a librdkafka session. All transactions of a session have the same identity, so only its
start distinguishes the previous transaction from the next one."""

from typing import TYPE_CHECKING

from dualwrite.client.fate.transaction_fate import ended_transaction
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.errors import PrepareFailedError
from dualwrite.ids import Ending, PreparedTxnState

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane

_START_TIMES_APART = 0.002
"""Minimum of seconds between two transactions of a session: their start times are in milliseconds."""


class PreviousTransaction:
    """The last transaction of a session.

    :param control: used by this session only; it has lost no connection yet.
    :param timeout: seconds that a request may take.
    """

    def __init__(self, control: "ControlPlane", timeout: float, runtime: Runtime) -> None:
        self.is_lost = False
        """True if the cluster no longer has it: recovery puts that on record."""
        self._control = control
        self._timeout = timeout
        self._runtime = runtime
        self._begun_by = -_START_TIMES_APART
        self._committed = PreparedTxnState()
        self._lost_connections = 0

    def note_begun(self) -> None:
        """Note that the coordinator has begun the open transaction by now: a record of it was acknowledged, or offsets
        were."""
        self._begun_by = self._runtime.monotonic()

    def was_committed(self, state: PreparedTxnState) -> None:
        """Note that the transaction with ``state`` was committed."""
        self._committed = state

    def await_next_start_time(self) -> None:
        """Wait until the next transaction cannot have the start time of this one (ids.py). Both times are milliseconds
        of the coordinator's clock; usually the database's COMMIT takes longer than that."""
        left = self._begun_by + _START_TIMES_APART - self._runtime.monotonic()
        if left > 0:
            self._runtime.sleep(left)

    def require_kept(self, transactional_id: str) -> None:
        """Require that the last committed transaction is where it was acknowledged. Checked only if connections were
        lost meanwhile.

        A cluster that was restored from an older copy accepts the continuing session, as the identity is the same. The
        state that is stored next would hide the lost transaction.

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
