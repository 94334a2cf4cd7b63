"""Kafka's side of a dual write, as Protocols.

The driver and recovery use these Protocols only. ``kafka/native.py`` and ``kafka/librdkafka.py`` implement
KafkaParticipant; the tests have a fake that can fail at every call.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord


class KafkaParticipant(Protocol):
    """One transactional id on Kafka: KIP-939's producer methods under Python names.

    Not thread-safe. Every method may raise KafkaUnavailableError (retriable), KafkaRefusedError, FencedError (another
    producer took over) and InvalidTransactionStateError (wrong order of calls). After any error of commit or abort,
    close the participant and make a new one; its producer epoch is never used again.
    """

    @property
    def is_reusable(self) -> bool:
        """False if a request in flight could still reach a later transaction, though every call succeeded. Then close
        the participant; recovery makes a new one, and its epoch fences that request."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id. Abort its open transaction, unless
        ``keep_prepared_txn``.

        :raises FencedError: after a completed ``init_transactions(keep_prepared_txn=True)``, if a transaction is open
            again: another process has begun it. Where Kafka cannot keep it, it is aborted instead.
        """

    def begin_transaction(self) -> None:
        """Begin a transaction; local: sends no request."""

    def produce(self, record: OutgoingRecord) -> None:
        """Add a record to the transaction; it is sent in the background. Its ``on_delivery(error, message)`` is called
        as by confluent-kafka."""

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447). After an error: abort.

        :param positions: the next offset to read of each partition, as confluent_kafka.TopicPartition.
        :param group_metadata: the result of the consumer's ``consumer_group_metadata()``.
        :raises KafkaRefusedError: with the group coordinator's code, for example if the member's generation is over.
        """

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush; return the state that identifies the transaction, after every record was acknowledged.

        :raises PrepareFailedError: if a record was not acknowledged under this producer's one id and epoch. Abort.
        """

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise. Only after
        ``init_transactions(keep_prepared_txn=True)`` or :meth:`prepare_transaction`.

        After the former, a heuristic Outcome reports that the transaction of ``state`` ended otherwise, as far as that
        can be known.
        """

    def commit_transaction(self) -> None:
        """Commit. An error leaves the outcome unknown. After a DualWriteError, the participant's own, the unit of work
        is finished in the background. Any other error counts as a time limit and is also raised to the caller."""

    def abort_transaction(self) -> None:
        """Abort. An error leaves the outcome unknown."""

    def close(self) -> None:
        """Release sockets and threads. Leaves an open transaction open. Never raises; a second call does nothing."""


@runtime_checkable
class ProducesMany(Protocol):
    """A KafkaParticipant that adds many records faster than by single calls."""

    def produce_many(self, records: Iterable[OutgoingRecord]) -> None:
        """Like KafkaParticipant.produce for one record after the other."""


@runtime_checkable
class ProducesAtOnce(Protocol):
    """A KafkaParticipant to which an event loop's thread can add most records without blocking."""

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """Like KafkaParticipant.produce, if that would neither wait, nor send, nor call a delivery callback. Otherwise
        add nothing and return False."""


def produce_at_once_of(participant: object) -> Callable[[OutgoingRecord], bool] | None:
    """The method of ``participant``, if it is a ProducesAtOnce; else None. Asked for each unit of work, so not by
    isinstance, which looks up the members of a Protocol each time."""
    return getattr(participant, "produce_at_once", None)


@runtime_checkable
class SendsRecords(Protocol):
    """A KafkaParticipant that can send its records before it is prepared, while the database works."""

    def send_records(self) -> None:
        """Send every record that was added, without waiting for the answers: ``prepare_transaction`` waits for them."""


@runtime_checkable
class CommitsInBackground(Protocol):
    """A KafkaParticipant that can send a commit, and take in its answer at a later call.

    ``begin_transaction`` and ``abort_transaction`` first wait for the answer to a commit that was sent, and raise its
    error, as any later call does.
    """

    @property
    def is_committing(self) -> bool:
        """True from :meth:`send_commit` until its answer was collected; after an error for ever."""

    def send_commit(self) -> None:
        """Like KafkaParticipant.commit_transaction, but do not wait for the answer."""

    def collect_commit(self, *, wait: bool) -> bool:
        """Collect the answer to :meth:`send_commit`, and raise what commit_transaction would have raised.

        :param wait: False to look only whether the answer has arrived.
        :returns: True if no answer is missing any more.
        """


def commits_in_background(participant: object) -> CommitsInBackground | None:
    """``participant``, if it can send a commit without waiting for its answer; else None."""
    return participant if isinstance(participant, CommitsInBackground) else None


@runtime_checkable
class NamesOpenTransaction(Protocol):
    """A KafkaParticipant that can name its transaction before the transaction is prepared."""

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction, as far as it is known without a request; else the empty state."""


def name_of_open_transaction(participant: KafkaParticipant) -> PreparedTxnState:
    """The state that names the open transaction of ``participant``; the empty state if that is not known."""
    return participant.open_transaction if isinstance(participant, NamesOpenTransaction) else PreparedTxnState()


@runtime_checkable
class NamesLeftTransaction(Protocol):
    """Recovers a transactional id, and can name the predecessor's open transaction before that is ended."""

    def name_left_transaction(self) -> PreparedTxnState:
        """After ``init_transactions(keep_prepared_txn=True)``: the state that names the transaction that is still open,
        neither committed nor aborted; the empty state if there is none."""


def name_of_left_transaction(participant: object) -> PreparedTxnState:
    """The state that names the transaction that ``participant`` found open; the empty state if that is not known."""
    return participant.name_left_transaction() if isinstance(participant, NamesLeftTransaction) else PreparedTxnState()


@runtime_checkable
class LooksUpCommits(Protocol):
    """Recovers a transactional id, and can look up whether an earlier transaction of it was committed."""

    def has_committed(self, state: PreparedTxnState) -> bool:
        """After ``complete_transaction``: True if Kafka has committed the transaction of ``state``, as far as its log
        tells."""


def has_committed(participant: object, state: PreparedTxnState) -> bool:
    """True if Kafka has committed the transaction of ``state``, as far as ``participant`` can tell."""
    return isinstance(participant, LooksUpCommits) and participant.has_committed(state)
