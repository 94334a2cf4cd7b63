"""The state of each record's transaction, compared with a log whose transactions' ends are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.encoding.record_states import LaterMarkers, stable_records
from dualwrite.client.encoding.transaction_end import LogSlice, batches_before
from dualwrite.client.terms.record_states import RecordState
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, place_records
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, MalformedBatchError
from tests.support.client.one_record_log import OneRecordLog

PRODUCERS = [ProducerIdentity(number, 0) for number in range(3)]
ONE, TWO, _ = PRODUCERS
STEPS = st.lists(
    st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(["record", "plain", Marker.COMMIT, Marker.ABORT])),
    min_size=20,
    max_size=60,
)
_ENDED = {Marker.COMMIT: RecordState.COMMITTED, Marker.ABORT: RecordState.ABORTED}
_MARKERS = {Marker.COMMIT: RecordState.COMMIT_MARKER, Marker.ABORT: RecordState.ABORT_MARKER}


def played(steps: list[tuple[ProducerIdentity, object]]) -> tuple[OneRecordLog, list[RecordState]]:
    """The log, and the state of the record at each of its offsets. Only an open transaction is ended."""
    log, states = OneRecordLog(), list[RecordState]()
    of_open: dict[ProducerIdentity, list[int]] = {}
    for producer, what in steps:
        if isinstance(what, Marker):
            if producer not in of_open:
                continue
            for offset in of_open.pop(producer):
                states[offset] = _ENDED[what]
            log.marker(what, producer)
            states.append(_MARKERS[what])
        elif what == "plain":
            if producer in of_open:
                continue
            log.record(producer, transactional=False)
            states.append(RecordState.PLAIN)
        else:
            of_open.setdefault(producer, []).append(log.record(producer))
            states.append(RecordState.OPEN)
    return log, states


def stable(log: OneRecordLog, offset: int, before: int) -> dict[int, RecordState]:
    return {stated.record.offset: stated.state for stated in stable_records(log.read(offset, before), offset)}


@given(STEPS, st.data())
def test_every_record_has_the_state_of_its_transaction(
    steps: list[tuple[ProducerIdentity, object]], data: st.DataObject
) -> None:
    log, states = played(steps)
    end_of_stable = log.read(0).last_stable_offset
    begin = data.draw(st.integers(0, end_of_stable))
    cut = data.draw(st.integers(begin, end_of_stable))
    seen = stable(log, begin, cut) | stable(log, cut, end_of_stable)
    markers = LaterMarkers()
    border = data.draw(st.integers(end_of_stable, log.end))
    pieces = [(end_of_stable, border), (border, log.end)]
    for first, last in pieces:
        markers.add(log.read(first, last).records)
    for first, last in pieces:
        records = markers.records(log.read(first, last).records, first)
        seen |= {stated.record.offset: stated.state for stated in records}
    assert seen == dict(enumerate(states[begin:], begin))


def test_a_producers_second_aborted_transaction_does_not_reach_back_over_a_committed_one() -> None:
    steps = [(ONE, "record"), (ONE, Marker.ABORT), (ONE, "record"), (ONE, Marker.COMMIT), (ONE, "record")]
    log, states = played([*steps, (ONE, Marker.ABORT)])
    assert states[::2] == [RecordState.ABORTED, RecordState.COMMITTED, RecordState.ABORTED]
    assert list(stable(log, 0, log.end).values()) == states


def test_records_before_the_offset_are_left_out_of_a_batch() -> None:
    batch = place_records(10, [Record(None, b"%d" % number) for number in range(3)])[1]
    stated = list(stable_records(LogSlice(13, 13, (), batch), 11))
    assert [(each.record.offset, each.record.value, each.producer) for each in stated] == [
        (11, b"1", NO_PRODUCER),
        (12, b"2", NO_PRODUCER),
    ]


def test_an_unknown_control_record_ends_no_transaction() -> None:
    log = OneRecordLog()
    log.record(ONE)
    unknown = place_records(1, [Record(b"\x00\x00\x00\x09", b"")], BatchFields(ONE, transactional=True, control=True))[
        1
    ]
    records = log.read(0).records + unknown
    markers = LaterMarkers()
    markers.add(records)
    assert [stated.state for stated in markers.records(records, 0)] == [RecordState.OPEN, RecordState.OTHER_MARKER]
    assert RecordState.OTHER_MARKER.is_marker


def test_a_batch_behind_the_last_whole_one_may_be_truncated() -> None:
    log, states = played([(ONE, "plain"), (TWO, "plain")])
    piece = log.read(0)
    stated = list(stable_records(piece._replace(records=piece.records[:-1]), 0))
    assert [each.state for each in stated] == states[:1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda batch: batch[:16] + b"\x01" + batch[17:], "record batch of magic 1: only 2 is supported"),
        (lambda batch: batch[:-1] + b"\xff", "the checksum of the batch at offset 0 does not match"),
        (lambda batch: batch[:30], "30 bytes where a batch header of 61 should be"),
        (lambda batch: batch[:-1], "bytes, of which"),
    ],
)
def test_a_damaged_or_older_batch_is_an_error_and_not_the_end_of_the_log(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    batch = damage(place_records(0, [Record(None, b"a")])[1])
    with pytest.raises(MalformedBatchError, match=message):
        list(stable_records(LogSlice(1, 1, (), batch), 0))
    with pytest.raises(MalformedBatchError, match=message):
        LaterMarkers().add(batch)


def test_only_batches_that_begin_before_the_end_are_kept() -> None:
    log, _ = played([(ONE, "plain")] * 3)
    records = log.read(0).records
    whole = len(records) // 3
    assert [len(batches_before(records, end)) // whole for end in (0, 1, 2, 3, 9)] == [0, 1, 2, 3, 3]
    assert batches_before(records[:-1], 9) == records[:-1]


def test_read_committed_consumers_see_committed_and_plain_records() -> None:
    assert [state for state in RecordState if state.may_be_read] == [RecordState.PLAIN, RecordState.COMMITTED]


def test_a_repeated_commit_marker_does_not_make_the_next_transaction_a_committed_one() -> None:
    """A coordinator that was restarted may write a marker again."""
    log = OneRecordLog()
    log.record(ONE)
    log.marker(Marker.COMMIT, ONE)
    first = log.record(ONE)
    log.marker(Marker.COMMIT, ONE)
    log.started[ONE.producer_id] = first  # it goes on
    log.record(ONE)
    log.marker(Marker.ABORT, ONE)
    states = [stated.state for stated in stable_records(log.read(first), first)]
    marker = RecordState.COMMIT_MARKER
    assert states == [RecordState.ABORTED, marker, RecordState.ABORTED, RecordState.ABORT_MARKER]


def test_a_record_whose_key_is_that_of_a_marker_ends_no_transaction() -> None:
    commit = Record(b"\x00\x00\x00\x01", b"\x00" * 6, 0)
    records = place_records(0, [commit, commit], BatchFields(ONE, base_sequence=0, transactional=True))[1]
    later = place_records(2, [commit], BatchFields(ONE, base_sequence=2, transactional=True))[1]
    markers = LaterMarkers()
    markers.add(records + later)
    assert {stated.state for stated in markers.records(records, 0)} == {RecordState.OPEN}
