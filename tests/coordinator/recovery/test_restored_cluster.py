"""A cluster that is set back to an older copy of itself: what is on record names what is missing, and nothing else."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from tests.support.coordinator.event_table import slot_rows
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, visible

BEFORE, AFTER = "before", "after"
"""Topics that are written to before the copy is made, and after it."""


class Restored:
    """A broker that keeps its port, a copy of its directory, and an application."""

    def __init__(self, engine: Engine, directory: Path, producer: str) -> None:
        self.engine, self.directory, self.producer = engine, directory, producer
        self.broker = ForkedBroker(directory / "broker", listen=f"127.0.0.1:{free_port()}")
        self.broker.start()
        for topic in (BEFORE, AFTER):
            create_topic(self.broker.bootstrap_servers, topic, 1)

    def dual_write(self, pool_size: int = 1) -> DualWrite:
        config = {"bootstrap.servers": self.broker.bootstrap_servers}
        return DualWrite(
            self.engine,
            config,
            application="app",
            pool_size=pool_size,
            producer=self.producer,  # type: ignore[arg-type]
        )

    def copy(self) -> None:
        self.broker.stop()
        shutil.copytree(self.directory / "broker", self.directory / "copy")
        self.broker.start()

    def set_back(self) -> None:
        self.broker.stop()
        shutil.rmtree(self.directory / "broker")
        shutil.copytree(self.directory / "copy", self.directory / "broker")
        self.broker.start()

    def place_of(self, slot: str) -> str:
        """What an outcome of the slot's last unit is called by: topic, partition and offset."""
        row = slot_rows(self.engine)[slot]
        topic, partition, offset = (row.anchor or row.first_record).split(":")[-3:]
        return f":{topic.partition('~')[0]}:{partition}:{offset}"

    def visible(self, topic: str) -> list[bytes]:
        return sorted(visible(self.broker.bootstrap_servers, topic))


@pytest.fixture(params=["native", "librdkafka"])
def world(request: pytest.FixtureRequest, sqlite_engine: Engine, tmp_path: Path) -> Iterator[Restored]:
    made = Restored(sqlite_engine, tmp_path, request.param)
    yield made
    made.broker.stop()


def write(dual_write: DualWrite, topic: str, value: str) -> None:
    dual_write.transactional(retries=5)(lambda tx: tx.produce(topic, value))()


def on_record(dual_write: DualWrite) -> list[tuple[str, Outcome, str]]:
    return [(outcome.transactional_id, outcome.outcome, outcome.state) for outcome in dual_write.outcomes()]


@pytest.mark.slow_cases
def test_only_the_slot_whose_unit_is_missing_is_reported(world: Restored) -> None:
    with world.dual_write(2) as first, world.dual_write(2) as second:
        write(first, BEFORE, "first")
        write(second, BEFORE, "second")
    world.copy()
    with world.dual_write(1) as later:  # the slot that comes first
        write(later, AFTER, "missing too")
        write(later, AFTER, "missing")
    missing = world.place_of("app-0")
    assert missing.startswith(f":{AFTER}:")
    world.set_back()
    with world.dual_write(2) as dual_write:
        assert dual_write.recover()["app-0"] is Outcome.HEURISTIC_HAZARD
        ((slot, outcome, state),) = on_record(dual_write)
        assert (slot, outcome) == ("app-0", Outcome.HEURISTIC_HAZARD)
        assert state.endswith(missing)
        write(dual_write, AFTER, "next")
        assert len(on_record(dual_write)) == 1
    assert (world.visible(BEFORE), world.visible(AFTER)) == ([b"first", b"second"], [b"next"])


@pytest.mark.slow_cases
def test_a_cluster_that_is_set_back_under_a_living_application_is_found(world: Restored) -> None:
    """The next unit writes elsewhere, so that nothing in the way of its records tells."""
    with world.dual_write() as dual_write:
        write(dual_write, BEFORE, "kept")
        world.copy()
        write(dual_write, BEFORE, "missing")
        missing = world.place_of("app-0")
        world.set_back()
        write(dual_write, AFTER, "next")
        ((slot, outcome, state),) = on_record(dual_write)
        assert (slot, outcome) == ("app-0", Outcome.HEURISTIC_HAZARD)
        assert state.endswith(missing)
        write(dual_write, BEFORE, "one more")
        assert len(on_record(dual_write)) == 1
    assert (world.visible(BEFORE), world.visible(AFTER)) == ([b"kept", b"one more"], [b"next"])


@pytest.mark.slow_cases
def test_a_cluster_restarted_unchanged_reports_no_outcome(world: Restored) -> None:
    with world.dual_write() as dual_write:
        for number in range(3):
            write(dual_write, BEFORE, f"number {number}")
            world.broker.stop()
            world.broker.start()
        write(dual_write, AFTER, "last")
        assert on_record(dual_write) == []
