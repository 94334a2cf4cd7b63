"""What the doctor says: one finding after the other, each with what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and something that is named can go wrong."""
    FAILURE = "failure"
    """Dual writes do not work, or do not keep their promise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's.

    :param check: what was looked at.
    :param advice: what to do; empty if there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """A finding that is as it should be."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, advice: str = "") -> Finding:
    """A finding that somebody should look at."""
    return Finding(check, Level.WARNING, message, advice)


def failure(check: str, message: str, advice: str = "") -> Finding:
    """A finding that keeps dual writes from working."""
    return Finding(check, Level.FAILURE, message, advice)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst of them; OK for none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
