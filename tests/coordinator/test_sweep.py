"""The sweep: what dead owners left is recovered by the others, whatever the pool's size, and nothing else is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite.coordinator.participants import Outcome
from dualwrite.coordinator.unit_of_work import DualWrite
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from tests.coordinator.databases import CONFIG, events, expire_leases, slot_rows, stored_values
from tests.coordinator.fakes import FakeCluster, Fault

Make = Callable[..., DualWrite]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def make(engine: Engine, cluster: FakeCluster) -> Iterator[Make]:
    """Makes processes of one application, as far as the database and Kafka can tell."""
    made: list[DualWrite] = []

    def process(**options: Any) -> DualWrite:
        options = {"application": "a", "pool_size": 9, "participant": cluster.participant, **options}
        dual_write = DualWrite(engine, CONFIG, **options)
        made.append(dual_write)
        return dual_write

    yield process
    for dual_write in made:
        dual_write.close(timeout=0)


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value=value)


def die(make: Make, value: str, step: str = "COMMIT_KAFKA") -> None:
    """A process that does nothing any more once it has come to ``step``."""
    dead: list[str] = []

    def observe(name: str) -> None:
        if dead or name == step:
            dead.append(name)
            raise SystemExit

    with pytest.raises(SystemExit):
        write(make(on_step=observe), value)


def die_on_two_slots(engine: Engine, make: Make) -> None:
    """Leaves a-0 committed in the database alone, and a-1 prepared in Kafka alone."""
    die(make, "one")
    die(make, "never", step="COMMIT_DATABASE")
    expire_leases(engine)


def swept(dual_write: DualWrite) -> None:
    """Wait for the sweep in the background."""
    thread = dual_write._sweeper._thread
    if thread is not None:
        thread.join(20)
        assert not thread.is_alive()


def test_recover_ends_everything_that_nobody_holds_as_the_database_decided(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    assert cluster.ongoing == ["a-0", "a-1"]
    survivor = make()
    assert survivor.recover() == {"a-0": Outcome.COMMITTED, "a-1": Outcome.ABORTED}
    assert cluster.ongoing == []
    assert cluster.committed == stored_values(engine) == ["one"]
    assert survivor.recover() == {"a-1": Outcome.NOTHING}
    assert {name: bool(row.owner) for name, row in slot_rows(engine).items()} == {"a-0": True, "a-1": False}
    assert survivor.counters.recoveries == 3


def test_the_first_unit_of_work_has_the_rest_recovered_in_the_background(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    survivor = make()
    write(survivor, "two")
    swept(survivor)
    assert cluster.ongoing == []
    assert cluster.committed == stored_values(engine) == ["one", "two"]


def test_a_beat_recovers_what_has_been_left_since(engine: Engine, make: Make, cluster: FakeCluster) -> None:
    survivor = make()
    write(survivor, "zero")
    die(make, "one")
    survivor._pool.beat()
    swept(survivor)
    assert cluster.ongoing == ["a-1"], "its owner may be alive"
    expire_leases(engine)
    survivor._pool.beat()
    swept(survivor)
    assert cluster.ongoing == []
    assert cluster.committed == sorted(stored_values(engine)) == ["one", "zero"]


def test_slots_beyond_a_smaller_pool_are_recovered_and_given_back(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    others = [make() for _ in range(3)]
    for number, other in enumerate(others):
        write(other, str(number))
    die(make, "three")
    expire_leases(engine)
    make(pool_size=1).recover()
    assert cluster.ongoing == []
    assert cluster.committed == stored_values(engine) == ["0", "1", "2", "three"]
    assert [name for name, row in slot_rows(engine).items() if row.owner] == ["a-0"]


def test_whoever_is_alive_goes_on_undisturbed(engine: Engine, make: Make, cluster: FakeCluster) -> None:
    alive, survivor = make(), make()
    with alive.transaction() as tx:
        tx.produce("events", value="one")
        if engine.dialect.name != "sqlite":  # where the unit holds the write lock
            assert survivor.recover() == {"a-1": Outcome.NOTHING}
    write(alive, "two")
    assert cluster.committed == ["one", "two"]
    assert cluster.of("a-0").requests.count("init") == 1


def test_other_applications_are_not_touched(engine: Engine, make: Make, cluster: FakeCluster) -> None:
    die(lambda **options: make(application="a-1", **options), "one")
    expire_leases(engine)
    make().recover()
    assert cluster.ongoing == ["a-1-0"]
    make(application="a-1").recover()
    assert cluster.ongoing == []


def test_a_slot_that_cannot_be_recovered_costs_itself_alone_and_is_tried_again(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    for value in ("one", "two", "three"):
        die(make, value)
    expire_leases(engine)

    def refuse(request: str) -> None:
        if request == "complete":
            raise DualWriteError("refused")

    cluster.of("a-1").before_effect = refuse
    survivor = make()
    with pytest.raises(DualWriteError, match="refused"):
        survivor.recover()
    assert cluster.ongoing == ["a-1"]
    cluster.of("a-1").before_effect = lambda request: None
    found = survivor.recover()
    assert found["a-1"] is Outcome.COMMITTED
    assert cluster.committed == sorted(stored_values(engine))


def test_while_kafka_is_away_the_sweep_ends_and_the_next_one_does_all(
    engine: Engine, make: Make, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    survivor = make()
    write(survivor, "zero")
    for value in ("one", "two", "three"):
        die(make, value)
    expire_leases(engine)
    survivor._pool.beat()
    swept(survivor)
    assert cluster.committed == sorted(stored_values(engine)) == ["one", "three", "two", "zero"]
    for value in ("four", "five"):
        die(make, value)
    for kafka in cluster.ids.values():
        kafka.fault = lambda request: Fault.BEFORE if request == "init-keep" else Fault.NONE
    expire_leases(engine)
    survivor._pool.beat()
    swept(survivor)
    assert "what a dead process left was not recovered" in caplog.text
    with pytest.raises(KafkaUnavailableError):
        survivor.recover()
    for kafka in cluster.ids.values():
        kafka.fault = lambda request: Fault.NONE
    survivor.recover()
    assert cluster.ongoing == []
    assert cluster.committed == sorted(stored_values(engine))


def test_of_two_that_recover_at_once_each_slot_is_recovered_by_one(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    first, second = make(), make()
    outcomes: list[Any] = []

    def observe(name: str) -> None:
        if name == "RECOVER_TAKE_OVER" and not outcomes:
            outcomes.append(None)
            outcomes.append(second.recover())

    first = make(on_step=observe)
    assert first.recover() == {"a-2": Outcome.NOTHING, "a-1": Outcome.NOTHING}
    assert outcomes[1] == {"a-0": Outcome.COMMITTED, "a-1": Outcome.ABORTED}
    assert cluster.committed == stored_values(engine) == ["one"]
