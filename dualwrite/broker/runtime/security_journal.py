"""Changes of the users' credentials at run time, in the journal of the cluster."""

from collections.abc import Callable, Iterable

from dualwrite.broker.access.scram_credentials import UserCredentials
from dualwrite.broker.core.cluster import ClusterState
from dualwrite.broker.core.credential_changes import CredentialChange, CredentialResult, decide_changes
from dualwrite.broker.facts.cluster import ClusterFact
from dualwrite.broker.facts.credentials import DecoySecretCreated
from dualwrite.ports import Entropy

_SECRET_BYTES = 32


class SecurityJournal:
    """The part of the cluster that keeps its users and their credentials. Belongs to the event loop's thread.

    :param record: applies facts to ``state`` and appends them to the journal, all of them or none.
    """

    def __init__(self, state: ClusterState, record: Callable[..., None], entropy: Entropy) -> None:
        self._state = state
        self._record = record
        self._entropy = entropy

    @property
    def credentials(self) -> UserCredentials:
        """The credentials of all users."""
        return self._state.credentials

    def change_credentials(self, changes: Iterable[CredentialChange]) -> list[CredentialResult]:
        """Carry out the allowed ``changes``, and say for each user how it went. The caller waits at the flusher's
        barrier before it replies. A change does not end existing sessions, as in Kafka."""
        results, facts = decide_changes(changes, self.credentials)
        if facts:
            first: list[ClusterFact] = []
            if not self.credentials.decoy_secret:
                first.append(DecoySecretCreated(self._entropy.random_bytes(_SECRET_BYTES)))
            self._record(*first, *facts)
        return results
