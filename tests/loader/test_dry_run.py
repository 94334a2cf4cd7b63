"""The dry run, and the checks of a load's options: neither database nor Kafka is asked."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.cli.main import main
from dualwrite.errors import ConfigurationError
from dualwrite.loader.dry_run import dry_run
from dualwrite.loader.format import InputFormat
from dualwrite.loader.identity import LoadKey
from dualwrite.loader.job import LoadJob
from tests.support.loader.input_files import csv_text, job_for, write_input

NOWHERE = ("--table", "flights", "--topic", "flights", "--bootstrap-servers", "127.0.0.1:1")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    """The exit code, the lines on stdout, and stderr."""
    code = main(["load", words[0], "--db", "sqlite:////nowhere/x.db", *NOWHERE, "--dry-run", *words[1:]])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_a_dry_run_counts_the_rows_and_asks_neither_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_input(tmp_path / "f.csv", "id,name\n" + csv_text(1200))
    assert shown(capsys, str(path)) == (
        0,
        [
            f"dry run, nothing is written: 1,200 rows of {path} would be loaded into table flights and topic flights, "
            "in 3 batches",
            "columns: id, name",
            "the database was not asked whether the values fit the table's columns",
        ],
        "",
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_dry_run_names_the_first_bad_rows_and_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_input(tmp_path / "f.csv", "id,name\n1,a\n" + "x\n" * 14 + "2,b\n")
    code, lines, complaint = shown(capsys, str(path))
    assert (code, lines[3]) == (1, "14 bad rows:")
    assert lines[4:14] == [f"  f.csv, line {line}: 1 fields where the header names 2 columns" for line in range(3, 13)]
    assert lines[14:] == ["  and 4 more"]
    assert complaint == (
        "dualwrite: the load would stop at the first bad row; correct the rows, or add --bad-rows FILE\n"
    )


def test_a_dry_run_leaves_the_file_for_bad_rows_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_input(tmp_path / "f.csv", "id,name\n1\n")
    code, _, complaint = shown(capsys, str(path), "--bad-rows", str(tmp_path / "bad"))
    assert (code, complaint, (tmp_path / "bad").exists()) == (1, "", False)


def test_a_dry_run_gives_the_hint_about_the_delimiter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_input(tmp_path / "f.csv", "id;name\n1;a\n")
    _, lines, _ = shown(capsys, str(path))
    assert lines[1] == "columns: id;name; its fields look separated by ';': add --delimiter ';'"


def test_a_dry_run_of_json_lines_names_every_column_and_each_row_without_the_key(tmp_path: Path) -> None:
    path = write_input(tmp_path / "f.jsonl", '{"id": 1}\n{"id": 2, "name": "b"}\n{"name": "c"}\n')
    result = dry_run(job_for(path, key="id"))
    assert (result.rows, result.columns) == (2, ("id", "name"))
    assert result.first_bad == ("f.jsonl, line 3: key column 'id' is missing",)


def test_a_dry_run_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"id\tname\n1\ta\n")))
    code, lines, _ = shown(capsys, "-", "--format", "tsv", "--name", "n")
    assert (code, lines[1]) == (0, "columns: id, name")
    assert "1 row of standard input would be loaded into table flights and topic flights, in 1 batch" in lines[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "standard input has no name that tells its format: add --format csv, tsv or jsonl"),
        ({"form": InputFormat("csv")}, "standard input has no path that could identify the load: add --name NAME"),
        ({"form": InputFormat("csv"), "name": ""}, "--name is empty: give the load a name"),
    ],
)
def test_standard_input_needs_a_name_and_a_format(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        LoadJob(None, "flights", "flights", **changes).check()
    assert str(error.value).startswith(message)


def test_a_named_load_is_known_by_its_name_wherever_its_file_is(tmp_path: Path) -> None:
    jobs = [job_for(tmp_path / "f.csv", name="n"), job_for(tmp_path / "g.csv", name="n")]
    assert len({job.load_key.load_id for job in jobs}) == 1
    others = [job_for(tmp_path / "n"), job_for(tmp_path / "f.csv", name="m"), job_for(tmp_path / "f.csv", name="/n")]
    assert len({job.load_key.load_id for job in (*jobs, *others)}) == 4
    assert len({identity for job in jobs + others for identity in ids(job.load_key)}) == 8


def ids(key: LoadKey) -> tuple[str, str]:
    return key.load_id, key.bad_rows_id


def test_a_minus_with_a_directory_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_input(tmp_path / "-", "id\n1\n")
    code, lines, _ = shown(capsys, f"{tmp_path}/-", "--format", "csv")
    assert (code, lines[1]) == (0, "columns: id")
