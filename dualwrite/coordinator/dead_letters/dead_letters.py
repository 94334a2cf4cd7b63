"""DeadLetters: a record that no attempt can use goes to a dead-letter topic, and the consumer goes on behind it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

from dualwrite.coordinator.dead_letters.letter import ReadRecord
from dualwrite.coordinator.dead_letters.sequence import DeadLetterSequence, RecordAttempt
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.offsets.consumers import KafkaConsumer, member_of_consumer, require_consumer
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.unit.block import Block
from dualwrite.coordinator.unit.transaction import Transaction, driver_of
from dualwrite.errors import ConfigurationError
from dualwrite.records.outgoing import OutgoingRecord

OffsetPlace = Literal["stored", "committed"]
"""Where the consumer's offsets are: in the database, or in Kafka."""

COMMITS = {"stored": "store_offsets", "committed": "send_offsets"}
"""The method of ``tx`` for each."""


class DeadLetters:
    """Uses a consumer's records in units of work, and puts a record aside that makes each of its units fail.

    ``letters.use(consumer.consume(100, 0.5), function)`` calls ``function(tx, message)`` for each record, in one unit
    of work for all of them, with the consumer's offsets. If that unit fails, each record gets a unit of its own. A
    record that fails ``attempts`` times is produced to the dead-letter topic, in one more unit of work, which commits
    the offset after it: both, or neither, through any crash.

    A dead letter has the record's key, value, timestamp and headers as bytes. More headers say where the record came
    from, and why it failed: docs/dead-letters.md lists them. ``dw.counters.dead_letters`` counts dead letters, and each
    is logged at ERROR.

    Only errors that are the record's fault count as failures: those of ``function`` and of the unit's end, if they are
    neither this library's nor about the state of a server. Kafka or the database that is down, a lost lease, a
    rebalance, an outcome in doubt and an interrupt put no record aside.

    :param dual_write: the DualWrite of the units of work.
    :param consumer: a confluent_kafka.Consumer that returns bytes; see ``tx.send_offsets`` and ``tx.store_offsets``.
    :param topic: the dead-letter topic. Create it before the first dead letter, and let it keep larger records than the
        topics that the consumer reads: a dead letter has more headers.
    :param offsets: "stored" for ``tx.store_offsets``, with ``on_assign=dw.seek_to_stored``; "committed" for
        ``tx.send_offsets``, with ``on_assign=dw.seek_to_committed``.
    :param attempts: units of work for one record before it is put aside. Between them are pauses of 0.05 s, twice that,
        and so on to 2 s. Errors that may pass, such as a deadlock, are tried again as often, and then raised.
    :param may_pass: classes of your own errors that are not the fault of a record: of a web service that ``function``
        calls, for example. They are raised at once.
    :raises ConfigurationError: if a setting is wrong.
    :raises TypeError: if ``consumer`` is not such a consumer.
    """

    def __init__(
        self,
        dual_write: DualWrite,
        consumer: KafkaConsumer,
        topic: str,
        *,
        offsets: OffsetPlace,
        attempts: int = 3,
        may_pass: Sequence[type[Exception]] = (),
    ) -> None:
        _require_dual_write(dual_write)
        require_consumer(consumer)
        units = _BlockingUnits(dual_write, consumer, commit_method(offsets))
        self._sequence = DeadLetterSequence(manager_of(dual_write), units, topic, attempts, may_pass)

    def use(self, messages: Sequence[Any], function: Callable[[Transaction, Any], object]) -> int:
        """Call ``function(tx, message)`` for each of ``messages``, in units of work that commit the consumer's offsets.

        ``function`` may be called several times for one record; what it does outside of ``tx`` should be harmless then.
        After any error that leaves this method, call ``dw.seek_to_stored(consumer)`` or
        ``dw.seek_to_committed(consumer)``, and poll again, or end: the records before the one that failed are used, and
        the others are read again.

        :param messages: records that the consumer has returned, without errors (``message.error()``), in their order.
        :returns: the number of records that were put aside.
        :raises DeadLetterError: if Kafka refuses a dead letter; nothing of its record is committed.
        :raises TypeError: for anything but records of bytes; ValueError for a message that is an error of the consumer.
        :raises ConfigurationError: if ``function`` does not take ``tx`` and a message, or is a coroutine function; or
            if a record comes from the dead-letter topic itself.
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises DualWriteError: and other errors of ``dw.transaction()``, ``tx.store_offsets`` and ``tx.send_offsets``.
            If it is ``retriable``, or a RebalancedError, seek and poll. An error of ``function`` that is not the
            record's fault is raised as it is.
        """
        return self._sequence.use(messages, function)


class _BlockingUnits:
    """The units of work of a DualWrite; see RecordUnits."""

    def __init__(self, dual_write: DualWrite, consumer: KafkaConsumer, commit: str) -> None:
        self._manager, self._consumer, self._commit = manager_of(dual_write), consumer, commit
        self.sleep = THIS_PROCESS.sleep

    def use(self, records: Sequence[ReadRecord], offsets: list[Any], function: Any, attempt: RecordAttempt) -> None:
        """One unit of work: commit ``offsets``, and call ``function(tx, record)`` for each of ``records``."""
        with Block(self._manager, is_repeated=True) as tx:
            attempt.transaction = tx
            getattr(tx, self._commit)(self._consumer, offsets)
            attempt.has_offsets = True
            for record in records:
                made = function(tx, record)
                if inspect.isawaitable(made):
                    made.close() if inspect.iscoroutine(made) else None
                    raise ConfigurationError(f"{function!r:.100} is a coroutine function: use it with AsyncDeadLetters")

    def write(self, letter: OutgoingRecord, offsets: list[Any]) -> None:
        """One unit of work: commit ``offsets``, and produce ``letter``."""
        with Block(self._manager, is_repeated=True) as tx:
            getattr(tx, self._commit)(self._consumer, offsets)
            driver_of(tx).produce(letter)

    def group(self) -> str:
        """The name of the consumer's group."""
        return member_of_consumer(self._consumer).group_id


def commit_method(offsets: str) -> str:
    """The method of ``tx`` that commits offsets that are in ``offsets``.

    :raises ConfigurationError: if that is no such place.
    """
    if offsets not in COMMITS:
        raise ConfigurationError(f"offsets={offsets!r}: use 'stored' or 'committed'")
    return COMMITS[offsets]


def _require_dual_write(dual_write: Any) -> None:
    if not isinstance(dual_write, DualWrite):
        hint = "use AsyncDeadLetters" if hasattr(dual_write, "transaction") else "give a DualWrite"
        raise ConfigurationError(f"DeadLetters of a {type(dual_write).__name__}: {hint}")
