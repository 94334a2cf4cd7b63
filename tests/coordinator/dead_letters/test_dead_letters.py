"""DeadLetters over a Kafka that can fail at every call: which records are put aside, and what is committed then."""

import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import CheckConstraint, Column, Engine, Integer, MetaData, Table, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from dualwrite import errors
from dualwrite.coordinator.dead_letters import letter as names
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import KafkaRefusedError
from tests.support.coordinator.dead_letters.fake_records import FakeRecord, KeepingKafka, polled
from tests.support.coordinator.dead_letters.letter_reader import DLQ, LetterReader, P
from tests.support.coordinator.event_table import events, stored_values

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_records_that_can_be_used_are_used_in_one_unit(reading: LetterReader) -> None:
    units = reading.dual_write.counters.units
    assert reading.use("a", "b", "c") == 0
    assert reading.tried == stored_values(reading.engine) == reading.letters_left() == ["a", "b", "c"]
    assert (reading.offset(), reading.dual_write.counters.units - units) == (3, 1)


def test_a_poison_record_goes_to_the_topic_and_the_others_are_used(
    reading: LetterReader, caplog: pytest.LogCaptureFixture, no_pauses: list[float]
) -> None:
    with caplog.at_level(logging.WARNING, "dualwrite"):
        assert reading.use("a", "bad", "c") == 1
    assert reading.tried == ["a", "bad", "a", "bad", "bad", "bad", "c"]
    assert stored_values(reading.engine) == ["a", "c"]
    assert reading.letters_left() == ["a", "bad", "c"]  # the one in the middle is the dead letter
    assert [record.value for record in reading.kafka.kept.of(DLQ)] == [b"bad"]
    assert reading.offset() == 3
    assert reading.dual_write.counters.dead_letters == 1
    assert no_pauses == [0.05, 0.1]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == [
        "dead letter: record in-0@1 of group 'group' is in topic 'in.dlq' now, after 3 attempts: ValueError: cannot "
        "use bad"
    ]
    assert reading.use("d") == 0, "the consumer goes on without a seek"


def test_a_dead_letter_says_where_its_record_came_from(reading: LetterReader) -> None:
    headers = [("trace", b"\x00\xff"), ("none", None)]
    record = FakeRecord(P, reading.consumer.poll(P, 1)[0], b"text", key=None, headers=headers)

    def function(tx: Any, message: Any) -> None:
        tx.execute(insert(events), [{"value": "twice"}, {"value": "twice"}])

    assert reading.letters(attempts=1).use([record], function) == 1
    (made,) = reading.kafka.kept.of(DLQ)
    assert (made.key, made.value, made.timestamp) == (None, b"text", record.timestamp()[1])
    said = dict(made.headers)
    assert made.headers[:2] == tuple(headers)
    assert b"UNIQUE constraint failed" in (said.pop(names.MESSAGE) or b"")
    assert said == {
        **dict(headers),
        names.TOPIC: b"in",
        names.PARTITION: b"0",
        names.OFFSET: b"0",
        names.EXCEPTION: f"{IntegrityError.__module__}.IntegrityError".encode(),
        names.GROUP: b"group",
        names.ATTEMPTS: b"1",
    }


def test_a_tombstone_can_be_a_dead_letter(reading: LetterReader) -> None:
    def function(tx: Any, message: Any) -> None:
        message.value().decode()

    assert reading.letters().use(polled(reading.consumer, P, None), function) == 1
    assert [record.value for record in reading.kafka.kept.of(DLQ)] == [None]


class WebServiceError(Exception):
    """An error of the application's own."""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaUnavailableError("down"),
        errors.DatabaseUnavailableError("down"),
        errors.RebalancedError("moved"),
        errors.InDoubtError("unknown"),
        errors.CommittedError("committed"),
        errors.InvalidTransactionStateError("a bug"),
        errors.KafkaRefusedError("produce", 29, "TOPIC_AUTHORIZATION_FAILED"),
        OperationalError("SELECT", {}, Exception("disk full")),
        ConnectionResetError("by a peer"),
        TimeoutError("of a service"),
        MemoryError(),
        WebServiceError("503"),
        KeyboardInterrupt(),
        SystemExit(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("others", [[], ["a"]], ids=["alone", "in a batch"])
def test_what_may_pass_puts_no_record_aside(reading: LetterReader, error: BaseException, others: list[str]) -> None:
    with pytest.raises(type(error)):
        reading.use(*others, "bad", raised=error, may_pass=[WebServiceError])
    assert (reading.kafka.kept.of(DLQ), reading.letters_left(), reading.offset()) == ([], [], 0)
    assert stored_values(reading.engine) == []
    reading.seek_back()
    assert reading.use(*others, "good") == 0


def test_what_passes_is_tried_again_at_once(reading: LetterReader) -> None:
    passing = [errors.DatabaseBusyError("a deadlock"), errors.DatabaseBusyError("again")]

    def function(tx: Any, message: Any) -> None:
        tx.execute(insert(events).values(value="a"))
        if passing:
            raise passing.pop()

    assert reading.letters().use(polled(reading.consumer, P, "a"), function) == 0
    assert (stored_values(reading.engine), reading.offset(), reading.kafka.kept.records) == (["a"], 1, [])


def test_what_passes_is_tried_again_if_the_application_has_made_it_its_own(reading: LetterReader) -> None:
    passing = [errors.KafkaUnavailableError("down"), OperationalError("UPDATE", {}, Exception("database is locked"))]

    def function(tx: Any, message: Any) -> None:
        if passing:
            raise WebServiceError("no shipment") from passing.pop()
        tx.produce("out", "done")

    assert reading.letters(attempts=3).use(polled(reading.consumer, P, "a"), function) == 0
    assert (reading.kafka.kept.of(DLQ), reading.letters_left()) == ([], ["done"])


@pytest.mark.parametrize("cause", [ConnectionResetError("by a peer"), errors.RebalancedError("moved")])
def test_what_may_pass_puts_no_record_aside_if_the_application_has_made_it_its_own(
    reading: LetterReader, cause: Exception
) -> None:
    error = WebServiceError("no shipment")
    error.__cause__ = cause
    with pytest.raises(WebServiceError):
        reading.use("bad", raised=error)
    assert (reading.tried, reading.kafka.kept.of(DLQ), reading.offset()) == (["bad"], [], 0)


def test_a_deadlock_that_does_not_pass_is_raised_as_the_librarys_error(reading: LetterReader) -> None:
    locked = OperationalError("UPDATE", {}, Exception("database is locked"))
    with pytest.raises(errors.DatabaseBusyError) as raised:
        reading.use("bad", raised=locked)
    assert raised.value.retriable
    assert (reading.tried, reading.kafka.kept.of(DLQ)) == (["bad"] * 3, [])


def test_an_error_of_the_consumer_is_no_records_fault(reading: LetterReader, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = polled(reading.consumer, P, "a")

    def refuse_once() -> None:
        monkeypatch.undo()
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(reading.consumer, "consumer_group_metadata", refuse_once)
    with pytest.raises(KafkaException):
        reading.letters(attempts=1).use(messages, lambda tx, message: None)
    assert reading.kafka.kept.of(DLQ) == []


def test_an_error_of_the_consumer_after_a_deadlock_is_no_records_fault(reading: LetterReader) -> None:
    """The unit that met the deadlock had its offsets, and the one after it has none."""
    consumer = reading.consumer

    def refuse_once() -> None:
        vars(consumer).pop("consumer_group_metadata")
        raise KafkaException(KafkaError(KafkaError._STATE))

    def function(tx: Any, message: Any) -> None:
        consumer.consumer_group_metadata = refuse_once  # type: ignore[assignment,method-assign]
        raise errors.DatabaseBusyError("a deadlock")

    with pytest.raises(KafkaException):
        reading.letters(attempts=2).use(polled(consumer, P, "a"), function)
    assert reading.kafka.kept.of(DLQ) == []


def test_an_error_that_comes_of_a_lost_connection_is_no_records_fault(
    reading: LetterReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the application has made it one of its own."""

    def function(tx: Any, message: Any) -> None:
        with monkeypatch.context() as lost:
            lost.setattr(reading.engine.dialect, "is_disconnect", lambda *_: True)
            try:
                tx.execute(text("SELECT * FROM nowhere"))
            except OperationalError as error:
                raise ValueError("the order cannot be read") from error

    with pytest.raises(ValueError, match="the order cannot be read"):
        reading.letters(attempts=1).use(polled(reading.consumer, P, "a"), function)
    assert (reading.kafka.kept.of(DLQ), reading.offset()) == ([], 0)


@pytest.fixture
def time_limit() -> Iterator[None]:
    """A handler that raises an Exception, as Celery's soft time limit does."""

    def strike(_: int, __: object) -> None:
        raise ValueError("time is up")

    before = signal.signal(signal.SIGUSR1, strike)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("time_limit")
def test_a_time_limit_puts_no_record_aside(reading: LetterReader) -> None:
    with pytest.raises(ValueError, match="time is up"):
        reading.letters().use(polled(reading.consumer, P, "a"), lambda tx, message: signal.raise_signal(signal.SIGUSR1))
    assert (reading.kafka.kept.of(DLQ), reading.offset()) == ([], 0)


def test_a_block_that_committed_past_the_library_is_not_run_again(reading: LetterReader) -> None:
    calls = []

    def function(tx: Any, message: Any) -> None:
        calls.append(message)
        tx.execute(insert(events).values(value="left"))
        tx.connection.connection.driver_connection.commit()
        raise KeyError

    with pytest.raises(KeyError):
        reading.letters().use(polled(reading.consumer, P, "a"), function)
    assert (len(calls), reading.kafka.kept.of(DLQ)) == (1, [])


def test_a_record_that_makes_one_too_large_is_put_aside(reading: LetterReader) -> None:
    def function(tx: Any, message: Any) -> None:
        raise KafkaRefusedError("produce", 10, "MESSAGE_TOO_LARGE")

    assert reading.letters().use(polled(reading.consumer, P, "a"), function) == 1


checked = Table("checked_letters", MetaData(), Column("amount", Integer, CheckConstraint("amount > 0")))


@pytest.fixture
def checked_engine(engine: Engine) -> Iterator[Engine]:
    """Each database, with a table that has a CHECK constraint."""
    checked.create(engine, checkfirst=True)
    yield engine
    checked.drop(engine)


def test_each_database_blames_a_record_for_a_constraint(
    make_dual_write: Callable[..., DualWrite], kafka: KeepingKafka, checked_engine: Engine
) -> None:
    """And goes on: on PostgreSQL the failed statement has failed its transaction."""

    def function(tx: Any, message: Any) -> None:
        tx.execute(insert(checked).values(amount=int(message.value())))
        tx.produce("out", message.value())

    reading = LetterReader(make_dual_write(checked_engine), kafka, checked_engine, "stored")
    assert reading.letters().use(polled(reading.consumer, P, "1", "-1", "no number", "2"), function) == 2
    assert [record.value for record in kafka.kept.of(DLQ)] == [b"-1", b"no number"]
    assert reading.letters_left() == ["1", "-1", "no number", "2"]
    with checked_engine.connect() as connection:
        assert sorted(connection.scalars(select(checked.c.amount))) == [1, 2]
    assert reading.offset() == 4
