"""The common part of the blocking and the asyncio producer: everything but the waiting."""

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.contract import NEVER, Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.client.engine.sender import Report
from dualwrite.client.fate.transaction_fate import ongoing_transaction
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError, PrepareFailedError
from dualwrite.ids import PreparedTxnState

REFUSED = (InvalidTransactionStateError,)
"""Raised by a call that did nothing because another task's call is still in progress."""


class ProducerRuntime(NamedTuple):
    """What a producer asks of the process that it runs in.

    :param monotonic: monotonic seconds.
    :param time_ns: nanoseconds since the epoch.
    :param randrange: as ``random.randrange``.
    """

    monotonic: Callable[[], float] = time.monotonic
    time_ns: Callable[[], int] = time.time_ns
    randrange: Callable[[int], int] = random.randrange


SYSTEM_RUNTIME = ProducerRuntime()
"""The system's clocks and randomness."""


class BaseProducer:
    """A producer without its driver.

    :param config: librdkafka's keys; docs/reference/producer.md describes each of them.
    :param runtime: the clocks and the randomness; another one is for tests.
    :raises ConfigurationError: if a setting is missing, unknown, refused, or out of its range; the message names it.
    """

    def __init__(self, config: Mapping[str, Any], runtime: ProducerRuntime = SYSTEM_RUNTIME) -> None:
        made = ProducerSettings.of(config)
        self._config = dict(config)
        self._client = made.client
        self._transactional_id = made.transactional_id
        self._lingers = bool(made.linger)
        self._delivery_timeout = made.delivery_timeout
        self._monotonic, self._time_ns, randrange = runtime
        self._engine = Engine(made, randrange)
        self._process = os.getpid()
        self._is_telling = False
        """True while delivery callbacks are being called."""
        self._reported = 0
        """How many delivery callbacks were called."""
        self._objection: BaseException | None = None
        """The error that a delivery callback raised in the last call."""

    def __bool__(self) -> bool:
        """True, however many records there are: ``if producer`` asks whether there is a producer."""
        return True

    def __len__(self) -> int:
        """How many records are not acknowledged yet."""
        return self._engine.unacknowledged

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction, as far as it is known before prepare; empty if the transaction is
        empty."""
        return self._engine.transaction.prepared

    @property
    def state(self) -> ProducerState:
        """The producer's current state."""
        return self._engine.state

    def _begin(self) -> None:
        self._enter("begin_transaction()")
        self._engine.begin_transaction()

    def _mark_abortable(self, verb: str, error: BaseException, *harmless: type[BaseException]) -> None:
        """Mark the transaction as one that can only be aborted. ``verb`` raised while it added or sent records, because
        of a callback's error or an interrupt. A record may be sent, or half added. An application that produces it
        again must not commit both copies.

        :param harmless: errors after which the transaction goes on, unless a callback raised them.
        """
        is_callbacks, self._objection = error is self._objection, None
        if isinstance(error, harmless) and not is_callbacks:
            return
        if self._engine.state is ProducerState.IN_TRANSACTION:
            self._engine.mark_abortable(PrepareFailedError(f"{verb} raised {type(error).__name__} ({error}): abort"))

    def _begin_verb(self, verb: Callable[..., Operation], *arguments: Any, **options: Any) -> Operation:
        return verb(*arguments, now=self._monotonic(), **options)

    def _after(self, operation: Operation | None, before: Operation | None) -> None:
        """End a verb's wait. The operation is not done if the wait was interrupted or cancelled.

        :param operation: None if the verb was refused, or interrupted while it began.
        :param before: the operation in progress when the verb was called: another task's.
        """
        if operation is None:
            if self._engine.under_way is not before:
                self._engine.abandon()
            return
        if not operation.is_done:
            self._engine.abandon()
        self._report()

    def _is_driven(self) -> bool:
        """True if poll() can send or receive. A producer that has failed can only call its delivery callbacks.

        :raises InvalidTransactionStateError: if it is closed.
        """
        self._enter("poll()")
        if self._engine.state is ProducerState.CLOSED:
            raise InvalidTransactionStateError("poll(): the producer is closed; make a new one")
        return self._engine.state is not ProducerState.FAILED

    @property
    def _can_wait_for_a_report(self) -> bool:
        """True if waiting brings a report or an acknowledgement; False while another task's call waits for them."""
        return len(self) > 0 and self._engine.under_way is None

    def _enter(self, verb: str) -> None:
        """Begin a call other than produce().

        :raises InvalidTransactionStateError: in another process than the producer's, and in a delivery callback, which
            runs within another call.
        """
        self._check_process(verb)
        self._refuse_in_callback(verb)

    def _refuse_in_callback(self, verb: str) -> None:
        if self._is_telling:
            raise InvalidTransactionStateError(
                f"{verb}: another call is in progress, and this delivery callback runs in it: a callback may call only"
                " produce()"
            )

    def _check_process(self, verb: str) -> None:
        if self._process != os.getpid():
            raise InvalidTransactionStateError(
                f"{verb}: the producer belongs to process {self._process}; make a new one after a fork"
            )

    def _report(self) -> int:
        """Call the delivery callbacks that are due; return how many. If one raises, the next call goes on after it. A
        callback that produces may make others due: they are called after it has returned, not within it."""
        if self._is_telling or not self._engine.has_reports:
            return 0
        before = self._reported
        self._objection = None
        self._is_telling = True
        try:
            while reports := self._engine.take_reports():
                self._call_back(reports)
        finally:
            self._is_telling = False
        return self._reported - before

    def _call_back(self, reports: list[Report]) -> None:
        called = 0
        try:
            for on_delivery, error, record in reports:
                called += 1
                self._reported += 1
                on_delivery(error, record)
        except BaseException as error:
            self._objection = error
            self._engine.put_back(reports[called:])
            raise

    def _report_all(self) -> None:
        """Call every callback that is due, as no later call will; then raise the first error of a callback."""
        first: Exception | None = None
        is_done = False
        while not is_done:
            try:
                is_done = not self._report()
            except Exception as error:  # noqa: BLE001 - a callback is the user's
                if first is None:
                    first = error
        if first is not None:
            raise first

    def _close_engine(self) -> bool:
        """Close the engine. False if another process made the producer: then leave everything untouched."""
        if self._process != os.getpid():
            return False
        self._refuse_in_callback("close()")
        if self._engine.state is not ProducerState.CLOSED:
            self._engine.close()
        return True

    def _is_anchored(self, state: PreparedTxnState) -> bool:
        """True if the partition leaders must be asked about ``state``: see :meth:`_look_up_anchor`."""
        return state.anchor is not None and state.producer == self._engine.ongoing

    def _look_up_anchor(self, state: PreparedTxnState) -> PreparedTxnState:
        """``state`` in a form that the engine can judge. A librdkafka producer writes states with an anchor, and
        several of its transactions may share one identity: the partition leaders tell which of them is open
        (ids.py)."""
        identity = self._engine.ongoing
        control = ControlPlane(self._config, timeout=self._delivery_timeout)
        try:
            ongoing = ongoing_transaction(control, self._transactional_id, identity, state)
        finally:
            control.close()
        return PreparedTxnState(identity) if state.identifies(ongoing) else PreparedTxnState()

    def _deadline_of(self, timeout: float | None) -> float:
        """When a call that may wait ``timeout`` seconds must return, in monotonic seconds; None and -1 mean for
        ever."""
        return NEVER if timeout is None or timeout < 0 else self._monotonic() + timeout
