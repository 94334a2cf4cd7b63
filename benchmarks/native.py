"""The native producer side by side with librdkafka's, on the bundled broker and on Apache Kafka: alternating rounds of
one run.

    python -m benchmarks.native [--figures singles units] [--durabilities os fsync] [--rounds 5] [--warm-up 1]
                                [--seconds 2] [--producers 1 4 16] [--units 10 100 10000] [--processes]
                                [--no-kafka] [--json FILE] [--markdown FILE] [--directory DIR]

singles: transactions of one record of 200 bytes, one after another on each producer: rate, p50, p99, and the client's
processor time for each. units: the same of one producer whose transactions have more records. The producers of a round
are threads of one process, as in a service with worker threads; --processes gives each a process of its own.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import DURABILITIES, ordered, running
from benchmarks.clients import LIBRDKAFKA, NATIVE
from benchmarks.contenders import OURS, Contender, contenders, why_no_kafka
from benchmarks.figures import Sample, elapsed_seconds, new_topic, percentiles, run_clients
from benchmarks.report import Comparison, Pair, as_json, machine, markdown

CLIENTS = (NATIVE, LIBRDKAFKA)
BOTH = Pair(NATIVE, LIBRDKAFKA, "native", "librdkafka", "native / librdkafka")


@dataclass(frozen=True)
class Scale:
    """How much is done for one round of a figure."""

    seconds: float = 2.0
    producers: tuple[int, ...] = (1, 4, 16)
    units: tuple[int, ...] = (10, 100, 10_000)
    """Records of a transaction."""
    has_processes: bool = False


def singles(contender: Contender, client: str, scale: Scale) -> Sample:
    """Transactions of one record, by number of producers."""
    sample: Sample = {}
    for producers in scale.producers:
        sample |= _measure(contender, client, scale, f"{producers} producer{'s' * (producers > 1)}", producers, 1)
    return sample


def units(contender: Contender, client: str, scale: Scale) -> Sample:
    """Transactions of many records, of one producer."""
    sample: Sample = {}
    for records in scale.units:
        sample |= _measure(contender, client, scale, f"{records:,} records", 1, records)
    return sample


FIGURES: Mapping[str, Callable[[Contender, str, Scale], Sample]] = {"singles": singles, "units": units}


def _measure(contender: Contender, client: str, scale: Scale, name: str, producers: int, records: int) -> Sample:
    common = {"topic": new_topic(contender), "client": client, "seconds": scale.seconds, "records": records}
    settings: list[dict[str, object]] = [{**common, "producers": producers}]
    if scale.has_processes:
        settings = [{**common, "producers": 1, "first": number} for number in range(producers)]
    results, load = run_clients(contender, "transactions", settings)
    took = sorted(each for result in results for each in result["milliseconds"])
    processor_seconds = sum(result["cpu"] for result in results)
    return {
        f"{name}, per second": len(took) / elapsed_seconds(results),
        **percentiles(name, took),
        f"{name}, CPU": processor_seconds / len(took) * 1e6,
        **load(name),
    }


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

    def compare(self, figures: Sequence[str], durability: str) -> Iterator[Comparison]:
        """Each figure on each broker: both clients in turn, round by round, so that a machine's drift meets both."""
        with running(contenders(durability, self.directory, self.with_kafka), self.directory) as started:
            for name in figures:
                samples: dict[str, dict[str, list[Sample]]] = {
                    contender.name: {client: [] for client in CLIENTS} for contender in started
                }
                for number in range(-self.warm_up, self.rounds):
                    for contender in ordered(started, number):
                        for client in ordered(CLIENTS, number):
                            sample = FIGURES[name](contender, client, self.scale)
                            if number >= 0:
                                samples[contender.name][client].append(sample)
                for broker, found in samples.items():
                    where = "the bundled broker" if broker == OURS else "Apache Kafka"
                    yield Comparison(f"{name} on {where}", durability, found, BOTH)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--figures", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--durabilities", nargs="+", choices=DURABILITIES, default=list(DURABILITIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them that are not counted")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="of each measurement")
    parser.add_argument("--producers", type=int, nargs="+", default=list(Scale.producers))
    parser.add_argument("--units", type=int, nargs="+", default=list(Scale.units), help="records of a transaction")
    parser.add_argument("--processes", action="store_true", help="each producer in a process of its own")
    parser.add_argument("--no-kafka", action="store_true", help="on the bundled broker alone")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    parser.add_argument("--directory", type=Path, help="where the brokers keep their data; a temporary one otherwise")
    options = parser.parse_args()
    scale = Scale(options.seconds, tuple(options.producers), tuple(options.units), options.processes)
    reason = "--no-kafka" if options.no_kafka else why_no_kafka()
    if reason is not None:
        print(f"on the bundled broker alone, without Apache Kafka: {reason}", file=sys.stderr)
    comparisons: list[Comparison] = []
    lines = [", ".join(f"{key} {value}" for key, value in machine().items()) + f"; {options.rounds} rounds", ""]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory(prefix="dualwrite-benchmark-", dir=options.directory) as scratch:
        run = Run(scale, options.rounds, options.warm_up, Path(scratch), reason is None)
        for durability in options.durabilities:
            for done in run.compare(options.figures, durability):
                comparisons.append(done)
                lines += (table := list(markdown(done)))
                print("\n".join(table), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(comparisons, options.rounds), indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
