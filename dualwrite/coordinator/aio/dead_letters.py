"""AsyncDeadLetters: DeadLetters under asyncio. The same sequence of attempts runs in a greenlet."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.manager import AsyncUnitManager
from dualwrite.coordinator.aio.transaction import AsyncBlock, AsyncTransaction
from dualwrite.coordinator.dead_letters.dead_letters import OffsetPlace, commit_method
from dualwrite.coordinator.dead_letters.letter import ReadRecord
from dualwrite.coordinator.dead_letters.sequence import DeadLetterSequence, RecordAttempt
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.offsets.consumers import member_of_consumer, require_consumer
from dualwrite.coordinator.process.greenlets import greenlet_spawn, wait_for
from dualwrite.coordinator.unit.transaction import driver_of
from dualwrite.errors import ConfigurationError
from dualwrite.records.outgoing import OutgoingRecord


class AsyncDeadLetters:
    """DeadLetters for an AsyncDualWrite: ``await letters.use(messages, function)``, with ``async def function(tx,
    message)``.

    :param dual_write: the AsyncDualWrite of the units of work.
    :param consumer: a confluent_kafka.aio.AIOConsumer, or a confluent_kafka.Consumer that is polled in a thread.

    All other parameters, and the errors, are those of DeadLetters.
    """

    def __init__(
        self,
        dual_write: AsyncDualWrite,
        consumer: Any,
        topic: str,
        *,
        offsets: OffsetPlace,
        attempts: int = 3,
        may_pass: Sequence[type[Exception]] = (),
    ) -> None:
        _require_dual_write(dual_write)
        manager = manager_of(dual_write)
        require_consumer(manager.awaited(consumer))
        self._manager = manager
        units = _AwaitedUnits(manager, consumer, commit_method(offsets))
        self._sequence = DeadLetterSequence(manager, units, topic, attempts, may_pass)

    async def use(self, messages: Sequence[Any], function: Callable[[AsyncTransaction, Any], Awaitable[object]]) -> int:
        """Await ``function(tx, message)`` for each of ``messages``, in units of work that commit the consumer's
        offsets; see DeadLetters.use.

        :returns: the number of records that were put aside.
        :raises DeadLetterError: if Kafka refuses a dead letter; nothing of its record is committed.
        """
        self._manager.check_loop()
        return await greenlet_spawn(self._sequence.use, messages, function)


class _AwaitedUnits:
    """The units of work of an AsyncDualWrite; see RecordUnits. The methods run in a greenlet of the caller's task."""

    def __init__(self, manager: AsyncUnitManager, consumer: Any, commit: str) -> None:
        self._manager, self._consumer, self._commit = manager, consumer, commit

    def use(self, records: Sequence[ReadRecord], offsets: list[Any], function: Any, attempt: RecordAttempt) -> None:
        """One unit of work: commit ``offsets``, and await ``function(tx, record)`` for each of ``records``."""
        wait_for(self._used(records, offsets, function, attempt))

    def write(self, letter: OutgoingRecord, offsets: list[Any]) -> None:
        """One unit of work: commit ``offsets``, and produce ``letter``."""
        wait_for(self._written(letter, offsets))

    def group(self) -> str:
        """The name of the consumer's group."""
        return member_of_consumer(self._manager.awaited(self._consumer)).group_id

    def sleep(self, seconds: float) -> None:
        """Wait, and let other tasks run."""
        wait_for(asyncio.sleep(seconds))

    async def _used(
        self, records: Sequence[ReadRecord], offsets: list[Any], function: Any, attempt: RecordAttempt
    ) -> None:
        async with AsyncBlock(self._manager, is_repeated=True) as tx:
            attempt.transaction = tx
            await getattr(tx, self._commit)(self._consumer, offsets)
            attempt.has_offsets = True
            for record in records:
                made = function(tx, record)
                if not inspect.isawaitable(made):
                    raise ConfigurationError(f"{function!r:.100} is no coroutine function: define it by async def")
                await made

    async def _written(self, letter: OutgoingRecord, offsets: list[Any]) -> None:
        async with AsyncBlock(self._manager, is_repeated=True) as tx:
            await getattr(tx, self._commit)(self._consumer, offsets)
            await greenlet_spawn(driver_of(tx).produce, letter)


def _require_dual_write(dual_write: Any) -> None:
    if not isinstance(dual_write, AsyncDualWrite):
        hint = "use DeadLetters" if hasattr(dual_write, "transaction") else "give an AsyncDualWrite"
        raise ConfigurationError(f"AsyncDeadLetters of a {type(dual_write).__name__}: {hint}")
