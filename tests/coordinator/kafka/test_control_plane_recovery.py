"""Recovery by the control plane alone: in which cluster, and how long it waits for one transaction of many."""

from typing import Any

import pytest

from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.coordinator.kafka.control_plane_recovery import by_control_plane
from dualwrite.coordinator.recovery.prepared_predecessor import EndingNotCheckedError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import ForeignClusterError, KafkaUnavailableError
from dualwrite.ids import Anchor, PreparedTxnState
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, SESSION, T0, FakeControl

DECIDED = PreparedTxnState(SESSION, Anchor.of(T0, 1))


def test_another_cluster_than_that_of_the_transactions_is_asked_for_nothing() -> None:
    made: list[Any] = []

    def refuse() -> None:
        raise ForeignClusterError("another cluster answers")

    with pytest.raises(ForeignClusterError), by_control_plane(CONFIG, refuse, make_control=made.append):
        pass
    assert made == []


@pytest.mark.parametrize("is_open", [True, False])
def test_no_transaction_waits_for_the_check_of_another_ones_end(is_open: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads a partition, whose leader may be away. A row is kept until it was checked."""
    control = FakeControl(CONFIG, 3)
    control.initialized = InitializedProducer(SESSION, SESSION if is_open else None)
    control.starts = {T0: 1}
    waits: list[float | None] = []

    def away(_: Any, state: PreparedTxnState, seconds: float | None) -> Any:
        waits.append(seconds)
        raise KafkaUnavailableError("no leader")

    monkeypatch.setattr("dualwrite.coordinator.recovery.prepared_predecessor.ended_transaction", away)
    with by_control_plane(CONFIG, make_control=lambda *_, **__: control) as recoverer:
        participant = recoverer("app-0")
        participant.init_transactions(keep_prepared_txn=True)
        if is_open:
            assert participant.complete_transaction(DECIDED) is Outcome.COMMITTED
        else:
            with pytest.raises(EndingNotCheckedError, match=r"app-0: the outcome of .* cannot be read yet: no leader"):
                participant.complete_transaction(DECIDED)
    assert waits == ([] if is_open else [2.0])
