"""Which exception leaves the block of a unit of work: what strikes it is raised, and says whether it was committed."""

import asyncio
import binascii
import copy
import csv
import pickle
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pymysql
import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import StatementError

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import RowFinding, RowSeen
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError
from dualwrite.coordinator.steps.outgoing_error import OutgoingErrors
from dualwrite.coordinator.unit.block import Block
from dualwrite.errors import (
    CommittedError,
    DualWriteError,
    FencedError,
    InDoubtError,
    KafkaRefusedError,
    KafkaUnavailableError,
    UnitCommitted,
    committed_interrupt,
)
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import recovered, write, write_unit
from tests.support.user_errors import LimitError, UserError


class Stop(SystemExit):
    """An interrupt that carries something."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


def strike(kafka: FakeKafka, request: str, error: BaseException, *, after: bool = False) -> None:
    """Have ``error`` raised inside of the next ``request``, before or after its effect."""

    def raise_once(name: str) -> None:
        if name == request:
            kafka.before_effect = kafka.after_effect = lambda _: None
            raise error

    if after:
        kafka.after_effect = raise_once
    else:
        kafka.before_effect = raise_once


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.ProgrammingError,
        psycopg.OperationalError,
        psycopg2.InterfaceError,
        pymysql.err.OperationalError,
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ],
    ids=lambda error: error.__module__,
)
def test_a_drivers_error_that_reaches_past_sqlalchemy_is_a_steps_own(error: type[Exception]) -> None:
    assert is_step_error(error("the connection is closed"))


def test_is_own_knows_a_steps_errors_from_limits() -> None:
    assert all(is_step_error(error) for error in (FencedError(), ConnectionResetError(), KafkaUnavailableError()))
    assert is_step_error(StatementError("", None, None, None))
    assert not is_step_error(StatementError("struck", "SELECT 1", None, LimitError()))
    assert not any(is_step_error(error) for error in (TimeoutError(), LimitError(), KeyboardInterrupt(), ValueError()))
    assert not any(is_step_error(error) for error in (csv.Error(), binascii.Error()))  # named as in PEP 249


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("limit", [LimitError("soft"), TimeoutError("soft")])
def test_a_limit_in_the_kafka_commit_raises_committed_error_and_kafka_is_finished(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, limit: Exception, after: bool
) -> None:
    write_unit(dual_write, "first")
    strike(kafka, "commit", limit, after=after)
    with pytest.raises(CommittedError, match="do not run the unit again") as raised:
        write_unit(dual_write, "one")
    assert raised.value.__cause__ is limit
    assert not raised.value.retriable
    assert recovered(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["first", "one"]
    assert dual_write.counters.committed == 2


def test_an_interrupt_in_the_kafka_commit_keeps_its_class_and_reports_the_commit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "first")
    strike(kafka, "commit", Stop(3, "deploy"))
    with pytest.raises(Stop) as raised:
        write_unit(dual_write, "one")
    error = raised.value
    assert isinstance(error, UnitCommitted)
    assert not isinstance(error, Exception)
    assert (error.code, error.reason, error.args) == (3, "deploy", (3,))
    assert recovered(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["first", "one"]


@pytest.mark.parametrize("request_name", ["prepare", "abort"])
def test_a_limit_before_the_decision_or_in_the_abort_is_raised_unchanged(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, request_name: str
) -> None:
    write_unit(dual_write, "first")
    limit = LimitError("soft")
    strike(kafka, request_name, limit)

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            if request_name == "abort":
                raise UserError

    with pytest.raises(LimitError) as raised:
        unit()
    assert raised.value is limit
    assert recovered(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["first"]


def test_a_limit_after_the_database_committed_in_the_commit_itself_is_a_committed_error(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unit(dual_write, "first")
    strike_commit(monkeypatch, sqlite_engine, LimitError("soft"))
    with pytest.raises(CommittedError):
        write_unit(dual_write, "one")
    assert recovered(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["first", "one"]


def strike_commit(monkeypatch: pytest.MonkeyPatch, engine: Engine, error: BaseException) -> None:
    plain = engine.dialect.do_commit

    def commit(connection: Any) -> None:
        plain(connection)
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(engine.dialect, "do_commit", commit)


def test_a_limit_in_the_commit_of_a_unit_without_records_is_in_doubt(
    dual_write: DualWrite, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unit(dual_write, "first")
    limit = LimitError("soft")
    strike_commit(monkeypatch, sqlite_engine, limit)
    with pytest.raises(InDoubtError, match="produced nothing") as raised, dual_write.transaction():
        pass
    assert raised.value.__cause__ is limit


def test_a_limit_before_the_commit_of_a_unit_without_records_is_raised_unchanged(
    make_dual_write: Callable[..., DualWrite],
) -> None:
    armed: list[bool] = []

    def observe(step: str) -> None:
        if armed and step == "COMMIT_DATABASE":
            raise Stop(1, "")

    dual_write = make_dual_write(on_step=observe)
    write_unit(dual_write, "first")
    armed.append(True)
    with pytest.raises(Stop) as raised, dual_write.transaction():
        pass
    assert not isinstance(raised.value, UnitCommitted)


def test_an_on_step_error_in_the_kafka_commit_is_recovered_and_not_raised(
    make_dual_write: Callable[..., DualWrite], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    failures = [LimitError("of a test")]

    def observe(step: str) -> None:
        if failures and step == "COMMIT_KAFKA":
            raise failures.pop()

    dual_write = make_dual_write(on_step=observe)
    write_unit(dual_write, "one")
    assert recovered(dual_write)
    assert not failures
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_kafkas_own_failure_after_the_decision_is_not_the_callers(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "first")
    kafka.fault = lambda request: Fault.BEFORE if request == "commit" else Fault.NONE
    write_unit(dual_write, "one")
    kafka.fault = lambda request: Fault.NONE
    assert recovered(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["first", "one"]


def test_a_committed_unit_is_not_run_again(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    write_unit(dual_write, "first")
    strike(kafka, "commit", LimitError("soft"))
    with pytest.raises(CommittedError):
        dual_write.transactional(retries=5)(write)("one")
    assert recovered(dual_write)
    assert stored_values(sqlite_engine) == ["first", "one"]


def test_a_limit_right_after_a_decorated_functions_block_raises_committed_error(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython may raise it on the line of the ``with`` statement, once ``__exit__`` has returned."""
    leave = Block.leave

    class StruckExit:
        def __get__(self, block: Block, owner: type[Block]) -> Callable[..., None]:
            def leave_and_raise(*raised: Any) -> None:
                leave(block, *raised)
                raise LimitError("soft")

            return leave_and_raise

    monkeypatch.setattr(Block, "__exit__", StruckExit())
    with pytest.raises(CommittedError):
        dual_write.transactional(retries=5)(write)("one")
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_a_limit_in_the_release_of_the_connection_is_raised_and_leaks_nothing(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unit(dual_write, "first")
    close = Connection.close

    def close_once(connection: Connection) -> None:
        monkeypatch.setattr(Connection, "close", close)
        raise LimitError("soft")

    monkeypatch.setattr(Connection, "close", close_once)
    with pytest.raises(CommittedError):
        write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    assert kafka.committed == stored_values(sqlite_engine) == ["first", "one", "two"]


def test_cancellation_and_generator_exit_keep_their_meaning() -> None:
    committed: Any = SimpleNamespace(machine=SimpleNamespace(result=Result.SUCCEEDED))
    errors = OutgoingErrors("orders", lambda error: error)
    for error in (asyncio.CancelledError(), GeneratorExit()):
        assert errors.of(committed, error) is error
    assert isinstance(errors.of(committed, LimitError("soft")), CommittedError)


def test_a_committed_interrupt_survives_pickling() -> None:
    made = committed_interrupt(KeyboardInterrupt("now"))
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert again.args == ("now",)
    assert isinstance(again, KeyboardInterrupt)


@pytest.mark.parametrize(
    "error",
    [
        KafkaRefusedError("EndTxn", 48, "INVALID_TXN_STATE"),
        LeaseLostError(Lease("orders-0", 3)),
        LeaseContradictedError(
            Lease("orders-0", 3), RowFinding.ROW_GONE, RowSeen(3, None, PreparedTxnState("1:2")), ()
        ),
        TransactionEndedError("it has ended", Fate.ROLLED_BACK),
        CommittedError("committed"),
        InDoubtError("in doubt"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_of_the_library_reaches_another_process_whole(
    error: DualWriteError, copied: Callable[[DualWriteError], DualWriteError]
) -> None:
    """A pool of processes would wait for ever for the answer of a worker whose error cannot be unpickled."""
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_an_interrupt_after_the_commit_mentions_it_in_its_text() -> None:
    assert str(committed_interrupt(KeyboardInterrupt())) == (
        "the unit of work was committed before this was raised: do not run it again"
    )
    assert str(committed_interrupt(SystemExit("bye"))).startswith("bye: the unit of work was committed")
