"""An application idle for transactional.id.expiration.ms recovers by itself: no other process has taken over."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from dualwrite import DualWrite
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.comparison.topic import read_topic
from dualwrite.errors import PrepareFailedError
from tests.support.coordinator.event_table import events, stored_values
from tests.support.forked import ForkedBroker
from tests.support.waiting import eventually

EXPIRING = {
    # long enough for what comes between a producer's start and its first record
    "transactional.id.expiration.ms": "2500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
}


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("topic", value=value.encode())


def wait_until_forgotten(bootstrap_servers: str, transactional_id: str) -> None:
    control = ControlPlane({"bootstrap.servers": bootstrap_servers})
    assert control.describe_transaction(transactional_id) is not None
    assert eventually(lambda: control.describe_transaction(transactional_id) is None)
    control.close()


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_the_first_unit_after_an_id_expired_fails_retriably_and_the_next_succeeds(
    tmp_path: Path, sqlite_engine: Engine, producer: str
) -> None:
    with ForkedBroker(tmp_path / "broker", config=EXPIRING) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        with DualWrite(sqlite_engine, config, application="idle", producer=producer) as dual_write:
            write(dual_write, "before")
            wait_until_forgotten(broker.bootstrap_servers, "idle-0")
            with pytest.raises(PrepareFailedError) as caught:
                write(dual_write, "lost")
            assert caught.value.retriable
            write(dual_write, "after")
            write(dual_write, "and on")
            assert (dual_write.counters.committed, dual_write.counters.rolled_back) == (3, 1)
        visible = [value.decode() for _, value in read_topic(broker.bootstrap_servers, "topic", "read_committed")]
    assert visible == stored_values(sqlite_engine) == ["before", "after", "and on"]
