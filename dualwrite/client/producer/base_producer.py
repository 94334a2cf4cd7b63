"""What both faces of the native producer have in common: everything but who waits."""

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.transaction_fate import ongoing_transaction
from dualwrite.client.config.native_config import NativeConfig
from dualwrite.client.encoding.batches import Headers
from dualwrite.client.engine.accumulator import OnDelivery
from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.client.engine.sender import Report
from dualwrite.client.producer.arguments import (
    HeadersGiven,
    checked_on_delivery,
    checked_partition,
    checked_timestamp,
    checked_topic,
    encoded,
    encoded_headers,
    settings_of,
)
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError, PrepareFailedError
from dualwrite.ids import PreparedTxnState

REFUSED = (InvalidTransactionStateError,)
"""What a call raises that has done nothing, as another task's is under way."""

_Record = tuple[str, bytes | None, bytes | None, int, int, Headers, OnDelivery | None]
"""The arguments of Engine.produce, without the time."""


class BaseProducer:
    """A producer without its driver.

    :param config: librdkafka's keys; docs/reference/producer.md has each of them.
    :raises ConfigurationError: if a setting is missing, unknown, refused, or out of its range; the message names it.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        made = NativeConfig.of(config)
        self._config = dict(config)
        self._client = made.client
        self._transactional_id = made.transactional_id
        self._on_delivery = made.on_delivery
        self._lingers = bool(made.linger)
        self._delivery_timeout = made.delivery_timeout
        self._engine = Engine(settings_of(made), random.randrange)
        self._process = os.getpid()
        self._has_callbacks = False
        """True if a record of this transaction has a delivery callback, which may produce another."""
        self._is_telling = False
        """True while delivery callbacks are being called."""
        self._told = 0
        """Delivery callbacks that were called."""
        self._objection: BaseException | None = None
        """What a delivery callback has raised in the call that was last."""

    def __bool__(self) -> bool:
        """True, however many records there are: whoever asks wants to know whether there is a producer."""
        return True

    def __len__(self) -> int:
        """Records that were not acknowledged yet."""
        return self._engine.unacknowledged

    @property
    def open_transaction(self) -> PreparedTxnState:
        """What names the open transaction, as far as it is known before it is prepared; empty if it is empty."""
        return self._engine.transaction.prepared

    @property
    def state(self) -> ProducerState:
        """Where the producer is."""
        return self._engine.state

    def _record(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        timestamp: int,
        headers: HeadersGiven | None,
        on_delivery: OnDelivery | None,
        callback: OnDelivery | None,
    ) -> _Record:
        """What produce() was given, as the engine takes it. Whatever this raises has cost nothing."""
        if self._process != os.getpid():
            self._check_process("produce()")
        if callback is not None:
            if on_delivery is not None:
                raise TypeError("on_delivery and callback are two names of one argument: give one of them")
            on_delivery = callback
        on_delivery = self._on_delivery if on_delivery is None else checked_on_delivery(on_delivery)
        if on_delivery is not None:
            self._has_callbacks = True
        return (
            checked_topic(topic),
            encoded(value),
            encoded(key),
            checked_partition(partition),
            checked_timestamp(timestamp) if timestamp else time.time_ns() // 1_000_000,
            encoded_headers(headers) if headers else (),
            on_delivery,
        )

    def _begin(self) -> None:
        self._enter("begin_transaction()")
        self._engine.begin_transaction()
        self._has_callbacks = self._engine.has_reports

    def _spoil(self, verb: str, error: BaseException, *harmless: type[BaseException]) -> None:
        """``verb`` raised while it added or sent records, be it a callback's error or an interrupt: a record may be on
        its way, or half taken. Whoever produces it again must not commit both: the transaction can only be aborted.

        :param harmless: errors after which it goes on, if they are no callback's.
        """
        is_callbacks, self._objection = error is self._objection, None
        if isinstance(error, harmless) and not is_callbacks:
            return
        if self._engine.state is ProducerState.IN_TRANSACTION:
            self._engine.spoil(PrepareFailedError(f"{verb} raised {type(error).__name__} ({error}): abort"))

    def _begin_verb(self, verb: Callable[..., Operation], *arguments: Any, **options: Any) -> Operation:
        return verb(*arguments, now=time.monotonic(), **options)

    def _after(self, operation: Operation | None, before: Operation | None) -> None:
        """A verb's wait is over; without the operation being done if it was interrupted or cancelled.

        :param operation: None if the verb was refused, or interrupted while it began.
        :param before: what was under way when it was called: another task's.
        """
        if operation is None:
            if self._engine.under_way is not before:
                self._engine.abandon()
            return
        if not operation.is_done:
            self._engine.abandon()
        self._report()

    def _is_driven(self) -> bool:
        """True if poll() can send or receive something: a producer that has failed can only tell its callbacks.

        :raises InvalidTransactionStateError: if it is closed.
        """
        self._enter("poll()")
        if self._engine.state is ProducerState.CLOSED:
            raise InvalidTransactionStateError("poll(): the producer is closed; make a new one")
        return self._engine.state is not ProducerState.FAILED

    @property
    def _can_wait_for_a_report(self) -> bool:
        """True if waiting brings one, or an acknowledgement: not while another task's call waits for that."""
        return len(self) > 0 and self._engine.under_way is None

    def _enter(self, verb: str) -> None:
        """A call begins that is not produce().

        :raises InvalidTransactionStateError: in another process than the producer's, and in a delivery callback, which
            is called by another call.
        """
        self._check_process(verb)
        self._refuse_in_callback(verb)

    def _refuse_in_callback(self, verb: str) -> None:
        if self._is_telling:
            raise InvalidTransactionStateError(
                f"{verb}: another call is under way, which has called this delivery callback: produce() is all that a"
                " callback may call"
            )

    def _check_process(self, verb: str) -> None:
        if self._process != os.getpid():
            raise InvalidTransactionStateError(
                f"{verb}: the producer belongs to process {self._process}; make a new one after a fork"
            )

    def _report(self) -> int:
        """Call the delivery callbacks that are due; their number. If one raises, the next call goes on after it. One
        that produces may make others due: they are called after it, not by it."""
        if self._is_telling or not self._engine.has_reports:
            return 0
        before = self._told
        self._objection = None
        self._is_telling = True
        try:
            while reports := self._engine.take_reports():
                self._call_back(reports)
        finally:
            self._is_telling = False
        return self._told - before

    def _call_back(self, reports: list[Report]) -> None:
        called = 0
        try:
            for on_delivery, error, record in reports:
                called += 1
                self._told += 1
                on_delivery(error, record)
        except BaseException as error:
            self._objection = error
            self._engine.put_back(reports[called:])
            raise

    def _report_all(self) -> None:
        """Every callback that is due is called, as no other call will; then the first error of one is raised."""
        first: Exception | None = None
        is_done = False
        while not is_done:
            try:
                is_done = not self._report()
            except Exception as error:  # noqa: BLE001 - a callback is the user's
                first = first or error
        if first is not None:
            raise first

    def _close_engine(self) -> bool:
        """False if this is not the process that made the producer: then nothing of its is to be touched."""
        if self._process != os.getpid():
            return False
        self._refuse_in_callback("close()")
        if self._engine.state is not ProducerState.CLOSED:
            self._engine.close()
        return True

    def _is_anchored(self, state: PreparedTxnState) -> bool:
        """True if the leaders must be asked what ``state`` names: see :meth:`_look_up_anchor`."""
        return state.anchor is not None and state.producer == self._engine.kept

    def _look_up_anchor(self, state: PreparedTxnState) -> PreparedTxnState:
        """``state`` as the engine can judge it. One with an anchor was written by a librdkafka producer, of which
        several transactions may have had one identity: the leaders tell which of them is open (ids.py)."""
        kept = self._engine.kept
        control = ControlPlane(self._config, timeout=self._delivery_timeout)
        try:
            ongoing = ongoing_transaction(control, self._transactional_id, kept, state)
        finally:
            control.close()
        return PreparedTxnState(kept) if state.identifies(ongoing) else PreparedTxnState()


def deadline_of(timeout: float | None) -> float:
    """When a call that may wait ``timeout`` seconds has to return, in monotonic seconds; None and -1 are for ever."""
    return NEVER if timeout is None or timeout < 0 else time.monotonic() + timeout
