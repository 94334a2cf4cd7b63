"""One hierarchy of exceptions. Each docstring has advice for the caller; ``retriable`` has it for a program."""

from functools import cache
from typing import Any, ClassVar


class DualWriteError(Exception):
    """The base class of all errors that this library raises on purpose. Catch a subclass, unless you only report."""

    retriable: ClassVar[bool] = False
    """True if the same unit of work may be run again from its beginning: it was rolled back on both sides."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process get the error whole, as from a pool of processes. Python would call the class with the
        message alone, which not every class takes."""
        return _remade, (type(self), self.args), vars(self)


def _remade(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    made: BaseException = kind.__new__(kind, *args)  # without __init__: what it has set comes with vars()
    return made


class ConfigurationError(DualWriteError):
    """A setting is missing, unknown or invalid, or contradicts another. Correct the setting that the message names."""


class InvalidTransactionStateError(DualWriteError):
    """A method was called in a transaction state that forbids it (KIP-939: INVALID_TXN_STATE). Correct the call."""


class KafkaUnavailableError(DualWriteError):
    """No broker answered in time. The unit of work was rolled back on both sides; run it again when the cluster is
    reachable."""

    retriable = True


class AnswerLostError(KafkaUnavailableError):
    """The answer to a request was lost: the broker may or may not have carried the request out. Query the broker before
    you repeat it, unless repeating it changes nothing. After a commit, close the producer and create a new one;
    init_transactions(keep_prepared_txn=True) and complete_transaction(state) end the transaction as decided."""

    retriable = False


class KafkaRefusedError(DualWriteError):
    """The broker answered a request with an error. ``code`` and ``name`` are Kafka's; the message names the request."""

    def __init__(self, operation: str, code: int, name: str) -> None:
        super().__init__(f"{operation}: {name} ({code})")
        self.code = code
        self.name = name


class TwoPhaseCommitUnavailableError(DualWriteError):
    """The cluster cannot keep a prepared transaction, or does not permit it to this client. Use a broker with KIP-939,
    or enable ``transaction.two.phase.commit.enable`` there, or grant the TWO_PHASE_COMMIT operation on the
    transactional id. Or set ``two_phase="resume"``, whose weaker guarantee is in docs/apache-kafka.md."""


class PrepareFailedError(DualWriteError):
    """A record was not acknowledged, so the Kafka transaction cannot be prepared. The unit of work was rolled back on
    both sides; run it again."""

    retriable = True


class FencedError(DualWriteError):
    """Another process has taken over the transactional id, or Kafka has fenced its producer. The unit of work was
    rolled back on both sides; run it again. The first happens to a process that was paused for longer than
    ``lease_timeout``; the second also if the network delivered one of the producer's own requests late. If the error
    persists, check whether two databases are in use under one application name. Close a producer that you created. If
    its commit raised this error, it is not known whether the transaction is committed (docs/producing.md)."""

    retriable = True


class DecisionLostError(FencedError):
    """The database lost a commit that this process has seen. Possible causes: the promotion of an asynchronous standby,
    a restored backup, an emptied state table, or a second copy of this process from a snapshot of its memory. The unit
    of work was rolled back on both sides and may be run again. Earlier units that are now only in Kafka are on record:
    see ``DualWrite.outcomes()`` and docs/outcomes.md."""


class RebalancedError(DualWriteError):
    """Another member of the consumer's group has taken over its partitions or moved their offsets, so the records of
    this unit of work belong to that member. The unit was rolled back on both sides. Do not run it again with the same
    records: drop them, call ``seek_to_stored`` or ``seek_to_committed`` with the consumer, and poll."""


class DeadLetterError(DualWriteError):
    """Kafka refused the dead letter of a record, so the consumer's offset has not moved either, and the record is read
    again. Create the dead-letter topic, permit this client to write to it, or raise its ``max.message.bytes``; then
    restart the consumer. Kafka's answer is the ``__cause__``."""


class NoFreeSlotError(DualWriteError):
    """Every slot of the application was in use for ``acquire_timeout``. The unit of work did not begin: run it again,
    or raise ``pool_size`` or ``acquire_timeout``. The message names the processes that hold the slots."""

    retriable = True


class InDoubtError(DualWriteError):
    """The outcome of the database COMMIT is unknown, and the database does not answer now. Do NOT run the unit of work
    again: recovery, at the next use or the next start, finds the outcome and completes both sides the same way. Nothing
    records the outcome of a unit without records: look for its rows."""


class UnitCommitted(BaseException):
    """Marks every exception that leaves the block of a unit of work that WAS committed: a signal handler raised a time
    limit or an interrupt during the block's end. Do NOT run the unit again: its rows are in the database, and its
    records are in Kafka, or will be as soon as the background thread or recovery has finished. The original exception
    is the ``__cause__``.

    An Exception is raised as :class:`CommittedError`. KeyboardInterrupt, SystemExit and others that are not an
    Exception stay instances of their own class as well, so that ``except KeyboardInterrupt`` catches them."""


class CommittedError(UnitCommitted, DualWriteError):
    """The unit of work WAS committed, and then an Exception was raised at the end of its block: a time limit (Celery's
    SoftTimeLimitExceeded), or an error of your own participant. That exception is the ``__cause__``. Do NOT run the
    unit again."""


_COMMITTED = "the unit of work was committed before this was raised: do not run it again"


def committed_interrupt(original: BaseException) -> BaseException:
    """``original``, which is not an Exception, as a UnitCommitted that is also an instance of its class."""
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
    """A library table is missing, or older than this release needs. Run ``dualwrite db upgrade --db URL``."""


class CopiedDatabaseError(DualWriteError):
    """Another database wrote the state table: this database is a copy of it, or the database was moved. dualwrite does
    nothing in Kafka, because it might abort a transaction that the original has decided to commit. Run ``dualwrite db
    moved`` if the original is gone, or ``dualwrite db copied`` if this is a copy beside it."""


class ForeignClusterError(DualWriteError):
    """The address leads to another Kafka cluster than before: this process began with a different one, slots have open
    work in a different one, or a consumer's offsets in the database are of a different one. dualwrite did nothing in
    the new cluster. Restore the address of the cluster that the message names. If that cluster is gone, do what the
    message says (``dualwrite db moved`` for slots), and restart the application."""


class DatabaseUnavailableError(DualWriteError):
    """The database server cannot be reached now, accepts no connection or no writes, or has lost the unit's connection;
    or the engine's pool had no connection in time. The unit of work was rolled back on both sides, or did not begin;
    run it again when the server is back. If the error persists, check the host and the port in the message.
    SQLAlchemy's error is the ``__cause__``."""

    retriable = True


class DatabaseBusyError(DualWriteError):
    """Another transaction held the lock of the state row, or SQLite's write lock, for too long; or the database rolled
    the unit of work back because of a conflict with another transaction. Nothing was written; run the unit again. If
    the error persists, find the transaction that does not end."""

    retriable = True


class InputError(DualWriteError):
    """The input of a command is missing or malformed. Correct the input that the message names, and run the command
    again."""


class BatchChangedError(DualWriteError):
    """A batch of a Spark job was run again with other rows, or in other partitions, after a part of it was written:
    some rows would be written twice, or never. This run wrote nothing. Run it again over the same input with the
    same settings (a query that sorts or samples again may give other rows; ``df.checkpoint()`` fixes them). Or write
    the missing rows by hand, and go on with the next batch or under another job name."""


class CorruptLogError(DualWriteError):
    """A file in the broker's data directory has damaged or missing data that the broker had acknowledged. Do not delete
    the file: restore the data directory from a copy, or ask for help with the message."""
