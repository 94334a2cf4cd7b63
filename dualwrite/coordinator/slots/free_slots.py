"""The slots that one look at the rows found free, for more than one lease."""

from collections.abc import Iterator
from dataclasses import dataclass

from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.rules.slot_rules import Candidate


@dataclass
class FreeSlots:
    """What a look found. It serves as many attempts to take a slot as it has read rows, so that one process that leases
    *n* slots reads about *n* rows and not *n* rows for each lease.

    It may be out of date: Leases.take compares each row with what was read, under the row's lock.

    :param candidates: in the order in which they are tried; each one is tried once.
    :param attempts: how many of them are tried before another look.
    :param owner: the signature for which they were chosen: a slot may be free for one signature and not for another.
    :param cluster: the Kafka cluster for which they were chosen.
    """

    candidates: Iterator[Candidate]
    attempts: int
    owner: str
    cluster: ClusterIdentity

    def suits(self, owner: str, cluster: ClusterIdentity) -> bool:
        """True if there may be one left that ``owner`` may take."""
        return self.attempts > 0 and (self.owner, self.cluster) == (owner, cluster)

    def next_left(self) -> Candidate | None:
        """The next one that may be tried without another look; None if there is none."""
        return self.next() if self.attempts > 0 else None

    def next(self) -> Candidate | None:
        """The next one, for the lease that has looked: only if none of them can be taken it gets no slot."""
        self.attempts -= 1
        return next(self.candidates, None)
