"""What negative controls of the coordinator replace; see tests/support/breaking/breakable.py."""

from contextlib import suppress
from typing import Any

from sqlalchemy import delete

from dualwrite.coordinator.replay import replay
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome
from dualwrite.coordinator.steps import driver
from dualwrite.errors import DualWriteError
from tests.support.breaking.breakable import Breakable

STEP_ACTIONS = Breakable(driver, "_ACTIONS")
COLLECTED_COMMIT = Breakable(Slot, "collect_commit")
REPLAYS = Breakable(replay.Replayer, "_produce")


def replay_that_stores_no_state(self: Any, slot: Any, outcome: int, lost: Any) -> None:
    """In place of REPLAYS: produce the lost records again, and commit them before the database knows of it."""
    participant = slot.lend()
    participant.begin_transaction()
    for record in lost:
        participant.produce(record)
    participant.prepare_transaction()
    participant.commit_transaction()
    self._observe("REPLAYED")
    slot.give_back(participant)
    with self._engine.begin() as connection:
        connection.execute(delete(kafka_transaction_outcome))


_collect_commit = Slot.collect_commit


def commit_whose_failure_is_forgotten(self: Slot, *, wait: bool) -> None:
    """In place of COLLECTED_COMMIT: after a failure the slot is ready, as if nothing had been open."""
    with suppress(DualWriteError):
        _collect_commit(self, wait=wait)
    if self._participant is not None and not self._is_ready and self.user is not None:
        self._participant = self._factory()
        self._participant.init_transactions()
        self._is_ready = True
