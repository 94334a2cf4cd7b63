"""A bundle: the output of several programs in one directory, with what a stranger needs to check it."""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.matrix.context import machine_and_versions

SUMS, FACTS, INDEX = "SHA256SUMS", "proof.json", "index.md"
_SIMULATION = "tests.simulation"


@dataclass(frozen=True)
class ProofStep:
    """One program of the bundle.

    :param module: that ``python -m`` runs.
    """

    name: str
    module: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """As the reader types it."""
        return f"python -m {self.module} {shlex.join(self.arguments)}".strip()

    @property
    def is_there(self) -> bool:
        """Whether this version has the program."""
        return find_spec(self.module) is not None


@dataclass(frozen=True)
class StepResult:
    """How a program has ended.

    :param output: the last line that it has printed.
    """

    name: str
    command: str
    exit_code: int
    seconds: float
    output: str


def steps_of(directory: Path, *, seed: int, seeds: int, kills: int, seconds: float, soak: float) -> list[ProofStep]:
    """The programs of a bundle in ``directory``.

    :param seeds: of the simulation.
    :param seconds: that the matrix may take at most.
    :param soak: seconds of the soak.
    """
    matrix, soaked = str(directory / "matrix"), str(directory / "soak")
    limits = ("--kills", str(kills), "--seconds", f"{seconds:g}", "--seed", str(seed))
    return [
        ProofStep("simulation", _SIMULATION, ("--seeds", str(seeds))),
        ProofStep("matrix", "tests.matrix", (*limits, "--directory", matrix)),
        ProofStep("soak", "tests.soak", ("--seconds", f"{soak:g}", "--seed", str(seed), "--directory", soaked)),
    ]


def run_step(step: ProofStep, directory: Path) -> StepResult:
    """Run ``step``; what it prints is in ``NAME.txt``."""
    began = time.monotonic()
    printed = directory / f"{step.name}.txt"
    with printed.open("wb") as file:
        command = [sys.executable, "-m", step.module, *step.arguments]
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return StepResult(step.name, step.command, code, round(time.monotonic() - began, 1), lines[-1] if lines else "")


def write_facts(directory: Path, started_at: str, results: Sequence[StepResult], missing: Sequence[str]) -> None:
    """Write what the bundle says of itself, and the digest of every file.

    :param missing: programs that this version lacks.
    """
    facts = {
        "started_at": started_at,
        **machine_and_versions(),
        "results": [asdict(result) for result in results],
        "missing": list(missing),
    }
    (directory / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (directory / INDEX).write_text(index_of(facts), encoding="utf-8")
    sums = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests(directory).items()))
    (directory / SUMS).write_text(sums, encoding="utf-8")


def index_of(facts: Mapping[str, Any]) -> str:
    """The bundle's first page."""
    lines = [
        "# Proof\n",
        "| | |\n|---|---|",
        *(f"| {name.replace('_', ' ')} | {facts[name]} |" for name in ("started_at", "commit", "machine", "versions")),
        "",
        "| program | command | exit code | seconds | result |\n|---|---|--:|--:|---|",
    ]
    for each in facts["results"]:
        lines.append(
            f"| [{each['name']}]({each['name']}.txt) | `{each['command']}` | {each['exit_code']} | {each['seconds']} "
            f"| {each['output']} |"
        )
    lines += [f"\nThis version has no {name}." for name in facts["missing"]]
    lines += [
        f"\n`sha256sum -c {SUMS}` checks the files. `python -m tests.proof --check DIRECTORY` does so, too, and adds",
        "the matrix's log up again. The same commit, command and seed choose the same cells in the same order; the",
        "moments of processes differ.",
        "",
    ]
    return "\n".join(lines)


def digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of every file but the list of them, by its name in ``directory``."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != SUMS
    }


def problems_of(directory: Path) -> Iterator[str]:
    """What is wrong with the bundle in ``directory``: files that were changed, are missing or are new; a first page or
    a summary that does not follow from the files; programs that failed."""
    listed = dict(reversed(line.split("  ", 1)) for line in (directory / SUMS).read_text().splitlines())
    found = digests(directory)
    yield from (f"{name} is missing" for name in sorted(listed.keys() - found.keys()))
    yield from (f"{name} is not on the list" for name in sorted(found.keys() - listed.keys()))
    yield from (f"{name} was changed" for name in sorted(listed.keys() & found.keys()) if listed[name] != found[name])
    facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
    if (directory / INDEX).read_text(encoding="utf-8") != index_of(facts):
        yield f"{INDEX} does not say what {FACTS} says"
    yield from (f"{each['name']} failed: {each['output']}" for each in facts["results"] if each["exit_code"])
    yield from _problems_of_matrix(directory / "matrix")


def _problems_of_matrix(directory: Path) -> Iterator[str]:
    from tests.matrix.page import page_of
    from tests.matrix.summary import read_logs, summarised

    if not directory.exists():
        return
    said = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    again = summarised(read_logs(directory.glob("runs-*.jsonl")))
    yield from (f"the matrix's summary differs from its log: {name}" for name in again if again[name] != said[name])
    if (directory / "summary.md").read_text(encoding="utf-8") != page_of(said):
        yield "the matrix's page differs from its summary"
