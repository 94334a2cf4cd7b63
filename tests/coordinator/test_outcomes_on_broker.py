"""Heuristic outcomes of a living application, on the bundled broker: somebody ends its prepared transaction."""

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.control import ControlPlane
from dualwrite.coordinator.unit_of_work import DualWrite
from dualwrite.coordinator.verdict import Outcome
from tests.broker.kafka_helpers import create_topic, visible
from tests.broker.marker_calls import marker
from tests.broker.marker_calls import write as write_markers
from tests.broker.raw import RawClient
from tests.coordinator.databases import slot_rows

Meddle = Callable[["Place"], None]


class Place:
    """An application of one slot, and a topic of two partitions that nobody else has."""

    def __init__(self, engine: Engine, broker: EmbeddedBroker, producer: str) -> None:
        self.engine, self.broker, self.producer = engine, broker, producer
        self.application = f"a{uuid.uuid4().hex[:8]}"
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        create_topic(broker.bootstrap_servers, self.topic, 2)

    def dual_write(self, **options: Any) -> DualWrite:
        config = {"bootstrap.servers": self.broker.bootstrap_servers}
        options = {"pool_size": 1, "producer": self.producer, **options}
        return DualWrite(self.engine, config, application=self.application, **options)

    def write(self, dual_write: DualWrite, *values: str) -> None:
        with dual_write.transaction() as tx:
            for number, value in enumerate(values):
                tx.produce(self.topic, value, partition=number % 2)

    def leave(self, *values: str) -> None:
        """A process that dies between the two commits."""

        def die(step: str) -> None:
            if step in ("COMMIT_KAFKA", "FINISH_LATER"):
                raise SystemExit

        dying = self.dual_write(on_step=die)
        with pytest.raises(SystemExit):
            self.write(dying, *values)
        dying.close(timeout=0)

    def control(self) -> ControlPlane:
        return ControlPlane({"bootstrap.servers": self.broker.bootstrap_servers})

    def visible(self) -> list[bytes]:
        return sorted(visible(self.broker.bootstrap_servers, self.topic))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(params=["native", "librdkafka"])
def place(request: pytest.FixtureRequest, sqlite_engine: Engine, broker: EmbeddedBroker, tmp_path: Path) -> Place:
    return Place(sqlite_engine, broker, request.param)


def terminate(place: Place) -> None:
    """KIP-939's forceTerminateTransaction."""
    control = place.control()
    control.init_producer_id(f"{place.application}-0", two_phase_commit=True, keep_prepared_txn=False)
    control.close()


def end(place: Place, *, committed: bool, version: int) -> None:
    """An EndTxn of somebody's who knows the identity."""
    control = place.control()
    described = control.describe_transaction(f"{place.application}-0")
    assert described is not None
    control.end_txn(f"{place.application}-0", described.producer, committed, version_cap=version)
    control.close()


ABORTS = {
    "terminated": terminate,
    "EndTxn v4": partial(end, committed=False, version=4),
    "EndTxn v5": partial(end, committed=False, version=5),
}


@pytest.mark.parametrize("how", ABORTS)
def test_an_abort_between_the_two_commits_of_a_living_application(place: Place, how: str) -> None:
    begun: list[str] = []

    def observe(step: str) -> None:
        begun.append(step)
        if step == "COMMIT_KAFKA" and begun.count(step) == 1:
            ABORTS[how](place)

    with place.dual_write(on_step=observe) as dual_write:
        place.write(dual_write, "one")  # the database has committed: its caller is told of success
        place.write(dual_write, "two")
        (found,) = dual_write.outcomes()
        assert found.outcome is Outcome.HEURISTIC_ABORT
        assert f":{place.topic}:0:0" in found.state
        assert dual_write.counters.heuristic == 1
    assert place.visible() == [b"two"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_by_somebody_else_is_what_was_decided(place: Place, version: int) -> None:
    place.leave("one")
    end(place, committed=True, version=version)
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {f"{place.application}-0": Outcome.NOTHING}
        assert dual_write.outcomes() == []
    assert place.visible() == [b"one"]


def test_an_abort_by_hand_in_the_first_records_partition(place: Place) -> None:
    """What of the transaction can still be committed is committed if it can be told to be the decided one."""
    place.leave("in 0", "in 1")
    row = slot_rows(place.engine)[f"{place.application}-0"]
    partition = int((row.anchor or row.first_record).split(":")[-2])
    control = place.control()
    described = control.describe_transaction(f"{place.application}-0")
    assert described is not None
    with RawClient(place.broker.bootstrap_servers) as client:
        write_markers(client, marker(described.producer, (place.topic, partition)), version=1)
    control.close()
    with place.dual_write() as dual_write:
        dual_write.recover()
        outcomes = [each.outcome for each in dual_write.outcomes()]
    if place.producer == "native":
        assert (outcomes, place.visible()) == ([Outcome.HEURISTIC_MIXED], [b"in %d" % (1 - partition)])
    else:  # its anchor is not where an open transaction begins any more
        assert (outcomes, place.visible()) == ([Outcome.HEURISTIC_ABORT], [])
