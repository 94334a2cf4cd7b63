"""How a transaction ended whose first record is only known to lie at an offset or behind it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.admin.log_reader import LogExtent
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.fate import transaction_fate
from dualwrite.client.fate.transaction_fate import ended_transaction
from dualwrite.ids import Anchor, Ending, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from tests.support.client.one_record_log import OneRecordLog

ME, OTHER = ProducerIdentity(7, 3), ProducerIdentity(8, 0)
PLACE = TopicPartition("t", 0)
ENDINGS = {Marker.COMMIT: Ending.COMMITTED, Marker.ABORT: Ending.ABORTED}


class OnePartition:
    """A control plane with one partition.

    :param step: batches that a Fetch reads.
    :param start: where the log begins.
    """

    def __init__(self, log: OneRecordLog, step: int = 100, start: int = 0) -> None:
        self.log = log
        self.step = step
        self.start = start

    def logs(self, timeout: float | None = None) -> "OnePartition":
        return self

    def partition_of(self, anchor: Anchor) -> TopicPartition:
        return PLACE

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice | None:
        if not self.start <= offset <= self.log.end:
            return None
        return self.log.read(offset, min(self.log.end, offset + self.step))

    def extent(self, partition: TopicPartition) -> LogExtent:
        return LogExtent(self.start, self.log.end)


def ending(partition: OnePartition, bound: int, timeout: float | None = None) -> Ending:
    control: Any = partition
    state = PreparedTxnState(ME, first_record=Anchor.of(PLACE, bound), is_bound=True)
    return ended_transaction(control, state, timeout).ending


def log_of(*content: ProducerIdentity | Marker) -> OneRecordLog:
    """Records of producers, and markers of ME."""
    log = OneRecordLog()
    for each in content:
        if isinstance(each, Marker):
            log.marker(each, ME)
        else:
            log.record(each, transactional=each == ME)
        if each == OTHER:
            log.started.pop(OTHER.producer_id)
    return log


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(1, 40), st.sampled_from(Marker))
def test_the_ending_is_found_from_any_bound(before: int, between: int, bound: int, step: int, marker: Marker) -> None:
    log = log_of(*[OTHER] * before, ME, *[OTHER] * between, ME, marker, OTHER)
    assert ending(OnePartition(log, step), min(bound, before)) is ENDINGS[marker]


@given(st.integers(0, 30), st.integers(0, 40), st.integers(1, 40))
def test_a_record_that_is_not_behind_its_bound_is_lost(others: int, bound: int, step: int) -> None:
    assert ending(OnePartition(log_of(*[OTHER] * others), step), bound) is Ending.LOST


def test_an_open_transaction_is_found_open() -> None:
    assert ending(OnePartition(log_of(OTHER, OTHER, ME, OTHER)), 1) is Ending.OPEN


@pytest.mark.parametrize("step", [1, 100])
def test_a_log_that_has_lost_a_piece_behind_the_bound_tells_nothing(step: int) -> None:
    log = log_of(*[OTHER] * 6)
    del log.content[3]
    assert ending(OnePartition(log, step), 1) is Ending.UNKNOWN
    assert ending(OnePartition(log, step), 4) is Ending.LOST, "the piece lies before"


def test_a_log_that_begins_behind_the_bound_tells_nothing() -> None:
    assert ending(OnePartition(log_of(*[OTHER] * 6), start=3), 2) is Ending.UNKNOWN


def test_a_search_with_little_time_is_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_fate, "FARTHEST", 1000)
    log = log_of(*[OTHER] * 100, ME, Marker.COMMIT)
    assert ending(OnePartition(log, step=1), 0, timeout=1.0) is Ending.UNKNOWN
    assert ending(OnePartition(log, step=1), 95, timeout=1.0) is Ending.COMMITTED
    assert ending(OnePartition(log, step=1), 0) is Ending.COMMITTED
