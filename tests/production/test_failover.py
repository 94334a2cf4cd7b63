"""An asynchronous standby that lagged is promoted while the application runs, by a URL that names both servers."""

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, insert, text

from dualwrite import DecisionLostError, DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.testing.kafka import KafkaBroker
from tests.conftest import missing, running
from tests.support.coordinator.event_table import events, ready_engine, slot_rows, stored_values
from tests.support.crash.world import free_port
from tests.support.peer_clients.kafka_helpers import visible
from tests.support.servers.postgresql import PostgreSQL, find_binaries
from tests.support.servers.standby import Standby, url_of_both
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgresql


class Cluster:
    """A primary, its standby, and an application of one slot on both."""

    def __init__(self, primary: PostgreSQL, standby: Standby, broker: KafkaBroker, producer: str) -> None:
        self.primary, self.standby, self.broker = primary, standby, broker
        self.topic = broker.create_topic()
        self.engine = create_engine(url_of_both(primary, standby), pool_pre_ping=True)
        self.dual_write = DualWrite(
            self.engine,
            broker.client_config,
            application=f"a{uuid.uuid4().hex[:8]}",
            pool_size=1,
            producer=producer,  # type: ignore[arg-type]
        )

    def write(self, value: str) -> str:
        """A unit of work; the state that it has stored."""
        with self.dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce(self.topic, value=value)
        (row,) = slot_rows(self.engine).values()
        return f"{row.prepared_txn_state}{':' + row.anchor if row.anchor else ''}"

    def catch_up(self) -> None:
        """Wait until the standby has all that the primary has committed."""
        with self.engine.connect() as connection:
            written = connection.scalar(text("SELECT pg_current_wal_lsn()"))
        engine = self.standby.engine()
        replayed = text("SELECT pg_last_wal_replay_lsn() >= CAST(:written AS pg_lsn)")
        with engine.connect() as connection:
            eventually(lambda: connection.scalar(replayed, {"written": written}), bool)
        engine.dispose()

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()

    def records(self) -> list[str]:
        return sorted(value.decode() for value in visible(self.broker.bootstrap_servers, self.topic))

    def close(self) -> None:
        self.dual_write.close()
        self.engine.dispose()


@pytest.fixture(params=["native", "librdkafka"])
def cluster(request: pytest.FixtureRequest, broker: KafkaBroker) -> Iterator[Cluster]:
    binaries = find_binaries()
    if binaries is None or not (binaries / "pg_basebackup").exists():
        missing("PostgreSQL", "a test promotes a standby")
    with running(PostgreSQL(binaries, port=free_port())) as primary:
        ready_engine(f"postgresql+psycopg://dualwrite@127.0.0.1:{primary.port}/postgres").dispose()
        standby = Standby(binaries, primary)
        made = Cluster(primary, standby, broker, request.param)
        try:
            yield made
        finally:
            made.close()
            standby.close()


def named(cluster: Cluster) -> list[str]:
    """The units of work that are on record, as the state table named them."""
    return [outcome.state for outcome in cluster.dual_write.outcomes()]


@pytest.mark.slow
def test_units_that_a_promoted_standby_has_lost_are_on_record_by_name(cluster: Cluster) -> None:
    cluster.write("one")
    cluster.write("two")
    cluster.catch_up()
    cluster.standby.cut_off()
    forgotten = [cluster.write("three"), cluster.write("four")]
    cluster.fail_over()
    with pytest.raises(DecisionLostError, match="has lost what it had committed") as raised:
        cluster.write("five")
    assert raised.value.retriable
    assert all(outcome.outcome is Outcome.HEURISTIC_COMMIT for outcome in cluster.dual_write.outcomes())
    assert [state.startswith(expected) for state, expected in zip(named(cluster), forgotten, strict=True)] == [True] * 2
    cluster.write("five again")
    assert stored_values(cluster.engine) == ["one", "two", "five again"]
    assert cluster.records() == sorted(["one", "two", "three", "four", "five again"])
    assert len(named(cluster)) == 2, "recovery reports none of it a second time"


@pytest.mark.slow_cases
def test_a_standby_that_has_everything_goes_on_as_if_nothing_had_happened(cluster: Cluster) -> None:
    """A failover is no new database: a physical standby has the identity of its primary."""
    cluster.write("one")
    cluster.catch_up()
    cluster.fail_over()
    cluster.write("two")
    cluster.dual_write.recover()
    assert named(cluster) == []
    assert (stored_values(cluster.engine), cluster.records()) == (["one", "two"], ["one", "two"])
