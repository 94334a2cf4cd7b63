"""The part of a slot that a unit of work uses."""

from typing import Protocol

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.errors import FencedError


class LentSlot(Protocol):
    """A Slot, as its unit of work uses it."""

    @property
    def lease(self) -> Lease:
        """See Slot."""

    @property
    def transactional_id(self) -> str:
        """The slot's name in Kafka and in the state table; see Slot."""

    @property
    def is_leased(self) -> bool:
        """False for a unit of work that has begun without Kafka, and so without a lease."""

    def lend(self) -> KafkaParticipant:
        """Lend the participant of a ready slot; see Slot."""

    def give_back(self, participant: KafkaParticipant) -> None:
        """Take back a participant without an open transaction; see Slot."""

    def finish_later(self) -> None:
        """Recover in the background; see Slot."""

    def fence(self, error: FencedError) -> None:
        """Note that the slot is lost; see Slot."""
