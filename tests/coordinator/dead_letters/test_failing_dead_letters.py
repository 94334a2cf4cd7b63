"""A dead letter that cannot be written loses no record, and one that can is written as it is."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite import DeadLetterError
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, KafkaUnavailableError
from tests.support.coordinator.dead_letters.fake_records import KeepingKafka, polled
from tests.support.coordinator.dead_letters.letter_reader import DLQ, LetterReader, P, fail
from tests.support.coordinator.fake_kafka import Fault

pytestmark = pytest.mark.usefixtures("no_pauses")


def refuse_letters(kafka: KeepingKafka, error: Exception) -> list[int]:
    """Let the dead-letter unit fail as long as the list that is returned has a number."""
    left = [1]

    def before(request: str) -> None:
        if request == "produce" and left:
            raise error

    kafka.before_effect = before
    return left


def test_a_refused_dead_letter_loses_no_record(reading: LetterReader) -> None:
    left = refuse_letters(reading.kafka, KafkaRefusedError("produce", 10, "MESSAGE_TOO_LARGE"))
    with pytest.raises(DeadLetterError, match=r"^record in-0@0: .* 'in\.dlq' \(MESSAGE_TOO_LARGE\)") as raised:
        reading.letters().use(polled(reading.consumer, P, "a"), fail)
    assert not raised.value.retriable
    assert isinstance(raised.value.__cause__, KafkaRefusedError)
    assert (reading.letters_left(), reading.offset(), reading.dual_write.counters.dead_letters) == ([], 0, 0)
    left.clear()
    reading.seek_back()
    assert reading.letters().use(polled(reading.consumer, P, "a"), fail) == 1
    assert (reading.letters_left(), reading.offset(), reading.dual_write.counters.dead_letters) == (["a"], 1, 1)


def test_a_unit_that_could_not_begin_is_begun_again_with_the_same_records(reading: LetterReader) -> None:
    failing = [Fault.BEFORE]
    reading.kafka.fault = lambda request: failing.pop() if failing else Fault.NONE
    assert reading.use("a") == 0
    assert not failing
    assert reading.tried == ["a"], "the first attempt never called the function"
    assert (reading.letters_left(), reading.offset()) == (["a"], 1)


def test_after_units_that_could_not_begin_the_worker_must_seek(reading: LetterReader) -> None:
    reading.kafka.fault = lambda request: Fault.BEFORE
    with pytest.raises(KafkaUnavailableError):
        reading.use("a")
    reading.kafka.fault = lambda request: Fault.NONE
    with pytest.raises(InvalidTransactionStateError, match="seek_to_"):
        reading.use("b")  # "a" was read, and never used
    reading.seek_back()
    assert reading.use("a") == 0
    assert (reading.letters_left(), reading.offset()) == (["a"], 1)


@pytest.mark.parametrize("request_name", ["produce", "prepare", "commit"])
def test_a_dead_letter_that_kafka_does_not_answer_is_with_its_offset_or_not_at_all(
    reading: LetterReader, request_name: str
) -> None:
    messages = polled(reading.consumer, P, "a")
    reading.kafka.fault = lambda request: Fault.BEFORE if request == request_name else Fault.NONE
    if request_name == "commit":  # it is decided, and completed later
        reading.letters().use(messages, fail)
    else:
        with pytest.raises(KafkaUnavailableError):
            reading.letters().use(messages, fail)
        assert (reading.letters_left(), reading.offset()) == ([], 0)
    reading.kafka.fault = lambda request: Fault.NONE
    if request_name == "commit":
        assert reading.dual_write.wait_idle(20)
        assert (reading.letters_left(), reading.offset()) == (["a"], 1)


def test_a_dead_letter_passes_by_the_serializers(
    make_dual_write: Callable[..., DualWrite],
    kafka: KeepingKafka,
    sqlite_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serialize(content: Any, context: Any) -> bytes:
        raise AssertionError(content)

    config = {"bootstrap.servers": "nowhere:9092", "value.serializer": serialize, "key.serializer": serialize}
    monkeypatch.setattr("tests.coordinator.conftest.CONFIG", config)
    reading = LetterReader(make_dual_write(), kafka, sqlite_engine, "stored")
    assert reading.letters().use(polled(reading.consumer, P, "a"), fail) == 1
    assert [(record.key, record.value) for record in kafka.kept.of(DLQ)] == [(b"key", b"a")]
