"""DualWrite as its user meets it: what is committed, what is rolled back, what is raised, and what is refused."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncBlock
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.two_phase import OWNED_SETTINGS
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.coordinator.unit.block import Block
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseNotReadyError,
    FencedError,
    InDoubtError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    NoFreeSlotError,
)
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, is_closed, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import (
    EventModel,
    fail_at,
    in_both,
    raising,
    recovered,
    run_unit,
    write,
    write_unit,
    writing,
)
from tests.support.waiting import eventually

Make = Callable[..., DualWrite]


# The plain way.


def test_a_unit_of_work_is_in_both(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")
    assert (dual_write.counters.units, dual_write.counters.committed, dual_write.counters.recoveries) == (2, 2, 1)


@pytest.mark.postgresql
def test_a_unit_of_work_is_in_both_on_postgresql(make_dual_write: Make, postgresql_url: str, kafka: FakeKafka) -> None:
    engine = ready_engine(postgresql_url)
    write_unit(make_dual_write(engine), "one")
    assert in_both(engine, kafka, "one")
    engine.dispose()


def test_records_go_out_while_the_user_code_runs(dual_write: DualWrite, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
        assert kafka.ongoing is not None
        assert kafka.ongoing.values == ["one"]


def test_produce_passes_everything_on(dual_write: DualWrite, kafka: FakeKafka) -> None:
    seen: list[Any] = []
    with dual_write.transaction() as tx:
        tx.produce("t", b"v", b"k", 3, 99, {"h": b"1"}, lambda error, message: seen.append((error, message)))
    assert seen == [(None, ("t", 3, 99, b"k", (("h", b"1"),)))]
    assert kafka.committed == ["v"]


def test_a_unit_that_produces_nothing_touches_neither_kafka_nor_the_row(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    before = list(kafka.requests)
    with sqlite_engine.connect() as connection:
        row = connection.execute(select(kafka_transaction_state)).one()
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="only here"))
    assert kafka.requests == before
    with sqlite_engine.connect() as connection:
        assert connection.execute(select(kafka_transaction_state)).one() == row
    assert stored_values(sqlite_engine) == ["one", "only here"]


def test_a_unit_that_only_produces_is_committed(dual_write: DualWrite, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
    assert kafka.committed == ["one"]


def test_queries_see_the_units_own_writes(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        write(tx, "one")
        assert tx.scalar(select(events.c.value)) == "one"
        assert tx.scalars(select(events.c.value)).all() == ["one"]
        tx.execute(insert(events), [{"value": "two"}, {"value": "three"}])
        assert len(tx.execute(select(events)).all()) == 3


def test_an_orm_session_is_in_the_same_transaction(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as tx:
        tx.session.add(EventModel(value="one"))  # flushed by the block's end, not before
        tx.produce("events", "one")
    with pytest.raises(ValueError, match="no"):
        run_unit(
            dual_write,
            lambda tx: tx.session.add(EventModel(value="two")),
            lambda tx: tx.session.flush(),
            lambda tx: tx.produce("events", "two"),
            raising(ValueError("no")),
        )
    assert in_both(sqlite_engine, kafka, "one")


def test_a_flush_that_fails_at_the_end_rolls_both_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    with pytest.raises(IntegrityError):
        run_unit(
            dual_write,
            lambda tx: tx.session.add(EventModel(value="one")),
            lambda tx: tx.produce("events", "again"),
        )
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.aborted == ["again"]


def test_savepoints_are_free_to_use(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        with tx.connection.begin_nested() as savepoint:
            tx.execute(insert(events).values(value="undone"))
            savepoint.rollback()
        with tx.connection.begin_nested():
            write(tx, "one")
    assert in_both(sqlite_engine, kafka, "one")


# The database ends the transaction by itself.


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_that_sqlite_ended_in_the_block_is_rolled_back_on_both_sides(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, goes_on: bool
) -> None:
    write_unit(dual_write, "one")

    def give_up(tx: Transaction) -> None:
        with pytest.raises(IntegrityError):
            tx.execute(text("INSERT OR ROLLBACK INTO events (value) VALUES ('one')"))

    more = [writing("three")] if goes_on else []  # the driver begins another transaction then
    with pytest.raises(InvalidTransactionStateError, match="SQLite ended the transaction"):
        run_unit(dual_write, writing("two"), give_up, *more)
    assert in_both(sqlite_engine, kafka, "one")
    write_unit(dual_write, "four")
    assert in_both(sqlite_engine, kafka, "one", "four")


def test_the_error_after_a_commit_past_sqlalchemy_reports_rows_without_records(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    told = "after a commit it is in the database, without its records"
    with pytest.raises(InvalidTransactionStateError, match=told):
        run_unit(dual_write, writing("two"), lambda tx: tx.connection.connection.cursor().execute("COMMIT"))
    assert stored_values(sqlite_engine) == ["one", "two"]
    assert (kafka.committed, kafka.ongoing) == (["one"], None)


def test_a_savepoint_that_is_open_at_the_end_is_committed_with_the_unit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    run_unit(dual_write, lambda tx: tx.connection.begin_nested(), writing("one"))
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")


@pytest.mark.postgresql
@pytest.mark.parametrize("produces", [False, True])
def test_a_unit_that_caught_the_error_of_a_failed_statement_is_never_said_to_be_committed(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, produces: bool
) -> None:
    engine = ready_engine(postgresql_url)
    dual_write = make_dual_write(engine)

    def fail(tx: Transaction) -> None:
        with pytest.raises(IntegrityError):
            tx.execute(insert(events).values(value="one"))

    first = writing("one") if produces else lambda tx: tx.execute(insert(events).values(value="one"))
    with pytest.raises(InvalidTransactionStateError, match="PostgreSQL will roll all of it back"):
        run_unit(dual_write, first, fail)
    assert in_both(engine, kafka)
    assert dual_write.counters.rolled_back == 1
    engine.dispose()


# What raises leaves nothing.


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_any_error_of_the_user_code_is_raised_unchanged_and_rolls_both_sides_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, error: BaseException
) -> None:
    with pytest.raises(type(error)) as raised:
        run_unit(dual_write, writing("one"), raising(error))
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert in_both(sqlite_engine, kafka)
    assert kafka.aborted == ["one"]
    assert dual_write.counters.rolled_back == 1
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")


def test_a_generator_that_is_never_finished_rolls_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def unit() -> Iterator[int]:
        with dual_write.transaction() as tx:
            write(tx, "one")
            yield 1

    generator = unit()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize("request_name", ["begin", "produce", "prepare"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_kafka_failure_before_the_commit_rolls_the_database_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, request_name: str, fault: Fault
) -> None:
    fail_at(kafka, request_name, fault)
    with pytest.raises(KafkaUnavailableError) as raised:
        write_unit(dual_write, "one")
    assert raised.value.retriable
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_an_error_of_kafka_that_the_user_code_swallows_is_raised_at_the_end(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "begin")
    errors: list[KafkaUnavailableError] = []

    def produce(tx: Transaction) -> None:
        try:
            tx.produce("events", "one")
        except KafkaUnavailableError as error:
            errors.append(error)

    with pytest.raises(KafkaUnavailableError) as raised:
        run_unit(dual_write, lambda tx: tx.execute(insert(events).values(value="one")), produce, produce)
    assert errors == [raised.value] * 2
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka)


def test_a_unit_whose_every_record_was_refused_is_not_committed(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "produce")

    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            with pytest.raises(KafkaUnavailableError):
                tx.produce("events", "one")

    with pytest.raises(InvalidTransactionStateError, match="no record to commit"):
        unit()
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": 1}, TypeError),
        ({"timestamp": -1}, ValueError),
        ({"headers": (1 // number for number in [0])}, ZeroDivisionError),
    ],
)
def test_a_unit_whose_only_record_is_invalid_is_not_committed(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, arguments: dict[str, Any], error: type[Exception]
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            with pytest.raises(error):
                tx.produce("events", **arguments)

    with pytest.raises(InvalidTransactionStateError, match="no record to commit"):
        unit()
    assert in_both(sqlite_engine, kafka)


def test_an_abort_that_fails_is_not_tried_again_but_recovered(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "abort", Fault.BEFORE)
    with pytest.raises(ValueError, match="user"):
        run_unit(dual_write, writing("one"), raising(ValueError("user")))
    assert recovered(dual_write)
    assert kafka.requests.count("abort") == 1
    assert kafka.requests[-3:] == ["init-keep", "complete", "init"]
    assert in_both(sqlite_engine, kafka)
    assert dual_write.counters.finished_later == 1
    assert dual_write.counters.rolled_back == 1


def test_a_constraint_that_fails_only_at_commit_rolls_both_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with sqlite_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
    dual_write = make_dual_write()

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            tx.connection.exec_driver_sql("INSERT INTO child VALUES (7)")

    with sqlite_engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")  # the pool's only connection, so the unit's too
    with pytest.raises(IntegrityError):
        unit()
    assert in_both(sqlite_engine, kafka)
    assert dual_write.counters.rolled_back == 1


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


def break_commit(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, after_effect: bool, error: BaseException) -> None:
    """Let the next COMMIT fail, before or after its effect."""
    plain = engine.dialect.do_commit

    def fail(connection: Any) -> None:
        monkeypatch.setattr(engine.dialect, "do_commit", plain)
        if after_effect:
            plain(connection)
        raise error

    monkeypatch.setattr(engine.dialect, "do_commit", fail)


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


# Commit and rollback belong to the block.


def commit_by_a_session_of_their_own(tx: Transaction) -> None:
    session = Session(tx.connection, join_transaction_mode="control_fully")
    session.execute(select(events))
    session.commit()


REFUSED = "commit() is refused inside a unit of work, and nothing was committed: "


@pytest.mark.parametrize("produces", [True, False])
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (lambda tx: tx.connection.commit(), REFUSED),
        (lambda tx: tx.connection.rollback(), "rollback() inside its block rolled this unit of work back: "),
        (lambda tx: tx.connection.get_transaction().commit(), REFUSED),
        (commit_by_a_session_of_their_own, REFUSED),
        (lambda tx: tx.connection.close(), "close() inside its block rolled this unit of work back: "),
        (
            lambda tx: tx.connection.invalidate(),
            "the connection of this unit of work was closed, lost or given another",
        ),
        (lambda tx: tx.session.rollback(), "rollback() inside its block"),
        (
            lambda tx: (tx.connection.rollback(), tx.execute(insert(events).values(value="after"))),
            "rollback() inside its block",
        ),
    ],
    ids=["commit", "rollback", "transaction", "own-session", "close", "invalidate", "session", "and-on"],
)
def test_ending_the_database_transaction_inside_the_block_fails_and_leaves_nothing(
    dual_write: DualWrite,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    ending: Callable[[Any], Any],
    said: str,
    produces: bool,
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            if produces:
                tx.produce("events", "one")
            ending(tx)

    with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback to the block's end") as raised:
        unit()
    assert str(raised.value).startswith(said)
    assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")


def test_a_swallowed_commit_is_still_an_error(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            for ending in (tx.session.commit, tx.connection.commit):
                with pytest.raises(InvalidTransactionStateError):
                    ending()
            write(tx, "two")

    with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback to the block's end"):
        unit()
    assert in_both(sqlite_engine, kafka)


def test_a_listener_that_has_begun_a_transaction_is_named(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")

    @event.listens_for(sqlite_engine, "engine_connect")
    def ask(connection: Connection) -> None:
        connection.scalar(select(1))

    with pytest.raises(ConfigurationError, match="engine_connect"):
        write_unit(dual_write, "two")
    event.remove(sqlite_engine, "engine_connect", ask)
    write_unit(dual_write, "three")
    assert in_both(sqlite_engine, kafka, "one", "three")


def test_tx_is_of_no_use_after_its_block(dual_write: DualWrite) -> None:
    block = dual_write.transaction()
    with block as tx:
        write(tx, "one")
    uses: list[Callable[[], object]] = [
        lambda: tx.connection,
        lambda: tx.session,
        lambda: tx.execute(select(events)),
        lambda: tx.produce("events", "two"),
        lambda: block.__exit__(None, None, None),
    ]
    for use in uses:
        with pytest.raises(InvalidTransactionStateError):
            use()
    with pytest.raises(InvalidTransactionStateError, match="call transaction"), block:
        pytest.fail("entered twice")


def test_tx_is_of_no_use_before_its_block(dual_write: DualWrite) -> None:
    block: Any = dual_write.transaction()
    with pytest.raises(AttributeError, match="produce: use it inside the block"):
        block.produce("events", "one")


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(DualWrite, "with"), (Block, "with"), (AsyncDualWrite, "async with"), (AsyncBlock, "async with")],
)
def test_a_dual_write_and_a_block_say_where_the_methods_of_the_transaction_are(kind: type, statement: str) -> None:
    made = kind.__new__(kind)
    for name in ("produce", "execute", "session", "store_offsets"):
        where = rf"^{name}: use it inside the block: {statement} dw.transaction\(\) as tx: tx.{name}$"
        with pytest.raises(AttributeError, match=where):
            getattr(made, name)
    with pytest.raises(AttributeError, match=f"^'{kind.__name__}' object has no attribute 'prodcue'$"):
        made.prodcue("events")


# One at a time.


def test_close_and_recover_are_refused_inside_a_unit_and_it_goes_on(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as tx:
        write(tx, "one")
        for inside in (dual_write.close, dual_write.recover):
            with pytest.raises(InvalidTransactionStateError, match="open in this thread"):
                inside()
    assert in_both(sqlite_engine, kafka, "one")


def test_after_a_close_nothing_of_the_library_leaves_a_connection_in_the_pool(
    dual_write: DualWrite, sqlite_engine: Engine
) -> None:
    """A thread that a close() did not wait for, say: the engine may have been disposed of."""
    dual_write.close()
    with manager_of(dual_write).store.connection() as connection:
        driver = connection.connection.driver_connection
    assert is_closed(driver, sqlite_engine)


def test_threads_take_turns(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: write_unit(dual_write, str(number)), range(40)))
    assert sorted(kafka.committed) == sorted(map(str, range(40)))
    assert stored_values(sqlite_engine) == kafka.committed
    assert kafka.requests.count("init") == 1


# Another process.


def test_the_next_process_finishes_what_a_killed_one_left(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    dead: list[str] = []

    def killed(step: str) -> None:
        if dead or step == "COMMIT_KAFKA":
            dead.append(step)
            raise SystemExit

    with pytest.raises(SystemExit):
        write_unit(make_dual_write(on_step=killed), "one")
    assert kafka.committed == []
    expire_leases(sqlite_engine)
    successor = make_dual_write()
    assert successor.recover() == {"orders-0": Outcome.COMMITTED}
    assert in_both(sqlite_engine, kafka, "one")
    assert successor.recover() == {}


def test_a_process_whose_lease_ran_out_is_fenced_and_takes_nothing_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    earlier, successor = make_dual_write(acquire_timeout=0), make_dual_write()
    write_unit(earlier, "one")
    expire_leases(sqlite_engine)
    write_unit(successor, "two")
    with pytest.raises(FencedError) as raised:
        write_unit(earlier, "zombie")
    assert raised.value.retriable
    assert recovered(earlier)
    for _ in range(3):
        with pytest.raises(NoFreeSlotError, match=r"orders-0 by .*, whose lease has"):
            write_unit(earlier, "zombie")
    with pytest.raises(NoFreeSlotError):
        earlier.recover()
    assert not earlier.pending()
    write_unit(successor, "three")
    assert in_both(sqlite_engine, kafka, "one", "two", "three")
    assert kafka.requests.count("init") == 2, "the fenced one took the id back"


@pytest.mark.parametrize("step", ["PREPARE_KAFKA", "STORE_STATE", "COMMIT_KAFKA"])
def test_a_take_over_in_the_middle_of_a_unit_leaves_both_sides_equal(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, step: str
) -> None:
    """On SQLite a unit holds the write lock until its COMMIT; so before that the successor gets DatabaseBusyError."""
    impatient = create_engine(sqlite_engine.url, connect_args={"timeout": 0})
    successor = make_dual_write(impatient)
    outcomes: list[object] = []

    def observe(name: str) -> None:
        if name == "BEGIN_DATABASE":
            expire_leases(sqlite_engine)
        if name == step:
            try:
                outcomes.append(successor.recover())
            except DatabaseBusyError as error:
                outcomes.append(error)

    earlier = make_dual_write(on_step=observe, acquire_timeout=0)
    write_unit(earlier, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert (outcomes == [{"orders-0": Outcome.COMMITTED}]) is (step == "COMMIT_KAFKA")
    assert recovered(earlier)  # which asks for the lock that the impatient one does not wait for
    write_unit(successor, "two")
    with pytest.raises((FencedError, NoFreeSlotError)):
        write_unit(earlier, "zombie")
    assert in_both(sqlite_engine, kafka, "one", "two")
    impatient.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("step", ["BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE"])
def test_a_take_over_before_the_state_is_stored_rolls_the_unit_back(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, step: str
) -> None:
    engine = ready_engine(postgresql_url)
    successor = make_dual_write(engine)

    def observe(name: str) -> None:
        if name == step:
            expire_leases(engine)
            write_unit(successor, "successor's")

    earlier = make_dual_write(engine, on_step=observe, acquire_timeout=0)
    with pytest.raises(FencedError):
        write_unit(earlier, "zombie's")
    with pytest.raises(NoFreeSlotError):
        write_unit(earlier, "zombie's")
    write_unit(successor, "two")
    assert in_both(engine, kafka, "successor's", "two")
    earlier.close()
    successor.close()
    engine.dispose()


@pytest.mark.postgresql
def test_a_take_over_waits_for_the_commit_of_the_unit_that_has_stored_its_state(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(postgresql_url)
    successor = make_dual_write(engine)
    with ThreadPoolExecutor(1) as thread:
        waiting: list[Any] = []

        def observe(name: str) -> None:
            if name == "BEGIN_DATABASE":
                expire_leases(engine)
            if name == "COMMIT_DATABASE":
                waiting.append(thread.submit(successor.recover))

        write_unit(make_dual_write(engine, on_step=observe), "one")
        waiting[0].result(timeout=30)
    assert in_both(engine, kafka, "one")
    successor.close()
    engine.dispose()


def test_an_operators_fencing_in_kafka_fails_the_current_unit_only(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    with pytest.raises(FencedError):
        # As kafka-transactions --forceTerminateTransaction does.
        run_unit(dual_write, writing("two"), lambda tx: kafka.init_producer_id(keep_prepared_txn=False))
    write_unit(dual_write, "three")
    assert in_both(sqlite_engine, kafka, "one", "three")


def test_the_fencing_of_another_application_inside_a_unit_does_not_close_this_one(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    this = make_dual_write()
    with pytest.raises(FencedError):
        run_unit(this, writing("one"), raising(FencedError("of another DualWrite")))
    write_unit(this, "two")
    assert in_both(sqlite_engine, kafka, "two")


@pytest.mark.postgresql
def test_a_child_that_is_forked_inside_a_unit_leaves_its_parents_transaction_alone(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ready_engine(postgresql_url)
    dual_write = make_dual_write(engine)
    block = dual_write.transaction()
    with block as tx:
        write(tx, "before")
        with monkeypatch.context() as child:  # a real one would share the connection just so
            child.setattr(os, "getpid", lambda: manager_of(dual_write).process.pid + 1)
            block.__exit__(None, RuntimeError("the child's"), None)
            for use in (
                lambda: block.__exit__(None, None, None),
                lambda: write(tx, "the child's"),
                lambda: tx.connection,
                lambda: tx.session,
                lambda: tx.scalar(select(1)),
                lambda: tx.produce("events", "the child's"),
            ):
                with pytest.raises(InvalidTransactionStateError, match="which alone can use and end it"):
                    use()
        write(tx, "after")
    assert in_both(engine, kafka, "before", "after")
    engine.dispose()


# The decorator.


def test_a_decorated_function_is_a_unit_of_work(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    @dual_write.transactional
    def place_order(tx: Transaction, value: str, *, shout: bool = False) -> str:
        """Place it."""
        write(tx, value.upper() if shout else value)
        if value == "bad":
            raise ValueError(value)
        return f"placed {value}"

    assert place_order("one") == "placed one"
    assert place_order("two", shout=True) == "placed two"
    with pytest.raises(ValueError, match="bad"):
        place_order("bad")
    assert in_both(sqlite_engine, kafka, "one", "TWO")
    assert (place_order.__name__, place_order.__doc__) == ("place_order", "Place it.")


def test_coroutines_and_generators_are_refused_as_they_would_run_after_the_commit(dual_write: DualWrite) -> None:
    async def coroutine(tx: Transaction) -> None:
        """Nothing."""

    def generator(tx: Transaction) -> Iterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="decorate a plain function"):
            dual_write.transactional(function)  # type: ignore[arg-type]


def test_a_method_is_a_unit_of_work_too(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    class Shop:
        name = "shop"

        @dual_write.transactional
        def place(self, tx: Transaction, value: str) -> str:
            write(tx, value)
            return self.name

        @dual_write.transactional(retries=1)
        def place_again(self, tx: Transaction, value: str) -> str:
            write(tx, value)
            return self.name

    shop = Shop()
    assert shop.place("one") == shop.place_again(value="two") == "shop"
    assert stored_values(sqlite_engine) == kafka.committed == ["one", "two"]


def test_transactional_refuses_to_decorate_anything_but_a_function(dual_write: DualWrite) -> None:
    with pytest.raises(
        ConfigurationError, match=r"3 is not a function: write @transactional, or @transactional\(retries=3"
    ):
        dual_write.transactional(3)  # type: ignore[call-overload]


# Configuration and life.


@pytest.mark.parametrize("key", sorted(OWNED_SETTINGS))
def test_settings_that_follow_from_the_recipe_are_refused_by_name(sqlite_engine: Engine, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'"{key}" is set by DualWrite'):
        DualWrite(sqlite_engine, {**CONFIG, key: "x"}, application="a")


@pytest.mark.parametrize(
    ("kafka", "application", "message"),
    [
        ({}, "a", "bootstrap.servers"),
        ({"bootstrap.servers": ""}, "a", "bootstrap.servers"),
        ({"bootstrap.servers": ["h:1", "i:2"]}, "a", '"bootstrap.servers" is a list: give one text, as "HOST:PORT,'),
        ("127.0.0.1:9092", "a", 'kafka is a str: give a dict, as {"bootstrap.servers": "HOST:PORT"}'),
        (None, "a", "kafka is a NoneType: give a dict"),
        (CONFIG, "", "application is empty"),
        (CONFIG, "a\n", "control character"),
        (CONFIG, "a" * 254, "255 characters"),
    ],
)
def test_a_missing_or_invalid_argument_is_named_in_the_error(
    sqlite_engine: Engine, kafka: Any, application: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DualWrite(sqlite_engine, kafka, application=application)


def test_an_invalid_engine_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigurationError, match="engine is a str"):
        DualWrite("sqlite:///x.db", CONFIG, application="a")  # type: ignore[arg-type]


def test_the_participant_gets_the_users_configuration_and_the_transactional_id(make_dual_write: Make) -> None:
    seen: list[Any] = []
    kafka = FakeKafka()

    def make(config: Any) -> Any:
        seen.append(config)
        return kafka.participant()

    make_dual_write(participant=make).recover()
    assert seen == [{**CONFIG, "transactional.id": "orders-0"}]


def test_a_database_without_the_tables_is_refused_before_kafka_is_asked(
    make_dual_write: Make, tmp_path: Any, kafka: FakeKafka
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        write_unit(make_dual_write(engine), "one")
    assert kafka.requests == []
    engine.dispose()


@pytest.mark.postgresql
def test_an_autocommit_engine_is_refused_before_the_user_code_runs(make_dual_write: Make, postgresql_url: str) -> None:
    ready_engine(postgresql_url).dispose()
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    dual_write = make_dual_write(engine)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), dual_write.transaction():
        pytest.fail("the block ran")
    dual_write.close()
    engine.dispose()


def test_an_unreachable_kafka_at_the_first_use_is_retriable_and_keeps_no_lock(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "init-keep", times=2)
    for _ in range(2):
        with pytest.raises(KafkaUnavailableError):
            write_unit(dual_write, "one")
    assert not dual_write.pending()
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_a_closed_dual_write_is_of_no_use_and_can_be_closed_again(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with make_dual_write() as dual_write:
        write_unit(dual_write, "one")
    assert kafka.open_participants() == 0
    dual_write.close()
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one")


def test_close_finishes_what_is_pending_if_it_can(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with make_dual_write() as dual_write:
        fail_at(kafka, "commit")
        write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.open_participants() == 0


def test_close_gives_up_on_what_it_cannot_finish_and_the_next_start_does(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = make_dual_write()
    dual_write.recover()
    kafka.fault = lambda request: Fault.NONE if request in ("begin", "produce", "prepare") else Fault.BEFORE
    write_unit(dual_write, "one")
    dual_write.close(timeout=0.05)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = "closed, and 1 unit of work is not finished in Kafka (orders-0): recovery ends"
    assert any(expected in warning for warning in warnings), warnings  # the background may have logged since
    kafka.fault = lambda request: Fault.NONE
    make_dual_write().recover()
    assert in_both(sqlite_engine, kafka, "one")


def test_steps_are_observed_in_order(make_dual_write: Make) -> None:
    steps: list[str] = []
    write_unit(make_dual_write(on_step=steps.append), "one")
    assert steps == [
        "RECOVER_TAKE_OVER",
        "RECOVER_LOCK",
        "RECOVER_FENCE_KAFKA",
        "RECOVER_COMPLETE",
        "RECOVER_INIT",
        "BEGIN_DATABASE",
        "BEGIN_KAFKA",
        "PREPARE_KAFKA",
        "STORE_STATE",
        "COMMIT_DATABASE",
        "COMMIT_KAFKA",
    ]


def test_the_orm_session_of_a_unit_is_closed_with_it(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        session: Session = tx.session
        model = EventModel(value="one")
        session.add(model)
        tx.produce("events", "one")
    assert model not in session
    assert model.value == "one", "what was loaded stays readable"
