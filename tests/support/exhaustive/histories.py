"""Every history of a scenario with up to N faults, all of those with N - 1 before the first with N.

For what is no value and so has no states that can be compared: the coordinator on a real database, the native
producer's engine. A scenario asks a ``Chooser`` wherever something may go wrong.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from math import inf

from tests.support.exhaustive.states import BrokenPropertyError


class Chooser:
    """Answers 0 (no fault) to every question but those that the script says otherwise about."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.options: list[int] = []

    def choose(self, options: int) -> int:
        place = len(self.options)
        self.options.append(options)
        return self.script[place] if place < len(self.script) else 0


Scenario = Callable[[Chooser], Iterable[str]]
"""One history: raises AssertionError if an always-property is broken, and returns what it has shown of the others."""


@dataclass(frozen=True)
class HistoryModel:
    """A scenario, to be run with every combination of faults.

    :param name: a short word.
    :param about: what it searches, in a line.
    :param opened: gives the scenario, in the place where all of its histories run.
    :param asserted: the names of what must always hold.
    :param events: the names of what must have happened in some history.
    :param least: the faults that a search for some minutes reaches however long that takes. All of ``events`` are met
        there.
    """

    name: str
    about: str
    opened: Callable[[], AbstractContextManager[Scenario]]
    asserted: Sequence[str] = ()
    events: Sequence[str] = ()
    least: int = 1


@dataclass
class HistoriesRun:
    """What the histories have shown.

    :param faults: every history with up to so many faults was run; -1 if not even those without one.
    :param is_complete: there are no others.
    :param choices: how often a scenario has asked.
    :param most_choices: the most that one history has asked.
    """

    faults: int = -1
    is_complete: bool = False
    histories: int = 0
    choices: int = 0
    most_choices: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def run_histories(scenario: Scenario, *, faults: float = inf, seconds: float = inf, least: float = 0) -> HistoriesRun:
    """Run ``scenario`` with no fault, one, two, and so on, until one of the bounds is reached.

    :param least: the faults that are searched however long that takes.
    :raises BrokenPropertyError: if an always-property does not hold; with the fewest faults that show it.
    """
    began = last = time.perf_counter()
    found = HistoriesRun()
    scripts: Iterator[tuple[int, ...]] = iter([()])
    for level in count():
        done = _run_level(scenario, scripts, inf if level <= least else began + seconds)
        if done is None:
            break
        part, ran = done
        _add(found, part)
        found.faults = level
        following, now = sum(1 for _ in _one_more(ran)), time.perf_counter()
        found.is_complete = not following
        each = (now - last) / part.histories
        last = now
        is_too_long = level >= least and each * following > began + seconds - now
        if found.is_complete or level >= faults or is_too_long:
            break
        scripts = _one_more(ran)
    found.seconds = time.perf_counter() - began
    return found


Ran = list[tuple[tuple[int, ...], list[int]]]
"""The scripts of the histories that were run, and how many answers there were to each question."""


def _one_more(ran: Ran) -> Iterator[tuple[int, ...]]:
    """The scripts with one fault more, after the last one of each."""
    for script, options in ran:
        for place in range(len(script), len(options)):
            quiet = (0,) * (place - len(script))
            for choice in range(1, options[place]):
                yield (*script, *quiet, choice)


def _run_level(scenario: Scenario, scripts: Iterator[tuple[int, ...]], until: float) -> tuple[HistoriesRun, Ran] | None:
    """Run ``scripts``; None if there was no time for all of them."""
    part, ran = HistoriesRun(), Ran()
    for script in scripts:
        if time.perf_counter() > until:
            return None
        chooser = Chooser(script)
        try:
            seen = {*scenario(chooser)}
        except BaseException as error:
            faults = [f"answer {answer} to question {place}" for place, answer in enumerate(script) if answer]
            raise BrokenPropertyError(
                f"with the faults {script}: {error!r}\n{len(faults)} faults show it, and no fewer: {', '.join(faults)}"
            ) from error
        ran.append((script, chooser.options))
        part.histories += 1
        part.choices += len(chooser.options)
        part.most_choices = max(part.most_choices, len(chooser.options))
        part.seen.update(seen)
    return part, ran


def _add(found: HistoriesRun, part: HistoriesRun) -> None:
    found.histories += part.histories
    found.choices += part.choices
    found.most_choices = max(found.most_choices, part.most_choices)
    found.seen.update(part.seen)
