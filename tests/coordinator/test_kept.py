"""What a dead predecessor left: a state that cannot be of this cluster is noticed."""

import logging

import pytest

from dualwrite.client.control import InitializedProducer
from dualwrite.coordinator.kept import KeptTransaction
from dualwrite.coordinator.participants import Outcome
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.coordinator.fake_control import CONFIG, FakeControl


@pytest.mark.parametrize(
    ("stored", "now", "is_another"),
    [
        (ProducerIdentity(7, 4), ProducerIdentity(7, 5), False),
        (ProducerIdentity(7, 5), ProducerIdentity(7, 5), True),
        (ProducerIdentity(7, 6), ProducerIdentity(7, 5), True),
        (ProducerIdentity(6, 32766), ProducerIdentity(7, 0), False),
        (ProducerIdentity(), ProducerIdentity(7, 0), False),
    ],
)
def test_a_state_that_is_ahead_of_the_cluster_is_another_clusters(
    caplog: pytest.LogCaptureFixture, stored: ProducerIdentity, now: ProducerIdentity, is_another: bool
) -> None:
    control = FakeControl(CONFIG, 1)
    control.initialized = InitializedProducer(now, None)
    with caplog.at_level(logging.WARNING, "dualwrite"):
        kept = KeptTransaction(control, "app-0")  # type: ignore[arg-type]
        assert kept.complete(PreparedTxnState(stored)) is Outcome.NOTHING
    assert any("is not of this cluster" in line for line in caplog.messages) is is_another
