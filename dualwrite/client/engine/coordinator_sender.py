"""One request to a coordinator at a time: sent, and sent again elsewhere or later, until it has a final answer."""

from collections.abc import Callable

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.connection_states import ConnectionState, ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER
from dualwrite.client.engine.coordinator_request import CoordinatorRequest
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.protocol.requests import (
    CoordinatorOf,
    VersionedRequest,
    code_in,
    coordinator_in,
    find_coordinator,
)
from dualwrite.client.terms.error_classes import ErrorClass, class_of, error_for
from dualwrite.errors import AnswerLostError, DualWriteError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

BUSY_PAUSE = 0.02
"""Seconds until a retry at a broker that still writes the markers of the previous transaction (Kafka:
TransactionManager.ADD_PARTITIONS_RETRY_BACKOFF_MS)."""


class CoordinatorSender:
    """Sends the calls that :meth:`call` gets.

    :param give_up: called when a call cannot succeed, with the error and its class.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        machine: TransactionManager,
        connections: ConnectionStates,
        metadata: ProducerMetadata,
        give_up: Callable[[DualWriteError, ErrorClass], None],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._connections = connections
        self._metadata = metadata
        self._give_up = give_up
        self._call: CoordinatorRequest | None = None
        self._deadline = 0.0
        self._looking_for: set[CoordinatorOf] = set()

    def call(self, call: CoordinatorRequest, now: float) -> None:
        """Begin a call; no other may be in progress."""
        self._call = call
        self._deadline = now + self._settings.delivery_timeout

    def forget(self) -> None:
        """Ignore the answer of the call in progress."""
        self._call = None

    @property
    def is_asked(self) -> bool:
        """True if the call in progress was sent, and is not answered."""
        return self._call is not None and self._call.is_asked

    def step(self, now: float) -> None:
        """Send the call in progress, if it was not sent or must be sent again now."""
        call = self._call
        if call is None:
            return
        if now >= self._deadline:
            self._time_out(call)
        elif not call.is_asked and now >= call.retry_at:
            self._ask(call, now)

    def wake_at(self, now: float) -> float:
        """When :meth:`step` can do something that it cannot do now."""
        call = self._call
        if call is None:
            return NEVER
        return min(self._deadline, call.retry_at) if call.retry_at > now else self._deadline

    # --- questions

    def _ask(self, call: CoordinatorRequest, now: float) -> None:
        endpoint = self._metadata.coordinators.get(call.coordinator)
        if endpoint is None:
            self._find_coordinator(call, now)
            return
        connection = self._connections.open_connection(endpoint, now)
        version = None if connection is None else self._version(connection, call.request)
        if connection is None or version is None:
            return
        if call.request.api_key is ApiKey.TXN_OFFSET_COMMIT:
            self._machine.may_be_open = True
        call.is_asked = True
        self._connections.send(connection, call.request.api_key, version, call.request.message, call, now)

    def _find_coordinator(self, call: CoordinatorRequest, now: float) -> None:
        if call.coordinator in self._looking_for:
            return
        connection = self._connections.any_open_connection(self._metadata.candidates(), now)
        if connection is None:
            return
        request = find_coordinator(call.coordinator)
        version = self._version(connection, request)
        if version is not None:
            self._looking_for.add(call.coordinator)
            self._connections.send(connection, request.api_key, version, request.message, call.coordinator, now)

    def _version(self, connection: ConnectionState, request: VersionedRequest) -> int | None:
        """The version in which to send ``request``; None, and the call in progress has failed, if there is none."""
        try:
            return request.version_at(connection.endpoint, connection.versions)
        except DualWriteError as error:
            self._give_up(error, ErrorClass.FATAL)
            return None

    # --- answers

    def coordinator_answered(self, whose: CoordinatorOf, answer: Message, now: float) -> None:
        """FindCoordinator was answered."""
        self._looking_for.discard(whose)
        code, call = answer.error_code, self._call
        if not code:
            self._metadata.coordinators[whose] = coordinator_in(answer)
        elif call is not None and call.coordinator == whose:
            error_class = class_of(ApiKey.FIND_COORDINATOR, code)
            if error_class.is_retriable:
                self._again(call, now, f"FindCoordinator: {error_name(code)}")
            else:
                operation = f"FindCoordinator of {whose.key}"
                self._give_up(error_for(ApiKey.FIND_COORDINATOR, operation, code), error_class)

    def answered(self, call: CoordinatorRequest, answer: Message, now: float) -> None:
        """A coordinator has answered ``call``."""
        if call is not self._call:
            return
        code, place = code_in(call.request.api_key, answer)
        error_class = class_of(call.request.api_key, code)
        if error_class is ErrorClass.SUCCESS:
            self._call = None
            call.answer(answer)
        elif call.fallback is not None and code == ErrorCode.UNSUPPORTED_VERSION:
            self._call = call.fallback
        elif error_class.is_retriable:
            if error_class is ErrorClass.REFRESH_RETRIABLE:
                self._metadata.coordinators.pop(call.coordinator, None)
            is_soon = code == ErrorCode.CONCURRENT_TRANSACTIONS and not call.attempts
            self._again(call, now, _in_words(place, error_name(code)), BUSY_PAUSE if is_soon else 0.0)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                call.unknown_partition = place
        else:
            operation, two_phase = _in_words(call.request.operation, place), call.request.needs_two_phase
            self._give_up(error_for(call.request.api_key, operation, code, two_phase=two_phase), error_class)

    def lost(self, asked: list[InFlight], why: str, now: float) -> None:
        """A connection is gone, and with it the answers to ``asked``."""
        for sent in asked:
            if sent.api_key is ApiKey.FIND_COORDINATOR:
                self._looking_for.discard(sent.about)
                if self._call is not None and self._call.coordinator == sent.about:
                    self._again(self._call, now, f"FindCoordinator: {why}")
            elif self._call is not None and sent.about is self._call:
                if sent.api_key is ApiKey.TXN_OFFSET_COMMIT:
                    self._machine.stray_offsets.add(self._call.coordinator.key)
                self._again(self._call, now, why)

    def _again(self, call: CoordinatorRequest, now: float, why: str, pause: float = 0.0) -> None:
        call.attempts += 1
        call.is_asked, call.last_error, call.unknown_partition = False, why, ""
        call.retry_at = now + (pause or self._settings.pause_after(call.attempts))

    def _time_out(self, call: CoordinatorRequest) -> None:
        is_content = call.request.api_key is ApiKey.TXN_OFFSET_COMMIT
        seconds = self._settings.delivery_timeout
        if call.unknown_partition:
            operation = f"{call.request.operation}: refused for {seconds:g} s: {call.unknown_partition}"
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._give_up(KafkaRefusedError(operation, code, error_name(code)), ErrorClass.ABORTABLE)
            return
        reasons = "; ".join(
            dict.fromkeys(reason for reason in (call.last_error, *self._connections.why_not()) if reason)
        )
        kind = AnswerLostError if call.decides else KafkaUnavailableError
        error = kind(f"{call.request.operation}: no answer in {seconds:g} s: {reasons or self._silence(call)}")
        self._give_up(error, ErrorClass.ABORTABLE if is_content else ErrorClass.FATAL)

    def _silence(self, call: CoordinatorRequest) -> str:
        """The broker that has not answered, if no other reason is known."""
        coordinator = self._metadata.coordinators.get(call.coordinator)
        asked = dict.fromkeys(self._metadata.candidates() if coordinator is None else (coordinator,))
        return f"broker {', '.join(map(str, asked))} says nothing"


def _in_words(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
