"""The table of the ablations: how many seeds of a thousand notice that a safeguard is missing, and which anomaly."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.simulation.ablations import ABLATIONS, Ablation
from tests.support.simulation.oracle import name_of
from tests.support.simulation.search import Found, search, search_in_processes


class AblationRow(NamedTuple):
    """What the seeds have found without one safeguard."""

    ablation: Ablation
    found: Found

    @property
    def per_thousand(self) -> float:
        """Failing seeds in a thousand."""
        return 1000 * len(self.found.anomalies) / max(self.found.seeds, 1)

    @property
    def anomalies(self) -> str:
        """The names, the most frequent first."""
        counted = Counter(map(name_of, self.found.anomalies.values()))
        return ", ".join(name for name, _ in counted.most_common())


def ablation_rows(first: int, seeds: int, processes: int) -> Iterator[AblationRow]:
    """Search without each safeguard."""
    for ablation in ABLATIONS.values():
        if processes == 1:
            found = search(first, seeds, ablation.name)
        else:
            found = search_in_processes(first, seeds, processes, ablation.name)
        yield AblationRow(ablation, found)


def markdown_of(rows: Iterable[AblationRow]) -> str:
    """The table, in Markdown."""
    lines = [
        "| safeguard | `--ablation` | failures per 1,000 seeds | seeds run | anomalies | first seed |",
        "|---|---|---:|---:|---|---:|",
    ]
    for row in rows:
        first = f" {min(row.found.anomalies)}" if row.found.anomalies else ""
        rate, seeds = f"{round(row.per_thousand, 1):,g}", f"{row.found.seeds:,}"
        what, name = row.ablation.safeguard, row.ablation.name
        lines.append(f"| {what} | `{name}` | {rate} | {seeds} | {row.anomalies or 'none'} |{first} |")
    return "\n".join(lines) + "\n"
