"""The result of a run: counts for each room, the survivors, and their explanations. It is kept as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.explanations import Explanation, explanation_of
from tests.mutation.mutants import Mutant, MutantFate


@dataclass(frozen=True)
class ExplainedMutant:
    """A survivor that a group explains.

    :param why: of its pattern; empty where the group's reason says all.
    """

    title: str
    file: str
    function: str
    was: str
    now: str
    why: str


@dataclass(frozen=True)
class RoomResult:
    """The mutants of one room.

    :param untested: those of functions that no test of the room calls.
    :param unfinished: those that the run did not come to.
    :param unexplained: a line for each survivor without an explanation.
    """

    room: str
    mutants: int
    killed: int
    timed_out: int
    untested: int
    unfinished: int
    explained: tuple[ExplainedMutant, ...]
    unexplained: tuple[str, ...]

    @property
    def tried(self) -> int:
        """The mutants with an outcome."""
        return self.mutants - self.unfinished

    @property
    def score(self) -> float:
        """The part of the tried mutants that tests notice: they fail, or do not end."""
        return (self.killed + self.timed_out) / self.tried if self.tried else 0.0

    @property
    def line(self) -> str:
        """The result in one line."""
        survived = len(self.explained) + len(self.unexplained)
        return (
            f"{self.room}: {self.score:.1%} of {self.tried} mutants noticed ({self.killed} killed, {self.timed_out} "
            f"timed out); {survived} survived, {len(self.explained)} of them explained; {self.untested} untested, "
            f"{self.unfinished} not tried"
        )


def summed_up(room: str, mutants: Iterable[Mutant], explanations: Sequence[Explanation]) -> RoomResult:
    """Count ``mutants``, and explain those that survived."""
    fates: Counter[MutantFate] = Counter()
    explained, unexplained = [], []
    for mutant in mutants:
        fates[mutant.fate] += 1
        if mutant.fate not in (MutantFate.SURVIVED, MutantFate.UNTESTED):
            continue
        group = explanation_of(mutant, explanations)
        pattern = group and group.pattern_of(mutant)
        if group and pattern:
            explained.append(
                ExplainedMutant(group.title, mutant.file, mutant.function, mutant.was, mutant.now, pattern.why)
            )
        else:
            unexplained.append(f"{mutant.file}, {mutant.function}: {mutant.was} -> {mutant.now} ({mutant.fate.value})")
    return RoomResult(
        room,
        sum(fates.values()),
        fates[MutantFate.KILLED],
        fates[MutantFate.TIMED_OUT],
        fates[MutantFate.UNTESTED],
        fates[MutantFate.UNFINISHED],
        tuple(explained),
        tuple(unexplained),
    )


def store(results: Sequence[RoomResult], path: Path) -> None:
    """Write ``results`` to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in results], indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> list[RoomResult]:
    """What :func:`store` has written."""
    rooms = json.loads(path.read_text(encoding="utf-8"))
    return [
        RoomResult(
            **{
                **room,
                "explained": tuple(ExplainedMutant(**each) for each in room["explained"]),
                "unexplained": tuple(room["unexplained"]),
            }
        )
        for room in rooms
    ]
