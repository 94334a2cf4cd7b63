"""Ends the transactions of dead owners in Kafka: the control plane alone, or the application's own participants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.client.config.reading import step_timeout
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.bulk import Recoverer
from dualwrite.coordinator.recovery.predecessor import PredecessorTransaction, predecessor_transactions
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import PreparedTxnState


class ControlPlaneRecovery:
    """The calls of recovery without a producer, for transactions of any producer."""

    def __init__(self, find: Callable[[], PredecessorTransaction]) -> None:
        self._find = find

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant; only with ``keep_prepared_txn``."""
        assert keep_prepared_txn
        self._left = self._find()

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""
        return self._left.complete(state, is_last=False)

    def name_left_transaction(self) -> PreparedTxnState:
        """Name the transaction that was left open; see NamesLeftTransaction."""
        return self._left.name()

    def close(self) -> None:
        """Do nothing: the control plane goes on to the next transactional id."""


@contextmanager
def by_control_plane(
    config: Any,
    require_cluster: Callable[[], None] = lambda: None,
    *,
    make_control: Callable[..., ControlPlane] = ControlPlane,
    runtime: Runtime = THIS_PROCESS,
) -> Iterator[Recoverer]:
    """A Recoverer that recovers one transactional id after the other over the same connections.

    :param require_cluster: raises if another cluster answers than the one of the transactions.
    :param make_control: makes the control plane of the process ``runtime``; another one is for tests.
    """
    require_cluster()
    control = make_control(config, timeout=step_timeout(LibrdkafkaSettings.of(config).delivery_timeout))
    left_transaction = predecessor_transactions(config, runtime)
    try:
        yield lambda transactional_id: ControlPlaneRecovery(partial(left_transaction, control, transactional_id))
    finally:
        control.close()


@contextmanager
def by_participants(make: Callable[[str], KafkaParticipant]) -> Iterator[Recoverer]:
    """A Recoverer that recovers with the user's own participants."""
    yield make
