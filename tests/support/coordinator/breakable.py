"""What negative controls of the coordinator replace; see tests/support/breakable.py."""

from typing import Any

from sqlalchemy import delete

from dualwrite.coordinator.replay import replay
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome
from dualwrite.coordinator.steps import driver
from tests.support.breakable import Breakable

STEP_ACTIONS = Breakable(driver, "_ACTIONS")
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
