"""The native producer side by side with librdkafka's, on the bundled broker and on Apache Kafka: alternating rounds of
one run.

    python -m benchmarks.native [--figures singles units] [--durabilities os fsync] [--rounds 5] [--warm-up 1]
                                [--seconds 2] [--producers 1 4 16] [--units 10 100 10000] [--processes]
                                [--no-kafka] [--json FILE] [--markdown FILE] [--directory DIR]

singles: transactions of one record of 200 bytes, one after another on each producer: rate, p50, p99, and the client's
processor time for each. units: the same of one producer whose transactions have more records. The producers of a round
are threads of one process, as in a service with worker threads; --processes gives each a process of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.clients import LIBRDKAFKA, NATIVE
from benchmarks.contenders import OURS, Contender
from benchmarks.figures import Sample, elapsed_seconds, new_topic, percentiles, run_clients
from benchmarks.report import FigureComparison, Pair
from benchmarks.rounds import Rounds, at_least, measure, ordered, parser_of, positive_seconds

CLIENTS = (NATIVE, LIBRDKAFKA)
BOTH = Pair(NATIVE, LIBRDKAFKA, "native", "librdkafka", "native / librdkafka")


@dataclass(frozen=True)
class NativeScale:
    """How much is done for one round of a figure."""

    seconds: float = 2.0
    producers: tuple[int, ...] = (1, 4, 16)
    units: tuple[int, ...] = (10, 100, 10_000)
    """Records of a transaction."""
    has_processes: bool = False


def singles(contender: Contender, client: str, scale: NativeScale) -> Sample:
    """Transactions of one record, by number of producers."""
    sample: Sample = {}
    for producers in scale.producers:
        sample |= _measure(contender, client, scale, f"{producers} producer{'s' * (producers > 1)}", producers, 1)
    return sample


def units(contender: Contender, client: str, scale: NativeScale) -> Sample:
    """Transactions of many records, of one producer."""
    sample: Sample = {}
    for records in scale.units:
        sample |= _measure(contender, client, scale, f"{records:,} records", 1, records)
    return sample


FIGURES: Mapping[str, Callable[[Contender, str, NativeScale], Sample]] = {"singles": singles, "units": units}


def _measure(contender: Contender, client: str, scale: NativeScale, name: str, producers: int, records: int) -> Sample:
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


def compare(figures: Sequence[str], durability: str, scale: NativeScale, rounds: Rounds) -> Iterator[FigureComparison]:
    """Each figure on each broker: both clients in turn, round by round, so that a machine's drift meets both."""
    with rounds.running(rounds.contenders(durability)) as started:
        for name in figures:
            samples: dict[str, dict[str, list[Sample]]] = {
                contender.name: {client: [] for client in CLIENTS} for contender in started
            }
            for number in range(-rounds.warm_up, rounds.count):
                for contender in ordered(started, number):
                    for client in ordered(CLIENTS, number):
                        sample = FIGURES[name](contender, client, scale)
                        if number >= 0:
                            samples[contender.name][client].append(sample)
            for broker, found in samples.items():
                where = "the bundled broker" if broker == OURS else "Apache Kafka"
                yield FigureComparison(f"{name} on {where}", durability, found, BOTH)


def compare_all(
    figures: Sequence[str], durabilities: Sequence[str], scale: NativeScale, rounds: Rounds
) -> Iterator[FigureComparison]:
    """All of it, at one durability after the other."""
    for durability in durabilities:
        yield from compare(figures, durability, scale, rounds)


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n\n")[0], list(FIGURES), warm_up=1)
    parser.add_argument("--seconds", type=positive_seconds, default=NativeScale.seconds, help="of each measurement")
    parser.add_argument("--producers", type=at_least(1), nargs="+", default=list(NativeScale.producers))
    parser.add_argument(
        "--units", type=at_least(1), nargs="+", default=list(NativeScale.units), help="records of a transaction"
    )
    parser.add_argument("--processes", action="store_true", help="each producer in a process of its own")
    options = parser.parse_args()
    scale = NativeScale(options.seconds, tuple(options.producers), tuple(options.units), options.processes)
    measure(options, lambda rounds: compare_all(options.figures, options.durabilities, scale, rounds))


if __name__ == "__main__":
    main()
