"""The program around mutmut: what it reads, counts, explains and prints; and that the explanations and the page are of
the code as it is. The run itself is ``make mutation``."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.__main__ import main
from tests.mutation.explanations import ChangePattern, Explanation, explanation_of, read_explanations
from tests.mutation.mutants import HOME, Mutant, MutantFate, read_mutants
from tests.mutation.page import markdown
from tests.mutation.results import RoomResult, load, store, summed_up
from tests.mutation.rooms import ROOMS

PAGE = HOME / "docs" / "reference" / "mutation.md"
ROOM = ROOMS["coordinator/rules"]

MUTATED = """
class Lease:
    def is_over(self, now):
        return now >= self.end

def xǁLeaseǁis_over__mutmut_orig(self, now):
    return now >= self.end

def xǁLeaseǁis_over__mutmut_1(self, now):
    return now > self.end

def xǁLeaseǁis_over__mutmut_2(self, now):
    return now >= self.end

def x_said__mutmut_orig(name):
    return f"lease {name}"

def x_said__mutmut_1(name):
    return None
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The directory of a finished run with four mutants of one file."""
    folder = tmp_path / "mutants" / ROOM.folder
    folder.mkdir(parents=True)
    (folder / "lease.py").write_text(MUTATED)
    spans = {node.name: [node.lineno, node.end_lineno] for node in ast.parse(MUTATED).body if hasattr(node, "name")}
    (folder / "lease.py.spans").write_text(json.dumps({"version": 1, "spans": spans}))
    codes = {"xǁLeaseǁis_over__mutmut_1": 0, "xǁLeaseǁis_over__mutmut_2": 1, "x_said__mutmut_1": 33}
    keys = {f"dualwrite.coordinator.rules.lease.{name}": code for name, code in codes.items()}
    (folder / "lease.py.meta").write_text(json.dumps({"exit_code_by_key": keys}))
    (folder / "empty.py.meta").write_text(json.dumps({"exit_code_by_key": {}}))
    return tmp_path


def mutant(fate: MutantFate, was: str = "a < b", now: str = "a <= b") -> Mutant:
    return Mutant("m", "dualwrite/broker/core/offsets.py", "Offsets.commit", was, now, fate)


def test_mutants_are_read_with_their_change_and_their_fate(finished: Path) -> None:
    read = [(each.file, each.function, each.was, each.now, each.fate) for each in read_mutants(ROOM, finished)]
    file = "dualwrite/coordinator/rules/lease.py"
    assert read == [
        (file, "Lease.is_over", "return now >= self.end", "return now > self.end", MutantFate.SURVIVED),
        (file, "Lease.is_over", "", "", MutantFate.KILLED),
        (file, "said", 'return f"lease {name}"', "return None", MutantFate.UNTESTED),
    ]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (ChangePattern(), True),
        (ChangePattern("broker/core/*.py", "Offsets.*", r"^a < b$", "<="), True),
        (ChangePattern("broker/log/*.py"), False),
        (ChangePattern(function="commit"), False),
        (ChangePattern(was="c < d"), False),
        (ChangePattern(now=">"), False),
    ],
)
def test_a_pattern_explains_the_changes_that_it_fits(pattern: ChangePattern, fits: bool) -> None:
    assert pattern.explains(mutant(MutantFate.SURVIVED)) is fits


@pytest.mark.parametrize(
    ("was", "now", "is_wording"),
    [
        ('"slot {name} is gone"', '"XXslot {name} is goneXX"', True),
        ('f"slot {name} has {count:,} units"', 'f"XXslot {name} has {count:,} unitsXX"', True),
        ("f\"slot {name if is_known else ''}\"", "f\"XXslot {name if is_known else ''}XX\"", False),
        ('f"{a < b}"', 'f"{a <= b}"', False),
    ],
)
def test_the_wording_of_a_message_is_no_condition(was: str, now: str, is_wording: bool) -> None:
    found = explanation_of(mutant(MutantFate.SURVIVED, was, now), read_explanations())
    assert (found is not None and found.title == "The wording of a message") is is_wording


def test_a_room_is_summed_up_with_the_survivors_that_nothing_explains() -> None:
    fates = [MutantFate.KILLED] * 5 + [MutantFate.TIMED_OUT, MutantFate.UNFINISHED, MutantFate.SURVIVED]
    others = [mutant(MutantFate.SURVIVED, "x + 1", "x - 1"), mutant(MutantFate.UNTESTED, "y", "z")]
    groups = [
        Explanation(title, "Because.", [ChangePattern(was=was)]) for title, was in (("Other", "q"), ("Same", "<"))
    ]
    result = summed_up("broker/core", [*map(mutant, fates), *others], groups)
    assert (result.mutants, result.tried, result.killed, result.timed_out, result.untested) == (10, 9, 5, 1, 1)
    assert [each.title for each in result.explained] == ["Same"]
    assert result.unexplained == (
        "dualwrite/broker/core/offsets.py, Offsets.commit: x + 1 -> x - 1 (survived)",
        "dualwrite/broker/core/offsets.py, Offsets.commit: y -> z (untested)",
    )
    assert result.score == 6 / 9
    assert result.line.startswith("broker/core: 66.7% of 9 mutants noticed (5 killed, 1 timed out)")


def test_a_room_without_a_finished_mutant_has_no_score() -> None:
    assert summed_up("broker/core", [mutant(MutantFate.UNFINISHED)], []).score == 0.0


def test_the_page_shows_what_was_not_tried_and_what_nothing_explains(tmp_path: Path) -> None:
    group = read_explanations()[0]
    result = summed_up("broker/core", [mutant(MutantFate.UNFINISHED), mutant(MutantFate.SURVIVED)], [])
    page = markdown([result])
    assert "| `dualwrite/broker/core` | 2 | 1 | 0 | 0 | 0 | 1 | 0.0% |" in page
    assert "- `` dualwrite/broker/core/offsets.py, Offsets.commit: a < b -> a <= b (survived) ``" in page
    assert f"### {group.title}" not in page
    assert "- Not in this run: `dualwrite/coordinator/rules`, `dualwrite/client/engine`." in page
    store([result], tmp_path / "results.json")
    assert load(tmp_path / "results.json") == [result]


def test_the_program_reads_a_run_again_and_fails_at_what_nothing_explains(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, page, kept = tmp_path / "all", tmp_path / "page.md", tmp_path / "results.json"
    directory.mkdir()
    (directory / "coordinator-rules").symlink_to(finished)
    options = ["--rooms", ROOM.path, "--read", "--directory", str(directory)]
    assert main([*options, "--markdown", str(page), "--json", str(kept)]) == 1
    printed = capsys.readouterr().out
    assert "coordinator/rules: 33.3% of 3 mutants noticed" in printed
    assert "Lease.is_over: return now >= self.end -> return now > self.end (survived)" in printed
    assert page.read_text() == (directory / "summary.md").read_text() == markdown(load(kept))


# The published run.


def published() -> list[RoomResult]:
    return load(PAGE.with_suffix(".json"))


def test_the_published_page_is_the_one_of_the_published_run() -> None:
    assert markdown(published()) == PAGE.read_text(encoding="utf-8")


def test_the_published_run_is_of_rooms_that_there_are() -> None:
    rooms = [result.room for result in published()]
    assert rooms
    assert [room for room in ROOMS if room in rooms] == rooms


def functions(path: Path) -> Iterator[tuple[str, str]]:
    """The functions of a file, with their classes, and their code in one line."""
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    for prefix, body in [("", module.body), *((f"{node.name}.", node.body) for node in classes)]:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                yield prefix + node.name, " ".join((ast.get_source_segment(text, node) or "").split())


@pytest.mark.parametrize("group", read_explanations(), ids=lambda group: group.title)
def test_every_explanation_is_of_code_that_is_there(group: Explanation) -> None:
    rooms = [path for room in ROOMS.values() for path in sorted((HOME / room.folder).rglob("*.py"))]
    for pattern in group.patterns:
        fitting = [path for path in rooms if path.relative_to(HOME / "dualwrite").match(pattern.file)]
        found = [
            name
            for path in fitting
            for name, code in functions(path)
            if ChangePattern(function=pattern.function).explains(Mutant("", "", name, "", "", MutantFate.SURVIVED))
            and re.search(pattern.was.removeprefix("^").removesuffix("$"), code)
        ]
        assert found, f"{pattern}: no line of the code is like this any more"


@pytest.mark.parametrize("room", ROOMS.values(), ids=lambda room: room.path)
def test_the_tests_of_a_room_are_there(room: object) -> None:
    assert isinstance(room, type(ROOM))
    assert (HOME / room.folder).is_dir()
    assert [path for path in room.tests if not (HOME / path).exists()] == []
