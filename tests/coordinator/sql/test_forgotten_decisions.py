"""A database that forgets what it has committed while the application runs, and a process that exists twice.

In each kind of database: the tables are set back to what they were, as a standby that lagged or a restored backup
shows them, and the application goes on with its warm slot.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, insert, select, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import DatabaseBusyError, DecisionLostError
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.database_copies import ID, copied, set_back, state_now
from tests.support.coordinator.event_table import TakingStore, events, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


@pytest.fixture
def dual_write(engine: Engine, make_dual_write: Callable[..., DualWrite]) -> DualWrite:
    return make_dual_write(engine, lease_timeout=3600)


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value)


def states(dual_write: DualWrite) -> list[tuple[str, Outcome]]:
    return [(outcome.state, outcome.outcome) for outcome in dual_write.outcomes()]


def test_a_decision_that_the_database_forgot_is_on_record_before_the_next_unit_of_work(
    engine: Engine, dual_write: DualWrite, kafka: FakeKafka
) -> None:
    write(dual_write, "one")
    before = copied(engine)
    write(dual_write, "two")
    second = state_now(engine)
    write(dual_write, "three")
    third = state_now(engine)
    set_back(engine, before)
    with pytest.raises(DecisionLostError, match="'orders-0': the database has lost what it had committed") as raised:
        write(dual_write, "four")
    assert raised.value.retriable
    assert states(dual_write) == [(second, Outcome.HEURISTIC_COMMIT), (third, Outcome.HEURISTIC_COMMIT)]
    assert dual_write.counters.heuristic == 2
    assert (stored_values(engine), kafka.aborted) == (["one"], ["four"])
    write(dual_write, "four again")
    assert sorted(stored_values(engine)) == ["four again", "one"]
    assert kafka.committed == ["one", "two", "three", "four again"]
    assert len(states(dual_write)) == 2, "the slot's recovery reports nothing a second time"


def test_a_forgotten_first_decision_is_noticed_too(engine: Engine, dual_write: DualWrite) -> None:
    """The row says then that nothing was ever decided: neither it nor the log can tell recovery that something was."""
    dual_write.recover()
    before = copied(engine)
    write(dual_write, "one")
    first = state_now(engine)
    set_back(engine, before)
    with pytest.raises(DecisionLostError):
        write(dual_write, "two")
    assert states(dual_write) == [(first, Outcome.HEURISTIC_COMMIT)]


def test_a_forgotten_renewal_is_noticed(engine: Engine, dual_write: DualWrite) -> None:
    write(dual_write, "one")
    before = slot_rows(engine)[ID].lease_version
    manager_of(dual_write).process.pool.beat()
    with engine.begin() as connection:
        connection.execute(update(table).values(lease_version=before))
    with pytest.raises(DecisionLostError, match="the database has lost what it had committed"):
        write(dual_write, "two")
    assert stored_values(engine) == ["one"]


def test_a_forgotten_lease_is_noticed(engine: Engine, dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.FIRST_TOKENS", 2**48)
    write(dual_write, "one")
    with engine.begin() as connection:
        connection.execute(update(table).values(fencing_token=table.c.fencing_token - 1, lease_version=None))
    with pytest.raises(DecisionLostError):
        write(dual_write, "two")
    assert states(dual_write) == [], "nothing but the lease was forgotten"
    write(dual_write, "two again")
    assert stored_values(engine) == ["one", "two again"]


@pytest.mark.parametrize(("step", "is_noticed"), [(9, False), (2, True)], ids=["a higher token", "a lower token"])
def test_a_process_whose_lease_was_forgotten_leaves_the_next_owners_decision_alone(
    engine: Engine,
    make_dual_write: Callable[..., DualWrite],
    kafka: FakeKafka,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    is_noticed: bool,
) -> None:
    """The next owner has decided a unit of work, whose commit has not reached Kafka, when the first one wakes."""
    with make_dual_write(engine) as predecessor:
        write(predecessor, "zero")
    zero, before, tokens = state_now(engine), copied(engine), iter([5, step])
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.next_token", lambda token: token + next(tokens))
    sleeper = make_dual_write(engine, lease_timeout=3600)
    write(sleeper, "one")
    first = state_now(engine)
    set_back(engine, before)
    heir = make_dual_write(engine, lease_timeout=3600)
    heir.recover()
    kafka.fault = lambda request: Fault.BEFORE if request in ("commit", "init-keep") else Fault.NONE
    write(heir, "two")
    manager_of(sleeper).process.pool.beat()
    kafka.fault = lambda request: Fault.NONE
    assert heir.wait_idle(20)
    assert (stored_values(engine), kafka.committed) == (["zero", "two"], ["zero", "one", "two"])
    assert (zero, Outcome.HEURISTIC_COMMIT) in states(heir), "overtaken by the sleeper's unit, which has no row"
    assert ((first, Outcome.HEURISTIC_COMMIT) in states(heir)) is is_noticed


@pytest.mark.slow_cases("mariadb")
@pytest.mark.parametrize("emptied", [1, 2], ids=["once", "twice"])
def test_an_emptied_state_table_is_on_record_and_the_application_goes_on(
    engine: Engine, dual_write: DualWrite, kafka: FakeKafka, emptied: int
) -> None:
    expected = []
    for number in range(emptied):
        for which in ("before", "last before"):
            write(dual_write, f"{which} {number}")
            expected.append((state_now(engine), Outcome.HEURISTIC_COMMIT))
        with engine.begin() as connection:
            connection.execute(delete(table))
        with pytest.raises(DecisionLostError, match="it is gone"):
            write(dual_write, "lost")
    write(dual_write, "after")
    assert states(dual_write) == expected
    assert "lost" not in [*stored_values(engine), *kafka.committed]


@pytest.mark.parametrize(
    "written",
    [{"prepared_txn_state": "42:6"}, {"anchor": "events:3:98"}, {"lease_version": 4711}],
    ids=["the state alone", "the anchor alone", "the version alone"],
)
def test_each_difference_between_row_and_memory_keeps_the_row_from_being_overwritten(
    engine: Engine, written: Mapping[str, Any]
) -> None:
    """States of the native producer have no anchor, and those of one librdkafka session differ by nothing else."""
    store, last = TakingStore(engine), PreparedTxnState("42:7:events:3:99" if "anchor" in written else "42:7")
    lease = store.take_over(ID, "me")
    with engine.begin() as connection:
        store.store(connection, lease, last)
    lease.memory.committed()
    with engine.begin() as connection:
        connection.execute(update(table).values(**written))
    row = slot_rows(engine)[ID]
    with engine.connect() as connection, pytest.raises(LeaseContradictedError):
        store.store(connection, lease, PreparedTxnState("42:8"))
    assert slot_rows(engine)[ID] == row


@pytest.mark.parametrize(
    ("since", "left"),
    [({}, ""), ({"fencing_token": 2}, "42:7"), ({"prepared_txn_state": "42:9"}, "42:9")],
    ids=["nothing has happened since", "a new owner has taken it", "another state was stored"],
)
def test_only_the_row_that_was_found_set_back_is_corrected(engine: Engine, since: Mapping[str, Any], left: str) -> None:
    """The record of what the database has lost may have to wait. Until then the row may have got another decision."""
    store = TakingStore(engine)
    lease = store.take_over(ID, "me")
    with engine.begin() as connection:
        store.store(connection, lease, PreparedTxnState("42:7"))
    found = RowSeen(lease.fencing_token, None, PreparedTxnState("42:7"))
    with engine.begin() as connection:
        connection.execute(update(table).values(updated_at=table.c.updated_at, **since))
    lost = Unmatched(PreparedTxnState("42:8"), Outcome.HEURISTIC_COMMIT, "a test")
    store.note_unmatched(ID, [lost], found)
    assert slot_rows(engine)[ID].prepared_txn_state == left


def test_the_heartbeat_notices_a_lost_decision_of_an_idle_slot(engine: Engine, dual_write: DualWrite) -> None:
    write(dual_write, "one")
    before = copied(engine)
    write(dual_write, "two")
    second = state_now(engine)
    set_back(engine, before)
    manager_of(dual_write).process.pool.beat()
    assert states(dual_write) == [(second, Outcome.HEURISTIC_COMMIT)]
    write(dual_write, "three")
    assert stored_values(engine) == ["one", "three"]


def test_the_heartbeat_notices_that_the_row_is_gone(engine: Engine, dual_write: DualWrite) -> None:
    write(dual_write, "one")
    first = state_now(engine)
    with engine.begin() as connection:
        connection.execute(delete(table))
    manager_of(dual_write).process.pool.beat()
    assert states(dual_write) == [(first, Outcome.HEURISTIC_COMMIT)]


def test_a_heartbeat_in_the_middle_of_a_unit_does_not_fail_it(engine: Engine, dual_write: DualWrite) -> None:
    """Renewing draws a new version, which the unit's STORE_STATE must demand."""
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
        if engine.dialect.name != "sqlite":  # there the unit of work holds the lock that a renewal needs
            manager_of(dual_write).process.pool.beat()
    write(dual_write, "two")
    assert states(dual_write) == []


def renewed_too_late(engine: Engine, dual_write: DualWrite) -> list[str]:
    """Let the heartbeat renew the lease between the making of the first statement that stores a state and its
    execution. Returns a list that grows with each such statement."""
    unit, stored = threading.current_thread(), []

    def renew_first(_: Any, __: Any, statement: str, *___: Any) -> None:
        if threading.current_thread() is unit and statement.startswith("UPDATE") and "first_record" in statement:
            stored.append(statement)
            if len(stored) == 1:
                manager_of(dual_write).process.pool.beat()

    event.listen(engine, "before_cursor_execute", renew_first)
    return stored


def test_a_renewal_just_before_a_statement_executes_does_not_fail_the_unit(
    engine: Engine, dual_write: DualWrite
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("a unit of work holds the lock that a renewal needs")
    write(dual_write, "one")
    calls = renewed_too_late(engine, dual_write)
    write(dual_write, "two")
    assert len(calls) == 2, "the first one was too late"
    assert (stored_values(engine), states(dual_write)) == (["one", "two"], [])


def test_a_renewal_invisible_to_the_units_snapshot_does_not_fail_the_unit(
    engine: Engine, dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB's default level: the unit has read before the heartbeat came, and a plain SELECT shows what was."""
    if engine.dialect.name == "sqlite":
        pytest.skip("a unit of work holds the lock that a renewal needs")
    write(dual_write, "one")
    calls = renewed_too_late(engine, dual_write)
    with dual_write.transaction() as tx:
        tx.execute(select(events)).all()
        tx.execute(select(table)).all()
        tx.produce("events", "two")
    assert len(calls) == 2
    assert states(dual_write) == []


def test_a_forgotten_decision_that_kafka_had_not_committed_yet_is_a_hazard(
    engine: Engine, dual_write: DualWrite, kafka: FakeKafka
) -> None:
    write(dual_write, "one")
    before = copied(engine)
    kafka.fault = lambda request: Fault.BEFORE if request in ("commit", "init-keep") else Fault.NONE
    write(dual_write, "two")
    second = state_now(engine)
    set_back(engine, before)
    kafka.fault = lambda request: Fault.NONE
    assert dual_write.wait_idle(20)  # else it may hold the row just now, and the heartbeat passes over it
    manager_of(dual_write).process.pool.beat()
    assert (second, Outcome.HEURISTIC_HAZARD) in states(dual_write)


@pytest.mark.parametrize(("completion", "fails"), [("await", None), ("await", "commit"), ("background", None)])
def test_the_heartbeat_knows_of_a_forgotten_decision_that_kafka_had_committed(
    engine: Engine, make_dual_write: Callable[..., DualWrite], kafka: FakeKafka, completion: str, fails: str | None
) -> None:
    """By the answer to the commit, by recovery, or by an answer that was collected later."""
    dual_write = make_dual_write(engine, lease_timeout=3600, completion=completion)
    kafka.is_slow = lambda: True
    write(dual_write, "one")
    assert dual_write.wait_idle(20)
    before = copied(engine)
    kafka.fault = lambda request: Fault.BEFORE if request == fails else Fault.NONE
    write(dual_write, "two")
    second = state_now(engine)
    assert dual_write.wait_idle(20)
    assert kafka.committed == ["one", "two"]
    set_back(engine, before)
    manager_of(dual_write).process.pool.beat()
    assert states(dual_write) == [(second, Outcome.HEURISTIC_COMMIT)]


def test_a_forgotten_decision_whose_commit_was_answered_late_is_no_hazard(
    engine: Engine, make_dual_write: Callable[..., DualWrite], kafka: FakeKafka
) -> None:
    """The next unit of work waits for that answer before its first record."""
    dual_write = make_dual_write(engine, lease_timeout=3600, completion="background")
    kafka.is_slow = lambda: True
    write(dual_write, "one")
    before = copied(engine)
    write(dual_write, "two")
    second = state_now(engine)
    set_back(engine, before)
    with pytest.raises(DecisionLostError):
        write(dual_write, "three")
    assert states(dual_write) == [(second, Outcome.HEURISTIC_COMMIT)]


def test_what_was_lost_is_on_record_before_the_slot_can_be_leased_again(
    engine: Engine, dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record corrects the row, which the next owner of the slot reads."""
    manager, held = manager_of(dual_write), []
    write(dual_write, "one")
    before = copied(engine)
    write(dual_write, "two")
    set_back(engine, before)
    record = manager.store.note_unmatched

    def note(*arguments: Any) -> None:
        held.append([lease.transactional_id for lease in manager.process.pool.registry.held])
        record(*arguments)

    monkeypatch.setattr(manager.store, "note_unmatched", note)
    with pytest.raises(DecisionLostError):
        write(dual_write, "three")
    assert held == [[ID]]


def test_an_outcome_that_could_not_be_recorded_is_recorded_by_a_later_heartbeat(
    engine: Engine, dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(dual_write, "one")
    before = copied(engine)
    write(dual_write, "two")
    second = state_now(engine)
    set_back(engine, before)

    def fail(*_: object) -> None:
        raise DatabaseBusyError("locked")

    with monkeypatch.context() as patched:
        patched.setattr(manager_of(dual_write).store, "note_unmatched", fail)
        with pytest.raises(DecisionLostError):
            write(dual_write, "three")
    assert states(dual_write) == []
    assert f"{second} is not on record yet" in caplog.text
    (args,) = [record.args for record in caplog.records if "is not on record yet" in record.msg]
    assert str(second) in (args or ()), "a text: logging swallows a time limit that strikes while it formats"
    manager_of(dual_write).process.pool.beat()
    assert states(dual_write) == [(second, Outcome.HEURISTIC_COMMIT)]


def test_an_outcome_found_by_the_background_just_before_close_is_on_record(
    engine: Engine, dual_write: DualWrite, make_dual_write: Callable[..., DualWrite]
) -> None:
    write(dual_write, "one")
    first = state_now(engine)
    manager_of(dual_write).process.pool.heartbeat.stop(1)
    with engine.begin() as connection:
        connection.execute(delete(table))
    (slot,) = manager_of(dual_write).process.pool.slots()
    slot.lend()  # now it is to be recovered, which the background does outside of any unit of work
    with pytest.raises(LeaseContradictedError):
        slot.recover()
    dual_write.close()
    assert states(make_dual_write(engine)) == [(first, Outcome.HEURISTIC_COMMIT)]


@contextmanager
def the_row_of_a_copy(engine: Engine, **changed: Any) -> Iterator[None]:
    """What a copy of this process, with its memory, has done to the row."""
    with engine.begin() as connection:
        connection.execute(update(table).values(**changed))
    yield


def test_a_copy_that_renewed_the_lease_is_noticed_before_anything_is_committed(
    engine: Engine, dual_write: DualWrite, kafka: FakeKafka
) -> None:
    write(dual_write, "one")
    with (
        the_row_of_a_copy(engine, lease_version=4711),
        pytest.raises(DecisionLostError, match="another copy of this process") as raised,
    ):
        write(dual_write, "two")
    assert isinstance(raised.value, LeaseContradictedError)
    assert (stored_values(engine), kafka.aborted) == (["one"], ["two"])
    assert [outcome for _, outcome in states(dual_write)] == [Outcome.HEURISTIC_HAZARD], "both used one producer epoch"


@pytest.mark.parametrize("fails", ["the COMMIT", "the statement that stores the state"])
def test_a_copy_does_not_make_a_hazard_of_a_unit_that_was_rolled_back(
    engine: Engine, make_dual_write: Callable[..., DualWrite], fails: str
) -> None:
    def fail_commit(step: str) -> None:
        if step == "COMMIT_DATABASE" and fails == "the COMMIT":
            raise DatabaseBusyError("a test")

    def fail_statement(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "first_record" in statement and statement.startswith("UPDATE") and fails != "the COMMIT":
            raise DatabaseBusyError("a test")

    dual_write = make_dual_write(engine, lease_timeout=3600, on_step=fail_commit)
    event.listen(engine, "after_cursor_execute", fail_statement)
    with pytest.raises(DatabaseBusyError):
        write(dual_write, "rolled back")
    event.remove(engine, "after_cursor_execute", fail_statement)
    with the_row_of_a_copy(engine, lease_version=4711):
        manager_of(dual_write).process.pool.beat()
    assert states(dual_write) == []


def test_a_copy_that_committed_is_named_with_what_it_wrote(engine: Engine, dual_write: DualWrite) -> None:
    write(dual_write, "one")
    with the_row_of_a_copy(engine, prepared_txn_state="4711:0", anchor="events:0:77"), pytest.raises(DecisionLostError):
        write(dual_write, "two")
    named = [state for state, _ in states(dual_write)]
    assert named[0] == "4711:0:events:0:77"
    assert len(named) == 2


def test_a_process_that_was_copied_signs_by_another_name_and_leaves_the_slot_to_the_copy(
    engine: Engine, make_dual_write: Callable[..., DualWrite]
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600, pool_size=2)
    write(dual_write, "one")
    before = manager_of(dual_write).process.pool.owner
    with the_row_of_a_copy(engine, lease_version=4711), pytest.raises(DecisionLostError):
        write(dual_write, "two")
    write(dual_write, "three")
    assert manager_of(dual_write).process.pool.owner != before
    rows = slot_rows(engine)
    assert (rows[ID].owner, rows["orders-1"].owner) == (before, manager_of(dual_write).process.pool.owner)


def test_tokens_and_versions_are_drawn_at_random(
    engine: Engine, make_dual_write: Callable[..., DualWrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.FIRST_TOKENS", 2**48)
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.TOKEN_STEPS", 2**20)
    drawn, steps = set(), set()
    for number in range(3):
        with make_dual_write(engine, f"app{number}") as dual_write:
            write(dual_write, str(number))
        row = slot_rows(engine)[f"app{number}-0"]
        drawn |= {row.fencing_token, row.lease_version}
        write(make_dual_write(engine, f"app{number}"), f"{number} again")
        steps.add(slot_rows(engine)[f"app{number}-0"].fencing_token - row.fencing_token)
    assert (len(drawn), len(steps)) == (6, 3)
    assert min(drawn) > 1
    assert min(steps) > 0
