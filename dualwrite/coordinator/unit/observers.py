"""Who may watch units of work: told when each begins and ends, and each of its steps, for metrics and traces.

Nobody watches unless asked to, and then a unit of work costs one test more for each step.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from dualwrite.coordinator.concurrency.step_errors import is_from_signal_handler
from dualwrite.coordinator.rules.machine import Result, Step

_LOG = logging.getLogger("dualwrite")


class UnitObserver(Protocol):
    """Told about one unit of work, in the thread (or the event loop's) that runs it. Be quick: it waits.

    Whatever it raises is logged and changes nothing, but for interrupts and for what a signal handler raises in the
    midst of it (a time limit): those are the unit's. ``on_step`` is for making steps fail.
    """

    def slot_taken(self, transactional_id: str) -> None:
        """The unit of work has a slot, which was recovered if that was needed; its steps follow."""

    def step_began(self, step: Step) -> None:
        """``step`` is about to be performed; never Step.RUN."""

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """``step`` succeeded, or raised ``error``."""

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """The unit of work is over.

        :param result: how it ended; None if it never got a slot, or was given up in the middle.
        :param error: the first one that turned it away from success, if any did.
        """


class Observer(Protocol):
    """Watches the units of work of a DualWrite; see ``DualWrite.add_observer``."""

    def unit_began(self) -> UnitObserver:
        """A unit of work begins, and waits for a slot. Told about that unit from now on is what this returns."""


class Watch:
    """The observers of one unit of work, none of which can do it any harm."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._units: list[UnitObserver] = []
        for observer in observers:
            _safely(lambda observer=observer: self._units.append(observer.unit_began()))

    def slot_taken(self, transactional_id: str) -> None:
        """See UnitObserver, as with the next three."""
        for unit in self._units:
            _safely(unit.slot_taken, transactional_id)

    def step_began(self, step: Step) -> None:
        """See UnitObserver."""
        for unit in self._units:
            _safely(unit.step_began, step)

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """See UnitObserver."""
        for unit in self._units:
            _safely(unit.step_ended, step, error)

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """See UnitObserver."""
        for unit in self._units:
            _safely(unit.ended, result, error)


class Observed:
    """What can be watched."""

    _observers: tuple[Observer, ...] = ()

    def add_observer(self, observer: Observer) -> None:
        """Have ``observer`` told of every unit of work that begins from now on, and of its steps. In forked children,
        too."""
        self._observers = (*self._observers, observer)

    def _watch(self) -> Watch | None:
        """The watch over a unit of work that begins now; None if nobody watches."""
        return Watch(self._observers) if self._observers else None


def no_observer(step: str) -> None:
    """The ``on_step`` where none was given."""


def _safely(tell: Callable[..., None], *what: object) -> None:
    try:
        tell(*what)
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        # A unit of work does not fail for who watches it.
        _LOG.exception("an observer of units of work failed")
