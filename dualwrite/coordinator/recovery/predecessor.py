"""The open transaction of a predecessor: prepared if the broker keeps it (``keep-prepared``), unprepared otherwise."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dualwrite.client.config.reading import (
    is_two_phase,
)
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.recovery.prepared_predecessor import PreparedPredecessor
from dualwrite.coordinator.recovery.unprepared_predecessor import UnpreparedPredecessor
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.ids import PreparedTxnState

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane


class PredecessorTransaction(Protocol):
    """The open transaction of a predecessor, if there is one."""

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise; see PreparedPredecessor.complete."""

    def name(self) -> PreparedTxnState:
        """The state that names it, for the record; the empty state if there is none, or it is ending."""

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if the transaction of ``state`` was committed before, as far as the log tells.

        :raises KafkaUnavailableError: if Kafka does not answer.
        """

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, without comparing."""


def predecessor_transactions(
    config: Mapping[str, Any], runtime: Runtime
) -> Callable[["ControlPlane", str], PredecessorTransaction]:
    """The factory of PredecessorTransactions for producers with ``config``: called with the control plane and the
    transactional id."""
    if is_two_phase(config):
        return PreparedPredecessor
    return partial(UnpreparedPredecessor, runtime=runtime)
