"""Some cells of each kind find nothing on a sound recipe, and something on one that is broken on purpose."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.matrix.__main__ import main
from tests.matrix.cells import Cell, FaultKind, Mode, Victim
from tests.matrix.places import Places
from tests.matrix.runs import MatrixRun, RunGoal, Share
from tests.matrix.strikes import Strike, kill_application
from tests.matrix.summary import is_sound, read_logs, summarised, total

pytestmark = pytest.mark.crash


def cell(step: str, victim: Victim, kind: FaultKind = FaultKind.SIGKILL, mode: Mode = Mode.KEEP_PREPARED) -> Cell:
    return Cell(step, victim, kind, "sqlite", "native", mode)


SOME = [
    cell("COMMIT_KAFKA", Victim.APPLICATION),
    cell("RECOVER_COMPLETE", Victim.APPLICATION),
    cell("STORE_STATE", Victim.BROKER),
    cell("COMMIT_KAFKA", Victim.WORKER),
    cell("COMMIT_KAFKA", Victim.BROKER, FaultKind.CUT),
    cell("PREPARE_KAFKA", Victim.BROKER, FaultKind.FULL_DISK),
    cell("COMMIT_DATABASE", Victim.DATABASE, FaultKind.FULL_DISK),
    cell("COMMIT_KAFKA", Victim.APPLICATION_AND_BROKER, FaultKind.POWER_CUT),
    cell("COMMIT_KAFKA", Victim.APPLICATION, FaultKind.SIGKILL_AND_TIMEOUT, Mode.RESUME),
    cell("BEGIN_DATABASE", Victim.WORKER, FaultKind.SIGSTOP),
]


@pytest.mark.slow
def test_one_run_of_each_kind_of_fault_on_sqlite(tmp_path: Path) -> None:
    log = tmp_path / "runs-0.jsonl"
    run = MatrixRun(SOME, 7, Share(0, 1), tmp_path / "places", log)
    run.run(RunGoal(10**6, 10**6, len(SOME)))
    summary = summarised(read_logs([log]))
    assert is_sound(summary), summary["findings"]
    struck = {(group["victim"], group["kind"]): group["faults"] for group in summary["groups"]}
    assert all(struck.values()), struck
    assert total(summary)["replayed"] > 0


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path)
    yield made
    made.close()


@pytest.mark.slow_cases
@pytest.mark.parametrize("sabotage", ["", "keep-nothing"])
def test_a_run_finds_a_recovery_that_keeps_nothing(places: Places, sabotage: str) -> None:
    chosen = cell("COMMIT_KAFKA", Victim.APPLICATION)
    place = places.of(chosen)
    place.world.task = replace(place.task, sabotage=sabotage)
    strike = Strike(chosen, place, "r1.", Random(1), times=2)
    kill_application(strike)
    verdict = place.close_run("r1.")
    assert (strike.struck.faults, strike.struck.deaths, strike.struck.missed) == (2, 2, 0)
    assert any(line.startswith("lost write") for line in verdict.divergences) is bool(sabotage)
    if not sabotage:
        assert verdict.divergences == []
        assert verdict.committed == verdict.unanswered == 2


@pytest.mark.slow
def test_the_program_writes_a_line_for_each_run_a_summary_and_a_page(tmp_path: Path) -> None:
    only = ["--only", "database=sqlite", "producer=native", "victim=application", "kind=SIGKILL"]
    limits = ["--kills", "8", "--processes", "1", "--directory", str(tmp_path)]
    assert main([*limits, *only, "mode=keep-prepared, bundled broker", "arrangement=one application"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "runs-0.jsonl").read_text().splitlines()]
    assert lines[-2]["audit"] == "sqlite_native_keep_prepared_plain_alone"
    assert sum(line.get("deaths", 0) for line in lines) >= 8
    assert json.loads((tmp_path / "summary.json").read_text())["contexts"][0]["seed"] == "1"
    page = tmp_path / "page.md"
    assert main(["--page", str(page), "--of", str(tmp_path)]) == 0
    assert page.read_text() == (tmp_path / "summary.md").read_text()
