"""One command measures all figures of the documentation, by the commands that stand there."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.page import PAGES, commands_of


def run_pages(monkeypatch: pytest.MonkeyPatch, directory: Path, text: str) -> None:
    (directory / "page.md").write_text(text)
    options = [f"--pages={directory / 'page.md'}", f"--directory={directory / 'report'}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.page", *options])
    page.main()


def test_the_commands_of_the_pages_are_those_of_all_benchmarks_with_figures() -> None:
    found = {command.benchmark for each in PAGES for command in commands_of(each.read_text())}
    names = {"broker", "native", "units", "distant_units", "recovery", "compare", "growth", "spark_batches", "tls"}
    assert found == names


def test_a_command_that_leaves_a_word_to_the_reader_is_not_run() -> None:
    assert commands_of("    python -m benchmarks.compare --against COMMIT\n") == []


@pytest.mark.slow
def test_what_a_command_prints_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pages(monkeypatch, tmp_path, "text\n\n    python -m benchmarks.growth --help --json growth.json\n")
    report = (tmp_path / "report" / "report.md").read_text()
    assert report.startswith("## python -m benchmarks.growth --help --json growth.json\n\nusage: ")
    contents = json.loads((tmp_path / "report" / "report.json").read_text())
    assert contents == {"benchmarks.growth --help --json growth.json": None}


@pytest.mark.slow
def test_a_command_that_fails_is_named_and_the_others_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = "    python -m benchmarks.growth --sizes 1 2\n    python -m benchmarks.growth --help\n"
    with pytest.raises(SystemExit, match=r"^failed: python -m benchmarks\.growth --sizes 1 2$"):
        run_pages(monkeypatch, tmp_path, commands)
    assert "usage: " in (tmp_path / "report" / "report.md").read_text()
