"""A row that was just made, and a Kafka transaction that is open under its transactional id.

Another row may have decided to commit it: one of another database or schema, or one that was deleted. So it is on
record before it is aborted.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import UNRECOVERED
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import FencedError
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.event_table import (
    CONFIG,
    TakingStore,
    await_sweeps,
    expire_leases,
    ready_engine,
    slot_rows,
)
from tests.support.coordinator.fake_kafka import Crash, FakeCluster, FakeKafka, Fault

pytestmark = pytest.mark.slow_cases("mariadb")

ID = "orders-0"
Make = Callable[..., DualWrite]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def kafka(cluster: FakeCluster) -> FakeKafka:
    return cluster.of(ID)


@pytest.fixture
def make(engine: Engine, cluster: FakeCluster) -> Iterator[Make]:
    """Makes processes of one application."""
    made: list[DualWrite] = []

    def process(engine: Engine = engine, **options: Any) -> DualWrite:
        options = {"participant": cluster.participant, "pool_size": 1, "lease_timeout": 3000, **options}
        made.append(DualWrite(engine, CONFIG, application="orders", **options))
        return made[-1]

    yield process
    for dual_write in made:
        dual_write.close(timeout=0)
    await_sweeps()


@pytest.fixture
def other_engine(tmp_path: Path) -> Iterator[Engine]:
    """Another database under the same application name."""
    made = ready_engine(f"sqlite:///{tmp_path / 'other.db'}")
    yield made
    made.dispose()


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", value)


def dead_from(step: str) -> Callable[[str], None]:
    """The ``on_step`` of a process that does nothing any more once it has come to ``step``."""
    dead: list[str] = []

    def observe(name: str) -> None:
        if dead or name == step:
            dead.append(name)
            raise SystemExit

    return observe


def die_at(make: Make, step: str, engine: Engine, value: str = "one") -> None:
    """A process that does nothing any more once it has come to ``step``."""
    with pytest.raises(SystemExit):
        write(make(engine, on_step=dead_from(step)), value)
    expire_leases(engine)


def die_in(make: Make, request: str, kafka: FakeKafka, engine: Engine) -> None:
    """A process that dies in a request to Kafka, and gives nothing back."""
    kafka.fault = lambda name: Fault.CRASH if name == request else Fault.NONE
    dying = make(engine)
    with pytest.raises(Crash):
        write(dying, "dead")
    kafka.fault = lambda name: Fault.BEFORE  # nor does its end reach Kafka
    dying.close(timeout=0)
    await_sweeps()
    kafka.fault = lambda name: Fault.NONE
    expire_leases(engine)


def marks(engine: Engine) -> list[str | None]:
    return [row.outcome for row in slot_rows(engine).values()]


def states(dual_write: DualWrite) -> list[tuple[str, Outcome]]:
    return [(outcome.state, outcome.outcome) for outcome in dual_write.outcomes()]


def decided_in(engine: Engine) -> str:
    row = slot_rows(engine)[ID]
    return f"{row.prepared_txn_state}:{row.anchor}"


def hazard(engine: Engine) -> list[tuple[str, Outcome]]:
    """What is to be on record: the unit of work that the other row has decided to commit."""
    return [(decided_in(engine), Outcome.HEURISTIC_HAZARD)]


def test_a_transaction_that_another_database_may_have_decided_is_on_record(
    make: Make, kafka: FakeKafka, engine: Engine, other_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    die_at(make, "COMMIT_KAFKA", other_engine)
    here = make()
    write(here, "two")
    assert states(here) == hazard(other_engine)
    assert (kafka.aborted, kafka.committed) == (["one"], ["two"])
    assert here.counters.heuristic == 1
    assert "the state row of this transactional id was made anew" in caplog.text
    write(here, "three")
    assert len(states(here)) == 1
    assert marks(engine) == [None]


def test_a_state_table_that_was_emptied_does_not_hide_what_it_had_decided(
    make: Make, kafka: FakeKafka, engine: Engine
) -> None:
    die_at(make, "COMMIT_KAFKA", engine)
    expected = hazard(engine)
    with engine.begin() as connection:
        connection.execute(delete(table))
    here = make()
    write(here, "two")
    assert states(here) == expected


@pytest.mark.parametrize("first", ["the old owner", "the new row"])
def test_a_unit_that_the_old_owner_and_the_new_row_find_is_on_record_once(
    make: Make, kafka: FakeKafka, engine: Engine, first: str
) -> None:
    """The table is emptied under a process whose unit of work is decided, and not committed in Kafka."""
    with make() as predecessor:
        write(predecessor, "zero")  # so that the old owner's token is 2: those of new rows are random, or 1 in tests
    old, new = make(on_step=dead_from("COMMIT_KAFKA")), make()
    with pytest.raises(SystemExit):
        write(old, "one")
    expected = hazard(engine)
    with engine.begin() as connection:
        connection.execute(delete(table))
    if first == "the old owner":
        manager_of(old).process.pool.beat()
        assert states(new) == expected
    write(new, "two")
    assert states(new) == expected
    if first == "the new row":
        manager_of(old).process.pool.beat()
        assert states(new) == expected
    assert (old.counters.heuristic, new.counters.heuristic) == (1, 1), "both have found it"
    assert (kafka.aborted, kafka.committed) == (["one"], ["zero", "two"])


def test_a_first_start_records_nothing(make: Make, engine: Engine) -> None:
    here = make()
    write(here, "one")
    assert (states(here), marks(engine), here.counters.heuristic) == ([], [None], 0)


def test_the_unrecovered_mark_is_removed_before_a_transaction_begins(
    make: Make, kafka: FakeKafka, engine: Engine
) -> None:
    seen: list[str | None] = []
    kafka.before_effect = lambda request: seen.extend(marks(engine)) if request == "begin" else None
    write(make(), "one")
    assert seen == [None]


@pytest.mark.parametrize("step", ["PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE"])
def test_an_undecided_transaction_of_the_same_row_is_not_reported_as_a_hazard(
    make: Make, kafka: FakeKafka, engine: Engine, step: str
) -> None:
    """The process dies in the first unit of work of a row that it has made itself."""
    die_at(make, step, engine)
    assert kafka.ongoing is not None
    here = make()
    write(here, "two")
    assert states(here) == []
    assert len(kafka.aborted) == 1


def test_a_unit_of_a_row_whose_first_recovery_the_database_forgot_is_committed(
    make: Make, kafka: FakeKafka, engine: Engine
) -> None:
    """A standby that lagged is promoted: it has the row as it was inserted, and the process goes on with its slot."""
    dying = make(on_step=dead_from("COMMIT_KAFKA"))
    dying.recover()
    with engine.begin() as connection:
        assert connection.execute(update(table).values(outcome=UNRECOVERED)).rowcount == 1
    with pytest.raises(SystemExit):
        write(dying, "one")
    expire_leases(engine)
    here = make()
    write(here, "two")
    assert (states(here), kafka.aborted, kafka.committed) == ([], [], ["one", "two"])


@pytest.mark.parametrize("request_", ["init-keep", "complete"])
def test_a_death_during_the_first_recovery_keeps_the_evidence(
    make: Make, kafka: FakeKafka, engine: Engine, other_engine: Engine, request_: str
) -> None:
    die_at(make, "COMMIT_KAFKA", other_engine)
    die_in(make, request_, kafka, engine)
    assert marks(engine) == [UNRECOVERED if request_ == "init-keep" else None], "it is on record before it is aborted"
    here = make()
    write(here, "two")
    assert states(here) == hazard(other_engine), "once"
    assert (kafka.aborted, kafka.committed) == (["one"], ["two"])


@pytest.mark.parametrize("is_locked", [False, True], ids=["with others", "alone"])
def test_a_sweep_records_a_transaction_that_another_database_may_have_decided(
    make: Make,
    kafka: FakeKafka,
    engine: Engine,
    other_engine: Engine,
    is_locked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die_at(make, "COMMIT_KAFKA", other_engine)
    die_in(make, "init-keep", kafka, engine)
    here = make()
    if is_locked:
        monkeypatch.setattr(manager_of(here).store, "locked_at_once", lambda leases: nullcontext({}))
    assert manager_of(here).sweep() == ({ID: Outcome.HEURISTIC_HAZARD}, [])
    assert states(here) == hazard(other_engine)
    assert (kafka.aborted, kafka.ongoing) == (["one"], None)
    write(here, "two")
    assert len(states(here)) == 1


def test_a_process_that_lost_the_slot_during_recovery_records_no_outcome(
    make: Make, kafka: FakeKafka, engine: Engine, other_engine: Engine
) -> None:
    die_at(make, "COMMIT_KAFKA", other_engine)
    fast = make()

    def take_over(step: str) -> None:
        if step == "RECOVER_RECORD":
            expire_leases(engine)
            write(fast, "two")

    slow = make(on_step=take_over)
    with pytest.raises(FencedError):
        write(slow, "one again")
    assert states(fast) == hazard(other_engine)
    assert kafka.committed == ["two"]


def test_a_process_that_lost_the_slot_leaves_the_mark_to_its_successor(engine: Engine) -> None:
    """If the successor dies before it has recovered, the next owner must still find the row marked as new."""
    store = TakingStore(engine)
    slow, _ = store.take_over(ID, "slow"), store.take_over(ID, "successor")
    with pytest.raises(FencedError):
        store.mark_recovered(slow, PreparedTxnState())
    assert slot_rows(engine)[ID].outcome == UNRECOVERED
