"""What is produced in a unit of work, noted so that it can be produced again: as it was sent, and where it went."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.coordinator.ports.kafka import (
    KafkaParticipant,
    has_committed,
    name_of_left_transaction,
    name_of_open_transaction,
)
from dualwrite.coordinator.replay.recording import RecordingParticipant, RecordKeeper, packed_headers, unpacked_headers
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord


class Inner:
    """A participant that takes what it is given."""

    def __init__(self) -> None:
        self.taken: list[OutgoingRecord] = []
        self.reports: list[Callable[[Any, Any], None]] = []
        self.fails: Exception | None = None
        self.is_reusable = self.commits = True
        self.open_transaction = PreparedTxnState(ProducerIdentity(4711, 3))

    def begin_transaction(self) -> None:
        self.taken.clear()

    def produce(self, record: OutgoingRecord) -> None:
        if self.fails is not None:
            raise self.fails
        assert record.on_delivery is not None
        self.taken.append(record)
        self.reports.append(record.on_delivery)

    def has_committed(self, state: PreparedTxnState) -> bool:
        return self.commits

    def name_left_transaction(self) -> PreparedTxnState:
        return self.open_transaction


class RecordedMessage:
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
    participant.produce(OutgoingRecord("t", "text", b"key", headers=[("h", b"1"), ("h", None)]))
    (record,) = inner.taken
    assert record.timestamp > 1_600_000_000_000
    (kept,) = keeper.of("a-0")
    assert kept.columns() == {
        "topic": "t",
        "partition": -1,
        "record_key": b"key",
        "record_value": b"text",
        "headers": packed_headers([("h", b"1"), ("h", None)]),
        "record_timestamp": record.timestamp,
    }
    inner.reports[0](None, RecordedMessage())
    assert keeper.of("a-0")[0].partition == 3


@pytest.mark.parametrize("is_so", [True, False])
def test_everything_else_is_said_by_the_participant_that_produces(is_so: bool) -> None:
    """A producer that must not be used again, as a request of it may still be on its way, is replaced."""
    inner, participant, _ = recording()
    inner.is_reusable = inner.commits = is_so
    state = PreparedTxnState(ProducerIdentity(4711, 3))
    assert participant.is_reusable is is_so
    assert has_committed(participant, state) is is_so
    assert name_of_left_transaction(participant) == name_of_open_transaction(participant) == state


def test_an_unacknowledged_record_keeps_its_requested_partition() -> None:
    inner, participant, keeper = recording()
    participant.produce(OutgoingRecord("t", partition=1))
    inner.reports[0]("error", RecordedMessage())
    assert keeper.of("a-0")[0].partition == 1


@pytest.mark.parametrize("setting", ["on_delivery", "dr_cb"])
def test_callbacks_are_called_the_records_own_before_the_configurations(setting: str) -> None:
    told: list[str] = []
    inner, participant, _ = recording(**{setting: lambda *_: told.append("default")})
    participant.produce(OutgoingRecord("t"))
    participant.produce(OutgoingRecord("t", on_delivery=lambda *_: told.append("own")))
    for report in inner.reports:
        report(None, RecordedMessage())
    assert told == ["default", "own"]
    with pytest.raises(TypeError, match="on_delivery"):
        participant.produce(OutgoingRecord("t", on_delivery=5))  # type: ignore[arg-type]


def test_a_record_that_raised_is_not_kept_and_a_new_transaction_begins_with_none() -> None:
    inner, participant, keeper = recording()
    participant.produce(OutgoingRecord("t", b"one"))
    inner.fails = KafkaUnavailableError("full")
    with pytest.raises(KafkaUnavailableError):
        participant.produce(OutgoingRecord("t", b"two"))
    with pytest.raises(TypeError):
        participant.produce(OutgoingRecord("t", 5))  # type: ignore[arg-type]
    assert [kept.record.value for kept in keeper.of("a-0")] == [b"one"]
    participant.begin_transaction()
    assert keeper.of("a-0") == []


def test_headers_that_can_be_read_once_are_kept_and_sent() -> None:
    inner, participant, keeper = recording()
    participant.produce(OutgoingRecord("t", b"v", headers=(("h", value) for value in (b"1", None))))  # type: ignore[arg-type]
    assert inner.taken[0].headers == keeper.of("a-0")[0].record.headers == (("h", b"1"), ("h", None))


def test_a_record_that_raised_takes_none_with_it_that_a_callback_has_produced_meanwhile() -> None:
    inner, participant, keeper = recording()

    def full(record: OutgoingRecord) -> None:
        inner.produce = plain  # type: ignore[method-assign]
        participant.produce(OutgoingRecord("t", b"of a callback"))
        raise KafkaUnavailableError(f"{record.topic}: the queue stayed full")

    plain, inner.produce = inner.produce, full  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailableError):
        participant.produce(OutgoingRecord("t", b"too much"))
    participant.produce(OutgoingRecord("t", b"last"))
    for report in inner.reports:
        report(None, RecordedMessage())
    assert [(kept.record.value, kept.partition) for kept in keeper.of("a-0")] == [(b"of a callback", 3), (b"last", 3)]


def test_a_record_that_raised_takes_no_equal_one_with_it() -> None:
    inner, participant, keeper = recording()
    record = OutgoingRecord("t", b"same", timestamp=7)
    participant.produce(record)
    inner.fails = KafkaUnavailableError("full")
    with pytest.raises(KafkaUnavailableError):
        participant.produce(record)
    assert [kept.record.value for kept in keeper.of("a-0")] == [b"same"]


def test_a_record_is_kept_before_the_one_that_its_callback_produces() -> None:
    inner, participant, keeper = recording()

    def reported_at_once(record: OutgoingRecord) -> None:
        plain(record)
        inner.reports[-1](None, RecordedMessage())

    plain, inner.produce = inner.produce, reported_at_once  # type: ignore[method-assign]
    next_record = OutgoingRecord("t", b"second")
    participant.produce(OutgoingRecord("t", b"first", on_delivery=lambda *_: participant.produce(next_record)))
    assert [kept.record.value for kept in keeper.of("a-0")] == [record.value for record in inner.taken]
    assert [kept.record.value for kept in keeper.of("a-0")] == [b"first", b"second"]


def test_offsets_that_a_timeout_would_take_back_are_refused() -> None:
    _, participant, _ = recording()
    assert isinstance(participant, RecordingParticipant)
    with pytest.raises(ConfigurationError, match=r"replay=True.*tx\.store_offsets"):
        participant.send_offsets_to_transaction([], "group")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=200)), max_size=5))
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    assert unpacked_headers(packed_headers(headers)) == headers
