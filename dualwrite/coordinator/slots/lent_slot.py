"""What a unit of work needs of the slot that it uses."""

from typing import Protocol

from dualwrite.coordinator.ports import KafkaParticipant, Lease
from dualwrite.errors import FencedError


class LentSlot(Protocol):
    """Of a Slot, what a unit of work needs."""

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
