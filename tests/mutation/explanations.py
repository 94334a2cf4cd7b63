"""Why mutants may survive: the groups of ``explained.yaml``, each with patterns of the changes that it explains."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from tests.mutation.mutants import Mutant

EXPLAINED = Path(__file__).with_name("explained.yaml")


@dataclass(frozen=True)
class ChangePattern:
    """Changes that one sentence explains.

    :param file: below ``dualwrite``, with the wildcards of a shell.
    :param function: with its class; with wildcards, too.
    :param was: a regular expression, which occurs in the lines before the change.
    :param now: one that occurs in the lines after it.
    :param why: of these mutants alone.
    """

    file: str = "*"
    function: str = "*"
    was: str = ""
    now: str = ""
    why: str = ""

    def explains(self, mutant: Mutant) -> bool:
        """Whether ``mutant`` is one of the changes."""
        return (
            fnmatchcase(mutant.file.removeprefix("dualwrite/"), self.file)
            and fnmatchcase(mutant.function, self.function)
            and re.search(self.was, mutant.was) is not None
            and re.search(self.now, mutant.now) is not None
        )


@dataclass(frozen=True)
class Explanation:
    """A group of survivors, with the one reason of all of them."""

    title: str
    reason: str
    patterns: Sequence[ChangePattern]

    def pattern_of(self, mutant: Mutant) -> ChangePattern | None:
        """The first pattern that explains ``mutant``."""
        return next((pattern for pattern in self.patterns if pattern.explains(mutant)), None)


def read_explanations(path: Path = EXPLAINED) -> list[Explanation]:
    """The groups, in the order of the file."""
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Explanation(group["title"], group["reason"], [ChangePattern(**pattern) for pattern in group["patterns"]])
        for group in groups
    ]


def explanation_of(mutant: Mutant, explanations: Sequence[Explanation]) -> Explanation | None:
    """The first group that explains ``mutant``."""
    return next((each for each in explanations if each.pattern_of(mutant)), None)
