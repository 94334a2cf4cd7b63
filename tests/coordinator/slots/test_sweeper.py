"""The sweep: living processes recover the slots of dead owners, for every pool size, and no other slots."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, text
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.errors import DatabaseBusyError, DatabaseNotReadyError, DualWriteError, KafkaUnavailableError
from tests.support.coordinator.event_table import CONFIG, await_sweeps, events, expire_leases, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster, Fault
from tests.support.crash.world import free_port

pytestmark = pytest.mark.slow_cases("mariadb")

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
    await_sweeps()


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
        write(make(on_step=observe, lease_timeout=3000), value)  # its heartbeat does not come to pass


def die_on_two_slots(engine: Engine, make: Make) -> None:
    """Leaves a-0 committed in the database alone, and a-1 prepared in Kafka alone."""
    die(make, "one")
    die(make, "never", step="COMMIT_DATABASE")
    expire_leases(engine)


def swept(dual_write: DualWrite) -> None:
    """Wait for the sweep in the background."""
    assert dual_write.wait_idle(20)


def test_recover_ends_every_unowned_transaction_as_the_database_decided(
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


def test_a_heartbeat_recovers_slots_abandoned_since_the_start(engine: Engine, make: Make, cluster: FakeCluster) -> None:
    survivor = make()
    write(survivor, "zero")
    die(make, "one")
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert cluster.ongoing == ["a-1"], "its owner may be alive"
    expire_leases(engine)
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert cluster.ongoing == []
    assert cluster.committed == sorted(stored_values(engine)) == ["one", "zero"]


def test_close_succeeds_after_a_sweep_that_could_not_begin(
    engine: Engine, make: Make, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread is to be had, or an interrupt comes just before it begins."""
    survivor = make()
    write(survivor, "zero")
    die(make, "one")
    expire_leases(engine)
    start = threading.Thread.start

    def exhausted(thread: threading.Thread) -> None:
        if thread.name == "dualwrite-sweep":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    with pytest.raises(RuntimeError):
        manager_of(survivor).process.pool.beat()
    survivor.close()
    assert slot_rows(engine)["a-0"].owner == "", "it was given back"


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


def test_a_sweep_does_not_disturb_the_slots_of_a_living_process(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
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


def test_an_unrecoverable_slot_blocks_no_other_and_is_tried_again(
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
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert cluster.committed == sorted(stored_values(engine)) == ["one", "three", "two", "zero"]
    for value in ("four", "five"):
        die(make, value)
    for kafka in cluster.ids.values():
        kafka.fault = lambda request: Fault.BEFORE if request == "init-keep" else Fault.NONE
    expire_leases(engine)
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert "a dead process's slot was not recovered" in caplog.text
    with pytest.raises(KafkaUnavailableError):
        survivor.recover()
    for kafka in cluster.ids.values():
        kafka.fault = lambda request: Fault.NONE
    survivor.recover()
    assert cluster.ongoing == []
    assert cluster.committed == sorted(stored_values(engine))


@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_broker_that_is_down_is_waited_for_as_long_as_a_record(engine: Engine, make: Make, producer: Any) -> None:
    die(make, "one")
    expire_leases(engine)
    kafka = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "delivery.timeout.ms": "300"}
    with (
        DualWrite(engine, kafka, application="a", producer=producer) as survivor,
        pytest.raises(KafkaUnavailableError, match=r"gave up after 0\.3 s"),
    ):
        survivor.recover()


def test_each_slot_is_recovered_by_one_of_two_concurrent_recoveries(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    second = make()
    outcomes: list[Any] = []

    def observe(name: str) -> None:
        if name == "RECOVER_TAKE_OVER" and not outcomes:
            outcomes.append(None)
            outcomes.append(second.recover())

    first = make(on_step=observe)
    assert first.recover() == {"a-2": Outcome.NOTHING, "a-1": Outcome.NOTHING}
    assert outcomes[1] == {"a-0": Outcome.COMMITTED, "a-1": Outcome.ABORTED}
    assert cluster.committed == stored_values(engine) == ["one"]


def test_a_background_sweep_locks_no_slot_that_a_recovery_has_just_recovered(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if threading.current_thread().name == "dualwrite-sweep":
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    survivor = make()
    assert survivor.recover() == {"a-0": Outcome.COMMITTED, "a-1": Outcome.ABORTED}
    swept(survivor)
    assert statements, "there was no sweep in the background"
    assert [statement for statement in statements if "UPDATE" in statement] == []


def test_the_sweep_records_transactions_that_were_ended_by_force(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    for value in ("one", "two", "three"):
        die(make, value)
    expire_leases(engine)
    for name in ("a-1", "a-2"):
        cluster.of(name).init_producer_id(keep_prepared_txn=False)
    survivor = make()
    rolled_back = Outcome.HEURISTIC_ABORT
    assert survivor.recover() == {"a-0": Outcome.COMMITTED, "a-1": rolled_back, "a-2": rolled_back}
    assert sorted(outcome.transactional_id for outcome in survivor.outcomes()) == ["a-1", "a-2"]
    assert survivor.counters.heuristic == 2
    assert survivor.recover() == {"a-1": Outcome.NOTHING, "a-2": Outcome.NOTHING}
    assert survivor.counters.heuristic == 2
    assert cluster.committed == ["one"]


def test_a_slot_that_the_background_could_not_recover_is_tried_again_at_the_next_heartbeat(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    survivor = make()
    write(survivor, "zero")
    die(make, "one")
    expire_leases(engine)
    cluster.of("a-1").fault = lambda request: Fault.BEFORE if request == "complete" else Fault.NONE
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert cluster.ongoing == ["a-1"]
    cluster.of("a-1").fault = lambda request: Fault.NONE
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert cluster.ongoing == []
    assert cluster.committed == sorted(stored_values(engine)) == ["one", "zero"]


def test_while_kafka_is_away_no_further_slot_is_taken(
    engine: Engine, make: Make, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_on_two_slots(engine, make)
    tokens = {name: row.fencing_token for name, row in slot_rows(engine).items()}
    monkeypatch.setattr("dualwrite.coordinator.slots.sweeper.CHUNK", 1)
    for kafka in cluster.ids.values():
        kafka.fault = lambda request: Fault.BEFORE
    with pytest.raises(KafkaUnavailableError):
        manager_of(make()).process.sweeper.sweep()
    taken = [name for name, row in slot_rows(engine).items() if row.fencing_token != tokens[name]]
    assert taken == ["a-0"]


def test_an_outcome_that_could_not_be_recorded_is_found_by_the_next_sweep(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    die_on_two_slots(engine, make)
    cluster.of("a-0").init_producer_id(keep_prepared_txn=False)
    survivor = make()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE kafka_transaction_outcome RENAME TO elsewhere"))
    with pytest.raises(DatabaseNotReadyError):
        manager_of(survivor).process.sweeper.sweep()
    assert slot_rows(engine)["a-0"].owner, "it is not given back"
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO kafka_transaction_outcome"))
    assert manager_of(survivor).process.sweeper.sweep()["a-0"] is Outcome.HEURISTIC_ABORT
    assert [outcome.transactional_id for outcome in survivor.outcomes()] == ["a-0"]


def test_an_outcome_that_was_not_recorded_is_found_by_the_next_heartbeat(
    engine: Engine, make: Make, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot must not count as recovered: the heartbeat looks at no slot that was given back."""
    die_on_two_slots(engine, make)
    cluster.of("a-0").init_producer_id(keep_prepared_txn=False)
    survivor = make()

    def refuse(*_: object) -> None:
        raise DatabaseBusyError("a test")

    with monkeypatch.context() as patched:
        patched.setattr(manager_of(survivor).store, "record", refuse)
        with pytest.raises(DatabaseBusyError):
            manager_of(survivor).process.sweeper.sweep()
    manager_of(survivor).process.pool.beat()
    swept(survivor)
    assert [outcome.transactional_id for outcome in survivor.outcomes()] == ["a-0"]


# --- applications that no process recovers: they were renamed, or removed


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about other applications."""
    return [record.getMessage() for record in caplog.records if "in the same database" in record.getMessage()]


def test_a_start_under_another_name_warns_once_of_the_former_names_transactions(
    engine: Engine, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("one", "two"):
        die(lambda **options: make(application="former", **options), value)
    expire_leases(engine)
    caplog.clear()
    renamed = make()
    write(renamed, "three")
    manager_of(renamed).process.pool.beat()
    write(renamed, "four")
    (line,) = warnings(caplog)
    assert line.startswith("a: in the same database, application 'former' has 2 slots whose owners are gone, for ")
    assert "dualwrite recover --application former --db URL" in line
    assert [record.levelname for record in caplog.records if record.getMessage() == line] == ["WARNING"]


def test_living_and_cleanly_closed_applications_are_not_warned_about(
    engine: Engine, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ended = make(application="ended")
    write(ended, "one")
    ended.close()
    for value in ("two", "three"):
        die(lambda **options: make(application="alive", **options), value)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE kafka_transaction_state SET lease_expires_at = updated_at WHERE transactional_id = 'alive-0'")
        )
    caplog.clear()
    write(make(), "four")
    assert warnings(caplog) == []


def test_a_failed_check_of_other_applications_fails_no_unit(
    engine: Engine, make: Make, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr(LeaseRegistry, "abandoned_elsewhere", fail)
    with caplog.at_level("INFO", "dualwrite"):
        write(make(), "one")
    assert cluster.committed == stored_values(engine) == ["one"]
    assert "the slots of other applications were not checked" in caplog.text
