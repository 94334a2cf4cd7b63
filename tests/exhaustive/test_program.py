"""``python -m tests.exhaustive``: what it prints, writes and returns."""

from pathlib import Path

import pytest

from dualwrite.coordinator.rules import recovery_decision
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from tests.exhaustive.__main__ import main
from tests.support.exhaustive.models import MODELS
from tests.support.exhaustive.results import searched
from tests.support.exhaustive.running import SearchJob, jobs_of


def test_the_program_prints_and_writes_what_it_has_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "table.md"
    arguments = ["--minutes", "0.5", "--models", "machine", "--processes", "1", "--markdown", str(page)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "every combination of faults: 452 histories" in printed
    assert "  always     what the caller was told is true" in printed
    assert "| `machine` |" in page.read_text(encoding="utf-8")


def test_the_program_fails_with_the_history_of_a_broken_property(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recovery_decision, "verdict", lambda _, ongoing: RecoveryDecision.ABORT)
    assert main(["--minutes", "0.5", "--models", "machine", "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN: with the faults" in printed
    assert printed.rstrip().endswith("a property is broken")


@pytest.mark.slow
def test_the_program_runs_models_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "0.1", "--models", "machine", "leases", "--processes", "2"]) == 0
    assert capsys.readouterr().out.count("leases: two processes") == len(MODELS["leases"])


def test_every_size_of_every_model_is_searched() -> None:
    jobs = jobs_of(list(MODELS))
    assert {*jobs} == {SearchJob(name, size) for name in MODELS for size in range(len(MODELS[name]))}
    assert len(jobs) == len({*jobs})


@pytest.mark.slow
@pytest.mark.parametrize("job", jobs_of(list(MODELS)), ids=lambda job: f"{job.name}-{job.size}")
def test_nothing_passes_for_want_of_events_however_slow_the_machine_is(job: SearchJob) -> None:
    """The least bound of each size has everything that must happen sometimes."""
    result = searched(MODELS[job.name][job.size](), 0.0, 2_000_000)
    assert (result.broken, result.missing) == ("", [])
