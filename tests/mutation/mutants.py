"""Runs mutmut over one room in a directory of its own, and reads what it wrote there: each mutant and its fate."""

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutation.rooms import MutatedRoom

HOME = Path(__file__).parents[2]
_COPIED = ["dualwrite", "tests", "migrations", "docs"]
"""What the tests of the rooms import and read."""
STATS = "mutmut-stats.json"
"""mutmut's file with the tests of each function, and their seconds."""


class MutantFate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    UNTESTED = "untested"
    UNFINISHED = "unfinished"


_FATES: Mapping[int | None, MutantFate] = {
    0: MutantFate.SURVIVED,
    1: MutantFate.KILLED,
    3: MutantFate.KILLED,  # pytest itself failed
    -11: MutantFate.KILLED,  # the recursion went through the stack
    5: MutantFate.UNTESTED,
    33: MutantFate.UNTESTED,
    24: MutantFate.TIMED_OUT,
    -24: MutantFate.TIMED_OUT,
    36: MutantFate.TIMED_OUT,
    152: MutantFate.TIMED_OUT,
    None: MutantFate.UNFINISHED,
}
"""By mutmut's exit codes. Any other one is an error of the run."""


@dataclass(frozen=True)
class Mutant:
    """One change of one function.

    :param file: from the root of the project.
    :param function: with its class: ``Lease.renewed``.
    :param was: the lines that the mutant lacks, in one, without indentation.
    :param now: the lines that it has instead.
    """

    name: str
    file: str
    function: str
    was: str
    now: str
    fate: MutantFate


class MutmutError(Exception):
    """mutmut ended with an error: see its output."""


def mutate(room: MutatedRoom, directory: Path, processes: int, names: Sequence[str] = ()) -> None:
    """Run mutmut over ``room``. What ``directory`` has from a run before is kept where code and tests are the same.

    :param directory: gets links to the sources, and the mutated copies.
    :param names: of the mutants to try again; all that have not been tried yet, if there are none.
    :raises MutmutError: if the tests fail without a mutant, or mutmut does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if not (directory / name).exists():
            (directory / name).symlink_to(HOME / name, target_is_directory=True)
    (directory / "pyproject.toml").write_text(_configuration(room), encoding="utf-8")
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *names]
    log = directory / "mutmut.log"
    with log.open("wb") as stream:
        environment = {**os.environ, "PYTHONPATH": ".", "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=directory, env=environment, stdout=stream, stderr=stream, check=False)
    if done.returncode:
        raise MutmutError(f"mutmut ended with {done.returncode} in {room.path}; its output is in {log}")


def read_mutants(room: MutatedRoom, directory: Path) -> Iterator[Mutant]:
    """The mutants of ``room`` in the order of files and lines, from what mutmut left in ``directory``."""
    folder = directory / "mutants" / room.folder
    for meta in sorted(folder.rglob("*.py.meta")):
        source = meta.with_suffix("")
        file = source.relative_to(directory / "mutants").as_posix()
        codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        if codes and room.has(file):
            yield from _mutants_of(source, file, codes)


def _mutants_of(source: Path, file: str, codes: Mapping[str, int | None]) -> Iterator[Mutant]:
    lines = source.read_text(encoding="utf-8").splitlines()
    spans = json.loads(source.with_suffix(".py.spans").read_text(encoding="utf-8"))["spans"]

    def text(key: str) -> list[str]:
        first, last = spans[key]
        return [line.strip().replace(f"def {key}(", "def (") for line in lines[first - 1 : last]]

    for name, code in codes.items():
        key = name.rpartition(".")[2]
        mangled = key.rpartition("__mutmut_")[0]
        was, now = _difference(text(f"{mangled}__mutmut_orig"), text(key))
        function = ".".join(mangled.removeprefix("x").strip("ǁ").removeprefix("_").split("ǁ"))
        yield Mutant(name, file, function, was, now, _FATES[code])


def _difference(was: list[str], now: list[str]) -> tuple[str, str]:
    """The lines that one of the two lacks."""
    changes = [line for line in difflib.unified_diff(was, now, n=0, lineterm="") if line[:3] not in ("---", "+++")]
    lacking, new = ([line[1:] for line in changes if line.startswith(sign)] for sign in "-+")
    return " ".join(lacking), " ".join(new)


def _configuration(room: MutatedRoom) -> str:
    """pytest's is the project's."""
    arguments = ["-m", "not slow", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return (HOME / "pyproject.toml").read_text(encoding="utf-8") + "\n".join(
        [
            "",
            "[tool.mutmut]",
            f"source_paths = [{json.dumps(room.folder)}]",
            f"only_mutate = {json.dumps(room.patterns)}",
            f"also_copy = {json.dumps(_COPIED)}",
            f"pytest_add_cli_args = {json.dumps(arguments)}",
            f"pytest_add_cli_args_test_selection = {json.dumps(list(room.tests))}",
            "timeout_multiplier = 30.0",
            "timeout_constant = 2.0",
            "use_git_change_detection = false",
            "",
        ]
    )
