"""What the benchmarks side by side have in common: their options, rounds that alternate, and where the results go."""

import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import inf
from pathlib import Path
from typing import TypeVar

from benchmarks.contenders import KAFKA, Contender, contenders, why_no_kafka
from benchmarks.kfake.contender import KFAKE, why_no_kfake
from benchmarks.plots.beside import draw_beside
from benchmarks.report import Table, as_json, machine, warn_unless_optimised

DURABILITIES = ("os", "fsync")
PEERS = {KAFKA: "Apache Kafka", KFAKE: KFAKE}
"""The brokers that may be measured beside ours, by the names of their samples."""
AnyT = TypeVar("AnyT")


@dataclass(frozen=True)
class Rounds:
    """How to measure.

    :param warm_up: rounds that are not counted: a JVM compiles what runs often, while it runs.
    """

    count: int
    warm_up: int
    directory: Path
    peer: str | None
    """The broker beside ours."""

    def contenders(self, durability: str) -> Sequence[Contender]:
        """The brokers, not started yet."""
        return contenders(durability, self.directory, self.peer)

    @contextmanager
    def running(self, all_of_them: Sequence[Contender]) -> Iterator[Sequence[Contender]]:
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
            for entry in self.directory.iterdir():
                shutil.rmtree(entry)


def ordered(all_of_them: Sequence[AnyT], number: int) -> Sequence[AnyT]:
    """Who goes first changes from round to round."""
    return all_of_them if number % 2 == 0 else all_of_them[::-1]


def made_directory(text: str) -> Path:
    """Of an option: a directory, made if there is none."""
    directory = Path(text)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentTypeError(f"no directory can be made at {text!r}: {error.strerror}") from None
    return directory


def at_least(lowest: int) -> Callable[[str], int]:
    """Reads an option that is a whole number."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise ArgumentTypeError(f"{text!r}: allowed: whole numbers, {lowest} or more")
        return int(text)

    return read


def positive_seconds(text: str) -> float:
    """Reads an option that is the length of a measurement."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise ArgumentTypeError(f"{text!r}: allowed: seconds, more than 0")
    return number


class WithKafka(Enum):
    """Whether a benchmark measures Apache Kafka beside the bundled broker."""

    UNLESS_REFUSED = "--no-kafka"
    IF_ASKED = "--with-kafka"
    NEVER = ""


def parser_of(
    description: str, figures: Sequence[str], warm_up: int, kafka: WithKafka = WithKafka.UNLESS_REFUSED
) -> ArgumentParser:
    """The options that all have."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--figures", nargs="+", choices=figures, default=figures)
    parser.add_argument("--durabilities", nargs="+", choices=DURABILITIES, default=list(DURABILITIES))
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--warm-up", type=at_least(0), default=warm_up, help="rounds before them that are not counted")
    parser.set_defaults(no_kafka=kafka is not WithKafka.UNLESS_REFUSED)
    if kafka is WithKafka.UNLESS_REFUSED:
        parser.add_argument(kafka.value, action="store_true", help="measure the bundled broker alone")
    elif kafka is WithKafka.IF_ASKED:
        parser.add_argument(kafka.value, action="store_false", dest="no_kafka", help="measure Apache Kafka, too")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too, and pictures beside it")
    parser.add_argument(
        "--directory", type=made_directory, help="where the brokers keep their data; a temporary one if not given"
    )
    return parser


def measure(options: Namespace, compare: Callable[[Rounds], Iterator[Table]]) -> None:
    """Print each of what ``compare`` gives as a table when it is there, and write all of it where ``options`` say."""
    peer = getattr(options, "beside", KAFKA)
    reason = "not asked for" if options.no_kafka else why_no_kfake() if peer == KFAKE else why_no_kafka()
    if reason is not None:
        print(f"the bundled broker alone, without {PEERS[peer]} beside it: {reason}", file=sys.stderr)
    warn_unless_optimised()
    tables: list[Table] = []
    lines = [", ".join(f"{key} {value}" for key, value in machine().items()) + f"; {options.rounds} rounds", ""]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory(prefix="dualwrite-benchmark-", dir=options.directory) as scratch:
        for done in compare(Rounds(options.rounds, options.warm_up, Path(scratch), peer if reason is None else None)):
            tables.append(done)
            lines += (shown := list(done.markdown()))
            print("\n".join(shown), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(tables, options.rounds), indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines))
        draw_beside(options.markdown)
