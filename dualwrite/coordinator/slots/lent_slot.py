"""The part of a slot that a unit of work uses."""

from typing import Protocol

from dualwrite.coordinator.ports import KafkaParticipant, Lease
from dualwrite.errors import FencedError


class LentSlot(Protocol):
    """A Slot, as its unit of work uses it."""

    @property
    def lease(self) -> Lease:
        """See Slot."""

    @property
    def transactional_id(self) -> str:
        """See Slot."""

    def lend(self) -> KafkaParticipant:
        """See Slot."""

    def give_back(self, participant: KafkaParticipant) -> None:
        """See Slot."""

    def finish_later(self) -> None:
        """See Slot."""

    def fence(self, error: FencedError) -> None:
        """See Slot."""
