"""The Files port: one behaviour on the disk and in memory, then what each of the two adds."""

import errno
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.broker.process.disk import DiskFile, DiskFiles
from dualwrite.ports import Files
from dualwrite.testing.files import MemoryFiles

HERE = Path("/data/t-0")
FILE = HERE / "a.log"


@pytest.fixture(params=["disk", "memory"])
def files_and_root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    files: Files = DiskFiles() if request.param == "disk" else MemoryFiles()
    root = tmp_path / "deep" / "down"
    files.make_directory(root)
    return files, root


def memory_with(data: bytes, *, synced: bytes = b"", named: bool = True) -> MemoryFiles:
    """A disk with one file: ``synced`` is durable, ``data`` after it is not; its name is durable if ``named``."""
    files = MemoryFiles()
    files.make_directory(HERE)
    file = files.open(FILE)
    file.append(synced)
    file.sync()
    if named:
        files.sync_directory(HERE)
    file.append(data)
    return files


def after_cuts(files: MemoryFiles, times: int = 200) -> Counter[bytes | None]:
    """What many power cuts leave of the file; None where its name is gone."""
    seen: Counter[bytes | None] = Counter()
    for seed in range(times):
        after = files.power_cut(random.Random(seed))
        seen[after.open(FILE).read(0, 10_000) if after.list(HERE) else None] += 1
    return seen


def test_appended_bytes_are_read(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    file.append(b"ab", memoryview(b"cd"), b"")
    file.append()
    file.append(b"ef")
    assert file.size() == 6
    assert file.read(0, 100) == b"abcdef"
    assert file.read(1, 3) == b"bcd"
    assert file.read(6, 1) == b""
    file.close()


def test_a_file_is_the_same_when_opened_again(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    file.append(b"abc")
    file.sync()
    file.close()
    again = files.open(root / "f")
    again.append(b"d")
    assert again.read(0, 10) == b"abcd"
    again.close()


def test_a_truncated_file_continues_at_its_end(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    file.append(b"abcdef")
    file.truncate(2)
    file.append(b"X")
    assert file.read(0, 10) == b"abX"
    file.close()


def test_names_come_and_go(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    for name in ("b", "a"):
        files.open(root / name).close()
    files.make_directory(root / "c")
    files.sync_directory(root)
    assert files.list(root) == ["a", "b", "c"]
    files.remove(root / "a")
    assert files.list(root) == ["b", "c"]
    assert files.list(root / "nowhere") == []


def test_a_directory_may_be_made_twice(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    files.make_directory(root / "x" / "y")
    files.make_directory(root / "x" / "y")
    assert files.list(root / "x") == ["y"]


def test_a_missing_file_is_an_error(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    with pytest.raises(FileNotFoundError):
        files.open(root / "nowhere" / "f")
    with pytest.raises(FileNotFoundError):
        files.remove(root / "f")


def test_a_closed_file_is_of_no_use(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    file.close()
    file.close()
    with pytest.raises((OSError, ValueError)):
        file.append(b"x")
    with pytest.raises((OSError, ValueError)):
        file.sync()


def test_the_disk_writes_all_of_it_even_if_the_kernel_takes_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def short_writev(descriptor: int, parts: list[memoryview]) -> int:
        calls.append(len(parts))
        return os.write(descriptor, b"".join(parts)[:3])

    monkeypatch.setattr(os, "writev", short_writev)
    file = DiskFile(tmp_path / "f")
    file.append(b"abcde", b"", b"fg", b"h" * 5)
    assert file.read(0, 100) == b"abcdefghhhhh"
    assert len(calls) == 4
    file.close()


def test_the_disk_takes_more_parts_than_one_system_call(tmp_path: Path) -> None:
    parts = [bytes([number % 251]) * (number % 3) for number in range(3000)]
    file = DiskFile(tmp_path / "f")
    file.append(*parts)
    assert file.read(0, 10_000) == b"".join(parts)
    file.close()


def test_the_disk_reads_all_of_it_even_if_the_kernel_gives_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, position: pread(descriptor, min(size, 2), position))
    file = DiskFile(tmp_path / "f")
    file.append(b"abcdefg")
    assert file.read(1, 5) == b"bcdef"
    assert file.read(4, 100) == b"efg"
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_raises() -> None:
    file = DiskFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left") as raised:
        file.append(b"x")
    assert raised.value.errno == errno.ENOSPC
    file.close()


def test_the_disk_syncs_the_parent_of_a_directory_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    files = DiskFiles()
    (tmp_path / "left-by-a-killed-process").mkdir()
    monkeypatch.setattr(files, "sync_directory", synced.append)
    files.make_directory(tmp_path / "left-by-a-killed-process" / "t-0")
    files.make_directory(tmp_path / "left-by-a-killed-process")
    assert synced == [tmp_path / "left-by-a-killed-process", tmp_path]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has another call, which also empties the drive's cache")
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda files, path: files.open(path).sync(), "a.log"),
        (lambda files, path: files.open(path).truncate(1), "a.log"),
        (lambda files, path: files.sync_directory(path.parent), ""),
    ],
    ids=["sync", "truncate", "sync_directory"],
)
def test_the_disk_has_the_system_write_what_is_to_be_durable(
    change: Callable[[Files, Path], None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = DiskFiles(), tmp_path / "a.log"
    files.open(path).append(b"before")
    written: list[int] = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda descriptor: written.append(os.fstat(descriptor).st_ino))
    change(files, path)
    assert written == [(tmp_path / name).stat().st_ino]


def test_a_power_cut_keeps_synced_bytes_and_any_part_of_the_others() -> None:
    seen = after_cuts(memory_with(b"0123456789", synced=b"safe"))
    assert all(data is not None and data.startswith(b"safe") and len(data) <= 14 for data in seen)
    assert seen[b"safe"]
    assert seen[b"safe0123456789"]
    assert any(data and len(data) > 4 and b"safe0123456789".startswith(data) for data in seen)
    assert any(data and not b"safe0123456789".startswith(data) for data in seen), "never any garbage"


def test_a_power_cut_may_lose_a_sector_and_keep_a_later_one() -> None:
    data = b"".join(bytes([number]) * 512 for number in range(1, 5))
    tails = [found for found in after_cuts(memory_with(data)) if found and len(found) == len(data)]
    assert any(found[512:1024] != data[512:1024] and found[1536:] == data[1536:] for found in tails)


def test_a_power_cut_may_forget_a_name_that_was_not_synced() -> None:
    seen = after_cuts(memory_with(b"", synced=b"safe", named=False))
    assert set(seen) == {None, b"safe"}
    assert set(after_cuts(memory_with(b"", synced=b"safe"))) == {b"safe"}


def test_a_power_cut_may_bring_a_removed_name_back() -> None:
    files = memory_with(b"", synced=b"safe")
    files.remove(FILE)
    assert set(after_cuts(files)) == {None, b"safe"}
    files.sync_directory(HERE)
    assert set(after_cuts(files)) == {None}


def test_a_power_cut_leaves_the_disk_before_it_alone_and_is_replayable() -> None:
    files = memory_with(b"x" * 3000)
    one, same = (files.power_cut(random.Random(7)) for _ in range(2))
    assert one.open(FILE).read(0, 4000) == same.open(FILE).read(0, 4000)
    assert files.open(FILE).read(0, 4000) == b"x" * 3000
    survived = one.open(FILE).read(0, 4000)
    assert set(after_cuts(one, 20)) == {survived}, "what a power cut left is on the disk"


def test_the_append_that_is_set_to_fail_is_torn() -> None:
    files = memory_with(b"")
    file = files.open(FILE)
    files.appends.fail(2)
    file.append(b"one")
    with pytest.raises(OSError, match="injected"):
        file.append(b"four")
    assert file.read(0, 10) == b"onefo"
    file.append(b"!")
    assert files.appends.count == 5


def test_after_a_failed_sync_nothing_is_promised_any_more() -> None:
    files = memory_with(b"doubtful", synced=b"safe")
    file = files.open(FILE)
    files.syncs.fail()
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.sync()
    assert after_cuts(files)[b"safe"], "a sync after a failed one must not be believed"


def test_a_settled_file_shows_what_a_failed_sync_has_left_and_can_be_synced_again() -> None:
    files = memory_with(b"doubtful", synced=b"safe")
    file = files.open(FILE)
    files.syncs.fail()
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.settle()
    assert file.read(0, 100) == b"safe"
    file.append(b"!")
    file.settle()
    assert set(after_cuts(files)) == {b"safe!"}


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="macOS has no posix_fadvise")
def test_the_disk_forgets_the_pages_of_a_settled_file_after_it_has_written_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "fdatasync", lambda _: calls.append(("sync",)))
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *advice: calls.append(advice))
    file = DiskFile(tmp_path / "f")
    file.append(b"abc")
    file.settle()
    assert calls == [("sync",), (0, 0, os.POSIX_FADV_DONTNEED)], "all pages, once they are written"
    file.close()


def test_a_settled_file_has_what_was_appended(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    file.append(b"abc")
    file.settle()
    file.append(b"def")
    assert file.read(0, 100) == b"abcdef"
    file.close()


def test_a_directory_sync_can_fail_too() -> None:
    files = memory_with(b"", synced=b"safe", named=False)
    files.syncs.fail()
    with pytest.raises(OSError, match="injected"):
        files.sync_directory(HERE)
    assert set(after_cuts(files)) == {None, b"safe"}


def test_a_file_gets_another_name_in_place_of_another_file(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    for name in ("a", "b"):
        file = files.open(root / name)
        file.append(name.encode())
        file.close()
    for name in ("a", "b"):
        assert files.reader(root / name).read(0, 10) == name.encode()
    files.rename(root / "a", "b")
    assert files.list(root) == ["b"]
    assert files.reader(root / "b").read(0, 10) == b"a"
    with pytest.raises(FileNotFoundError):
        files.reader(root / "a")
    with pytest.raises(FileNotFoundError):
        files.rename(root / "a", "c")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not tell which files are open")
def test_the_disk_keeps_a_bounded_number_of_readers_open_and_each_that_is_in_use(tmp_path: Path) -> None:
    def open_names() -> set[str]:
        links = (os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if is_open(number))
        return {Path(link).name for link in links if link.startswith(f"{tmp_path}/")}

    def is_open(number: str) -> bool:
        return os.path.islink(f"/proc/self/fd/{number}")

    files, names = DiskFiles(), [f"{number:03}" for number in range(300)]
    for name in names:
        (tmp_path / name).write_text(name)
    in_use = files.reader(tmp_path / names[0])
    for name in names[1:]:
        files.reader(tmp_path / name)
    assert open_names() == {names[0], *names[-128:]}
    assert in_use.read(0, 10) == b"000"
    in_use.close()
    assert files.reader(tmp_path / names[0]).read(0, 10) == b"000"


def test_a_reader_makes_no_file(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    with pytest.raises(FileNotFoundError):
        files.reader(root / "f")
    assert files.list(root) == []


def test_a_reader_sees_appends_and_keeps_a_removed_file(files_and_root: tuple[Files, Path]) -> None:
    files, root = files_and_root
    file = files.open(root / "f")
    reader = files.reader(root / "f")
    file.append(b"abc")
    assert (reader.read(0, 10), reader.size()) == (b"abc", 3)
    files.remove(root / "f")
    assert reader.read(1, 1) == b"b"
    with pytest.raises(FileNotFoundError):
        files.reader(root / "f")
    file.close()


def test_a_power_cut_leaves_a_renamed_file_under_one_of_its_names() -> None:
    files = memory_with(b"", synced=b"safe")
    files.rename(FILE, "b")
    seen = Counter(tuple(files.power_cut(random.Random(seed)).list(HERE)) for seed in range(100))
    assert set(seen) == {("a.log",), ("b",)}
    files.sync_directory(HERE)
    assert files.power_cut(random.Random(1)).list(HERE) == ["b"]
