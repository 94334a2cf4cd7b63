"""``dualwrite load`` as a process, with the bundled broker and SQLite: both sides, exit codes, kill -9."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.cli.db import upgrade
from dualwrite.coordinator.rules.producer_names import PRODUCERS
from tests.support.loader.input_files import csv_text, make_database, pairs, table_rows, write_input
from tests.support.loader.load_place import LoadPlace

ROWS = [(number, f"name {number}") for number in range(1, 21)]


@pytest.mark.slow
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_file_is_in_both_places(place: LoadPlace, producer: str) -> None:
    done = place.load("--producer", producer, "--key", "id")
    assert (done.returncode, done.stdout[:37]) == (0, f"loaded 20 rows of {place.file}"[:37]), done.stderr
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS


@pytest.mark.slow
def test_a_finished_load_run_again_does_nothing_and_reports_it(place: LoadPlace) -> None:
    place.load()
    again = place.load()
    assert again.returncode == 0
    assert again.stdout.startswith("nothing to do: the 20 rows of ")
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS


@pytest.mark.slow
def test_one_loaded_row_is_reported_in_the_singular(place: LoadPlace) -> None:
    write_input(place.file, "id,name\n" + csv_text(1))
    assert place.load().stdout.startswith(f"loaded 1 row of {place.file}")


@pytest.mark.slow
def test_a_malformed_row_ends_the_load_before_its_batch(place: LoadPlace) -> None:
    write_input(place.file, "id,name\n" + csv_text(9) + "x,y\n" + csv_text(5, first=10))
    done = place.load()
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "dualwrite: f.csv.zip, line 11: column 'id': expected an integer, not 'x'; "
        "the 6 rows before this batch are loaded, this batch is not"
    )
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS[:6]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "none"), "the database has no table 'none'"),
        (("--key", "none"), "key column 'none' is not in table flights"),
        (("--batch-size", "0"), "batch size 0: use 1 or more"),
        (("--producer", "x"), "argument --producer: invalid choice: 'x'"),
        (("--batch-size", "x"), "argument --batch-size: invalid int value: 'x'"),
        (("--db", "sqlite:////nowhere/x.db"), "there is no directory /nowhere"),
        (("--topic", "a b"), "topic 'a b'"),
        (("--bootstrap", "a:b:c"), "bootstrap.servers: 'a:b:c' is not HOST:PORT"),
        (("-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
        (("-X", "security.protocol=TLS"), "security.protocol 'TLS': use one of PLAINTEXT, SSL"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(place: LoadPlace, options: tuple[str, ...], message: str) -> None:
    done = place.load(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dualwrite: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert table_rows(place.engine) == []


@pytest.mark.crash
@pytest.mark.parametrize(
    "after_lines", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_load_that_is_killed_is_completed_by_the_next(place: LoadPlace, after_lines: int) -> None:
    rows = 3000
    write_input(place.file, "id,name\n" + csv_text(rows))
    with subprocess.Popen(place.command(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(after_lines):
            assert process.stderr.readline().startswith("f.csv.zip: ")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    stored = len(table_rows(place.engine))
    done = place.load()
    assert done.returncode == 0, done.stderr
    assert f"after the {stored:,} of an earlier run" in done.stdout
    assert table_rows(place.engine) == pairs(place.committed()) == [(n, f"name {n}") for n in range(1, rows + 1)]


@pytest.mark.slow
def test_the_same_file_into_another_database_leaves_the_first_ones_open_transaction_alone(
    place: LoadPlace, tmp_path: Path
) -> None:
    """The first load dies between its database's COMMIT and Kafka's; only that database knows what was decided."""
    died = place.struck("SIGKILL", "COMMIT_KAFKA", 1)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (tmp_path / "other").mkdir()
    other = make_database(tmp_path / "other", ready=False)
    upgrade(other.url.render_as_string())
    assert place.load("--db", other.url.render_as_string(), "--topic", place.topic).returncode == 0
    assert place.load().returncode == 0
    assert table_rows(place.engine) == table_rows(other) == ROWS
    assert sorted(pairs(place.committed())) == sorted(ROWS * 2)
    other.dispose()


@pytest.mark.slow
def test_a_locked_database_is_one_line(place: LoadPlace) -> None:
    path = str(place.engine.url.database)
    with sqlite3.connect(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        done = place.load("--db", f"sqlite:///{path}?timeout=0")
        holder.rollback()
    holder.close()
    assert done.returncode == 2
    assert "database is locked" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        "errors.KafkaUnavailableError('no')",
        "errors.FencedError('no')",
        "errors.DatabaseBusyError('no')",
        "OperationalError('', {}, Exception('no'))",
    ],
)
def test_a_load_that_fails_halfway_says_how_far_it_came(place: LoadPlace, error: str) -> None:
    fails = (
        "import sys\n"
        "from sqlalchemy.exc import OperationalError\n"
        "from dualwrite import errors\n"
        "from dualwrite.cli.main import main\n"
        "from dualwrite.loader.batches import LoadBatch\n"
        "write = LoadBatch.write\n"
        "def fail(self, dual_write, begin):\n"
        f"    if begin.rows == 12: raise {error}\n"
        "    write(self, dual_write, begin)\n"
        "LoadBatch.write = fail\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    program = [sys.executable, "-c", fails, *place.words()]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("no; 12 rows are loaded: run it again to go on")
    assert place.load().returncode == 0
    assert table_rows(place.engine) == pairs(place.committed()) == ROWS
