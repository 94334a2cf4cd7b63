"""Several contenders in one table: medians of alternating rounds, and what one of them is of each other."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import LOADS, Sample, unit_of
from benchmarks.report import cell


@dataclass(frozen=True)
class Standings:
    """One figure at one durability: the samples of every contender, in the order of the rounds.

    :param ours: the contender that the others are compared with.
    :param compared: the lines in which they are.
    """

    figure: str
    durability: str
    samples: Mapping[str, Sequence[Sample]]
    ours: str = ""
    compared: Sequence[str] = ()

    def values(self, contender: str, line: str) -> list[float]:
        """What ``contender`` reached in ``line``, by round."""
        return [sample[line] for sample in self.samples[contender]]

    def ratio(self, contender: str, line: str) -> float | None:
        """The median of ours divided by that of ``contender``; None if ours was not measured."""
        if self.ours not in self.samples:
            return None
        return statistics.median(self.values(self.ours, line)) / statistics.median(self.values(contender, line))

    @property
    def lines(self) -> list[str]:
        """Everything that a sample has but for the loads."""
        return [line for line in next(iter(self.samples.values()))[0] if not unit_of(line).is_load]

    def markdown(self) -> Iterator[str]:
        """A table with a row for each contender."""
        loads = all(load in samples[0] for samples in self.samples.values() for load in LOADS)
        heads = [_head(line) for line in self.lines] + [f"ours / its {_head(line)}" for line in self.compared]
        heads += ["processors busy: broker + clients"] * loads
        yield f"### {self.figure}, durability={self.durability}"
        yield ""
        yield f"| | {' | '.join(heads)} |"
        yield f"|---|{'--:|' * len(heads)}"
        for contender in self.samples:
            cells = [cell(self.values(contender, line)) for line in self.lines]
            cells += [_shown(self.ratio(contender, line)) for line in self.compared]
            if loads:
                cells.append(" + ".join(f"{statistics.median(self.values(contender, load)):.2f}" for load in LOADS))
            yield f"| {contender} | {' | '.join(cells)} |"
        yield ""

    def as_json(self) -> dict[str, object]:
        """Every sample, and the ratios."""
        ratios = {
            line: {contender: self.ratio(contender, line) for contender in self.samples} for line in self.compared
        }
        return {"figure": self.figure, "durability": self.durability, "samples": self.samples, "ratios": ratios}


def _head(line: str) -> str:
    unit = unit_of(line).name
    return line if line.rpartition(", ")[2] in (unit, "per second") else f"{line} ({unit})"


def _shown(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
