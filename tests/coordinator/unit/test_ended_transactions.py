"""The database transaction of a unit of work that is ended behind the unit's back, on every blocking driver.

What is refused in front leaves nothing on either side; what bypasses SQLAlchemy is noticed before Kafka commits, and
what may have been committed that way is on record under the unit's own name, whatever error ended the block.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import IntegrityError

from dualwrite import TransactionEndedError
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import write
from tests.support.user_errors import LimitError

pytestmark = pytest.mark.slow_cases("psycopg2")

Act = Callable[[Transaction], object]


class EndedPlace(NamedTuple):
    """A database behind one driver, and a DualWrite over the fake Kafka with a pool of one connection for units."""

    driver: str
    engine: Engine
    seen: Engine
    kafka: FakeKafka
    dual_write: DualWrite


@pytest.fixture(
    params=[
        "pysqlite",
        pytest.param("psycopg", marks=pytest.mark.postgresql),
        pytest.param("psycopg2", marks=pytest.mark.postgresql),
        pytest.param("pymysql", marks=pytest.mark.mariadb),
    ]
)
def place(request: pytest.FixtureRequest, kafka: FakeKafka) -> Iterator[EndedPlace]:
    name = {"pysqlite": "sqlite", "pymysql": "mariadb"}.get(request.param, "postgresql")
    url = make_url(request.getfixturevalue(f"{name}_url"))
    seen = ready_engine(url.render_as_string(hide_password=False))
    engine = create_engine(url.set(drivername=f"{url.get_backend_name()}+{request.param}"))
    with DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1) as dual_write:
        yield EndedPlace(request.param, engine, seen, kafka, dual_write)
    engine.dispose()
    seen.dispose()


def by_cursor(statement: str) -> Act:
    """Past SQLAlchemy, on the driver's own cursor."""

    def run(tx: Transaction) -> None:
        cursor = tx.connection.connection.cursor()
        cursor.execute(statement)
        cursor.close()

    return run


def by_driver(method: str) -> Act:
    return lambda tx: getattr(tx.connection.connection.driver_connection, method)()


WAYS = {
    "cursor-commit": (by_cursor("COMMIT"), True),
    "cursor-rollback": (by_cursor("ROLLBACK"), False),
    "driver-commit": (by_driver("commit"), True),
    "driver-rollback": (by_driver("rollback"), False),
    "commit-and-chain": (by_cursor("COMMIT AND CHAIN"), True),
    "rollback-and-chain": (by_cursor("ROLLBACK AND CHAIN"), False),
}
FOLLOWED = {
    "alone": lambda tx: None,
    "followed": lambda tx: tx.execute(insert(events).values(value="after")),
    "followed-past-sqlalchemy": by_cursor("INSERT INTO events (value) VALUES ('after')"),
}


def run(place: EndedPlace, *acts: Act, error: Exception | None = None) -> None:
    with place.dual_write.transaction() as tx:
        for act in acts:
            act(tx)
        if error is not None:
            raise error


def way_of(name: str, place: EndedPlace) -> tuple[Act, bool]:
    if "chain" in name and place.driver == "pysqlite":
        pytest.skip("SQLite has no AND CHAIN")
    return WAYS[name]


def on_record(place: EndedPlace) -> list[tuple[str, Outcome, str]]:
    return [(outcome.transactional_id, outcome.outcome, outcome.state) for outcome in place.dual_write.outcomes()]


def stored(place: EndedPlace, way: str, follow: str) -> list[str]:
    """What ``way`` has left in the database. psycopg2 does not notice that its transaction has ended, and begins no
    other one: each statement that follows is committed by itself."""
    commits_each = place.driver == "psycopg2" and way in ("cursor-commit", "cursor-rollback")
    return ["one"] * WAYS[way][1] + ["after"] * (commits_each and follow != "alone")


def expected(place: EndedPlace, was_committed: bool, state: str) -> list[tuple[str, Outcome, str]]:
    """PostgreSQL knows a commit; nobody knows what came after a rollback."""
    known = was_committed and place.driver.startswith("psycopg")
    return [("orders-0", Outcome.HEURISTIC_ABORT if known else Outcome.HEURISTIC_HAZARD, state)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("follow", FOLLOWED)
@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_ended_past_sqlalchemy_is_noticed_and_on_record(place: EndedPlace, way: str, follow: str) -> None:
    end, was_committed = way_of(way, place)
    run(place, lambda tx: write(tx, "first"))
    with pytest.raises(InvalidTransactionStateError, match="ended"):
        run(place, lambda tx: write(tx, "one"), end, FOLLOWED[follow])
    assert stored_values(place.seen) == ["first", *stored(place, way, follow)]
    assert (place.kafka.committed, place.kafka.ongoing) == (["first"], None)
    assert on_record(place) == expected(place, was_committed, "4711:1:events:0:2")
    assert place.dual_write.counters.heuristic == 1


@pytest.mark.slow_cases("psycopg", "pymysql")
@pytest.mark.parametrize("follow", FOLLOWED)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_error_ends_the_block_a_commit_past_sqlalchemy_is_on_record(
    place: EndedPlace, way: str, follow: str
) -> None:
    end, was_committed = way_of(way, place)
    with pytest.raises(ValueError, match="no"):
        run(place, lambda tx: write(tx, "one"), end, FOLLOWED[follow], error=ValueError("no"))
    assert stored_values(place.seen) == stored(place, way, follow)
    assert (place.kafka.committed, place.kafka.ongoing) == ([], None)
    assert on_record(place) == expected(place, was_committed, "4711:1:events:0:0")


@pytest.mark.slow_cases("psycopg", "pymysql")
@pytest.mark.parametrize("way", WAYS)
def test_a_unit_without_records_is_refused_and_on_record_too(place: EndedPlace, way: str) -> None:
    end, was_committed = way_of(way, place)
    with pytest.raises(TransactionEndedError, match=r"ended.*Look for its rows: `dualwrite transactions list`"):
        run(place, lambda tx: tx.execute(insert(events).values(value="one")), end, FOLLOWED["followed"])
    assert stored_values(place.seen) == stored(place, way, "followed")
    assert on_record(place) == expected(place, was_committed, "")


@pytest.mark.slow_cases("pymysql")
@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_statement_that_fails_after_a_commit_past_sqlalchemy_hides_nothing(
    place: EndedPlace, rolls_back: bool
) -> None:
    def fail(tx: Transaction) -> None:
        try:
            tx.execute(insert(events).values(value="one"))
        except IntegrityError:
            if not rolls_back:
                raise
            tx.session.rollback()
            raise

    with pytest.raises(IntegrityError):
        run(place, lambda tx: write(tx, "one"), by_cursor("COMMIT"), fail)
    assert stored_values(place.seen) == ["one"]
    assert (place.kafka.committed, place.kafka.ongoing) == ([], None)
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


ROLLS_BACK = {
    "pysqlite": sqlite3.IntegrityError("UNIQUE constraint failed: events.value"),
    "pymysql": pymysql.OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction"),
}


def test_an_error_that_the_application_handles_around_the_unit_hides_nothing(place: EndedPlace) -> None:
    try:
        raise ROLLS_BACK.get(place.driver, RuntimeError())
    except (sqlite3.Error, pymysql.Error, RuntimeError):
        with pytest.raises(ValueError, match="no"):
            run(place, lambda tx: write(tx, "one"), by_cursor("COMMIT"), error=ValueError("no"))
    assert stored_values(place.seen) == ["one"]
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


def test_a_commit_past_sqlalchemy_is_on_record_although_kafka_cannot_abort(place: EndedPlace) -> None:
    place.dual_write.recover()
    place.kafka.fault = lambda request: Fault.BEFORE if request == "abort" else Fault.NONE
    with pytest.raises(InvalidTransactionStateError, match="ended"):
        run(place, lambda tx: write(tx, "one"), by_cursor("COMMIT"))
    place.kafka.fault = lambda request: Fault.NONE
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


def test_a_commit_past_sqlalchemy_is_on_record_although_the_block_closes_the_connection(place: EndedPlace) -> None:
    with pytest.raises(InvalidTransactionStateError, match="inside its block"):
        run(place, lambda tx: write(tx, "one"), by_cursor("COMMIT"), lambda tx: tx.connection.close())
    assert stored_values(place.seen) == ["one"]
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


def test_a_time_limit_that_strikes_as_the_connection_is_dropped_hides_nothing(place: EndedPlace) -> None:
    limits = [LimitError()]

    def strike(*_: object) -> None:
        if limits:
            raise limits.pop()

    event.listen(place.engine, "invalidate", strike)
    with pytest.raises(LimitError):
        run(place, lambda tx: write(tx, "one"), by_cursor("COMMIT"))
    assert stored_values(place.seen) == ["one"]
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


def test_nothing_is_on_record_of_a_unit_that_fails_by_itself(place: EndedPlace) -> None:
    run(place, lambda tx: write(tx, "one"))
    with pytest.raises(IntegrityError):
        run(place, lambda tx: write(tx, "two"), lambda tx: write(tx, "one"))
    with pytest.raises(ValueError, match="no"):
        run(place, lambda tx: write(tx, "three"), error=ValueError("no"))
    with pytest.raises(InvalidTransactionStateError):
        run(place, lambda tx: write(tx, "four"), lambda tx: tx.connection.rollback())
    run(place, lambda tx: write(tx, "five"))
    assert stored_values(place.seen) == place.kafka.committed == ["one", "five"]
    assert on_record(place) == []


@pytest.mark.postgresql
def test_nothing_is_on_record_of_a_unit_whose_transaction_cannot_begin(postgresql_url: str, kafka: FakeKafka) -> None:
    ready_engine(postgresql_url).dispose()
    engine = create_engine(postgresql_url)
    with DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1) as dual_write:
        dual_write.recover()
        manager_of(dual_write).engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), dual_write.transaction():
            raise AssertionError("the block does not run")
        assert dual_write.outcomes() == []
    engine.dispose()


def test_a_block_that_is_never_left_hides_nothing(place: EndedPlace) -> None:
    def abandon() -> None:
        block = place.dual_write.transaction()  # collected with this frame
        tx = block.__enter__()
        write(tx, "one")
        by_cursor("COMMIT")(tx)

    abandon()
    place.dual_write.recover()
    assert stored_values(place.seen) == ["one"]
    assert (place.kafka.committed, place.kafka.ongoing) == ([], None)
    assert on_record(place) == expected(place, True, "4711:1:events:0:0")


@pytest.mark.postgresql
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("no_parameters", [False, True])
def test_a_commit_as_a_second_statement_of_one_text_is_refused(
    postgresql_url: str, kafka: FakeKafka, driver: str, no_parameters: bool
) -> None:
    seen = ready_engine(postgresql_url)
    engine = create_engine(make_url(postgresql_url).set(drivername=f"postgresql+{driver}"))
    with DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1) as dual_write:
        options = {"no_parameters": no_parameters}
        refused = pytest.raises(InvalidTransactionStateError, match="'SELECT 1; COMMIT' is refused")
        with refused, dual_write.transaction() as tx:
            write(tx, "one")
            tx.connection.exec_driver_sql("SELECT 1; COMMIT", execution_options=options)
        assert dual_write.outcomes() == []
    assert (stored_values(seen), kafka.committed) == ([], [])
    engine.dispose()
    seen.dispose()


@pytest.mark.mariadb
def test_a_procedure_that_commits_is_noticed(mariadb_url: str, kafka: FakeKafka) -> None:
    engine = ready_engine(mariadb_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE PROCEDURE ends() COMMIT")
    with DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1) as dual_write:
        place = EndedPlace("pymysql", engine, engine, kafka, dual_write)
        with pytest.raises(InvalidTransactionStateError, match="ended"):
            run(place, lambda tx: write(tx, "one"), lambda tx: tx.execute(text("CALL ends()")))
        assert on_record(place) == expected(place, True, "4711:1:events:0:0")
    assert (stored_values(engine), kafka.committed) == (["one"], [])
    engine.dispose()


REFUSED = [
    "COMMIT",
    "  commit work",
    "-- a comment\n/* and another */ COMMIT",
    "END",
    "ROLLBACK",
    "rollback and chain",
    "BEGIN",
    "START TRANSACTION",
    "SELECT 1; COMMIT; SELECT 2",
]
REFUSED_ON = {
    "psycopg": ["RESET ALL", "DISCARD ALL", "ABORT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'other'"],
    "psycopg2": ["ABORT", "PREPARE TRANSACTION 'other'"],
    "pysqlite": ["BEGIN IMMEDIATE", "END TRANSACTION"],
    "pymysql": [
        "COMMIT AND CHAIN",
        "CREATE TABLE other (id INTEGER)",
        "TRUNCATE events",
        "XA START 'other'",
        "LOCK TABLES events WRITE",
        "SET autocommit = 1",
        "/*!40000 COMMIT */",
        "# a comment\nDROP TABLE other",
    ],
}


@pytest.mark.slow_cases("pymysql")
@pytest.mark.parametrize("is_caught", [False, True])
def test_a_statement_that_would_end_the_transaction_is_refused(place: EndedPlace, is_caught: bool) -> None:
    for statement in REFUSED + REFUSED_ON[place.driver]:

        def execute(tx: Transaction, statement: str = statement) -> None:
            for run_it in (lambda: tx.execute(text(statement)), lambda: tx.connection.exec_driver_sql(statement)):
                if is_caught:
                    with pytest.raises(InvalidTransactionStateError):
                        run_it()
                else:
                    run_it()

        with pytest.raises(InvalidTransactionStateError, match="is refused inside a unit of work, and was not run"):
            run(place, lambda tx: write(tx, "one"), execute, FOLLOWED["followed"])
    assert stored_values(place.seen) == place.kafka.committed == []
    assert on_record(place) == []


ALLOWED_ON = {
    "psycopg": ["CREATE TABLE other (id INTEGER)", "LOCK TABLE events", "SET LOCAL lock_timeout = 1000"],
    "psycopg2": ["CREATE TABLE other (id INTEGER)"],
    "pysqlite": ["CREATE TABLE other (id INTEGER)", "ANALYZE events"],
    "pymysql": [
        "CREATE TEMPORARY TABLE other (id INTEGER)",
        "CREATE OR REPLACE TEMPORARY TABLE other (id INTEGER)",
        "DROP TEMPORARY TABLE other",
        "SET @autocommit = 1",
        "SET SESSION lock_wait_timeout = 100",
        "BEGIN NOT ATOMIC SELECT 1; END",
        "CHECKSUM TABLE events",
    ],
}


def test_statements_that_do_not_end_the_transaction_are_allowed(place: EndedPlace) -> None:
    statements = ["SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a", "RELEASE SAVEPOINT a", "SELECT 1"]

    def execute(tx: Transaction) -> None:
        for statement in statements + ALLOWED_ON[place.driver]:
            tx.execute(text(statement))
        with tx.connection.begin_nested():
            tx.execute(insert(events).values(value="in a savepoint"))

    run(place, lambda tx: write(tx, "one"), execute)
    assert stored_values(place.seen) == ["one", "in a savepoint"]
    assert place.kafka.committed == ["one"]


def test_a_commit_after_a_rollback_inside_the_block_is_refused(place: EndedPlace) -> None:
    """SQLAlchemy would begin a transaction of its own after the rollback."""

    def go_on(tx: Transaction) -> None:
        tx.connection.rollback()
        tx.execute(insert(events).values(value="two"))
        with pytest.raises(InvalidTransactionStateError):
            tx.connection.commit()

    with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback"):
        run(place, lambda tx: write(tx, "one"), go_on)
    assert stored_values(place.seen) == place.kafka.committed == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.postgresql
def test_the_isolation_level_can_be_chosen_by_the_first_statement(
    postgresql_url: str, kafka: FakeKafka, driver: str
) -> None:
    seen = ready_engine(postgresql_url)
    engine = create_engine(make_url(postgresql_url).set(drivername=f"postgresql+{driver}"))
    made = DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1)
    with made as dual_write, dual_write.transaction() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        assert tx.scalar(text("SHOW transaction_isolation")) == "repeatable read"
        write(tx, "one")
    assert stored_values(seen) == kafka.committed == ["one"]
    engine.dispose()
    seen.dispose()


@pytest.mark.postgresql
def test_the_connections_own_settings_hold_in_a_unit_with_psycopg(postgresql_url: str, kafka: FakeKafka) -> None:
    seen = ready_engine(postgresql_url)
    engine = create_engine(postgresql_url, execution_options={"postgresql_deferrable": True})
    engine = engine.execution_options(isolation_level="SERIALIZABLE")
    made = DualWrite(engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1)
    with made as dual_write, dual_write.transaction() as tx:
        found = tx.execute(
            text("SELECT current_setting('transaction_isolation'), current_setting('transaction_deferrable')")
        )
        assert found.one() == ("serializable", "on")
        write(tx, "one")
    assert stored_values(seen) == kafka.committed == ["one"]
    engine.dispose()
    seen.dispose()


def test_the_record_needs_no_connection_beside_the_units(place: EndedPlace) -> None:
    engine: Any = create_engine(place.engine.url, pool_size=1, max_overflow=0, pool_timeout=5)
    place.dual_write.close()
    options = {"participant": place.kafka.participant, "pool_size": 1}
    with DualWrite(engine, CONFIG, application="orders", **options) as dual_write:
        with pytest.raises(TransactionEndedError, match="Look for its rows: `dualwrite transactions list`"):
            run(place._replace(dual_write=dual_write), lambda tx: write(tx, "one"), by_cursor("COMMIT"))
        assert len(dual_write.outcomes()) == 1
    engine.dispose()


@pytest.mark.slow_cases("pymysql")
def test_a_unit_whose_block_committed_past_the_library_is_not_run_again(place: EndedPlace) -> None:
    """Its error is retriable, and its rows are there: run again, they would be there twice."""
    runs = []

    @place.dual_write.transactional(retries=3)
    def unit(tx: Transaction) -> None:
        runs.append(1)
        write(tx, f"row {len(runs)}")
        by_cursor("COMMIT")(tx)
        raise KafkaUnavailableError("retriable")

    with pytest.raises(KafkaUnavailableError):
        unit()
    assert len(runs) == 1
    assert stored_values(place.seen) == ["row 1"]
    assert len(place.dual_write.outcomes()) == 1
