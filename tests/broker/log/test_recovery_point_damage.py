"""Damage below the recovery point is no crash's: the log refuses to open, and nothing of it is cut away."""

import random
from pathlib import Path

import pytest

from dualwrite.broker.log.journal import Journal
from dualwrite.broker.log.layout import (
    RECOVERY_POINT,
    SNAPSHOT,
    UNFINISHED,
    name_at,
    offsets_of,
    read_recovery_point,
    write_mark,
)
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.errors import ConfigurationError, CorruptLogError
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import LogHistory, known, opened_with_state, replayed
from tests.support.broker.logs import DIRECTORY, Reported, add, opened
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient

SEGMENT = DIRECTORY / "00000000000000000000.log"


def stopped(files: MemoryFiles, records: int = 5) -> bytes:
    """The bytes of a log that was stopped cleanly."""
    log = opened(files)
    for number in range(records):
        add(log, Record(None, b"%d" % number))
    log.checkpoint()
    log.close()
    segment = files.open(SEGMENT)
    return segment.read(0, segment.size())


def rewrite(files: MemoryFiles, data: bytes) -> None:
    segment = files.open(SEGMENT)
    segment.truncate(0)
    segment.append(data)


def test_a_clean_stop_stores_the_end_as_the_recovery_point() -> None:
    files = MemoryFiles()
    assert read_recovery_point(files, DIRECTORY) == 0
    stopped(files)
    assert read_recovery_point(files, DIRECTORY) == 5
    assert read_recovery_point(files.power_cut(random.Random(1)), DIRECTORY) == 5
    assert opened(files).end_offset == 5


def test_damage_below_the_recovery_point_is_refused_and_nothing_is_cut() -> None:
    files = MemoryFiles()
    whole = stopped(files)
    for at in range(0, len(whole), 7):
        if at % (len(whole) // 5) in range(12, 16):
            continue  # the leader epoch, which no checksum covers
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        rewrite(files, bytes(damaged))
        with pytest.raises(CorruptLogError, match=r"whole up to offset 5 at the last recovery point.*recovery-point"):
            opened(files)
        segment = files.open(SEGMENT)
        assert segment.read(0, segment.size()) == bytes(damaged)


@pytest.mark.parametrize("left", [0, 1, 61, 100])
def test_a_log_file_that_ends_before_the_recovery_point_is_refused(left: int) -> None:
    files = MemoryFiles()
    rewrite(files, stopped(files)[:left])
    with pytest.raises(CorruptLogError, match="whole up to offset 5"):
        opened(files)


def test_a_torn_tail_after_the_clean_stop_is_cut() -> None:
    files = MemoryFiles()
    stopped(files)
    log = opened(files)
    add(log, Record(None, b"after"))
    log.sync()
    segment = files.open(SEGMENT)
    segment.truncate(segment.size() - 1)
    again = opened(files)
    assert (again.end_offset, again.cut_bytes > 0) == (5, True)


LOST = {
    "recovery-point": "no record is lost",
    "log-start-offset": "come back",
}
"""What the refusal of a damaged note says of a log without it."""


@pytest.mark.parametrize(
    "content", [b"", b"5", b"\xff\x00\n", b"-5\n", b"five\n", b"5\n5\n", b" 5\n", b"9" * 20 + b"\n"]
)
@pytest.mark.parametrize("note", LOST)
def test_a_recovery_point_file_without_a_number_is_refused(note: str, content: bytes) -> None:
    files = MemoryFiles()
    whole = stopped(files)
    file = files.open(DIRECTORY / note)
    file.truncate(0)
    file.append(content)
    words = f"{note}: damaged, not one number and a line feed.*remove it: .*{LOST[note]}"
    with pytest.raises(CorruptLogError, match=words):
        opened(files)
    assert files.reader(SEGMENT).size() == len(whole), "what is there was left alone"


def test_a_recovery_point_that_was_removed_promises_nothing() -> None:
    files = MemoryFiles()
    whole = stopped(files)
    files.remove(DIRECTORY / "recovery-point")
    rewrite(files, whole[:-1])
    assert opened(files).end_offset == 4


def test_a_journal_has_a_recovery_point_too() -> None:
    files = MemoryFiles()
    journal = Journal.open(files, DIRECTORY, lambda record: None)
    journal.append([Record(b"k", b"v")])
    journal.log.checkpoint()
    rewrite(files, b"")
    with pytest.raises(CorruptLogError, match="whole up to offset 1"):
        Journal.open(files, DIRECTORY, lambda record: None)


def test_a_broker_refuses_a_directory_that_was_damaged_while_it_was_stopped(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        for number in range(20):
            produce(client, topic, batch([b"%d" % number]))
    for directory in ("__cluster_metadata-0", f"{topic}-0"):
        path = tmp_path / directory / SEGMENT.name
        whole = path.read_bytes()
        path.write_bytes(whole[:30] + b"xxxx" + whole[34:])
        with pytest.raises(ConfigurationError, match="at the last recovery point"):
            ForkedBroker(tmp_path).start()
        path.write_bytes(whole)
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert read_all(client, topic) == [b"%d" % number for number in range(20)]


def test_the_whole_log_of_a_real_disk_is_noted(tmp_path: Path) -> None:
    files = DiskFiles()
    log = opened(files, tmp_path / "t-0", segment_bytes=200)
    for _ in range(10):
        add(log, Record(None, b"x" * 50))
    log.checkpoint()
    assert (tmp_path / "t-0" / "recovery-point").read_text() == "10 crc32c 926eb497\n"
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 1


def test_no_snapshot_of_before_the_first_segment_is_used() -> None:
    """It lacks what the deleted batches behind it did to the state of their producers."""
    files = MemoryFiles()
    log = opened(files, segment_bytes=160)
    for end in (5, 10):
        while log.end_offset < end:
            add(log)
        log.plan_recovery_point([], lambda _: [])
        log.write_recovery_points()
    log.truncate_before(8)
    files.open(DIRECTORY / name_at(10, SNAPSHOT)).truncate(0)
    restored: list[int] = []
    reported = Reported()
    PartitionLog.open(files, DIRECTORY, LogSettings(160), reported, lambda offset, *_: restored.append(offset))
    assert restored == []
    assert reported.offsets == [8, 9]


def test_no_snapshot_of_records_that_were_cut_off_is_used() -> None:
    """An operator has removed the recovery point, to lose what followed the damage. Other records came in its place."""
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1))
    for lost in (ProducerIdentity(1, 0), ProducerIdentity(2, 0)):
        history.write(lost)
        history.take_point()
    segment = files.open(SEGMENT)
    segment.truncate(1)
    files.remove(DIRECTORY / RECOVERY_POINT)
    again = LogHistory(files.power_cut(random.Random(1)), random.Random(1))
    assert (again.log.end_offset, offsets_of(again.files.list(DIRECTORY), SNAPSHOT)) == (0, [])
    for _ in range(3):
        again.write(ProducerIdentity(3, 0))
    again.take_point()
    again.files.remove(DIRECTORY / name_at(3, SNAPSHOT))
    log, state = opened_with_state(again.files)
    assert known(state) == known(again.state) == known(replayed(log))


def test_what_a_crash_left_of_an_unfinished_note_is_no_part_of_the_next_one() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    files.open(DIRECTORY / (RECOVERY_POINT + UNFINISHED)).append(b"99 crc32c")
    write_mark(files, DIRECTORY / RECOVERY_POINT, 5)
    assert read_recovery_point(files, DIRECTORY) == 5
