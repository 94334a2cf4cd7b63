"""DeadLetters refuses what would put every record aside, or none; and which errors it blames on a record."""

import sqlite3
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dualwrite import AsyncDeadLetters, DeadLetters
from dualwrite.coordinator.dead_letters.blame import is_of_record
from dualwrite.coordinator.dead_letters.letter import LONGEST_MESSAGE, MESSAGE, Failure, dead_letter, next_offsets
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import (
    ConfigurationError,
    InDoubtError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
)
from dualwrite.ids import TopicPartition
from tests.support.coordinator.dead_letters.fake_records import FakeRecord
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.fake_kafka import FakeKafka

P, Q = TopicPartition("in", 0), TopicPartition("in", 1)


@pytest.fixture
def consumer(dual_write: DualWrite) -> FakeConsumer:
    consumer = FakeConsumer(FakeGroup())
    dual_write.seek_to_stored(consumer, positions(P, Q))
    return consumer


@pytest.fixture
def letters(dual_write: DualWrite, consumer: FakeConsumer) -> DeadLetters:
    return DeadLetters(dual_write, consumer, "in.dlq", offsets="stored")


def nothing(tx: Any, message: Any) -> None:
    """Uses any record."""


async def awaited(tx: Any, message: Any) -> None:
    """Never runs."""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": ""}, "topic=''"),
        ({"topic": None}, "topic=None"),
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": True}, "attempts=True"),
        ({"offsets": "here"}, "offsets='here': use 'stored' or 'committed'"),
        ({"may_pass": [3]}, "may_pass="),
        ({"may_pass": [KeyboardInterrupt]}, "may_pass="),
        ({"may_pass": ValueError}, "may_pass=<class 'ValueError'>: give a tuple of classes of exceptions"),
    ],
)
def test_a_wrong_setting_is_named(
    dual_write: DualWrite, consumer: FakeConsumer, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        DeadLetters(dual_write, consumer, **{"topic": "in.dlq", "offsets": "stored", **settings})
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_the_other_kind_is_named(dual_write: DualWrite, consumer: FakeConsumer) -> None:
    not_async: Any = dual_write
    with pytest.raises(ConfigurationError, match="use DeadLetters"):
        AsyncDeadLetters(not_async, consumer, "in.dlq", offsets="stored")
    nothing_at_all: Any = None
    with pytest.raises(ConfigurationError, match="give a DualWrite"):
        DeadLetters(nothing_at_all, consumer, "in.dlq", offsets="stored")
    with pytest.raises(TypeError, match=r"give a confluent_kafka\.Consumer"):
        DeadLetters(dual_write, nothing_at_all, "in.dlq", offsets="stored")


@pytest.mark.parametrize(
    ("messages", "error", "said"),
    [
        (FakeRecord(P, 0, b""), TypeError, r"give the list that consume\(\) returns, or \[message\]"),
        (3, TypeError, "records of type int"),
        ([b"value"], TypeError, "a record of type bytes"),
        ([FakeRecord(P, 0, b"", error="EOF")], ValueError, r"no record \(EOF\)"),
        ([FakeRecord(P, 0, {"a": 1})], TypeError, "record in-0@0: its value is a dict.*deserialize in your function"),
        ([FakeRecord(P, 0, b"", key="text")], TypeError, "record in-0@0: its key is a str"),
        ([FakeRecord(TopicPartition("in.dlq", 0), 0, b"")], ConfigurationError, "its own dead-letter topic"),
    ],
)
def test_only_records_can_be_used(letters: DeadLetters, messages: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        letters.use(messages, nothing)


@pytest.mark.parametrize("function", [lambda tx: None, lambda: None, lambda tx, message, more: None, "text", None])
def test_a_function_that_would_fail_for_every_record_is_refused(
    letters: DeadLetters, kafka: FakeKafka, function: Any
) -> None:
    with pytest.raises(ConfigurationError, match="function"):
        letters.use([FakeRecord(P, 0, b"")], function)
    assert kafka.requests == []


@pytest.mark.parametrize("function", [awaited, partial(awaited), lambda tx, message: awaited(tx, message)])
def test_a_coroutine_function_that_would_never_run_is_refused(
    letters: DeadLetters, kafka: FakeKafka, function: Any
) -> None:
    with pytest.raises(ConfigurationError, match="use it with AsyncDeadLetters"):
        letters.use([FakeRecord(P, 0, b"")], function)
    assert kafka.committed == []


def test_it_is_refused_inside_a_unit_of_work(letters: DeadLetters, dual_write: DualWrite) -> None:
    with pytest.raises(InvalidTransactionStateError, match="a unit of work is open"), dual_write.transaction():
        letters.use([FakeRecord(P, 0, b"")], nothing)


def test_no_records_are_no_unit_of_work(letters: DeadLetters, dual_write: DualWrite) -> None:
    assert (letters.use([], nothing), dual_write.counters.units) == (0, 0)


def test_each_partition_goes_on_after_its_last_record() -> None:
    records = [FakeRecord(P, 4, b""), FakeRecord(Q, 9, b""), FakeRecord(P, 6, b""), FakeRecord(P, 5, b"")]
    found = [(each.topic, each.partition, each.offset, each.leader_epoch) for each in next_offsets(records)]
    assert found == [("in", 0, 7, 3), ("in", 1, 10, 3)]


@pytest.mark.parametrize("text", ["é" * LONGEST_MESSAGE, "x" * 5000, "\ud800 alone", ""])
def test_the_text_of_an_exception_is_short_and_is_text(text: str) -> None:
    made = dead_letter(FakeRecord(P, 0, None), "in.dlq", Failure(ValueError(text), 1, "group"))
    said = dict(made.headers)[MESSAGE]
    assert said is not None
    assert len(said) <= LONGEST_MESSAGE
    assert said.decode()[:5] == text.encode("utf-8", "backslashreplace").decode()[:5]


def test_a_dead_letter_that_fails_again_has_its_newest_headers_last() -> None:
    first = dead_letter(FakeRecord(P, 0, None), "a", Failure(ValueError("first"), 1, "group"))
    again = FakeRecord(TopicPartition("a", 0), 5, None, headers=list(first.headers))
    second = dead_letter(again, "b", Failure(KeyError("second"), 1, "group"))
    assert [value for name, value in second.headers if name == MESSAGE] == [b"first", b"'second'"]


def test_a_record_without_a_timestamp_gets_the_time_of_its_dead_letter() -> None:
    record = FakeRecord(P, 0, None, timestamp=(0, -1))
    assert dead_letter(record, "a", Failure(ValueError(), 1, "group")).timestamp == 0


def of_database(kind: Callable[..., Exception], *arguments: Any, is_lost: bool = False) -> Exception:
    return kind("INSERT", {}, Exception(*arguments), connection_invalidated=is_lost)


@pytest.mark.parametrize(
    ("error", "is_blamed"),
    [
        (of_database(IntegrityError, "UNIQUE"), True),
        (of_database(IntegrityError, "UNIQUE", is_lost=True), False),
        (of_database(DataError, "too long"), True),
        (of_database(OperationalError, "disk full"), False),
        (of_database(OperationalError, "database is locked"), False),
        (of_database(OperationalError, 3819, "Check constraint 'c' is violated."), True),
        (of_database(OperationalError, 4025, "CONSTRAINT `c` failed"), True),
        (of_database(OperationalError, 1292, "Incorrect datetime value: '0001-01-01' for column `ts`"), True),
        (of_database(OperationalError, 1364, "Field 'item' doesn't have a default value"), True),
        (of_database(OperationalError, 1526, "Table has no partition for value 9"), True),
        (of_database(OperationalError, 1644, "a trigger's SIGNAL"), True),
        (of_database(OperationalError, 3140, "Invalid JSON text"), True),
        (of_database(OperationalError, "no such table: events"), False),
        (of_database(InterfaceError, "Error binding parameter 0"), True),
        (of_database(InterfaceError, "closed", is_lost=True), False),
        (PoolTimeoutError("QueuePool limit of size 5 overflow 10 reached"), False),
        (sqlite3.OperationalError("disk full"), False),  # of the driver's own cursor
        (sqlite3.IntegrityError("UNIQUE"), True),
        (ValueError(), True),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), True),
    ],
    ids=str,
)
def test_an_error_is_blamed_on_a_record_or_on_a_server(error: Exception, is_blamed: bool) -> None:
    assert is_of_record(error, create_engine("sqlite://").dialect) is is_blamed


class ServiceError(Exception):
    """An error that may pass, by the application's own word."""


def caused(*errors: Exception) -> Exception:
    """The first of ``errors``, each raised from the next one."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("error", "is_blamed"),
    [
        (caused(ValueError(), KeyError()), True),
        (caused(ValueError(), of_database(IntegrityError, "UNIQUE")), True),
        (caused(ValueError(), KafkaRefusedError("produce", 10, "MESSAGE_TOO_LARGE")), True),
        (caused(ValueError(), ConnectionResetError("by a peer")), False),
        (caused(ValueError(), KeyError(), TimeoutError()), False),
        (caused(ValueError(), of_database(OperationalError, "disk full")), False),
        (caused(ValueError(), sqlite3.OperationalError("disk full")), False),  # raised by a listener of handle_error
        (caused(ValueError(), sqlite3.IntegrityError("UNIQUE")), True),
        (caused(ValueError(), KafkaUnavailableError("down")), False),
        (caused(ValueError(), InDoubtError("unknown"), IntegrityError("INSERT", {}, Exception())), False),
        (caused(ValueError(), ServiceError("503")), False),
    ],
    ids=lambda case: repr(case) + repr(getattr(case, "__cause__", "")),
)
def test_an_error_of_the_applications_own_is_judged_by_its_cause(error: Exception, is_blamed: bool) -> None:
    assert is_of_record(error, create_engine("sqlite://").dialect, (ServiceError,)) is is_blamed


def test_causes_in_a_circle_end() -> None:
    error, cause = ValueError(), KeyError()
    assert is_of_record(caused(error, cause, error), create_engine("sqlite://").dialect)


class ServerError(Exception):
    """An error of asyncpg's, as SQLAlchemy wraps it."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "is_blamed"),
    [
        ("23514", True),  # check_violation
        ("22001", True),  # string_data_right_truncation
        ("P0001", True),  # raise_exception, of a trigger
        ("08006", False),  # connection_failure
        ("53100", False),  # disk_full
        ("58030", False),  # io_error
        ("XX001", False),  # data_corrupted
        ("57014", False),  # query_canceled
        ("26000", False),  # invalid_sql_statement_name: a prepared statement, behind a pooler
        ("42P05", False),  # duplicate_prepared_statement
        ("0A000", False),  # feature_not_supported: a cached plan's result has changed
        ("25006", False),  # read_only_sql_transaction: a standby
        ("40001", False),  # serialization_failure
        ("55P03", False),  # lock_not_available
        ("42P01", False),  # undefined_table: a migration is missing
    ],
)
def test_postgresqls_errors_are_told_apart_by_their_state(sqlstate: str, is_blamed: bool) -> None:
    error = DBAPIError("INSERT", {}, ServerError(sqlstate))
    assert is_of_record(error, create_engine("postgresql+psycopg://").dialect) is is_blamed


@pytest.mark.parametrize(
    ("sqlstate", "is_blamed"), [("23514", True), ("P0001", True), ("40P01", False), ("53100", False), ("08006", False)]
)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_error_of_the_drivers_own_cursor_is_judged_as_sqlalchemys(
    driver: str, sqlstate: str, is_blamed: bool
) -> None:
    """COPY, for example, which SQLAlchemy has not."""
    if driver == "psycopg":
        error: Exception = pytest.importorskip("psycopg").errors.lookup(sqlstate)("of COPY")
    else:
        error = pytest.importorskip("asyncpg").exceptions.PostgresError.new({"C": sqlstate, "M": "of COPY"})
    assert is_of_record(error, create_engine(f"postgresql+{driver}://").dialect) is is_blamed
