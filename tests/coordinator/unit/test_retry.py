"""What is run again, how often, and after which pauses."""

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Dialect
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from dualwrite import errors
from dualwrite.coordinator.sql.engine.error_meanings import is_transient
from dualwrite.coordinator.steps.retry import Retrying, with_tx
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    DatabaseBusyError,
    DualWriteError,
    InDoubtError,
    KafkaUnavailableError,
    PrepareFailedError,
)

SQLITE = sqlite.dialect()
POSTGRESQL = postgresql.dialect()
MYSQL = mysql.dialect()


def from_driver(error: Exception, *, lost: bool = False) -> DBAPIError:
    return OperationalError("SELECT 1", {}, error, connection_invalidated=lost)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class Attempts:
    """Raises ``errors`` one after the other, then returns."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def retrying(retries: int, slept: list[float], chance: float = 1.0, dialect: Dialect = SQLITE) -> Retrying:
    return Retrying(retries, lambda error: is_transient(error, dialect), slept.append, lambda: chance)


@pytest.mark.parametrize(
    ("dialect", "error"),
    [
        (SQLITE, DatabaseBusyError("busy")),
        (SQLITE, KafkaUnavailableError("away")),
        (SQLITE, PrepareFailedError("not acknowledged")),
        (SQLITE, from_driver(sqlite3.OperationalError("database is locked"))),
        (POSTGRESQL, from_driver(psycopg.errors.SerializationFailure("40001"))),
        (POSTGRESQL, from_driver(psycopg.errors.DeadlockDetected("40P01"))),
        (POSTGRESQL, from_driver(psycopg.errors.LockNotAvailable("55P03"))),
        (MYSQL, from_driver(pymysql.err.OperationalError(1213, "Deadlock found"))),
        (MYSQL, from_driver(pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"))),
        (MYSQL, from_driver(pymysql.err.OperationalError(1020, "Record has changed since last read"))),
        (SQLITE, sqlite3.OperationalError("database is locked")),  # of the driver's own cursor
        (POSTGRESQL, psycopg.errors.DeadlockDetected("40P01")),
        (MYSQL, pymysql.err.OperationalError(1213, "Deadlock found")),
        # Raised by a listener of handle_error, or by the block.
        (POSTGRESQL, caused(ValueError("own"), psycopg.errors.DeadlockDetected("40P01"))),
        (POSTGRESQL, caused(ValueError("own"), from_driver(psycopg.errors.DeadlockDetected("40P01")))),
        (POSTGRESQL, caused(SQLAlchemyError("own"), psycopg.errors.DeadlockDetected("40P01"))),
    ],
)
def test_a_unit_that_failed_with_a_transient_error_is_run_again(dialect: Dialect, error: Exception) -> None:
    attempts = Attempts(error, error)
    assert retrying(2, [], dialect=dialect).run(attempts) == "done"
    assert attempts.count == 3


@pytest.mark.parametrize(
    ("dialect", "error"),
    [
        (SQLITE, InDoubtError("who knows")),
        (SQLITE, AnswerLostError("who knows")),
        (SQLITE, ConfigurationError("wrong")),
        (SQLITE, ValueError("the user's")),
        (SQLITE, KeyboardInterrupt()),
        (SQLITE, IntegrityError("INSERT", {}, sqlite3.IntegrityError("UNIQUE constraint failed"))),
        (POSTGRESQL, from_driver(psycopg.errors.UndefinedTable("42P01"))),
        (POSTGRESQL, from_driver(psycopg.errors.AdminShutdown("57P01"), lost=True)),
        (POSTGRESQL, from_driver(psycopg.errors.SerializationFailure("40001"), lost=True)),
        (POSTGRESQL, caused(ValueError("own"), from_driver(psycopg.errors.SerializationFailure("40001"), lost=True))),
        (POSTGRESQL, caused(InDoubtError("who knows"), psycopg.errors.SerializationFailure("40001"))),
        (
            MYSQL,
            from_driver(pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"), lost=True),
        ),
        (MYSQL, from_driver(pymysql.err.ProgrammingError(1146, "Table doesn't exist"))),
        (MYSQL, from_driver(pymysql.err.OperationalError())),
    ],
)
def test_a_permanent_error_is_raised_without_a_retry(dialect: Dialect, error: BaseException) -> None:
    attempts, slept = Attempts(error), []  # type: tuple[Attempts, list[float]]
    with pytest.raises(type(error)) as raised:
        retrying(5, slept, dialect=dialect).run(attempts)
    assert raised.value is error
    assert (attempts.count, slept) == (1, [])


def test_exactly_the_librarys_retriable_errors_are_retried() -> None:
    kinds: list[Any] = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, DualWriteError)]
    assert len(kinds) > 10
    for kind in kinds:
        error = kind.__new__(kind)
        assert is_transient(error, SQLITE) is kind.retriable
    assert not is_transient(InDoubtError(), SQLITE)
    assert not is_transient(AnswerLostError(), SQLITE)


def test_the_last_error_is_raised_when_no_attempt_is_left() -> None:
    failures = [DatabaseBusyError(str(number)) for number in range(9)]
    attempts, slept = Attempts(*failures), []  # type: tuple[Attempts, list[float]]
    with pytest.raises(DatabaseBusyError) as raised:
        retrying(3, slept).run(attempts)
    assert raised.value is failures[3]
    assert (attempts.count, len(slept)) == (4, 3)


def test_pauses_double_to_a_bound_and_are_shortened_by_chance() -> None:
    failures = [DatabaseBusyError("busy")] * 8
    slept: list[float] = []
    retrying(8, slept).run(Attempts(*failures))
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    halved: list[float] = []
    retrying(8, halved, chance=0.5).run(Attempts(*failures))
    assert halved == [pause / 2 for pause in slept]


def test_a_server_that_is_down_for_long_is_waited_for_as_often_as_the_application_says() -> None:
    slept: list[float] = []
    retrying(2_000, slept).run(Attempts(*[DatabaseBusyError("busy")] * 1_500))
    assert (len(slept), slept[-1]) == (1_500, 2.0)


def test_no_retries_is_one_attempt() -> None:
    attempts = Attempts(DatabaseBusyError("busy"))
    with pytest.raises(DatabaseBusyError):
        retrying(0, []).run(attempts)
    assert attempts.count == 1


@pytest.mark.parametrize("retries", [-1, 1.5, "3", True, None])
def test_an_invalid_number_of_retries_is_refused(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        Retrying(retries, lambda error: True, [].append, lambda: 1.0)


class Shop:
    """Its methods take the transaction behind ``self``."""

    def place(self, tx: str, item: str, *, count: int = 1) -> tuple[Any, ...]:
        return self, tx, item, count

    @staticmethod
    def move(item: str, tx: str) -> tuple[Any, ...]:
        return item, tx


def test_the_transaction_is_the_parameter_called_tx() -> None:
    shop = Shop()
    place = with_tx(Shop.place)
    assert place("TX", shop, "tea") == place("TX", shop, item="tea") == (shop, "TX", "tea", 1)
    assert place("TX", shop, "tea", count=2) == (shop, "TX", "tea", 2)
    move = with_tx(Shop.move)
    assert move("TX", "tea") == move("TX", item="tea") == ("tea", "TX")


@pytest.mark.parametrize("function", [lambda tx, item: (tx, item), lambda unit, item: (unit, item), lambda *all: all])
def test_without_a_parameter_before_tx_the_transaction_comes_first(function: Callable[..., Any]) -> None:
    assert with_tx(function) is function
    assert with_tx(function)("TX", "tea") == ("TX", "tea")


def test_a_function_that_does_not_say_what_it_takes_gets_the_transaction_first() -> None:
    assert with_tx(max) is max
