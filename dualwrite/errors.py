"""One tree of exceptions. The docstring of each says what the caller should do; ``retriable`` says it to a program."""

from functools import cache
from typing import Any, ClassVar


class DualWriteError(Exception):
    """The root of everything that this library raises on purpose. Catch a leaf, not this, unless you only report."""

    retriable: ClassVar[bool] = False
    """True if the same unit of work may be run again from its beginning: nothing of it is left on either side."""


class ConfigurationError(DualWriteError):
    """A setting is missing, unknown or contradicts another. Correct the one that the message names."""


class InvalidTransactionStateError(DualWriteError):
    """A transaction verb was called in a state that forbids it (KIP-939: INVALID_TXN_STATE). Correct the caller."""


class KafkaUnavailableError(DualWriteError):
    """No broker answered in time. Nothing is left of the unit of work; run it again when the cluster is reachable."""

    retriable = True


class AnswerLostError(KafkaUnavailableError):
    """A request was sent and its answer never came: the broker may or may not have carried it out. Ask the broker what
    is the case before the request is repeated, unless repeating it changes nothing. After a commit: close the producer
    and make a new one; init_transactions(keep_prepared_txn=True) and complete_transaction(state) bring the transaction
    to the end that was decided."""

    retriable = False


class KafkaRefusedError(DualWriteError):
    """The broker answered with an error: ``code`` and ``name`` are Kafka's. The message says what was asked of it."""

    def __init__(self, what: str, code: int, name: str) -> None:
        super().__init__(f"{what}: {name} ({code})")
        self.code = code
        self.name = name


class TwoPhaseCommitUnavailableError(DualWriteError):
    """The cluster cannot keep a prepared transaction, or does not let this client. Use a broker with KIP-939, or enable
    ``transaction.two.phase.commit.enable`` there, or grant the TWO_PHASE_COMMIT operation on the transactional id; or
    say ``two_phase="resume"``, and know what that gives up (docs/apache-kafka.md)."""


class PrepareFailedError(DualWriteError):
    """A record was not acknowledged, so the Kafka transaction cannot be prepared. Both sides were rolled back; run the
    unit of work again."""

    retriable = True


class FencedError(DualWriteError):
    """Another process has taken over the transactional id, or Kafka says that its producer is out of date, which may be
    the work of a request of its own that the network delivered late. Of a unit of work nothing is left on either side;
    run it again. The first happens to whoever was paused for longer than ``lease_timeout``; if it goes on, see whether
    two databases are in use under one application name. A producer of your own must be closed."""

    retriable = True


class DecisionLostError(FencedError):
    """The database no longer holds what this process has seen it commit: an asynchronous standby was promoted, a backup
    was restored, the state table was emptied; or the process itself runs twice, from a snapshot with its memory. The
    unit of work was rolled back on both sides and may be run again. What is now in Kafka alone is on record: see
    ``DualWrite.outcomes()`` and docs/outcomes.md."""


class RebalancedError(DualWriteError):
    """The consumer's partitions, or their offsets, have gone on in another member of its group: the records of this
    unit of work are that one's. Nothing is left on either side. Do not run the unit again with the records in hand:
    drop them, call ``seek_to_stored`` or ``seek_to_committed`` with the consumer, and poll."""


class NoFreeSlotError(DualWriteError):
    """Every slot of the application was in use for as long as a unit of work may wait. Nothing was begun: run it again,
    or raise ``pool_size`` or ``acquire_timeout``. The message says who holds the slots."""

    retriable = True


class InDoubtError(DualWriteError):
    """The outcome of the database COMMIT is unknown, and the database cannot be asked now. Do NOT run the unit of work
    again: recovery, at the next use or the next start, finds out and completes both sides the same way."""


class UnitCommitted(BaseException):
    """Marks every exception that leaves the block of a unit of work which WAS committed: a time limit or an interrupt
    out of a signal handler struck the block's end. Do NOT run the unit again: its rows are in the database, and its
    records are in Kafka, or will be as soon as the background or recovery has finished. What struck is the cause.

    An Exception that struck is raised as :class:`CommittedError`. KeyboardInterrupt, SystemExit and others that are no
    Exception stay instances of their own class, too, so that ``except KeyboardInterrupt`` catches them."""


class CommittedError(UnitCommitted, DualWriteError):
    """The unit of work WAS committed, and an Exception struck the end of its block: a time limit (Celery's
    SoftTimeLimitExceeded), or an error of a participant of your own. It is the cause. Do NOT run the unit again."""


_COMMITTED = "the unit of work was committed before this struck: do not run it again"


def committed_interrupt(original: BaseException) -> BaseException:
    """``original``, which is no Exception, as a UnitCommitted that is an instance of its class as well."""
    kind: Any = _committed_kind(type(original))  # type: ignore[arg-type]  # classes are hashable
    made: BaseException = kind.__new__(kind, *original.args)
    made.__dict__.update(original.__dict__)
    if isinstance(original, SystemExit) and isinstance(made, SystemExit):
        made.code = original.code
    return made


@cache
def _committed_kind(kind: type[BaseException]) -> Any:
    def reduce(self: BaseException) -> tuple[Any, ...]:
        original = kind.__new__(kind, *self.args)
        original.__dict__.update(self.__dict__)
        return committed_interrupt, (original,)

    def text(self: BaseException) -> str:
        said = kind.__str__(self)
        return f"{said}: {_COMMITTED}" if said else _COMMITTED

    namespace = {"__doc__": kind.__doc__, "__reduce__": reduce, "__str__": text}
    return type(f"Committed{kind.__name__}", (UnitCommitted, kind), namespace)


class DatabaseNotReadyError(DualWriteError):
    """A table of the library's is missing, or older than this release needs. Run ``dualwrite db upgrade --db URL``."""


class CopiedDatabaseError(DualWriteError):
    """The state table was written by another database, of which this one is a copy, or which has moved here. Nothing is
    done in Kafka, where it might abort what the original has decided. Run ``dualwrite db moved`` if the original is
    gone, or ``dualwrite db copied`` if this is a copy beside it."""


class ForeignClusterError(DualWriteError):
    """Another Kafka cluster answers than the one that this process began with, or the one in which slots were left.
    Nothing was done there. Lead the address back to the one that the message names; or run ``dualwrite db moved`` if it
    is gone, and restart the application."""


class DatabaseUnavailableError(DualWriteError):
    """The database's server cannot be reached now, or lets nobody in. Nothing was begun; run it again when it is back.
    If it goes on, see whether the host and the port in the message are right."""

    retriable = True


class DatabaseBusyError(DualWriteError):
    """Another transaction held the state row, or SQLite's write lock, for too long. Nothing was written; run the unit
    of work again. If it goes on, find the transaction that does not end."""

    retriable = True


class InputError(DualWriteError):
    """The input that a command was given is missing or malformed. Correct what the message names and run it again."""


class BatchChangedError(DualWriteError):
    """A batch of a Spark job was run again with other rows, or in other partitions, after some of it was written: some
    rows would be written twice, or never. Nothing was written by this run. Run it again over the same input with the
    same settings (a query that orders or samples anew gives other rows; ``df.checkpoint()`` fixes them), or finish what
    is missing by hand and go on with the next batch, or under another name of the job."""


class CorruptLogError(DualWriteError):
    """A file of the broker's data directory contradicts itself in a place that was already acknowledged. Do not delete
    it: restore the data directory from a copy, or ask for help with the message."""
