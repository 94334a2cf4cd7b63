"""The native producer under asyncio: the verbs of ``two_phase_producer.py``, awaited, over the same engine."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer.arguments import member_of, offsets_of, one_callback
from dualwrite.client.producer.base_producer import REFUSED, BaseProducer
from dualwrite.client.terms.verbs import ProducerState, Verb
from dualwrite.ids import PreparedTxnState, require_prepared_state
from dualwrite.records.outgoing import HeadersGiven, OnDelivery, OutgoingRecord

_HARMLESS = (*REFUSED, asyncio.CancelledError)
"""Exceptions that may end a wait without harm, because the call has taken nothing."""


class AsyncTwoPhaseProducer(BaseProducer):
    """The native producer for asyncio: its verbs are awaited.

    :class:`~dualwrite.client.producer.two_phase_producer.TwoPhaseProducer` says what each verb does and raises.

    The producer belongs to the event loop in which it is first used, and to the process that made it. It runs one call
    at a time: a second call while another is in progress raises InvalidTransactionStateError. Concurrent units of work
    need producers of their own.

    A call that is cancelled, also by a timeout, has failed. Requests that were sent stay sent:

    - produce(), flush(): the transaction goes on, and the producer still sends its records.
    - send_offsets_to_transaction(), prepare_transaction(): the transaction can only be aborted.
    - init, commit, abort, complete: the outcome is unknown, as after an error. Call close() and make a new producer.
      Its init_transactions(keep_prepared_txn=True) and complete_transaction(state) end the transaction. If
      commit_transaction() was still sending records, its cancellation counts as that of flush(): the producer's state
      tells which.

    The loop's executor looks up host names. The loop calls ``oauth_cb``.

    :param config: as for TwoPhaseProducer.
    :param make_driver: makes the driver of the sockets; another one is for tests.
    :raises ConfigurationError: if a setting is missing, unknown, refused, or out of its range; the message names it.
    """

    def __init__(
        self, config: Mapping[str, Any], *, make_driver: Callable[[Engine, ClientSettings], AsyncDriver] = AsyncDriver
    ) -> None:
        super().__init__(config)
        self._driver = make_driver(self._engine, self._client)

    async def __aenter__(self) -> "AsyncTwoPhaseProducer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Initialize the producer; see TwoPhaseProducer."""
        self._enter("init_transactions()")
        await self._wait(self._engine.init_transactions, keep_prepared_txn=keep_prepared_txn)

    async def begin_transaction(self) -> None:
        """Begin a transaction; see TwoPhaseProducer. Awaits nothing; asynchronous so that all verbs are awaited
        alike."""
        self._begin()

    async def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersGiven | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Add a record to the transaction; see TwoPhaseProducer. Awaits only while the buffer is full."""
        self._check_process("produce()")
        on_delivery = one_callback(on_delivery, callback)
        record = OutgoingRecord(topic, value, key, partition, timestamp, headers, on_delivery)
        is_taken, timestamp_ms = False, self._time_ns() // 1_000_000
        try:
            while not (is_taken := self._engine.produce(record, timestamp_ms, self._monotonic())):
                await self._wait(self._engine.room)  # delivery callbacks that produce may have filled the buffer again
            if self._engine.has_news or self._lingers:  # the driver needs a timer for a batch that lingers
                self._driver.pump()
                self._report()
        except BaseException as error:
            self._mark_abortable("produce()", error, *(() if is_taken else _HARMLESS))
            raise

    async def send_offsets_to_transaction(self, positions: Iterable[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets in the transaction; see TwoPhaseProducer."""
        self._enter("send_offsets_to_transaction()")
        offsets, member = offsets_of(positions), member_of(group_metadata)
        await self._wait(self._engine.send_offsets_to_transaction, offsets, member)

    async def poll(self, timeout: float = 0.0) -> int:
        """Call the delivery callbacks that are due; see TwoPhaseProducer. While the loop runs, the producer sends and
        receives without poll()."""
        before = self._reported
        if self._is_driven():
            self._driver.pump()
        self._report()
        if timeout != 0 and self._reported == before and self._can_wait_for_a_report:
            await self._wait(self._engine.await_report, until=self._deadline_of(timeout))
        return self._reported - before

    async def flush(self, timeout: float | None = None) -> int:
        """Send every record and wait for the acknowledgements; see TwoPhaseProducer."""
        self._enter("flush()")
        await self._flush("flush()", self._deadline_of(timeout))
        return len(self)

    async def prepare_transaction(self) -> PreparedTxnState:
        """Prepare the transaction; see TwoPhaseProducer."""
        self._enter("prepare_transaction()")
        if self._engine.has_callbacks and self._engine.state is ProducerState.IN_TRANSACTION:
            await self._flush("prepare_transaction()")
        prepared: PreparedTxnState = await self._wait(self._engine.prepare_transaction)
        return prepared

    async def complete_transaction(self, state: PreparedTxnState) -> TransactionResult:
        """Commit or abort the prepared transaction; see TwoPhaseProducer."""
        self._enter("complete_transaction()")
        require_prepared_state(state)
        if self._is_anchored(state):
            state = await asyncio.to_thread(self._look_up_anchor, state)
        ended: TransactionResult = await self._wait(self._engine.complete_transaction, PreparedTxnState(state.producer))
        return ended

    async def commit_transaction(self) -> TransactionResult:
        """Commit the transaction; see TwoPhaseProducer."""
        self._enter("commit_transaction()")
        if self._engine.state is ProducerState.IN_TRANSACTION:
            # The wait was cancelled, or a callback raised, before the transaction was decided.
            await self._flush("commit_transaction()")
        ended: TransactionResult = await self._wait(self._engine.commit_transaction)
        return ended

    async def abort_transaction(self) -> TransactionResult:
        """Abort the transaction; see TwoPhaseProducer."""
        self._enter("abort_transaction()")
        ended: TransactionResult = await self._wait(self._engine.abort_transaction)
        return ended

    async def close(self) -> None:
        """Close every connection; see TwoPhaseProducer. Cancels a call that is in progress in another task. Does
        nothing in a forked process: the event loop is the parent's."""
        if self._close_engine():
            await self._driver.close()
            self._report_all()

    async def _flush(self, verb: str, until: float = NEVER) -> None:
        """Flush the records of ``verb``, and then those that delivery callbacks have produced."""
        try:
            await self._wait(self._engine.flush, until=until)
            while len(self) and self._monotonic() < until:
                await self._wait(self._engine.flush, until=until)
        except BaseException as error:
            # If a prepare is cancelled, its outcome is unknown.
            self._mark_abortable(verb, error, *(REFUSED if verb == Verb.PREPARE.value else _HARMLESS))
            raise

    async def _wait(self, verb: Callable[..., Operation], *arguments: Any, **options: Any) -> Any:
        before, operation = self._engine.under_way, None
        try:
            operation = self._begin_verb(verb, *arguments, **options)
            return await self._driver.wait(operation)
        finally:
            self._after(operation, before)
