"""Opening a log: torn tails are cut, anything else that is damaged is refused, and what was reported is durable."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchHeader, MalformedBatchError, place_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import DIRECTORY, Reported, add, opened, whole

FIRST = DIRECTORY / "00000000000000000000.log"
UNCHECKED = range(12, 16)  # the leader epoch: not covered by the checksum; readers check it


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    return (DiskFiles(), tmp_path / "t-0") if request.param == "disk" else (MemoryFiles(), DIRECTORY)


def image(files: Files, path: Path, data: bytes) -> None:
    """Make ``data`` the content of the file."""
    file = files.open(path)
    file.truncate(0)
    file.append(data)
    file.close()


def three_batches() -> tuple[list[bytes], bytes]:
    """Three batches with offsets 0-1, 2 and 3-5, one by one and together."""
    log = opened(MemoryFiles())
    sizes = (2, 1, 3)
    batches = [add(log, *[Record(b"k", b"v" * size, 1000 + size)] * size) for size in sizes]
    return batches, b"".join(batches)


def on_image(data: bytes, reported: Reported | None = None) -> PartitionLog:
    """The log that a single segment of ``data`` opens as."""
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    image(files, FIRST, data)
    return opened(files, reported=reported)


def two_segments(files: Files, directory: Path = DIRECTORY) -> list[bytes]:
    """A log of two segments: batches at 0 and 1, then 2 and 3. Returns the batches."""
    log = opened(files, directory, segment_bytes=160)
    batches = [add(log) for _ in range(4)]
    log.sync()
    log.close()
    assert files.list(directory) == [f"{base:020}.log" for base in (0, 2)]
    return batches


def test_a_new_log_is_empty(place: tuple[Files, Path]) -> None:
    log = opened(*place)
    assert (log.start_offset, log.end_offset, log.unsynced, log.cut_bytes) == (0, 0, False, 0)
    assert log.read(0, 100, 0) == b""
    log.close()


def test_a_log_is_the_same_after_it_was_opened_again(place: tuple[Files, Path]) -> None:
    files, directory = place
    log = opened(files, directory, segment_bytes=200)
    batches = [add(log, *[Record(b"k", b"v" * size)] * (size % 3 + 1)) for size in range(20)]
    end = log.end_offset
    log.close()
    reported = Reported()
    again = opened(files, directory, segment_bytes=200, reported=reported)
    assert (again.start_offset, again.end_offset, again.cut_bytes) == (0, end, 0)
    assert whole(again) == b"".join(batches)
    assert [header.size for header in reported.headers] == [len(batch) for batch in batches]
    assert len(files.list(directory)) > 3
    again.close()


def test_only_control_batches_are_reported_with_their_bytes(place: tuple[Files, Path]) -> None:
    log = opened(*place)
    add(log)
    marker = bytearray(build_marker(Marker.COMMIT, ProducerIdentity(5, 0), 0, 1000))
    place_batch(marker, log.end_offset, 0)
    log.append(marker)
    add(log)
    log.close()
    reported = Reported()
    opened(*place, reported=reported).close()
    assert reported.bodies == [None, bytes(marker), None]
    assert reported.offsets == [0, 1, 2]


def test_a_tail_torn_at_any_byte_is_cut(place: tuple[Files, Path]) -> None:
    files, directory = place
    batches, data = three_batches()
    files.make_directory(directory)
    sound = len(data) - len(batches[-1])
    for length in range(sound, len(data)):
        image(files, directory / FIRST.name, data[:length])
        reported = Reported()
        log = opened(files, directory, reported=reported)
        assert (log.end_offset, log.cut_bytes, reported.offsets) == (3, length - sound, [0, 2])
        again = add(log)
        log.close()
        log = opened(files, directory)
        assert (log.cut_bytes, whole(log)) == (0, data[:sound] + again)
        log.close()


@pytest.mark.parametrize(
    "junk",
    [
        bytes(10),
        bytes(500),
        b"\xff" * 500,
        random.Random(3).randbytes(500),
        struct.pack(">qi", 6, 2**31 - 1) + bytes(49),
    ],
    ids=["few zeros", "zeros", "ones", "noise", "a length past the end"],
)
def test_junk_after_the_last_batch_is_cut(junk: bytes) -> None:
    _, data = three_batches()
    log = on_image(data + junk)
    assert (log.end_offset, log.cut_bytes, whole(log)) == (6, len(junk), data)


def test_any_damaged_byte_of_the_last_batch_is_noticed() -> None:
    batches, data = three_batches()
    sound = len(data) - len(batches[-1])
    for position in range(len(batches[-1])):
        damaged = bytearray(data)
        damaged[sound + position] ^= 0x10
        reported = Reported()
        on_image(bytes(damaged), reported)
        assert reported.offsets == ([0, 2, 3] if position in UNCHECKED else [0, 2]), f"byte {position}"


def test_a_wrong_leader_epoch_in_the_recovered_part_is_not_served() -> None:
    batches, data = three_batches()
    for position in UNCHECKED:
        damaged = bytearray(data)
        damaged[len(batches[0]) + position] ^= 0x10
        log = on_image(bytes(damaged))
        assert (log.end_offset, log.read(0, 1, 6)) == (6, batches[0])
        with pytest.raises(MalformedBatchError, match=r"leader epoch -?\d+ at offset 2"):
            log.read(2, 1, 6)


def test_a_sector_lost_in_the_middle_cuts_the_tail_from_there() -> None:
    batches, data = three_batches()
    damaged = batches[0] + bytes(len(batches[1])) + batches[2]
    log = on_image(damaged)
    assert (log.end_offset, log.cut_bytes) == (2, len(data) - len(batches[0]))


def test_a_stale_batch_with_another_offset_is_cut() -> None:
    batches, data = three_batches()
    assert on_image(data + batches[0]).end_offset == 6
    assert on_image(data + batches[2]).cut_bytes == len(batches[2])


def test_a_file_of_nothing_but_junk_is_cut_to_nothing() -> None:
    log = on_image(b"junk" * 100)
    assert (log.end_offset, log.cut_bytes, whole(log)) == (0, 400, b"")


def test_the_torn_tail_of_a_last_segment_leaves_the_earlier_ones_alone(place: tuple[Files, Path]) -> None:
    files, directory = place
    batches = two_segments(files, directory)
    image(files, directory / f"{2:020}.log", batches[2] + batches[3][:-1])
    log = opened(files, directory, segment_bytes=160)
    assert (log.end_offset, log.cut_bytes, whole(log)) == (3, len(batches[3]) - 1, b"".join(batches[:3]))
    log.close()


def test_an_empty_last_segment_continues_at_the_end_of_the_one_before(place: tuple[Files, Path]) -> None:
    files, directory = place
    batches = two_segments(files, directory)
    image(files, directory / f"{2:020}.log", b"")
    log = opened(files, directory)
    assert log.end_offset == 2
    batches[2:] = [add(log)]
    assert whole(log) == b"".join(batches)
    log.close()


def require_the_second_segment_alone(files: Files, directory: Path, batches: list[bytes]) -> None:
    """An operator sets the log's start to where the second segment begins. Then that is the whole log."""
    image(files, directory / "log-start-offset", b"2\n")
    log = opened(files, directory)
    assert (log.start_offset, log.end_offset, whole(log)) == (2, 4, b"".join(batches[2:]))
    log.close()


def _without_the_first_batch(batches: list[bytes]) -> bytes:
    return batches[1]


def _without_the_last_batch(batches: list[bytes]) -> bytes:
    return batches[0]


def _cut_in_the_last_batch(batches: list[bytes]) -> bytes:
    return batches[0] + batches[1][:-1]


def _with_a_wrong_magic(batches: list[bytes]) -> bytes:
    return batches[0] + batches[1][:16] + b"\x01" + batches[1][17:]


def _with_junk_at_its_end(batches: list[bytes]) -> bytes:
    return batches[0] + batches[1] + b"junk"


def _empty(batches: list[bytes]) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_the_first_batch, "0.log: at byte 0: offset 1 after -1"),
        (_without_the_last_batch, "2.log: begins at offset 2, but the segment before it ends at 1"),
        (_cut_in_the_last_batch, "0.log: at byte 76: a batch of 76 bytes runs past the end"),
        (_with_a_wrong_magic, "0.log: at byte 76: record batch of magic 1"),
        (_with_junk_at_its_end, "0.log: at byte 152: 4 bytes where a batch header"),
        (_empty, "2.log: begins at offset 2, but the segment before it ends at 0"),
    ],
)
def test_damage_in_an_earlier_segment_is_refused_and_nothing_is_touched(
    place: tuple[Files, Path], damage: Callable[[list[bytes]], bytes], message: str
) -> None:
    files, directory = place
    batches = two_segments(files, directory)
    data = damage(batches)
    image(files, directory / FIRST.name, data)
    with pytest.raises(CorruptLogError, match=message):
        opened(files, directory)
    assert files.open(directory / FIRST.name).read(0, 1000) == data
    assert files.open(directory / f"{2:020}.log").read(0, 1000) == batches[2] + batches[3]


def test_a_missing_segment_is_refused(place: tuple[Files, Path]) -> None:
    files, directory = place
    log = opened(files, directory, segment_bytes=1)
    for _ in range(3):
        add(log)
    log.close()
    files.remove(directory / f"{1:020}.log")
    with pytest.raises(CorruptLogError, match="begins at offset 2, but the segment before it ends at 1"):
        opened(files, directory)


def test_the_damaged_segment_of_a_log_is_refused_until_an_operator_loses_it(place: tuple[Files, Path]) -> None:
    """A start without an index believes no header of a damaged batch."""
    files, directory = place
    batches = two_segments(files, directory)
    for byte in range(16, len(batches[1])):
        damaged = bytearray(batches[0] + batches[1])
        damaged[len(batches[0]) + byte] ^= 1
        image(files, directory / FIRST.name, bytes(damaged))
        with pytest.raises(CorruptLogError, match=r"at byte 76: .*; later segments follow it.* write 2 and"):
            opened(files, directory)
    require_the_second_segment_alone(files, directory, batches)


@pytest.mark.parametrize("name", ["1.log", "old.log", "0000000000000000000x.log", "000000000000000000000.log"])
def test_a_file_that_is_named_like_no_segment_is_refused(place: tuple[Files, Path], name: str) -> None:
    files, directory = place
    files.make_directory(directory)
    files.open(directory / name).close()
    with pytest.raises(CorruptLogError, match=f"{name}: this is not the name of a segment"):
        opened(files, directory)


def test_files_that_are_no_logs_are_left_alone(place: tuple[Files, Path]) -> None:
    files, directory = place
    files.make_directory(directory)
    for name in ("partition.metadata", "00000000000000000000.index", "00000000000000000007.index"):
        image(files, directory / name, b"something")
    log = opened(files, directory)
    assert log.end_offset == 0
    assert "00000000000000000007.index" not in files.list(directory), "an index without a segment is of no use"
    assert "partition.metadata" in files.list(directory)
    log.close()


def test_a_log_without_its_first_segment_is_refused_until_an_operator_sets_its_start(
    place: tuple[Files, Path],
) -> None:
    files, directory = place
    batches = two_segments(files, directory)
    files.remove(directory / FIRST.name)
    with pytest.raises(CorruptLogError, match=r"no segment precedes it, but the log should begin at 0.*write 2 "):
        opened(files, directory)
    require_the_second_segment_alone(files, directory, batches)


def test_batches_of_a_killed_process_are_durable_once_reported() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=160)
    for _ in range(5):
        add(log)
    log.close()
    reported = Reported()
    assert not opened(files, reported=reported).unsynced
    for seed in range(50):
        survived = Reported()
        opened(files.power_cut(random.Random(seed)), reported=survived)
        assert survived.offsets == reported.offsets == [0, 1, 2, 3, 4]


def test_headers_are_reported_as_they_stand_in_the_file(tmp_path: Path) -> None:
    """Batches larger and smaller than a chunk of the scan, and headers across its edges."""
    log = opened(DiskFiles(), tmp_path)
    sizes = [10, 70_000, 3, 65_475, 65_400, 200_000, *range(40), 100_000]
    expected: list[BatchHeader] = []
    for size in sizes:
        add(log, Record(None, b"x" * size))
    log.close()
    for verify in (True, False):
        reported = Reported()
        if not verify:  # in an earlier segment only headers are read
            last = opened(DiskFiles(), tmp_path, segment_bytes=1)
            add(last)
            last.close()
        opened(DiskFiles(), tmp_path, reported=reported).close()
        expected = expected or reported.headers
        assert reported.headers[: len(sizes)] == expected
        assert [header.base_offset for header in expected] == list(range(len(sizes)))
