"""A unit of work that begins while Kafka cannot be reached: it has no slot, and so it can have no records.

It can do everything that needs the database alone. Its first record raises the error that says why, and the unit is
rolled back.
"""

from collections.abc import Sequence
from typing import Any

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.errors import FencedError, KafkaUnavailableError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord


class NoSlot:
    """The LentSlot of such a unit.

    :param refusal: why Kafka cannot be reached.
    """

    is_leased = False

    def __init__(self, application: str, refusal: KafkaUnavailableError) -> None:
        self.lease = Lease(slot_id(application, 0), 0)
        """Of no use but for its name, which a heuristic outcome of the unit goes by."""
        self._refusal = refusal

    @property
    def transactional_id(self) -> str:
        """The name of a slot that the unit has not; see LentSlot."""
        return self.lease.transactional_id

    def lend(self) -> KafkaParticipant:
        """A participant that refuses every record; see LentSlot."""
        return NoParticipant(self._refusal)

    def give_back(self, participant: KafkaParticipant) -> None:
        """Do nothing."""

    def finish_later(self) -> None:
        """Do nothing: nothing was begun in Kafka."""

    def fence(self, error: FencedError) -> None:
        """Do nothing: no other process can take a slot that this unit has not."""


class NoParticipant:
    """A KafkaParticipant that begins no transaction."""

    is_reusable = False
    is_committing = False

    def __init__(self, refusal: KafkaUnavailableError) -> None:
        self._refusal = refusal

    def begin_transaction(self) -> None:
        """Refuse.

        :raises KafkaUnavailableError: always.
        """
        raise self._refusal

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def produce(self, record: OutgoingRecord) -> None:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def prepare_transaction(self) -> PreparedTxnState:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def commit_transaction(self) -> None:
        """Refuse; see :meth:`begin_transaction`."""
        raise self._refusal

    def abort_transaction(self) -> None:
        """Do nothing: nothing was begun."""

    def close(self) -> None:
        """Do nothing."""
