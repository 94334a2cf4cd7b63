"""The doctor's findings, each with advice."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Dual writes work, but the named problem can occur."""
    FAILURE = "failure"
    """Dual writes do not work, or lose their guarantee."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's output.

    :param check: the name of the check.
    :param advice: the advice for the operator; empty if there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """A finding without a problem."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, advice: str = "") -> Finding:
    """A finding that an operator should look at."""
    return Finding(check, Level.WARNING, message, advice)


def failure(check: str, message: str, advice: str = "") -> Finding:
    """A finding that prevents dual writes."""
    return Finding(check, Level.FAILURE, message, advice)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of ``findings``; OK for none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
