"""A bundle is sound as it was written; whatever is changed in it afterwards is found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof.__main__ import main, write_bundle
from tests.proof.bundle import FACTS, INDEX, SUMS, ProofStep, problems_of, steps_of

ALONE = ("mode=keep-prepared, bundled broker", "arrangement=one application")
STEPS = [
    ProofStep("words", "this", ()),
    ProofStep("absent", "tests.no_such_program", ("--seeds", "1")),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "proof"
    write_bundle(STEPS, directory)
    return directory


def test_a_bundle_has_commands_results_and_digests(bundle: Path) -> None:
    assert list(problems_of(bundle)) == []
    facts = json.loads((bundle / FACTS).read_text())
    assert facts["results"][0]["output"] == "Namespaces are one honking great idea -- let's do more of those!"
    assert facts["missing"] == ["tests.no_such_program"]
    assert len(facts["commit"].split()[0]) == 40 or facts["commit"] == ""
    assert "| [words](words.txt) | `python -m this` | 0 |" in (bundle / INDEX).read_text()
    names = [line.split("  ")[1] for line in (bundle / SUMS).read_text().splitlines()]
    assert names == ["index.md", "proof.json", "words.txt"]


def change(bundle: Path) -> None:
    (bundle / "words.txt").write_text("better words")


def remove(bundle: Path) -> None:
    (bundle / "words.txt").unlink()


def add(bundle: Path) -> None:
    (bundle / "more.txt").write_text("")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change, "words.txt was changed"),
        (remove, "words.txt is missing"),
        (add, "more.txt is not on the list"),
    ],
)
def test_a_changed_bundle_is_found(
    bundle: Path, damage: Callable[[Path], None], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(bundle)
    assert main(["--check", str(bundle)]) == 1
    assert sentence in capsys.readouterr().err


def test_a_program_that_failed_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "proof"
    write_bundle([ProofStep("fails", "json.tool", ("--no-such-option",))], directory)
    (problem,) = problems_of(directory)
    assert problem.startswith("fails failed: ")
    assert "--no-such-option" in problem


def test_the_index_must_follow_from_the_facts(bundle: Path) -> None:
    facts = json.loads((bundle / FACTS).read_text())
    facts["commit"] = "another"
    (bundle / FACTS).write_text(json.dumps(facts))
    assert list(problems_of(bundle)) == [f"{FACTS} was changed", f"{INDEX} does not say what {FACTS} says"]


def test_the_programs_of_a_bundle_have_its_limits_and_its_directory(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, seed=3, seeds=100, kills=20, seconds=9.0, soak=5.0)
    assert [step.name for step in steps] == ["simulation", "matrix", "soak"]
    assert steps[0].arguments == ("--seeds", "100")
    assert f"--kills 20 --seconds 9 --seed 3 --directory {tmp_path}/matrix" in steps[1].command
    assert all(step.is_there for step in steps[1:])


@pytest.mark.slow
@pytest.mark.crash
def test_a_summary_that_differs_from_the_matrixs_log_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "proof"
    only = ("--only", "database=sqlite", "producer=native", "victim=application", "kind=SIGKILL", *ALONE)
    limits = ("--kills", "4", "--processes", "1", "--directory", str(directory / "matrix"))
    write_bundle([ProofStep("matrix", "tests.matrix", (*limits, *only, "step=COMMIT_KAFKA"))], directory)
    assert list(problems_of(directory)) == []
    log = directory / "matrix" / "runs-0.jsonl"
    log.write_text(log.read_text().replace('"divergences": []', '"divergences": ["lost write"]', 1))
    assert "the matrix's summary differs from its log: findings" in list(problems_of(directory))
