"""An application on a Kafka of the tests' own, and its death between the two commits."""

from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.event_table import CONFIG, await_sweeps, events
from tests.support.coordinator.fake_kafka import FakeCluster


def dual_write(engine: Engine, cluster: FakeCluster, **options: Any) -> DualWrite:
    options = {"pool_size": 1, "acquire_timeout": 0.5, **options}
    return DualWrite(engine, CONFIG, application="orders", participant=cluster.participant, **options)


def write(made: DualWrite, value: str) -> None:
    with made.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value)


def leave_decided(engine: Engine, cluster: FakeCluster, value: str) -> None:
    """Production's application dies between the two commits."""
    dying = dual_write(engine, cluster, on_step=die)
    with pytest.raises(SystemExit):
        write(dying, value)
    dying.close(timeout=0)
    await_sweeps()
    assert cluster.of("orders-0").ongoing is not None


def die(step: str) -> None:
    """As a process that is killed after its decision."""
    if step in ("COMMIT_KAFKA", "FINISH_LATER"):
        raise SystemExit
