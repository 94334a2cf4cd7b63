"""Cost against size: what grows faster than the number of its partitions, connections, segments, slots, records or open
transactions?

    python -m benchmarks.growth [--figures partitions topics connections segments slots records transactions] [--large]
                                [--sizes 1 10 ...] [--json FILE] [--markdown FILE] [--directory DIR]

Each size is measured on a broker of its own. A table has the values at each size, and the exponents between neighbours:
1 is linear growth, and 0 none. A line of one item (one record, one connection) has exponent 0 when the whole grows
linearly. What grows faster than linearly between the two largest sizes is marked. ``--large`` goes on to the largest
sizes; ``--sizes`` sets them, for one figure.
"""

import json
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.growth import of_broker, of_units
from benchmarks.growth.of_broker import GrowthSite
from benchmarks.growth.tables import GrowthTable
from benchmarks.plots.beside import draw_beside
from benchmarks.report import machine, warn_unless_optimised
from benchmarks.rounds import at_least, made_directory


@dataclass(frozen=True)
class GrowthFigure:
    """One kind of size.

    :param large: the sizes of a long run, in addition.
    """

    title: str
    measure: Callable[[GrowthSite, int], Sample]
    sizes: tuple[int, ...]
    large: tuple[int, ...]


FIGURES: Mapping[str, GrowthFigure] = {
    "partitions": GrowthFigure("partitions of a topic", of_broker.partitions, (10, 100, 1000), (9900,)),
    "topics": GrowthFigure("topics", of_broker.topics, (10, 100, 1000), (5000,)),
    "connections": GrowthFigure("connections", of_broker.connections, (1, 10, 100, 1000), (4900,)),
    "segments": GrowthFigure("segments of a log", of_broker.segments, (1, 10, 100), (1000,)),
    "transactions": GrowthFigure("open transactions", of_broker.open_transactions, (1, 10, 100, 1000), (10_000,)),
    "records": GrowthFigure("records of a unit of work", of_units.records, (1, 10, 100, 1000, 10_000), (100_000,)),
    "slots": GrowthFigure("slots of an application", of_units.slots, (1, 10, 100), (1000,)),
}


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--figures", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--large", action="store_true", help="the largest sizes, too")
    parser.add_argument("--sizes", type=at_least(1), nargs="+", help="these sizes, for one figure")
    parser.add_argument("--json", type=Path, help="write every value to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too, and pictures beside it")
    parser.add_argument("--directory", type=made_directory, help="where the data is; a temporary one if not given")
    options = parser.parse_args()
    if options.sizes and len(options.figures) != 1:
        parser.error("--sizes: name one figure")
    warn_unless_optimised()
    lines = [", ".join(f"{key} {value}" for key, value in machine().items()), ""]
    print("\n".join(lines))
    tables = []
    for name in options.figures:
        figure = FIGURES[name]
        sizes = sorted(set(options.sizes or figure.sizes + figure.large * options.large))
        table = GrowthTable(figure.title, {size: _measure(figure, size, options.directory) for size in sizes})
        lines += (shown := list(table.markdown()))
        print("\n".join(shown), flush=True)
        tables.append(table)
    if options.json is not None:
        content = {"machine": machine(), "figures": [table.as_json() for table in tables]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines))
        draw_beside(options.markdown)


def _measure(figure: GrowthFigure, size: int, directory: Path | None) -> Sample:
    with tempfile.TemporaryDirectory(prefix="dualwrite-growth-", dir=directory) as scratch:
        return figure.measure(GrowthSite(Path(scratch)), size)


if __name__ == "__main__":
    main()
