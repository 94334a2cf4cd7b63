"""Failures after the decision, a COMMIT whose outcome is unknown, and interrupts at the steps around it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.exc import IntegrityError, OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.errors import (
    CommittedError,
    InDoubtError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    NoFreeSlotError,
)
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant, Fault
from tests.support.coordinator.usual_unit import (
    break_commit,
    fail_at,
    in_both,
    raising,
    recovered,
    run_unit,
    write,
    write_unit,
    writing,
)
from tests.support.thread_starts import fail_starts
from tests.support.user_errors import UserError
from tests.support.waiting import eventually

Make = Callable[..., DualWrite]

# After the decision.


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_kafka_failure_after_the_commit_is_not_raised_to_the_caller(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, fault: Fault
) -> None:
    fail_at(kafka, "commit", fault)
    write_unit(dual_write, "one")
    assert stored_values(sqlite_engine) == ["one"]
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.requests.count("commit") == 1
    counters = dual_write.counters
    assert (counters.committed, counters.finished_later, counters.recoveries) == (1, 1, 2)
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")


def test_a_unit_that_is_left_to_recovery_has_ended_also_where_no_thread_can_be_started(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unit(dual_write, "zero")
    with monkeypatch.context() as exhausted:
        fail_starts(exhausted, RuntimeError("can't start new thread"))
        fail_at(kafka, "commit")
        write_unit(dual_write, "one")
        assert dual_write.pending() == 1
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka, "zero", "one")
    with monkeypatch.context() as exhausted:
        fail_starts(exhausted, RuntimeError("can't start new thread"))
        fail_at(kafka, "abort")
        with pytest.raises(UserError):
            run_unit(dual_write, writing("two"), raising(UserError()))
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka, "zero", "one")
    assert dual_write.counters.finished_later == 2


def test_a_committed_unit_whose_participant_never_closes_raises_committed_error(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """A participant of the application's own, whose close() raises each time."""

    class Unclosable(FakeParticipant):
        def close(self) -> None:
            raise broken

    broken = KafkaUnavailableError("close() needs a connection")
    dual_write = make_dual_write(participant=lambda _: Unclosable(kafka))
    write_unit(dual_write, "zero")
    fail_at(kafka, "commit")
    with pytest.raises(CommittedError) as raised:
        write_unit(dual_write, "one")
    assert raised.value.__cause__ is broken
    assert stored_values(sqlite_engine) == ["zero", "one"]


def test_the_next_unit_waits_until_the_earlier_one_is_finished(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(acquire_timeout=0.01)
    write_unit(dual_write, "one")
    down = threading.Event()
    down.set()
    kafka.fault = lambda request: Fault.BEFORE if down.is_set() else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write_unit(dual_write, "never")
    assert dual_write.pending() == 1
    (slot,) = manager_of(dual_write).process.pool.slots()
    eventually(lambda: slot.last_error, bool)  # the background has tried
    with pytest.raises(NoFreeSlotError, match=r"orders-0 .* an earlier unit of work is not finished") as raised:
        write_unit(dual_write, "too early")
    assert raised.value.retriable
    assert isinstance(raised.value.__cause__, KafkaUnavailableError)
    down.clear()
    assert recovered(dual_write)
    assert not dual_write.pending()
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")


# The commit whose outcome is unknown.


def test_an_unknown_commit_that_happened_is_a_success(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write.recover()
    break_commit(sqlite_engine, monkeypatch, after_effect=True, error=ConnectionError("lost"))
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert dual_write.counters.committed == 1


def test_an_unknown_commit_that_did_not_happen_raises_its_error(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write.recover()
    break_commit(sqlite_engine, monkeypatch, after_effect=False, error=ConnectionError("lost"))
    with pytest.raises(ConnectionError, match="lost"):
        write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


@pytest.mark.parametrize("is_unknown", [True, False])
def test_a_state_that_was_rolled_back_is_not_expected_in_its_row_any_more(
    dual_write: DualWrite, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch, is_unknown: bool
) -> None:
    """A row that has it later contradicts the database's answer, or is that of a copy of this process."""
    dual_write.recover()
    (slot,) = manager_of(dual_write).process.pool.slots()
    if is_unknown:
        break_commit(sqlite_engine, monkeypatch, after_effect=False, error=ConnectionError("lost"))
    else:
        refuse = "BEFORE UPDATE OF prepared_txn_state ON kafka_transaction_state BEGIN SELECT RAISE(ABORT, 'lost'); END"
        with sqlite_engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TRIGGER refused {refuse}")
    with pytest.raises((ConnectionError, IntegrityError), match="lost"):
        write_unit(dual_write, "one")
    assert slot.lease.memory.pending is None


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_commit_that_cannot_be_looked_up_is_in_doubt_until_recovery(
    make_dual_write: Make,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    monkeypatch: pytest.MonkeyPatch,
    happened: bool,
) -> None:
    unreachable = threading.Event()

    def observe(step: str) -> None:
        if step in ("READ_DECISION", "RECOVER_LOCK") and unreachable.is_set():
            raise OperationalError("SELECT", {}, Exception("connection refused"))

    dual_write = make_dual_write(on_step=observe)
    dual_write.recover()
    unreachable.set()
    break_commit(sqlite_engine, monkeypatch, after_effect=happened, error=ConnectionError("lost"))
    with pytest.raises(InDoubtError, match="Do not run it again") as raised:
        write_unit(dual_write, "one")
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert not raised.value.retriable
    assert dual_write.pending()
    unreachable.clear()
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka, *(["one"] if happened else []))
    assert dual_write.counters.in_doubt == 1
    write_unit(dual_write, "two")


def test_a_refused_session_commit_leaves_the_unit_intact(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as tx:
        write(tx, "one")
        with pytest.raises(
            InvalidTransactionStateError, match=r"commit\(\) of tx.session is refused .* changed nothing"
        ):
            tx.session.commit()
    assert in_both(sqlite_engine, kafka, "one")


def test_a_failed_commit_of_a_unit_that_produced_nothing_is_the_databases_own_error(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write.recover()
    break_commit(sqlite_engine, monkeypatch, after_effect=False, error=ConnectionError("lost"))
    with pytest.raises(ConnectionError, match="lost"), dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="one"))
    assert in_both(sqlite_engine, kafka)


def test_a_rollback_that_fails_leaves_no_transaction_open_in_a_pool_that_does_not_reset(
    make_dual_write: Make, sqlite_url: str, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ready_engine(sqlite_url, pool_reset_on_return=None)
    dual_write, plain = make_dual_write(engine), engine.dialect.do_rollback
    dual_write.recover()

    def fail(connection: Any) -> None:
        monkeypatch.setattr(engine.dialect, "do_rollback", plain)
        raise OperationalError("ROLLBACK", {}, Exception("not now"))

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            monkeypatch.setattr(engine.dialect, "do_rollback", fail)
            raise ValueError("user")

    with pytest.raises(ValueError, match="user"):
        unit()
    with engine.connect() as connection:
        assert not connection.connection.driver_connection.in_transaction  # type: ignore[union-attr]
    assert in_both(engine, kafka)
    engine.dispose()


@pytest.mark.parametrize("step", ["STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA", "ABORT_KAFKA"])
def test_an_interrupt_in_any_step_reaches_the_caller_and_both_sides_are_equal(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, step: str
) -> None:
    armed = [True]

    def observe(name: str) -> None:
        if name == step and armed.pop():
            armed.append(False)
            raise KeyboardInterrupt

    dual_write = make_dual_write(on_step=observe)

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            if step == "ABORT_KAFKA":
                raise ValueError("user")

    with pytest.raises(KeyboardInterrupt):
        unit()
    dual_write.recover()
    assert in_both(sqlite_engine, kafka, *(["one"] if step == "COMMIT_KAFKA" else []))


def test_an_interrupt_between_two_steps_leaves_the_unit_to_recovery(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualwrite.coordinator.rules.machine import DualWriteMachine, Event, UnitState

    plain = DualWriteMachine.advance

    def interrupted(self: DualWriteMachine, event: Event, error: BaseException | None = None) -> None:
        if self.state is UnitState.COMMITTING_DATABASE:
            raise KeyboardInterrupt
        plain(self, event, error)

    monkeypatch.setattr(DualWriteMachine, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_unit(dual_write, "one")
    monkeypatch.undo()
    assert stored_values(sqlite_engine) == ["one"]
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")


@pytest.mark.parametrize("call", ["transaction", "recover"])
def test_an_interrupt_right_after_the_slot_was_taken_gives_it_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    plain = Pool.acquire

    def interrupted(self: Pool, user: object) -> None:
        plain(self, user)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_unit(dual_write, "one") if call == "transaction" else getattr(dual_write, call)()
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")
