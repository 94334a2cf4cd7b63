"""What is produced in a unit of work, noted so that it can be produced again: as it was sent, and where it went."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.coordinator.ports import KafkaParticipant
from dualwrite.coordinator.replay.recording import KeptRecord, RecordingParticipant, RecordKeeper, _packed, _unpacked
from dualwrite.errors import ConfigurationError, KafkaUnavailableError


class Inner:
    """A participant that takes what it is given."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.reports: list[Callable[[Any, Any], None]] = []
        self.fails: Exception | None = None

    def begin_transaction(self) -> None:
        self.taken.clear()

    def produce(self, *record: Any) -> None:
        if self.fails is not None:
            raise self.fails
        *content, report = record
        self.taken.append(tuple(content))
        self.reports.append(report)


class Message:
    def partition(self) -> int:
        return 3


def recording(**config: Any) -> tuple[Inner, KafkaParticipant, RecordKeeper]:
    inner, keeper = Inner(), RecordKeeper(config)
    participant = keeper.watching(lambda _: inner)("a-0")  # type: ignore[arg-type,return-value]
    assert isinstance(participant, RecordingParticipant)
    participant.begin_transaction()
    return inner, participant, keeper


def test_a_record_is_kept_with_the_time_at_which_it_was_produced_and_where_it_went() -> None:
    inner, participant, keeper = recording()
    participant.produce("t", "text", b"key", headers=[("h", b"1"), ("h", None)])
    (record,) = inner.taken
    assert record[4] > 1_600_000_000_000
    assert keeper.of("a-0") == [KeptRecord("t", -1, b"key", b"text", [("h", b"1"), ("h", None)], record[4])]
    inner.reports[0](None, Message())
    assert keeper.of("a-0")[0].partition == 3


def test_a_record_that_was_not_acknowledged_is_known_to_be_nowhere() -> None:
    inner, participant, keeper = recording()
    participant.produce("t", partition=1)
    inner.reports[0]("error", Message())
    assert keeper.of("a-0")[0].partition == 1


def test_callbacks_are_called_the_records_own_before_the_configurations() -> None:
    told: list[str] = []
    inner, participant, _ = recording(on_delivery=lambda *_: told.append("default"))
    participant.produce("t")
    participant.produce("t", on_delivery=lambda *_: told.append("own"))
    for report in inner.reports:
        report(None, Message())
    assert told == ["default", "own"]
    with pytest.raises(TypeError, match="on_delivery"):
        participant.produce("t", on_delivery=5)  # type: ignore[arg-type]


def test_a_record_that_raised_is_not_kept_and_a_new_transaction_begins_with_none() -> None:
    inner, participant, keeper = recording()
    participant.produce("t", b"one")
    inner.fails = KafkaUnavailableError("full")
    with pytest.raises(KafkaUnavailableError):
        participant.produce("t", b"two")
    with pytest.raises(TypeError):
        participant.produce("t", 5)  # type: ignore[arg-type]
    assert [record.value for record in keeper.of("a-0")] == [b"one"]
    participant.begin_transaction()
    assert keeper.of("a-0") == []


def test_headers_that_can_be_read_once_are_kept_and_sent() -> None:
    inner, participant, keeper = recording()
    participant.produce("t", b"v", headers=(("h", value) for value in (b"1", None)))  # type: ignore[arg-type]
    assert inner.taken[0][5] == keeper.of("a-0")[0].headers == [("h", b"1"), ("h", None)]


def test_a_record_that_raised_takes_none_with_it_that_a_callback_has_produced_meanwhile() -> None:
    inner, participant, keeper = recording()

    def full(topic: str, *_: Any) -> None:
        inner.produce = plain  # type: ignore[method-assign]
        participant.produce("t", b"of a callback")
        raise KafkaUnavailableError(f"{topic}: the queue stayed full")

    plain, inner.produce = inner.produce, full  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailableError):
        participant.produce("t", b"too much")
    participant.produce("t", b"last")
    for report in inner.reports:
        report(None, Message())
    assert [(each.value, each.partition) for each in keeper.of("a-0")] == [(b"of a callback", 3), (b"last", 3)]


def test_offsets_that_a_timeout_would_take_back_are_refused() -> None:
    _, participant, _ = recording()
    assert isinstance(participant, RecordingParticipant)
    with pytest.raises(ConfigurationError, match=r"replay=True.*tx\.store_offsets"):
        participant.send_offsets_to_transaction([], "group")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=200)), max_size=5))
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    assert _unpacked(_packed(headers)) == headers
