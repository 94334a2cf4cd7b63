"""The comparison of every change fails if a unit of work has become dearer, and says which."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare.costs import RatioOfCosts, RecordedRatios, UnitCost, complaint, limit_at
from benchmarks.compare.trees import HOME, tree_of

TINY = ["--databases=sqlite", "--processes=1", "--rounds=2", "--units=5"]


def compared(recorded: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.compare", *TINY, f"--recorded={recorded}", *arguments]
    return subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)


def costs(*processor: float) -> list[UnitCost]:
    return [UnitCost(client=each / 2, broker=each / 2, elapsed=1.0) for each in processor]


@pytest.mark.slow
def test_a_unit_that_wastes_processor_time_fails_the_comparison(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.json"
    RecordedRatios({}, {"sqlite": 2.0}).write(recorded)
    done = compared(recorded, "--burden=50")  # dozens of times what a unit of the naive pair takes
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "processor time of" in line]
    assert line.startswith("a unit of work on sqlite costs ")
    assert "times the processor time of the naive pair; it was 2.00 times. That is worse by" in line
    assert "sqlite: once more" in done.stderr


@pytest.mark.slow
def test_a_ratio_that_is_not_worse_passes_beside_another_commit(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.json"
    done = compared(recorded, "--record")
    assert done.returncode == 0, done.stderr
    written = RecordedRatios.read(recorded)
    assert written.machine["python"]
    assert written.ratios["sqlite"] > 0
    RecordedRatios({}, {"sqlite": 1e6}).write(recorded)
    report = tmp_path / "report.json"
    done = compared(recorded, f"--json={report}")
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["worse"] == []


def test_the_ratio_is_of_the_cheap_rounds_and_other_work_on_the_machine_changes_it_little() -> None:
    quiet = RatioOfCosts(costs(3.0, 3.0, 3.0, 3.0, 3.0), costs(1.0, 1.0, 1.0, 1.0, 1.0))
    disturbed = RatioOfCosts(costs(3.0, 9.0, 3.0, 9.0, 9.0), costs(1.0, 1.0, 4.0, 1.0, 1.0))
    assert quiet.of_processor_time == disturbed.of_processor_time == 3.0
    assert disturbed.spread() == (3.0, 9.0)


def test_on_an_overloaded_machine_only_a_doubling_counts() -> None:
    assert limit_at(6.0, processors=2) == 1.25
    assert limit_at(6.1, processors=2) == 2.0
    assert complaint("it", "the pair", 3.9, 2.0, limit_at(9.0, 2)) is None
    assert complaint("it", "the pair", 4.1, 2.0, limit_at(9.0, 2)) is not None


@pytest.mark.parametrize(("ratio", "is_worse"), [(2.0, False), (2.5, False), (2.51, True)])
def test_more_than_a_quarter_is_worse(ratio: float, is_worse: bool) -> None:
    assert (complaint("it", "the pair", ratio, 2.0) is not None) is is_worse


def test_a_database_without_a_recorded_ratio_is_not_judged() -> None:
    recorded = RecordedRatios({}, {"sqlite": 2.0})
    lines = list(recorded.complaints({"sqlite": 3.0, "postgresql": 9.0}))
    assert lines == [
        "a unit of work on sqlite costs 3.00 times the processor time of the naive pair; it was 2.00 times. "
        "That is worse by 50%, and 25% is the limit."
    ]


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^no-such-commit: there is no such commit"):
        tree_of("no-such-commit", tmp_path)


def test_the_ratios_of_both_databases_are_recorded() -> None:
    recorded = RecordedRatios.read(HOME / "benchmarks" / "compare" / "recorded.json")
    assert recorded.ratios.keys() == {"sqlite", "postgresql"}
    assert "built without" not in str(recorded.machine["python"])
