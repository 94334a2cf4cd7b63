"""Output of the verbs for operators: tables, durations, and JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. Each column is as wide as its longest text."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """The time since ``moment`` in its largest unit; empty for None."""
    if moment is None:
        return ""
    seconds = max(0, round(((now or datetime.now(timezone.utc)) - moment).total_seconds()))
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds // size} {unit}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 transaction``, ``2,000 transactions``; ``plural`` if it is not the noun with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def print_either(document: Any, lines: Iterable[str], *, is_json: bool) -> None:
    """Print the result of a command on stdout: ``document`` for programs, or ``lines`` for people."""
    if is_json:
        print_json(document)
        return
    for line in lines:
        print(line)


def print_json(value: Any) -> None:
    """Print ``value`` on stdout, see :func:`as_json_text`."""
    print(as_json_text(value))


def as_json_text(value: Any, *, is_line: bool = False) -> str:
    """``value`` as JSON; enumerations by name, moments in ISO 8601.

    :param is_line: in one line, instead of indented.
    """
    return json.dumps(value, indent=None if is_line else 2, default=_plain)


def printable(text: str) -> str:
    """``text`` in one line, with escapes for what a terminal would not print, or would obey."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def complain(message: str) -> None:
    """Print one line on stderr, in the form of main.py's errors."""
    print("dualwrite: " + " ".join(message.split()), file=sys.stderr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.name.lower()
    raise TypeError(type(value).__name__)
