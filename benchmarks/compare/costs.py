"""What units of work cost beside the naive pair, and whether that is worse than it was. No I/O but the file of the
recorded ratios."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 1.25
"""A ratio of costs may grow by a quarter."""
BUSY_LIMIT = 2.0
"""On an overloaded machine it may double."""
_OVERLOADED = 3.0
"""Processes that want to run, for each processor."""


@dataclass(frozen=True)
class UnitCost:
    """Of one unit of work in one round: processor seconds of client and broker, and the seconds that it took."""

    client: float
    broker: float
    elapsed: float

    @property
    def processor(self) -> float:
        """Of client and broker."""
        return self.client + self.broker


@dataclass(frozen=True)
class RatioOfCosts:
    """What a unit of one writer costs as a multiple of another's, in rounds that were measured in turns."""

    ours: Sequence[UnitCost]
    theirs: Sequence[UnitCost]

    @property
    def of_processor_time(self) -> float:
        """Of the cheapest twentieth of the rounds: a process that is interrupted finds its caches cold, so other work
        on the machine makes rounds dearer, and never cheaper."""
        ours, theirs = (_quantile([cost.processor for cost in costs], 0.05) for costs in (self.ours, self.theirs))
        return ours / theirs

    @property
    def of_wall_time(self) -> float:
        """Of the medians. It is shown and decides nothing: it depends on what else the machine does."""
        ours, theirs = (statistics.median(cost.elapsed for cost in costs) for costs in (self.ours, self.theirs))
        return ours / theirs

    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile of the ratios of processor time within single rounds."""
        ratios = [one.processor / other.processor for one, other in zip(self.ours, self.theirs, strict=True)]
        return _quantile(ratios, 0.25), _quantile(ratios, 0.75)


def limit_at(load: float, processors: int) -> float:
    """How many times a ratio may be what it was, at a load average of ``load``."""
    return BUSY_LIMIT if load > _OVERLOADED * processors else LIMIT


def complaint(what: str, beside: str, ratio: float, earlier: float, limit: float = LIMIT) -> str | None:
    """One line if ``ratio`` is worse than ``earlier`` by more than ``limit``; None if it is not."""
    if ratio <= earlier * limit:
        return None
    return (
        f"{what} costs {ratio:.2f} times the processor time of {beside}; it was {earlier:.2f} times. "
        f"That is worse by {ratio / earlier - 1:.0%}, and {limit - 1:.0%} is the limit."
    )


@dataclass(frozen=True)
class RecordedRatios:
    """The file of ratios to the naive pair, by database, with the machine and the interpreter they were measured on."""

    machine: Mapping[str, object]
    ratios: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> "RecordedRatios":
        """From the file."""
        content = json.loads(path.read_text())
        return cls(content["machine"], content["ratios"])

    def write(self, path: Path) -> None:
        """To the file."""
        rounded = {name: round(ratio, 2) for name, ratio in self.ratios.items()}
        path.write_text(json.dumps({"machine": self.machine, "ratios": rounded}, indent=2) + "\n")

    def complaints(self, measured: Mapping[str, float], limit: float = LIMIT) -> Iterator[str]:
        """One line for each database whose ratio has become worse."""
        for name, ratio in measured.items():
            if name in self.ratios:
                line = complaint(f"a unit of work on {name}", "the naive pair", ratio, self.ratios[name], limit)
                if line is not None:
                    yield line


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int((len(values) - 1) * share)]
