"""Observers of units of work, for metrics and traces: called when each begins and ends, and for each of its steps.

Without an observer, a unit of work costs one additional test per step.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from dualwrite.coordinator.rules.machine import Result, Step
from dualwrite.ids import TopicPartition

_LOG = logging.getLogger("dualwrite")


class UnitObserver(Protocol):
    """Observes one unit of work, in the thread (or the event loop's) that runs it. The unit waits: return quickly.

    Exceptions of an observer are logged and change nothing, but for interrupts and for exceptions of a signal handler
    (a time limit) during the call: those count as the unit's. Use ``on_step`` to make steps fail.
    """

    def slot_taken(self, transactional_id: str) -> None:
        """The unit of work has a slot, recovered if necessary; its steps follow."""

    def step_began(self, step: Step) -> None:
        """``step`` is about to be performed; never Step.RUN."""

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """``step`` has ended: ``error`` is its exception, None if it succeeded."""

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """The unit of work is over.

        :param result: how it ended; None if it never got a slot, or was given up in the middle.
        :param error: the first error that prevented its success, if any.
        """


@runtime_checkable
class OffsetsObserver(Protocol):
    """A UnitObserver that has this method, too, is also called for consumers' offsets."""

    def offsets_added(self, group_id: str, offsets: Mapping[TopicPartition, int], in_database: bool) -> None:
        """The unit of work has got offsets of a consumer group, which are committed if the unit is.

        :param offsets: by partition, the offset of the next record to read. Of several calls for one partition the
            last one counts.
        :param in_database: True for ``tx.store_offsets``, False for ``tx.send_offsets``.
        """


class Observer(Protocol):
    """Observes the units of work of a DualWrite; see ``DualWrite.add_observer``."""

    def unit_began(self) -> UnitObserver:
        """A unit of work begins, and waits for a slot. Return the UnitObserver of that unit."""


class UnitObservers:
    """The observers of one unit of work. Their errors cannot make it fail.

    :param is_interrupt: True for an exception of a signal handler, which is not an observer's error.
    """

    def __init__(self, observers: Sequence[Observer], is_interrupt: Callable[[BaseException], bool]) -> None:
        self._is_interrupt = is_interrupt
        self._units: list[UnitObserver] = []
        for observer in observers:
            self._safely(lambda observer=observer: self._units.append(observer.unit_began()))

    def slot_taken(self, transactional_id: str) -> None:
        """See UnitObserver, as with the next three."""
        for unit in self._units:
            self._safely(unit.slot_taken, transactional_id)

    def step_began(self, step: Step) -> None:
        """``step`` is about to be performed; see UnitObserver."""
        for unit in self._units:
            self._safely(unit.step_began, step)

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """``step`` has ended; see UnitObserver."""
        for unit in self._units:
            self._safely(unit.step_ended, step, error)

    def offsets_added(self, group_id: str, offsets: Mapping[TopicPartition, int], *, in_database: bool) -> None:
        """The unit of work has got offsets of a consumer group; see OffsetsObserver."""
        for unit in self._units:
            if isinstance(unit, OffsetsObserver):
                self._safely(unit.offsets_added, group_id, offsets, in_database)

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """The unit of work is over; see UnitObserver."""
        for unit in self._units:
            self._safely(unit.ended, result, error)

    def _safely(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            if self._is_interrupt(error):
                raise
            # An observer does not make a unit of work fail.
            _LOG.exception("an observer of units of work failed")


def no_observer(step: str) -> None:
    """The default for ``on_step``; does nothing."""
