"""Units of work that are run again: after conflicts that real servers find, and after Kafka's failures."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, insert, select, update
from sqlalchemy.exc import DBAPIError, OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InDoubtError, KafkaUnavailableError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.waiting import PATIENCE_SECONDS

Make = Callable[..., DualWrite]


def fail_at(kafka: FakeKafka, request: str, times: int) -> None:
    left = [times]

    def fault(name: str) -> Fault:
        if name != request or not left[0]:
            return Fault.NONE
        left[0] -= 1
        return Fault.BEFORE

    kafka.fault = fault


class RetriedWriter:
    """The user's function: writes ``value`` on both sides, and does ``first`` in its first run."""

    __qualname__ = __name__ = "write"

    def __init__(self, value: str, first: Callable[[Transaction], object] = lambda tx: None) -> None:
        self._value = value
        self._first = first
        self.runs = 0

    def __call__(self, tx: Transaction) -> int:
        self.runs += 1
        tx.execute(insert(events).values(value=self._value))
        tx.produce("events", value=self._value)
        if self.runs == 1:
            self._first(tx)
        return self.runs


def test_a_unit_is_run_again_until_kafka_takes_it(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "prepare", times=2)
    writer = RetriedWriter("one")
    assert dual_write.transactional(retries=3)(writer)() == 3
    assert stored_values(sqlite_engine) == kafka.committed == ["one"]
    assert (dual_write.counters.rolled_back, dual_write.counters.committed) == (2, 1)


def test_the_last_failure_is_raised_and_leaves_nothing(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "prepare", times=9)
    writer = RetriedWriter("one")
    with pytest.raises(KafkaUnavailableError):
        dual_write.transactional(retries=1)(writer)()
    assert writer.runs == 2
    assert stored_values(sqlite_engine) == kafka.committed == []


@pytest.mark.parametrize("decorate", [lambda dw: dw.transactional, lambda dw: dw.transactional(retries=0)])
def test_nothing_is_run_again_unless_it_is_asked_for(dual_write: DualWrite, kafka: FakeKafka, decorate: Any) -> None:
    fail_at(kafka, "prepare", times=1)
    writer = RetriedWriter("one")
    with pytest.raises(KafkaUnavailableError):
        decorate(dual_write)(writer)()
    assert writer.runs == 1


def test_the_users_own_error_is_not_run_again(dual_write: DualWrite) -> None:
    def fail(tx: Transaction) -> None:
        raise LookupError("the user's")

    writer = RetriedWriter("one", fail)
    with pytest.raises(LookupError):
        dual_write.transactional(retries=3)(writer)()
    assert writer.runs == 1


def test_a_unit_in_doubt_is_not_run_again(
    dual_write: DualWrite, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write.recover()
    lost = OperationalError("COMMIT", {}, Exception("database is locked"))

    def lose(*_: object) -> None:
        raise lost

    writer = RetriedWriter("one")
    with monkeypatch.context() as away:
        away.setattr(sqlite_engine.dialect, "do_commit", lose)
        away.setattr(SqlDecisionStore, "locked", lose)
        with pytest.raises(InDoubtError):
            dual_write.transactional(retries=3)(writer)()
    assert writer.runs == 1


@pytest.mark.parametrize("retries", [-1, "3", None])
def test_an_invalid_number_of_retries_is_refused_at_once(dual_write: DualWrite, retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        dual_write.transactional(retries=retries)


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_unit_whose_row_another_transaction_has_changed_is_run_again(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, level: Any
) -> None:
    engine = ready_engine(postgresql_url, isolation_level=level)
    with engine.begin() as connection:
        connection.execute(insert(events).values(value="shared"))
    shared = events.c.id == 1

    def collide(tx: Transaction) -> None:
        with engine.begin() as rival:
            rival.execute(update(events).where(shared).values(value="rival's"))
        tx.execute(update(events).where(shared).values(value="mine"))

    writer = RetriedWriter("one", collide)
    with make_dual_write(engine) as dual_write:
        assert dual_write.transactional(retries=1)(writer)() == 2
        assert dual_write.counters.rolled_back == 1
    assert (stored_values(engine), kafka.committed) == (["rival's", "one"], ["one"])
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("produces", [True, False])
def test_a_unit_that_fails_to_serialize_after_its_block_is_run_again(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, produces: bool
) -> None:
    """Write skew: each of two has counted the rows, and adds one. The one that ends last is told so by its last
    statement, or by COMMIT itself if there is none after that."""
    engine = ready_engine(postgresql_url, isolation_level="SERIALIZABLE")
    count = select(func.count()).select_from(events)
    runs: list[int] = []

    def add(tx: Transaction) -> None:
        seen = tx.scalar(count)
        tx.execute(insert(events).values(value="one"))
        if produces:
            tx.produce("events", value="one")
        if not runs:
            with engine.connect() as rival:
                rival.scalar(count)
                rival.execute(insert(events).values(value="rival's"))
                rival.commit()
        runs.append(seen)

    with make_dual_write(engine) as dual_write:
        dual_write.transactional(retries=1)(add)()
    assert runs == [0, 1]
    assert (sorted(stored_values(engine)), kafka.committed) == (["one", "rival's"], ["one"] * produces)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("in_savepoint", [False, True], ids=["", "in a savepoint"])
def test_the_victim_of_a_deadlock_is_run_again(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, in_savepoint: bool
) -> None:
    """Whichever of the two the server chooses, the unit gets through. MariaDB's deadlock takes the savepoint with it,
    so SQLAlchemy's rollback to the savepoint raises an error of its own."""
    with engine.begin() as connection:
        connection.execute(insert(events), [{"value": f"row {number}"} for number in range(1, 7)])
    failed: list[Exception] = []
    waiting: list[Future[None]] = []

    def change(connection: Connection, number: int, value: str) -> None:
        connection.execute(update(events).where(events.c.id == number).values(value=value))

    with engine.connect() as rival, ThreadPoolExecutor(1) as thread:

        def collide(tx: Transaction) -> None:
            change(tx.connection, 1, "mine")
            for number in range(2, 6):  # MariaDB rolls back who has written less
                change(rival, number, f"theirs {number}")
            waiting.append(thread.submit(change, rival, 1, "theirs 1"))
            try:
                with tx.connection.begin_nested() if in_savepoint else nullcontext():
                    change(tx.connection, 2, "mine too")
            except DBAPIError as error:
                failed.append(error)
                raise  # and only then the rival gets on: after a rollback to the savepoint row 1 is still locked

        writer = RetriedWriter("one", collide)
        with make_dual_write(engine) as dual_write:
            dual_write.transactional(retries=3)(writer)()
        if waiting[0].exception(timeout=PATIENCE_SECONDS) is not None:
            failed.append(OperationalError("", {}, Exception("the rival's")))
        rival.rollback()
    assert len(failed) == 1
    assert kafka.committed == ["one"]
    assert stored_values(engine)[-1] == "one"


@pytest.mark.mariadb
def test_a_lock_that_is_not_free_in_time_is_waited_for_again(
    make_dual_write: Make, mariadb_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(mariadb_url, connect_args={"init_command": "SET innodb_lock_wait_timeout = 0"})
    with engine.begin() as connection:
        connection.execute(insert(events).values(value="shared"))
    other = create_engine(mariadb_url)
    with other.connect() as rival:
        rival.execute(update(events).where(events.c.id == 1).values(value="rival's"))

        def wait(tx: Transaction) -> None:
            try:
                tx.execute(update(events).where(events.c.id == 1).values(value="mine"))
            finally:
                rival.rollback()

        writer = RetriedWriter("one", wait)
        with make_dual_write(engine) as dual_write:
            assert dual_write.transactional(retries=1)(writer)() == 2
    assert (stored_values(engine), kafka.committed) == (["shared", "one"], ["one"])
    other.dispose()
    engine.dispose()
