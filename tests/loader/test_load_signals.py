"""``dualwrite load`` and the signals that end it: Ctrl-C with its message, and SIGKILL beside bad rows and a pipe."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.loader.input_files import csv_text, pairs, table_rows, write_input
from tests.support.loader.load_place import LoadPlace
from tests.support.waiting import eventually

ROWS = [(number, f"name {number}") for number in range(1, 21)]
TEXT = "id,name\n" + csv_text(20)
PIPE = ("--format", "csv", "--name", "rows of today")
GOES_ON = "the same command goes on from there"

steps = pytest.mark.parametrize(
    ("step", "committed"),
    [
        ("COMMIT_DATABASE", 12),
        ("COMMIT_KAFKA", 18),
        pytest.param("BEGIN_KAFKA", 12, marks=pytest.mark.slow),
        pytest.param("PREPARE_KAFKA", 12, marks=pytest.mark.slow),
    ],
)


def bad_lines(path: Path) -> list[int]:
    return [json.loads(line)["line"] for line in path.read_text().splitlines()]


@pytest.mark.slow
@steps
def test_ctrl_c_says_how_many_rows_are_in_both_and_the_same_command_goes_on(
    place: LoadPlace, step: str, committed: int
) -> None:
    done = place.struck("SIGINT", step, 3)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == (
        f"dualwrite: interrupted: {committed} rows are in table flights and topic {place.topic}; {GOES_ON}"
    )
    assert "Traceback" not in done.stderr
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS[:committed]
    assert f"after the {committed} of an earlier run" in place.load().stdout
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS


@pytest.mark.slow
def test_ctrl_c_at_any_moment_counts_what_is_committed(place: LoadPlace) -> None:
    rows = 3000
    write_input(place.file, "id,name\n" + csv_text(rows))
    with subprocess.Popen(place.command(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("f.csv.zip: ")
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]
    stored = len(table_rows(place.engine))
    assert process.returncode == 130
    assert 0 < stored < rows
    assert last == f"dualwrite: interrupted: {stored:,} rows are in table flights and topic {place.topic}; {GOES_ON}"
    assert place.load().returncode == 0
    assert table_rows(place.engine) == pairs(place.committed()) == [(n, f"name {n}") for n in range(1, rows + 1)]


@pytest.mark.slow
@pytest.mark.crash
@steps
def test_a_kill_beside_bad_rows_leaves_each_of_them_once(
    place: LoadPlace, tmp_path: Path, step: str, committed: int
) -> None:
    """Lines 4, 17 and 18 are bad; the kill is in the third unit, after its bad rows are on the disk."""
    write_input(place.file, TEXT.replace("\n3,", "\nthree,").replace("\n16,", "\n16,x,").replace("\n17,", "\nno,"))
    bad = tmp_path / "bad.jsonl"
    died = place.struck("SIGKILL", step, 3, "--bad-rows", str(bad))
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert bad_lines(bad) == [4, 17, 18]
    done = place.load("--bad-rows", str(bad))
    assert done.returncode == 1
    good = [row for row in ROWS if row[0] not in (3, 16, 17)]
    assert table_rows(place.engine) == pairs(place.committed()) == good
    assert bad_lines(bad) == [4, 17, 18]
    earlier = 1 if committed == 12 else 3
    found = f"2 bad rows in {bad}, not loaded; " if earlier == 1 else ""
    noun = "row" if earlier == 1 else "rows"
    assert done.stderr.splitlines()[-1] == f"dualwrite: {found}{earlier} bad {noun} of earlier runs, not loaded"


@pytest.mark.slow
@pytest.mark.crash
@steps
def test_a_killed_load_of_standard_input_goes_on_with_the_same_input(
    place: LoadPlace, step: str, committed: int
) -> None:
    died = place.struck("SIGKILL", step, 3, *PIPE, file="-", text=TEXT)
    assert died.returncode == -signal.SIGKILL, died.stderr
    done = place.load(*PIPE, file="-", text=TEXT)
    assert done.stdout.startswith(f"loaded {20 - committed} rows of standard input into table flights"), done.stderr
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS
    again = place.load(*PIPE, file="-", text=TEXT)
    assert again.stdout.startswith("nothing to do: the 20 rows of standard input are in table flights")


@pytest.mark.slow
def test_ctrl_c_asks_for_the_same_input_again(place: LoadPlace) -> None:
    done = place.struck("SIGINT", "COMMIT_DATABASE", 2, *PIPE, file="-", text=TEXT)
    assert done.stderr.endswith("; the same command, with the same input, goes on from there\n")


@pytest.mark.slow
def test_ctrl_c_while_the_pipe_is_silent_is_heard(place: LoadPlace) -> None:
    """Seven rows have come: a batch of six, and one that waits for five more."""
    command = place.command(*PIPE, file="-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("id,name\n" + csv_text(7))
        process.stdin.flush()
        assert len(eventually(lambda: table_rows(place.engine))) == 6
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]
    assert process.returncode == 130
    assert last.startswith("dualwrite: interrupted: 6 rows are in table flights")
    assert pairs(place.committed()) == ROWS[:6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (csv_text(3, first=21), "standard input has changed in the 20 rows that were loaded from it before"),
        (csv_text(19), "or send this input from its beginning, with every row of the run before"),
        ("", "standard input has changed in the 20 rows"),
    ],
)
def test_standard_input_that_begins_elsewhere_is_refused(place: LoadPlace, text: str, message: str) -> None:
    assert place.load(*PIPE, file="-", text=TEXT).returncode == 0
    done = place.load(*PIPE, file="-", text="id,name\n" + text)
    assert done.returncode == 2
    assert message in done.stderr
    assert table_rows(place.engine) == ROWS
