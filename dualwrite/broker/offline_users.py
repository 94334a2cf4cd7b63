"""The users of a broker that is not running: the first users must exist before a broker without open listeners starts.

Kafka has ``kafka-storage format --add-scram`` for this.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dualwrite.broker.access.scram_credentials import SALT_BYTES, ScramHash, salted_password
from dualwrite.broker.core.cluster import ClusterState
from dualwrite.broker.core.credential_changes import (
    CredentialChange,
    CredentialResult,
    DeleteCredential,
    DescribedUser,
    SetCredential,
    describe_users,
)
from dualwrite.broker.facts.cluster import ClusterFact, decode_fact, encode_fact
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.process.data_lock import exclusive
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.broker.process.system import SystemClock, SystemEntropy
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY
from dualwrite.broker.runtime.journaling import unreadable
from dualwrite.broker.runtime.security_journal import SecurityJournal
from dualwrite.errors import ConfigurationError
from dualwrite.records.batch import Record


class OfflineUsers:
    """The users in a data directory, which is locked while this is in use. See :func:`open_users`."""

    def __init__(self, journal: Journal, state: ClusterState) -> None:
        self._journal = journal
        self._state = state
        self._entropy = SystemEntropy()
        self._security = SecurityJournal(state, self._record, self._entropy)

    def describe(self) -> list[DescribedUser]:
        """All users with their credentials, without secrets."""
        return list(describe_users(None, self._security.credentials))

    def put(self, user: str, scrams: Sequence[ScramHash], iterations: int, password: bytes) -> list[CredentialResult]:
        """Set the credentials of ``user`` for ``scrams``, each with a new salt. They are on disk on return."""
        return self._change([self._new_credential(user, scram, iterations, password) for scram in scrams])

    def delete(self, user: str, scrams: Sequence[ScramHash]) -> list[CredentialResult]:
        """Delete the credentials of ``user`` for ``scrams``, durably."""
        return self._change([DeleteCredential(user, scram) for scram in scrams])

    def _new_credential(self, user: str, scram: ScramHash, iterations: int, password: bytes) -> SetCredential:
        salt = self._entropy.random_bytes(SALT_BYTES)
        return SetCredential(user, scram, iterations, salt, salted_password(scram, iterations, salt, password))

    def _change(self, changes: Sequence[CredentialChange]) -> list[CredentialResult]:
        """Carry out ``changes``, each as a request of its own: KIP-554 allows one for each user.

        :raises ConfigurationError: if the disk fails. The next start has each of them as a whole, or not at all.
        """
        try:
            results = [result for change in changes for result in self._security.change_credentials([change])]
            self._journal.log.checkpoint()
        except OSError as error:
            raise ConfigurationError(
                f"cannot write {error.filename or self._journal.log.directory}: {error.strerror}; the users may have"
                f" been changed or not"
            ) from None
        return results

    def _record(self, *facts: ClusterFact) -> None:
        now_ms = SystemClock().wall_ms()
        for fact in facts:
            self._state.apply(fact)
        self._journal.append([Record(*encode_fact(fact), now_ms) for fact in facts])


@contextmanager
def open_users(data_dir: Path, create: bool = False) -> Iterator[OfflineUsers]:
    """The users in ``data_dir``.

    :param create: begin a new data directory if there is none.
    :raises ConfigurationError: if a broker runs on it, or there is no data directory of a broker.
    :raises CorruptLogError: if its journal is damaged.
    """
    directory = data_dir / JOURNAL_DIRECTORY
    if not create and not directory.is_dir():
        raise ConfigurationError(f"data directory {data_dir}: there is no broker's data in it")
    with exclusive(data_dir, 0, ": use --bootstrap-server HOST:PORT while it runs"):
        state = ClusterState()

        def replay(record: Record) -> None:
            assert record.key is not None, "a cluster fact has a key"
            try:
                state.apply(decode_fact(record.key, record.value))
            except (ValueError, AssertionError) as error:
                raise unreadable(directory, record, error) from error

        try:
            journal = Journal.open(DiskFiles(), directory, replay)
        except OSError as error:
            raise ConfigurationError(f"cannot open {error.filename or directory}: {error.strerror}") from None
        try:
            yield OfflineUsers(journal, state)
        finally:
            journal.log.close()
