"""Scenarios of one case that wait at the same time, so that the case takes as long as the longest of them."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from tests.support.conformance.subject import Subject
from tests.support.waiting import PATIENCE_SECONDS

SeenT = TypeVar("SeenT")
ActorT = TypeVar("ActorT")

Steps = Generator[None, None, None]
"""The steps of a scenario: it yields while it waits."""

_PAUSE_SECONDS = 0.05


def until(look: Callable[[], SeenT], wanted: Callable[[SeenT], bool]) -> Generator[None, None, SeenT]:
    """What ``look`` sees once ``wanted`` is true of it. It looks once in a round of all scenarios."""
    while not wanted(seen := look()):
        yield
    return seen


def run_together(
    broker: Subject, set_up: Callable[[Subject], ActorT], scenarios: Iterable[Callable[[ActorT], Steps]]
) -> None:
    """Run ``scenarios``, each with names of its own, and note what each has noted. In a round each goes on for as long
    as it need not wait.

    :param set_up: makes what a scenario begins with. No scenario begins before all of them have it, so that rounds are
        short.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    with contextlib.ExitStack() as open_views:
        named = {scenario.__name__.replace("_", " "): scenario for scenario in scenarios}
        views = {label: open_views.enter_context(Subject(broker.bootstrap_servers)) for label in named}
        actors = {label: set_up(view) for label, view in views.items()}
        running = {label: scenario(actors[label]) for label, scenario in named.items()}
        while running := {label: steps for label, steps in running.items() if _goes_on(steps)}:
            assert time.monotonic() < deadline, list(running)
            time.sleep(_PAUSE_SECONDS)
        for label, view in views.items():
            broker.include(label, view)


def _goes_on(steps: Steps) -> bool:
    try:
        next(steps)
    except StopIteration:
        return False
    return True
