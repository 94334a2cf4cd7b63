"""The bundled broker side by side with Apache Kafka: the same clients, in alternating rounds of one run.

    python -m benchmarks.broker [--figures transactions throughput latency start restart] [--durabilities os fsync]
                                [--rounds 5] [--warm-up 2] [--seconds 5] [--megabytes 200]
                                [--restart-mebibytes 1024] [--producers 1 4 16] [--loaded-megabytes 100]
                                [--no-kafka] [--json FILE] [--markdown FILE] [--directory DIR]

``os`` compares with Kafka's defaults, ``fsync`` with log.flush.interval.messages=1. Read the ratios, not the numbers.
Without a JVM and Maven it measures the bundled broker alone, and says so.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.contenders import Contender, contenders, why_no_kafka
from benchmarks.figures import FIGURES, Figure, Sample, Scale
from benchmarks.report import Comparison, as_json, machine, markdown

DURABILITIES = ("os", "fsync")
AnyT = TypeVar("AnyT")


@dataclass(frozen=True)
class Run:
    """How to measure.

    :param warm_up: rounds that are not counted: a JVM compiles what runs often, while it runs.
    """

    scale: Scale
    rounds: int
    warm_up: int
    directory: Path
    with_kafka: bool

    def compare(self, name: str, durability: str) -> Comparison:
        """One figure: every contender in turn, round by round, so that a machine's drift meets all alike."""
        figure = FIGURES[name]
        samples: dict[str, list[Sample]] = {}
        if figure.is_fresh:
            for number in range(self.rounds):
                for contender in ordered(self._contenders(durability), number):
                    with running([contender], self.directory):
                        self._measure(figure, contender, samples)
            return Comparison(name, durability, samples)
        with running(self._contenders(durability), self.directory) as started:
            for number in range(-self.warm_up, self.rounds):
                for contender in ordered(started, number):
                    self._measure(figure, contender, samples if number >= 0 else {})
        return Comparison(name, durability, samples)

    def _contenders(self, durability: str) -> Sequence[Contender]:
        return contenders(durability, self.directory, self.with_kafka)

    def _measure(self, figure: Figure, contender: Contender, samples: dict[str, list[Sample]]) -> None:
        samples.setdefault(contender.name, []).append(figure.measure(contender, self.scale))


def ordered(all_of_them: Sequence[AnyT], number: int) -> Sequence[AnyT]:
    """Who goes first changes from round to round."""
    return all_of_them if number % 2 == 0 else all_of_them[::-1]


@contextmanager
def running(all_of_them: Sequence[Contender], directory: Path) -> Iterator[Sequence[Contender]]:
    """All of them started; in the end stopped, and their data removed."""
    started: list[Contender] = []
    try:
        for contender in all_of_them:
            contender.start()
            started.append(contender)
        yield all_of_them
    finally:
        for contender in started:
            contender.kill()
        for entry in directory.iterdir():
            shutil.rmtree(entry)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--durabilities", nargs="+", choices=DURABILITIES, default=list(DURABILITIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them that are not counted")
    parser.add_argument("--seconds", type=float, default=Scale.seconds)
    parser.add_argument("--megabytes", type=int, default=Scale.megabytes)
    parser.add_argument("--restart-mebibytes", type=int, default=Scale.restart_mebibytes)
    parser.add_argument("--producers", type=int, nargs="+", default=list(Scale.producers))
    parser.add_argument("--loaded-megabytes", type=int, default=Scale.loaded_megabytes)
    parser.add_argument("--no-kafka", action="store_true", help="measure the bundled broker alone")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    parser.add_argument(
        "--directory", type=Path, help="where the brokers keep their data; a temporary one if not given"
    )
    options = parser.parse_args()
    scale = Scale(
        options.seconds,
        options.megabytes,
        options.restart_mebibytes,
        tuple(options.producers),
        options.loaded_megabytes,
    )
    reason = "--no-kafka" if options.no_kafka else why_no_kafka()
    if reason is not None:
        print(f"the bundled broker alone, without Apache Kafka beside it: {reason}", file=sys.stderr)
    comparisons: list[Comparison] = []
    lines = [", ".join(f"{key} {value}" for key, value in machine().items()) + f"; {options.rounds} rounds", ""]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory(prefix="dualwrite-benchmark-", dir=options.directory) as scratch:
        run = Run(scale, options.rounds, options.warm_up, Path(scratch), reason is None)
        for name in options.figures:
            for durability in FIGURES[name].durabilities:
                if durability in options.durabilities:
                    done = run.compare(name, durability)
                    comparisons.append(done)
                    lines += (table := list(markdown(done)))
                    print("\n".join(table), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(comparisons, options.rounds), indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
