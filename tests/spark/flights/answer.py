"""What must come of the flights, in plain Python; and what is wrong with what came."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from dualwrite.testing.kafka import ConsumedRecord
from tests.spark.flights.source import Row

LATE = 15
_SHOWN = 5


class Delays:
    """The table ``delays`` as it must be after the flights that were added, by the key of its records."""

    def __init__(self, airlines: Iterable[Row], airports: Iterable[Row]) -> None:
        self._airlines = {row["carrier"]: row["name"] for row in airlines}
        self._airports = {row["faa"]: row["name"] for row in airports}
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, flight: Row) -> str:
        """Count one more; the key of the row that it changed."""
        day, carrier, origin = flight["time_hour"][:10], flight["carrier"], flight["origin"]
        key = f"{day}/{carrier}/{origin}"
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = {
                "day": day,
                "carrier": carrier,
                "origin": origin,
                "airline": self._airlines[carrier],
                "airport": self._airports[origin],
                **dict.fromkeys(("flights", "cancelled", "late", "minutes"), 0),
            }
        delay = flight["dep_delay"]
        row["flights"] += 1
        row["cancelled"] += delay is None
        row["late"] += delay is not None and delay >= LATE
        row["minutes"] += delay or 0
        return key

    def batch(self, flights: Iterable[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Key and value of the records that a batch of ``flights`` must bring: each row that it changes, once."""
        for key in {self.add(flight) for flight in flights}:
            yield key, dict(self.rows[key])


@dataclass(slots=True)
class Findings:
    """What was compared, and what was found to be wrong; all of it but ``rows`` and ``records`` must be 0."""

    rows: int = 0
    records: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, what: object) -> None:
        """Something is wrong."""
        self.wrong[kind] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{kind}: {what}")


def compare_table(expected: Mapping[str, Row], table: Iterable[Row]) -> Findings:
    """Compare the rows of the table with those that it must have."""
    found = Findings()
    seen: set[str] = set()
    for row in table:
        plain = {name: value.isoformat() if isinstance(value, date) else value for name, value in row.items()}
        key = "{day}/{carrier}/{origin}".format_map(plain)
        found.rows += 1
        seen.add(key)
        if key not in expected:
            found.add("row of no flight", key)
        elif plain != expected[key]:
            found.add("row with another value", f"{plain}, not {expected[key]}")
    for key in expected.keys() - seen:
        found.add("row missing", key)
    return found


def compare_topic(expected: Iterable[tuple[str, Row]], records: Iterable[ConsumedRecord]) -> Findings:
    """Compare the records of the topic, in the order of each partition, with those that the batches must bring.

    Of one key, each record counts more flights than the one before: key and number of flights say which one it is.
    """
    found = Findings()
    wanted = {(key, value["flights"]): value for key, value in expected}
    seen: set[tuple[str, int]] = set()
    last: dict[str, int] = {}
    for record in records:
        key, value = (record.key or b"").decode(), json.loads(record.value or b"{}")
        version = key, value.get("flights", 0)
        found.records += 1
        if version in seen:
            found.add("record twice", version)
        elif version not in wanted:
            found.add("record of no batch", version)
        elif value != wanted[version]:
            found.add("record with another value", f"{value}, not {wanted[version]}")
        elif version[1] < last.get(key, 0):
            found.add("record behind a newer one", version)
        seen.add(version)
        last[key] = version[1]
    for version in wanted.keys() - seen:
        found.add("record missing", version)
    return found


def batches(checkpoint: Path, flights: Iterable[ConsumedRecord]) -> Iterator[list[Row]]:
    """The flights of each batch: those below the offsets that Spark noted in ``checkpoint`` before it began."""
    left: dict[int, list[ConsumedRecord]] = {}
    for record in sorted(flights, key=lambda each: (each.partition, each.offset), reverse=True):
        left.setdefault(record.partition, []).append(record)
    notes = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    for note in notes:
        ends = json.loads(note.read_text(encoding="utf-8").splitlines()[-1])["flights"]
        yield [json.loads(each.value or b"") for each in _below({int(p): end for p, end in ends.items()}, left)]


def _below(ends: Mapping[int, int], left: Mapping[int, Sequence[ConsumedRecord]]) -> Iterator[ConsumedRecord]:
    for partition, end in ends.items():
        records = left.get(partition, [])
        while records and records[-1].offset < end:
            yield records.pop()
