"""The log against a plain list, through any order of appends, rolls, reads, syncs, kills and power cuts."""

import random
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.errors import CorruptLogError
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchFields, BatchHeader, MalformedBatchError, peek_header
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import DIRECTORY, LyingFiles, Reported, add, opened
from tests.support.strategies import batch_fields

small_timestamps = st.integers(0, 50)
small_values = st.binary(max_size=3) | st.just(b"x" * 700)
small_records = st.builds(Record, st.none(), small_values, small_timestamps, st.just(0))
offsets = st.integers(0, 60)


class LogModel(RuleBasedStateMachine):
    """The model is the list of batches that were appended, and how many of them a sync has covered."""

    seen: ClassVar[Counter[str]] = Counter()
    """Events that have to happen sometimes, or nothing is proved."""

    disk: type[MemoryFiles] = MemoryFiles
    log: PartitionLog
    files: MemoryFiles
    segment_bytes: int

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []
        self.records: list[Record] = []
        self.durable = 0

    @initialize(segment_bytes=st.sampled_from([1, 200, 1000, 1 << 30]))
    def begin(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.files = self.disk()
        self.log = opened(self.files, segment_bytes=segment_bytes)

    @rule(records=st.lists(small_records, min_size=1, max_size=4), fields=batch_fields)
    def append(self, records: list[Record], fields: BatchFields) -> None:
        offset = self.log.end_offset
        self.batches.append(add(self.log, *records, fields=fields))
        self.records += [record._replace(offset=offset + delta) for delta, record in enumerate(records)]

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable = len(self.batches)

    @rule()
    def kill(self) -> None:
        """The process dies: what it appended is in the page cache, and recovery makes it durable."""
        self.log.close()
        self.reopen(self.files)
        assert self.log.cut_bytes == 0

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        self.log.close()
        self.reopen(self.files.power_cut(random.Random(seed)))

    def reopen(self, files: MemoryFiles) -> None:
        reported = Reported()
        was_cut = files is not self.files
        self.files = files
        self.log = opened(files, segment_bytes=self.segment_bytes, reported=reported)
        survivors = len(reported.headers)
        assert self.durable <= survivors <= len(self.batches)
        assert was_cut or survivors == len(self.batches)
        self.seen["batches lost in a power cut"] += survivors < len(self.batches)
        self.seen["unsynced batches that survived a power cut"] += was_cut and survivors > self.durable
        self.seen["torn tail"] += self.log.cut_bytes > 0
        self.seen["several segments"] += len(files.list(DIRECTORY)) > 1
        self.seen["control batch"] += any(header.is_control for header in reported.headers)
        del self.batches[survivors:]
        del self.records[self.log.end_offset :]
        self.durable = survivors
        assert reported.headers == self.headers()
        assert reported.bodies == [
            batch if header.is_control else None for header, batch in zip(reported.headers, self.batches, strict=True)
        ]

    @rule(offset=offsets, max_bytes=st.integers(0, 2500), before=offsets, at_least_one=st.booleans())
    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> None:
        data = self.log.read(offset, max_bytes, before, at_least_one)
        segments = {int(name[:20]) for name in self.files.list(DIRECTORY)}
        expected, size = [], 0
        for header, batch in zip(self.headers(), self.batches, strict=True):
            if header.last_offset < offset:
                continue
            at_once = size + len(batch) <= max_bytes or (at_least_one and not expected)
            next_segment = bool(expected) and header.base_offset in segments
            if header.last_offset >= before or not at_once or next_segment:
                break
            expected.append(batch)
            size += len(batch)
        assert data == b"".join(expected)

    @rule(timestamp=small_timestamps, before=offsets)
    def find_a_timestamp(self, timestamp: int, before: int) -> None:
        """Exact where a batch's first record stands for it, and within whole batches otherwise."""
        found = self.log.offset_for_timestamp(timestamp, before)
        visible = (record for record in self.records if record.offset < before and record.timestamp >= timestamp)
        first = next(visible, None)
        assert found == (None if first is None else (first.timestamp, first.offset))

    @rule(data=st.data())
    def find_the_highest_timestamp(self, data: st.DataObject) -> None:
        bounds = [0, *(header.next_offset for header in self.headers())]
        before = data.draw(st.sampled_from(bounds), label="before")
        visible = [record for record in self.records if record.offset < before]
        first = max(visible, key=lambda record: (record.timestamp, -record.offset), default=None)
        assert self.log.max_timestamp(before) == (None if first is None else (first.timestamp, first.offset))

    @invariant()
    def offsets_have_no_gaps(self) -> None:
        assert self.log.start_offset == 0
        assert self.log.end_offset == len(self.records)
        assert self.log.unsynced == (self.durable < len(self.batches))

    def headers(self) -> list[BatchHeader]:
        return [peek_header(batch) for batch in self.batches]


class LogOnALyingDisk(LogModel):
    disk = LyingFiles


@pytest.mark.slow
def test_a_log_behaves_as_a_list_does() -> None:
    LogModel.seen.clear()
    run_state_machine_as_test(LogModel, settings=settings(max_examples=300, stateful_step_count=30, deadline=None))
    assert {event for event, count in LogModel.seen.items() if count == 0} == set()
    assert len(LogModel.seen) == 5


def test_the_model_notices_a_disk_that_lies_about_syncs() -> None:
    once = settings(
        max_examples=300,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, CorruptLogError, MalformedBatchError)):  # by the list, a start, or a reader
        run_state_machine_as_test(LogOnALyingDisk, settings=once)
