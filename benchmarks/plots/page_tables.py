"""The tables of a page in Markdown, as the benchmarks write them: the one place where measured figures stand."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_HEADING = re.compile(r"#{2,} (.+)")
_RULE = re.compile(r"\|[-:| ]+\|")
_NUMBER = r"(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?)"
_MEASURED = re.compile(rf"{_NUMBER}(?: \({_NUMBER} to {_NUMBER}\))?")


class Measured(NamedTuple):
    """A cell: a median, and the lowest and the highest round."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class PageTable:
    """One table.

    :param heading: the heading above it.
    :param lines: the lines of the page that it has, first and last.
    """

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, int]

    def column(self, title: str) -> list[str]:
        """The cells below ``title``."""
        index = self.header.index(title)
        return [row[index] for row in self.rows]

    @property
    def text(self) -> str:
        """All that a picture of it depends on."""
        return "\n".join(" | ".join(row) for row in ((self.heading,), self.header, *self.rows))


def tables_of(lines: Sequence[str]) -> Iterator[PageTable]:
    """Every table of the page that has ``lines``, in order."""
    heading = ""
    for number, line in enumerate(lines):
        found = _HEADING.fullmatch(line)
        if found:
            heading = found[1]
        elif _RULE.fullmatch(line):
            last = number
            while last + 1 < len(lines) and lines[last + 1].startswith("|"):
                last += 1
            rows = tuple(_cells(each) for each in lines[number + 1 : last + 1])
            yield PageTable(heading, _cells(lines[number - 1]), rows, (number - 1, last))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip()[1:-1].split("|"))


def measured(cell: str) -> Measured | None:
    """What the benchmarks have written to ``cell``; None if it is anything else."""
    found = _MEASURED.fullmatch(cell)
    if found is None:
        return None
    numbers = [float(each.replace(",", "")) for each in found.groups() if each is not None]
    return Measured(numbers[0], *(numbers[1:] or numbers * 2))
