"""Samples of alternating rounds as medians, ratios, a table and JSON."""

import os
import platform
import statistics
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import confluent_kafka

from benchmarks.contenders import KAFKA, OURS
from benchmarks.figures import LOADS, Sample, unit_of
from benchmarks.kfake.contender import KFAKE


class Table(Protocol):
    """Something measured that is shown as one table."""

    def markdown(self) -> Iterator[str]:
        """Its lines."""

    def as_json(self) -> dict[str, object]:
        """All that is known of it."""


class Pair(NamedTuple):
    """What is compared, by the names of its samples and by those of the table's columns."""

    ours: str
    theirs: str
    title: str
    their_title: str
    ratio: str


BROKERS = Pair(OURS, KAFKA, "dualwrite", "Apache Kafka", "ours / Kafka")
BESIDE_KFAKE = Pair(OURS, KFAKE, "dualwrite", "kfake", "ours / kfake")


@dataclass(frozen=True)
class FigureComparison:
    """One figure at one durability: the samples of every contender, in the order of the rounds."""

    figure: str
    durability: str
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    pair: Pair = BROKERS

    def values(self, contender: str, line: str) -> list[float]:
        """What ``contender`` reached in ``line``, by round."""
        return [sample[line] for sample in self.samples.get(contender, ())]

    def ratio(self, line: str) -> float | None:
        """The median of ours divided by theirs; None without both, or for a load."""
        ours, theirs = self.values(self.pair.ours, line), self.values(self.pair.theirs, line)
        if not ours or not theirs or unit_of(line).is_load or not statistics.median(theirs):
            return None
        return statistics.median(ours) / statistics.median(theirs)

    @property
    def lines(self) -> list[str]:
        """Everything that a sample has."""
        return list(self.samples[self.pair.ours][0])

    def markdown(self) -> Iterator[str]:
        """A table: medians, with the lowest and the highest round."""
        yield f"### {self.figure}, durability={self.durability}"
        yield ""
        pair = self.pair
        yield f"| | {pair.title} | {pair.their_title} | {pair.ratio} | | processors busy: broker + clients |"
        yield "|---|--:|--:|--:|---|---|"
        for line in self.lines:
            if unit_of(line).is_load:
                continue
            cells = [cell(self.values(name, line)) for name in pair[:2]]
            ratio = self.ratio(line)
            verdict = "" if ratio is None else "ahead" if is_ahead(line, ratio) else "behind"
            shown = "" if ratio is None else f"{ratio:.2f}"
            name = f"{line} ({unit_of(line).name})" if not line.endswith(f", {unit_of(line).name}") else line
            yield f"| {name} | {cells[0]} | {cells[1]} | {shown} | {verdict} | {self._loads(line)} |"
        yield ""

    def as_json(self) -> dict[str, object]:
        """Every sample, and the ratios."""
        return {
            "figure": self.figure,
            "durability": self.durability,
            "samples": self.samples,
            "ratios": {line: self.ratio(line) for line in self.lines},
        }

    def _loads(self, line: str) -> str:
        """How many processors were busy, with ours; with Kafka. Once for each measurement, beside its first line."""
        measured = line.rpartition(", ")[0]
        loads = [f"{measured}, {who}" for who in LOADS]
        first = next((each for each in self.lines if each.startswith(f"{measured}, ")), None)
        if loads[0] not in self.lines or line != first:
            return ""
        return "; ".join(
            " + ".join(f"{statistics.median(self.values(contender, each)):.2f}" for each in loads)
            for contender in self.samples
        )


def is_ahead(line: str, ratio: float) -> bool:
    """True if a ratio of ours to theirs says that ours is better."""
    return ratio > 1 if unit_of(line).more_is_better else ratio < 1


def as_json(tables: Sequence[Table], rounds: int) -> dict[str, object]:
    """Everything that was measured, and where."""
    return {"machine": machine(), "rounds": rounds, "figures": [table.as_json() for table in tables]}


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version() + ("" if is_optimised() else " (built without optimisation)"),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def is_optimised() -> bool:
    """False if the interpreter seems to be built without profile-guided optimisation: code in Python takes 1.2 to 1.45
    times as long there. The system's own is optimised on Debian and Ubuntu, which does not show in its configuration.
    """
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") or sys.base_prefix == "/usr"


def warn_unless_optimised() -> None:
    """Say on stderr if the interpreter is a slow one."""
    if not is_optimised():
        print(
            "this Python was built without --enable-optimizations, so code in Python is up to 1.45 times slower than "
            "elsewhere: measure with the system's own, /usr/bin/python3",
            file=sys.stderr,
        )


def cell(values: Sequence[float]) -> str:
    """The median of ``values``, with the lowest and the highest."""
    if not values:
        return ""
    median = statistics.median(values)
    spread = f" ({_number(min(values))} to {_number(max(values))})" if len(values) > 1 else ""
    return _number(median) + spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
