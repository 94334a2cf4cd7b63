"""Bad rows: each is in the file once, whatever ends the load, and no good row is lost beside it."""

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from dualwrite.errors import InputError
from dualwrite.loader.bad_rows import BadRow, BadRowFile
from dualwrite.loader.job import Progress
from dualwrite.loader.load import load
from tests.support.loader.input_files import FakeDualWrite, KilledError, job_for, make_database, table_rows, write_input

MIXED = b"id,name\n1,a\nx,b\n3,c\n4\n5,\xff\n6,f\n7,g\ny,h\n"
"""Of eight rows the second, fourth, fifth and eighth are bad."""
GOOD = [(1, "a"), (3, "c"), (6, "f"), (7, "g")]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_database(tmp_path)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_input(tmp_path / "f.csv", MIXED)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(number: int) -> BadRow:
    return BadRow(number, number + 1, f"bad {number}", b"x\n")


def test_bad_rows_are_put_aside_and_counted(engine: Engine, mixed: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    done = load(job_for(mixed, bad_rows=bad), engine, FakeDualWrite(engine))
    assert done == Progress(4, 0, 1.0, 4, 0)
    assert table_rows(engine) == GOOD
    assert [(entry["row"], entry["line"]) for entry in entries(bad)] == [(2, 3), (4, 5), (5, 6), (8, 9)]
    assert [entry.get("text") for entry in entries(bad)] == ["x,b", "4", None, "y,h"]
    assert entries(bad)[2]["base64"] == "NSz/Cg=="
    assert entries(bad)[0]["error"] == "f.csv, line 3: column 'id': expected an integer, not 'x'"
    assert {entry["input"] for entry in entries(bad)} == {str(mixed)}


def test_a_finished_load_still_knows_its_bad_rows(engine: Engine, mixed: Path, tmp_path: Path) -> None:
    load(job_for(mixed, bad_rows=tmp_path / "bad.jsonl"), engine, FakeDualWrite(engine))
    assert load(job_for(mixed), engine, FakeDualWrite(engine)) == Progress(4, 4, 1.0, 4, 4)


def test_without_a_file_the_first_bad_row_ends_the_load(engine: Engine, mixed: Path) -> None:
    with pytest.raises(InputError, match=r"f\.csv, line 3: column 'id'.*; nothing is loaded"):
        load(job_for(mixed), engine, FakeDualWrite(engine))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(kills=st.lists(st.integers(0, 3), max_size=4), sizes=st.lists(st.integers(1, 9), min_size=5, max_size=5))
def test_any_kills_and_batch_sizes_leave_each_bad_row_once(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], sizes: list[int]
) -> None:
    """The kill is after the write of the bad rows and before the commit."""
    directory = tmp_path_factory.mktemp("load")
    engine = make_database(directory)
    mixed, bad = write_input(directory / "f.csv", MIXED), directory / "bad.jsonl"
    for kill, size in zip([*kills, -1], sizes, strict=False):
        try:
            load(job_for(mixed, batch_size=size, bad_rows=bad), engine, FakeDualWrite(engine, die_before=kill))
        except KilledError:
            assert set(table_rows(engine)) <= set(GOOD)
    assert table_rows(engine) == GOOD
    assert [entry["row"] for entry in entries(bad)] == [2, 4, 5, 8]
    engine.dispose()


def test_a_row_that_was_corrected_after_a_kill_is_no_bad_row_any_more(
    engine: Engine, mixed: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    with pytest.raises(KilledError):
        load(job_for(mixed, bad_rows=bad), engine, FakeDualWrite(engine, die_before=0))
    assert [entry["row"] for entry in entries(bad)] == [2]
    write_input(mixed, MIXED.replace(b"x,b", b"2,b"))
    load(job_for(mixed, bad_rows=bad), engine, FakeDualWrite(engine))
    assert [entry["row"] for entry in entries(bad)] == [4, 5, 8]


def test_a_load_that_another_one_has_overtaken_puts_no_row_aside(engine: Engine, mixed: Path, tmp_path: Path) -> None:
    """The other load has put it into a file of its own."""

    def overtaken(progress: Progress) -> None:
        if progress.rows == 2:
            load(job_for(mixed, bad_rows=tmp_path / "theirs"), engine, FakeDualWrite(engine))

    with pytest.raises(InputError, match="is being loaded into table flights by another process"):
        load(job_for(mixed, bad_rows=tmp_path / "ours"), engine, FakeDualWrite(engine), overtaken)
    assert [entry["row"] for entry in entries(tmp_path / "ours")] == [2]
    assert [entry["row"] for entry in entries(tmp_path / "theirs")] == [4, 5, 8]


def test_a_row_that_the_database_refuses_is_no_bad_row(engine: Engine, tmp_path: Path) -> None:
    """It may be there because the same rows were loaded under another name, which must not pass in silence."""
    path = write_input(tmp_path / "f.csv", "id,name\n1,a\n1,b\n")
    with pytest.raises(InputError, match="the database refuses a row"):
        load(job_for(path, bad_rows=tmp_path / "bad.jsonl"), engine, FakeDualWrite(engine))


def test_json_lines_that_do_not_fit_are_put_aside(engine: Engine, tmp_path: Path) -> None:
    lines = ['{"id": 1, "name": "a"}', "{", '{"id": 2, "nam": "b"}', '{"id": 3, "name": "c"}']
    path, bad = write_input(tmp_path / "f.jsonl", "\n".join(lines)), tmp_path / "bad.jsonl"
    load(job_for(path, bad_rows=bad), engine, FakeDualWrite(engine))
    assert table_rows(engine) == [(1, "a"), (3, "c")]
    assert [entry["text"] for entry in entries(bad)] == lines[1:3]


@pytest.mark.parametrize("torn", [b"{", b'{"input": "f.csv", "row": 9', b'{"input": "f.csv", "row": 3}\n{"inp'])
def test_what_a_kill_left_at_the_end_is_replaced(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "bad.jsonl"
    with BadRowFile(path, "f.csv") as file:
        file.write(0, [row(1), row(2)])
    path.write_bytes(path.read_bytes() + torn)
    with BadRowFile(path, "f.csv") as file:
        file.write(2, [row(4)])
    assert [entry["row"] for entry in entries(path)] == [1, 2, 4]


def test_rows_of_a_unit_that_was_not_committed_stay_until_a_unit_replaces_them(tmp_path: Path) -> None:
    """To open the file changes nothing: the unit that wrote them may still be committed by the database."""
    path = tmp_path / "bad.jsonl"
    with BadRowFile(path, "f.csv") as file:
        file.write(0, [row(1)])
    with BadRowFile(path, "f.csv"):
        assert [entry["row"] for entry in entries(path)] == [1]
    with BadRowFile(path, "f.csv") as file:
        file.write(0, [])
    assert entries(path) == []


@pytest.mark.parametrize("content", ["id,name\n1,a\n", "1,a", '{"id": 1}\n', "[1]\n", '{"row": "1"}\n'])
def test_another_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = write_input(tmp_path / "f.csv", content)
    with pytest.raises(InputError, match="is no file of bad rows, and is not overwritten: name another file"):
        BadRowFile(path, "f.csv")
    assert path.read_text() == content


def test_the_bad_rows_of_another_load_are_not_overwritten(tmp_path: Path) -> None:
    with BadRowFile(tmp_path / "bad.jsonl", "/data/f.csv") as file:
        file.write(0, [row(1)])
    with pytest.raises(InputError, match=r"holds the bad rows of another load, of /data/f\.csv: name another file"):
        BadRowFile(tmp_path / "bad.jsonl", "/data/g.csv")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.symlink_to(path.parent / "none" / "bad"), "No such file or directory"),
        (lambda path: path.symlink_to("/dev/null"), "is not a regular file: name a file for bad rows"),
        (lambda path: path.symlink_to("/dev/full"), "is not a regular file: name a file for bad rows"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "bad")
    with pytest.raises(InputError, match=message):
        BadRowFile(tmp_path / "bad", "f.csv")


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dualwrite.loader.bad_rows import BadRowFile\n"
        "from dualwrite.errors import InputError\n"
        "try: BadRowFile(Path(sys.argv[1]), 'f.csv')\n"
        "except InputError as error: sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "bad")]
    with BadRowFile(tmp_path / "bad", "f.csv"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "is in use by another load; run only one, or name another file" in done.stderr
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_units_without_bad_rows_do_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[int] = []
    with BadRowFile(tmp_path / "bad", "f.csv") as file, monkeypatch.context() as patch:
        patch.setattr("dualwrite.loader.bad_rows.os.fsync", synchronised.append)
        file.write(0, [])
        file.write(3, [])
        assert synchronised == []
        file.write(6, [row(7)])
        file.write(9, [])
        assert len(synchronised) == 1
    assert [entry["row"] for entry in entries(tmp_path / "bad")] == [7]


def test_a_disk_that_is_full_rolls_the_unit_back(
    engine: Engine, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(28, "No space left on device")

    dual_write = FakeDualWrite(engine)
    with monkeypatch.context() as patch:
        patch.setattr("dualwrite.loader.bad_rows.os.fsync", full)
        with pytest.raises(InputError, match=r"cannot write bad rows to .*bad: No space left on device; nothing is"):
            load(job_for(mixed, bad_rows=tmp_path / "bad"), engine, dual_write)
    assert (table_rows(engine), dual_write.topic) == ([], [])


def test_a_write_that_the_system_cuts_short_is_no_row_in_the_file(tmp_path: Path) -> None:
    with BadRowFile(tmp_path / "bad", "f.csv") as file:
        file.write(0, [row(1)])
        known = (tmp_path / "bad").stat().st_size
        limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (known + 10, hard))
        try:
            with pytest.raises(InputError, match=r"cannot write bad rows to .*bad: File too large"):
                file.write(1, [row(2)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        assert (tmp_path / "bad").stat().st_size == known + 10
        file.write(1, [row(2)])
    assert [entry["row"] for entry in entries(tmp_path / "bad")] == [1, 2]


def test_the_name_of_a_new_file_is_on_the_disk_before_a_row_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[bool] = []
    monkeypatch.setattr(
        "dualwrite.loader.bad_rows.os.fsync",
        lambda descriptor: synchronised.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)),
    )
    with BadRowFile(tmp_path / "bad", "f.csv") as file:
        file.write(0, [row(1)])
    assert synchronised == [True, False]
