"""How a transaction ended, read from a piece of a log: compared with a log whose transactions' ends are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.encoding.transaction_end import ending_in, first_marker_in, mismatch_at, offset_after
from dualwrite.ids import EndedTransaction, Ending, ProducerIdentity
from dualwrite.records.batch import Record, place_records
from dualwrite.records.control import Marker, place_marker
from dualwrite.records.header import BatchFields, emptied, peek_header, rebuild_batch
from tests.support.client.one_record_log import OneRecordLog

ME, OTHER = ProducerIdentity(7, 3), ProducerIdentity(8, 0)
COMMITTED, ABORTED = Ending.COMMITTED, Ending.ABORTED


def test_a_transactions_ending_follows_from_the_aborted_transactions() -> None:
    log = OneRecordLog()
    for commits in (False, True, False):
        log.record(ME)
        log.marker(Marker.COMMIT if commits else Marker.ABORT, ME)
    assert [ending_in(log.read(offset), ME, offset).ending for offset in (0, 2, 4)] == [ABORTED, COMMITTED, ABORTED]
    assert [ending_in(log.read(offset), ME, offset).was_overtaken for offset in (0, 2, 4)] == [True, False, False]


def test_another_producers_aborted_transaction_is_not_mistaken_for_it() -> None:
    log = OneRecordLog()
    log.record(OTHER)
    offset = log.record(ME)
    log.marker(Marker.ABORT, OTHER)
    log.marker(Marker.COMMIT, ME)
    assert ending_in(log.read(offset), ME, offset) == EndedTransaction(COMMITTED)


def test_any_record_of_the_transaction_identifies_it() -> None:
    log = OneRecordLog()
    log.record(ME)
    later = log.record(ME)
    log.marker(Marker.ABORT, ME)
    assert ending_in(log.read(later), ME, later).ending is ABORTED


@pytest.mark.parametrize("kind", Marker)
def test_a_repeated_marker_is_not_taken_for_a_later_transaction(kind: Marker) -> None:
    log = OneRecordLog()
    log.record(ME)
    log.marker(kind, ME)
    log.marker(Marker.COMMIT, ME)
    assert not ending_in(log.read(0), ME, 0).was_overtaken


def test_a_later_transaction_under_a_higher_epoch_overtakes_it_unless_it_is_aborted() -> None:
    log, heir = OneRecordLog(), ME._replace(epoch=ME.epoch + 1)
    log.record(ME)
    log.marker(Marker.COMMIT, heir)
    log.record(heir)
    assert not ending_in(log.read(0), ME, 0).was_overtaken, "it is open"
    log.marker(Marker.ABORT, heir)
    assert not ending_in(log.read(0), ME, 0).was_overtaken
    log.record(heir)
    log.marker(Marker.COMMIT, heir)
    assert ending_in(log.read(0), ME, 0).was_overtaken


def test_another_record_at_the_transactions_place_means_that_it_is_lost() -> None:
    log = OneRecordLog()
    log.record(ME)
    log.marker(Marker.COMMIT, ME)
    for producer, offset in ((OTHER, 0), (ME._replace(epoch=4), 0), (ME, 1)):
        assert mismatch_at(log.read(offset).records, producer, offset) is Ending.LOST
        assert ending_in(log.read(offset), producer, offset) == EndedTransaction(Ending.LOST)


def test_deleted_and_compacted_records_leave_the_ending_unknown() -> None:
    log = OneRecordLog()
    log.record(ME)
    log.record(ME)
    assert mismatch_at(b"", ME, 0) is Ending.UNKNOWN
    assert mismatch_at(log.read(1).records, ME, 0) is Ending.UNKNOWN, "what follows is there"
    assert ending_in(log.read(1), ME, 0) == EndedTransaction(Ending.UNKNOWN)
    kept = rebuild_batch(emptied(peek_header(log.content[0][1])), b"")
    assert mismatch_at(kept, ME, 0) is Ending.UNKNOWN, "compaction keeps empty batches"
    assert mismatch_at(log.read(0).records, ME, 0) is None


def test_the_marker_is_found_among_those_of_others() -> None:
    log = OneRecordLog()
    log.record(ME)
    log.record(OTHER)
    log.marker(Marker.COMMIT, OTHER)
    assert first_marker_in(log.read(0).records, ME.producer_id) is None
    log.marker(Marker.ABORT, ME)
    log.marker(Marker.COMMIT, ME)
    assert first_marker_in(log.read(0).records, ME.producer_id) is ABORTED


def test_markers_of_a_kind_that_came_later_and_empty_ones_are_passed_over() -> None:
    control = BatchFields(ME, transactional=True, control=True)
    unknown = place_records(0, [Record(b"\x00\x00\x00\x09", b"\x00" * 6, 0)], control)[1]
    empty = rebuild_batch(emptied(peek_header(place_marker(1, Marker.ABORT, ME, 0, 0)[1])), b"")
    commit = place_marker(2, Marker.COMMIT, ME, 0, 0)[1]
    assert first_marker_in(unknown + empty, ME.producer_id) is None
    assert first_marker_in(unknown + empty + commit, ME.producer_id) is COMMITTED


def test_a_record_whose_key_and_value_are_those_of_a_marker_ends_nothing() -> None:
    commit = Record(b"\x00\x00\x00\x01", b"\x00" * 6, 0)
    record = place_records(0, [commit], BatchFields(ME, base_sequence=0, transactional=True))[1]
    assert first_marker_in(record, ME.producer_id) is None
    assert first_marker_in(record + place_marker(1, Marker.ABORT, ME, 0, 0)[1], ME.producer_id) is ABORTED


@given(st.integers(1, 400))
def test_a_batch_that_is_cut_short_is_not_there(size: int) -> None:
    log = OneRecordLog()
    for _ in range(3):
        log.record(ME)
    records = log.read(0).records[:size]
    whole = sum(sum(len(batch) for _, batch in log.content[: n + 1]) <= size for n in range(3))
    assert offset_after(records) == (whole or None)


Event = tuple[str, ProducerIdentity]
identities = st.builds(ProducerIdentity, st.integers(1, 2), st.just(0))
events = st.lists(st.tuples(st.sampled_from(["record", "commit", "abort"]), identities), max_size=20)


@given(events, st.integers(0, 20))
def test_the_ending_is_right_for_any_history(history: list[Event], cut: int) -> None:
    log = OneRecordLog()
    ended: dict[int, Ending] = {}
    for what, producer in history:
        if what == "record":
            log.record(producer)
            continue
        first = log.started.get(producer.producer_id)
        if first is not None:
            ended[first] = COMMITTED if what == "commit" else ABORTED
        log.marker(Marker.COMMIT if what == "commit" else Marker.ABORT, producer)
    starts = {first: peek_header(dict(log.content)[first]).producer for first in ended}
    for first, ending in ended.items():
        whole = log.read(first)
        later = [other for other in ended if other > first and starts[other] == starts[first]]
        expected = EndedTransaction(ending, any(ended[other] is COMMITTED for other in later))
        assert ending_in(whole, starts[first], first) == expected
        assert first_marker_in(whole.records, starts[first].producer_id) is ending
        part = log.read(first, max(first + 1, cut))
        assert ending_in(part, starts[first], first).ending is ending
        assert first_marker_in(part.records, starts[first].producer_id) in (None, ending)
