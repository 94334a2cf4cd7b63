"""An observer that records its notifications."""

from typing import Any

from sqlalchemy import insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.machine import Result, Step
from tests.support.coordinator.event_table import events


class Recorder:
    """Notes what it is told. ``raises`` makes it a bad one."""

    def __init__(self, raises: type[BaseException] | None = None) -> None:
        self.told: list[Any] = []
        self._raises = raises

    def unit_began(self) -> "Recorder":
        return self.note("began") or self

    def slot_taken(self, transactional_id: str) -> None:
        self.note(transactional_id)

    def step_began(self, step: Step) -> None:
        self.note(step.name)

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        self.note(f"/{step.name}" if error is None else f"/{step.name}: {error}")

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        self.note((result, error))

    def note(self, what: Any) -> None:
        self.told.append(what)
        if self._raises is not None:
            raise self._raises("of the observer")


def write(dual_write: DualWrite, value: str = "one") -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value=value)
