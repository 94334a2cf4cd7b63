"""Output of the verbs for operators: tables, durations, and JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from dualwrite.operations.phrases import counted as counted
from dualwrite.operations.phrases import printable as printable
from dualwrite.operations.phrases import since as since


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. Each column is as wide as its longest text. Cells that another program wrote may have any
    letters, which are shown with escapes."""
    lines = [[printable(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def print_either(document: Any, lines: Iterable[str], *, is_json: bool) -> None:
    """Print the result of a command on stdout: ``document`` for programs, or ``lines`` for people. These may have
    names with any letters, which are shown with escapes."""
    if is_json:
        print_json(document)
        return
    for line in lines:
        print(printable(line))


def print_json(value: Any) -> None:
    """Print ``value`` on stdout, see :func:`as_json_text`."""
    print(as_json_text(value))


def as_json_text(value: Any, *, is_line: bool = False) -> str:
    """``value`` as JSON; enumerations by name, moments in ISO 8601.

    :param is_line: in one line, instead of indented.
    """
    return json.dumps(value, indent=None if is_line else 2, default=_plain)


def complain(message: str) -> None:
    """Print one line on stderr, in the form of main.py's errors. Names in it are shown with escapes."""
    print("dualwrite: " + printable(" ".join(message.split())), file=sys.stderr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.name.lower()
    raise TypeError(type(value).__name__)
