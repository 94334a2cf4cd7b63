"""The order in which records are used, tried again, and put aside. Blocking and asyncio are two drivers of it.

Each attempt is a unit of work of its own with the offset of its records, so nothing of a failed one is left when the
next one begins, and a dead letter is committed with the offset after its record or not at all. A process that is killed
between two of them reads the record again.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dualwrite.coordinator.dead_letters.blame import is_of_record, reason
from dualwrite.coordinator.dead_letters.letter import (
    Failure,
    ReadRecord,
    dead_letter,
    name_of,
    next_offsets,
    require_records,
)
from dualwrite.coordinator.manager.unit_manager import UnitManager
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.sql.engine.database_errors import raise_as_library_error
from dualwrite.coordinator.sql.engine.error_meanings import transient_errors_of
from dualwrite.coordinator.steps.retry import Retrying, pause_after
from dualwrite.coordinator.unit.transaction import BaseTransaction, unit_of
from dualwrite.errors import ConfigurationError, DeadLetterError, KafkaRefusedError
from dualwrite.records.outgoing import OutgoingRecord

_LOG = logging.getLogger("dualwrite")


@dataclass
class RecordAttempt:
    """How far a unit of work has come."""

    transaction: BaseTransaction | None = None
    has_offsets: bool = False
    """True once the unit has its offsets: an error before that is no record's."""

    @property
    def is_undone(self) -> bool:
        """False if the unit has left rows all the same: its block has committed past the library."""
        return self.transaction is None or unit_of(self.transaction).is_undone

    @property
    def may_be_of_record(self) -> bool:
        """False if no record can have caused the error: it came before the unit had its offsets, or the unit has lost
        its connection, or has left rows."""
        return self.has_offsets and self.is_undone and not self._has_lost_database

    @property
    def _has_lost_database(self) -> bool:
        driver = None if self.transaction is None else unit_of(self.transaction).driver
        return driver is not None and driver.has_lost_database


class RecordUnits(Protocol):
    """Makes units of work that commit a consumer's offsets: blocking, or in a greenlet of an event loop."""

    def use(self, records: Sequence[ReadRecord], offsets: list[Any], function: Any, attempt: RecordAttempt) -> None:
        """One unit of work: commit ``offsets``, and call ``function(tx, record)`` for each of ``records``."""

    def write(self, letter: OutgoingRecord, offsets: list[Any]) -> None:
        """One unit of work: commit ``offsets``, and produce ``letter`` as it is, past the serializers."""

    def group(self) -> str:
        """The name of the consumer's group."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class DeadLetterSequence:
    """Uses records, and puts those aside that no attempt can use.

    :param units: makes the units of work.
    :param topic: the dead-letter topic.
    :param attempts: units of work for one record before it is put aside.
    :param may_pass: classes of the application's errors that are no record's fault.
    :raises ConfigurationError: if a setting is wrong.
    """

    def __init__(
        self, manager: UnitManager, units: RecordUnits, topic: str, attempts: int, may_pass: Sequence[type[Exception]]
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(f"topic={topic!r}: name the dead-letter topic")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise ConfigurationError(f"attempts={attempts!r}: say how often a record is tried, 1 or more")
        if not (isinstance(may_pass, Collection) and all(_is_exception(kind) for kind in may_pass)):
            raise ConfigurationError(f"may_pass={may_pass!r:.100}: give a tuple of classes of exceptions")
        self._manager, self._units = manager, units
        self._topic, self._attempts, self._may_pass = topic, attempts, tuple(may_pass)
        self._dialect = manager.engine.dialect
        is_transient = transient_errors_of(self._dialect)
        self._retrying = Retrying(
            attempts - 1,
            lambda error: is_transient(reason(error, self._may_pass)),
            units.sleep,
            THIS_PROCESS.chance,
        )

    def use(self, messages: Any, function: Callable[..., Any]) -> int:
        """See DeadLetters.use."""
        self._manager.require_outside()
        _require_function(function)
        records = require_records(messages, self._topic)
        with self._manager.process.consuming.failures_count():  # a unit that does not begin is begun again
            return self._use(records, function)

    def _use(self, records: Sequence[ReadRecord], function: Callable[..., Any]) -> int:
        if len(records) > 1:
            error = self._try(records, function)
            if error is None:
                return 0
            _LOG.warning(
                "a unit of work of %d records failed, and each gets a unit of its own: %s", len(records), _shown(error)
            )
        return sum(self._use_alone(record, function) for record in records)

    def _use_alone(self, record: ReadRecord, function: Callable[..., Any]) -> bool:
        """Use ``record``, or put it aside: True then."""
        for number in range(1, self._attempts + 1):
            error = self._try([record], function)
            if error is None:
                return False
            _LOG.warning("%s failed, attempt %d of %d: %s", name_of(record), number, self._attempts, _shown(error))
            if number < self._attempts:
                self._units.sleep(pause_after(number))
        assert error is not None
        self._put_aside(record, error)
        return True

    def _try(self, records: Sequence[ReadRecord], function: Callable[..., Any]) -> Exception | None:
        """Use ``records`` in one unit of work; return the error that is the fault of one of them, and raise others."""
        offsets, last = next_offsets(records), RecordAttempt()

        def once() -> None:
            nonlocal last
            last = RecordAttempt()
            self._units.use(records, offsets, function, last)

        try:
            self._retrying.run(once, lambda: last.is_undone)
        except Exception as error:
            if THIS_PROCESS.is_interrupt(error):
                raise  # a time limit's, for example
            if last.may_be_of_record and is_of_record(error, self._dialect, self._may_pass):
                return error
            raise_as_library_error(error, self._dialect)
            raise
        return None

    def _put_aside(self, record: ReadRecord, error: Exception) -> None:
        """Write the dead letter of ``record``.

        :raises DeadLetterError: if Kafka refuses it.
        """
        failure = Failure(error, self._attempts, self._units.group())
        letter = dead_letter(record, self._topic, failure)
        offsets = next_offsets([record])
        try:
            self._retrying.run(lambda: self._units.write(letter, offsets))
        except KafkaRefusedError as refused:
            raise DeadLetterError(
                f"{name_of(record)}: Kafka refused its dead letter in topic {self._topic!r} ({refused.name}), and the "
                "record stays where it is: create the topic, permit this client to write to it, or raise its "
                "max.message.bytes; then restart the consumer"
            ) from refused
        except Exception as other:
            raise_as_library_error(other, self._dialect)
            raise
        self._manager.process.counters.add("dead_letters")
        _LOG.error(
            "dead letter: %s of group %r is in topic %r now, after %d attempts: %s",
            name_of(record),
            failure.group,
            self._topic,
            failure.attempts,
            _shown(error),
        )


def _require_function(function: Any) -> None:
    """Refuse a function that cannot be called with a transaction and a record: every record would fail in it.

    :raises ConfigurationError: naming the function.
    """
    name = getattr(function, "__qualname__", repr(function)[:100])
    if not callable(function):
        raise ConfigurationError(f"{name} is not a function: give one of tx and a message")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not say what it takes
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigurationError(f"{name}{signature}: give a function of tx and a message ({error})") from None


def _shown(error: BaseException) -> str:
    """The class and the first line of ``error``."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line:.200}" if line else type(error).__name__


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)
