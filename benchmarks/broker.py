"""The bundled broker side by side with Apache Kafka: the same clients, in alternating rounds of one run.

    python -m benchmarks.broker [--figures transactions native-transactions throughput guarantees latency start restart]
                                [--durabilities os fsync] [--beside kafka|kfake]
                                [--rounds 5] [--warm-up 2] [--seconds 5] [--megabytes 200]
                                [--restart-mebibytes 1024] [--producers 1 4 16] [--loaded-megabytes 100]
                                [--no-kafka] [--json FILE] [--markdown FILE] [--directory DIR]

``os`` compares with Kafka's defaults, ``fsync`` with log.flush.interval.messages=1. Read the ratios, not the numbers.
kfake is franz-go's broker in memory, for transactions and latency: it has no disk to sync, and starts empty.
Without a JVM and Maven it measures the bundled broker alone, and says so.
"""

from collections.abc import Iterator, Sequence

from benchmarks.contenders import KAFKA, Contender
from benchmarks.figures import FIGURES, Figure, Sample, Scale
from benchmarks.kfake.contender import KFAKE
from benchmarks.report import BESIDE_KFAKE, BROKERS, FigureComparison
from benchmarks.rounds import PEERS, Rounds, measure, ordered, parser_of, positive_seconds


def compare(figure: Figure, name: str, durability: str, scale: Scale, rounds: Rounds) -> FigureComparison:
    """One figure: every contender in turn, round by round, so that a machine's drift meets all alike."""
    samples: dict[str, list[Sample]] = {}
    pair, title = (BESIDE_KFAKE, f"{name} beside kfake") if rounds.peer == KFAKE else (BROKERS, name)

    def sample(contender: Contender) -> None:
        samples.setdefault(contender.name, []).append(figure.measure(contender, scale))

    if figure.is_fresh:
        for number in range(rounds.count):
            for contender in ordered(rounds.contenders(durability), number):
                with rounds.running([contender]):
                    sample(contender)
        return FigureComparison(title, durability, samples, pair)
    with rounds.running(rounds.contenders(durability)) as started:
        for number in range(-rounds.warm_up, rounds.count):
            for contender in ordered(started, number):
                sample(contender)
            if number < 0:
                samples.clear()
    return FigureComparison(title, durability, samples, pair)


def compare_all(
    figures: Sequence[str], durabilities: Sequence[str], scale: Scale, rounds: Rounds
) -> Iterator[FigureComparison]:
    """Each figure at each durability that changes it."""
    for name in figures:
        for durability in FIGURES[name].durabilities:
            if durability in durabilities:
                yield compare(FIGURES[name], name, durability, scale, rounds)


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n")[0], list(FIGURES), warm_up=2)
    parser.set_defaults(figures=[name for name, figure in FIGURES.items() if figure.is_usual])
    parser.add_argument("--beside", choices=PEERS, default=KAFKA, help="the other broker; kfake needs Go")
    parser.add_argument("--seconds", type=positive_seconds, default=Scale.seconds)
    parser.add_argument("--megabytes", type=int, default=Scale.megabytes)
    parser.add_argument("--restart-mebibytes", type=int, default=Scale.restart_mebibytes)
    parser.add_argument("--producers", type=int, nargs="+", default=list(Scale.producers))
    parser.add_argument("--loaded-megabytes", type=int, default=Scale.loaded_megabytes)
    options = parser.parse_args()
    scale = Scale(
        options.seconds,
        options.megabytes,
        options.restart_mebibytes,
        tuple(options.producers),
        options.loaded_megabytes,
    )
    measure(options, lambda rounds: compare_all(options.figures, options.durabilities, scale, rounds))


if __name__ == "__main__":
    main()
