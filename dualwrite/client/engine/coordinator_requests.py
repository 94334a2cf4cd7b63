"""One request to a coordinator at a time: sent, and sent again elsewhere or later, until it has a final answer."""

from collections.abc import Callable

from dualwrite.client.engine.connection_states import ConnectionState, ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER, EngineSettings
from dualwrite.client.engine.coordinator_calls import CoordinatorCall, code_of, place_of
from dualwrite.client.engine.producer_metadata import CoordinatorOf, ProducerMetadata, find_coordinator_request
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import Cost, cost_of, error_of_call
from dualwrite.client.terms.versions import FIND_COORDINATOR_CAP, NoCommonVersionError
from dualwrite.errors import AnswerLostError, DualWriteError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

BUSY_PAUSE = 0.02
"""Seconds until a retry at a broker that still writes the markers of the previous transaction (Kafka:
TransactionManager.ADD_PARTITIONS_RETRY_BACKOFF_MS)."""

_OLDEST_FIND_COORDINATOR = 1


class CoordinatorRequests:
    """Sends the calls that :meth:`call` gets.

    :param give_up: called when a call cannot succeed, with the reason and the cost.
    """

    def __init__(
        self,
        settings: EngineSettings,
        machine: TransactionManager,
        peers: ConnectionStates,
        directory: ProducerMetadata,
        give_up: Callable[[DualWriteError, Cost], None],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._peers = peers
        self._directory = directory
        self._give_up = give_up
        self._call: CoordinatorCall | None = None
        self._deadline = 0.0
        self._looking_for: set[CoordinatorOf] = set()

    def call(self, call: CoordinatorCall, now: float) -> None:
        """Begin a call; no other may be in progress."""
        self._call = call
        self._deadline = now + self._settings.operation_timeout

    def forget(self) -> None:
        """Ignore the answer of the call in progress."""
        self._call = None

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

    def _ask(self, call: CoordinatorCall, now: float) -> None:
        endpoint = self._directory.coordinators.get(call.coordinator)
        if endpoint is None:
            self._find_coordinator(call, now)
            return
        peer = self._peers.open_peer(endpoint, now)
        version = None if peer is None else self._version(peer, call.api_key, *call.versions, call)
        if peer is None or version is None:
            return
        if call.api_key is ApiKey.TXN_OFFSET_COMMIT:
            self._machine.may_be_open = True
        call.is_asked = True
        self._peers.send(peer, call.api_key, version, call.message, call, now)

    def _find_coordinator(self, call: CoordinatorCall, now: float) -> None:
        if call.coordinator in self._looking_for:
            return
        peer = self._peers.any_open_peer(self._directory.candidates(), now)
        if peer is None:
            return
        version = self._version(peer, ApiKey.FIND_COORDINATOR, _OLDEST_FIND_COORDINATOR, FIND_COORDINATOR_CAP, call)
        if version is not None:
            self._looking_for.add(call.coordinator)
            message = find_coordinator_request(call.coordinator)
            self._peers.send(peer, ApiKey.FIND_COORDINATOR, version, message, call.coordinator, now)

    def _version(
        self, peer: ConnectionState, api_key: ApiKey, floor: int, cap: int, call: CoordinatorCall
    ) -> int | None:
        try:
            return peer.version(api_key, floor, cap)
        except NoCommonVersionError as error:
            what = f"{call.what}: broker {peer.endpoint}: {error}"
            refused = error_of_call(what, ErrorCode.UNSUPPORTED_VERSION, two_phase=call.needs_two_phase)
            self._give_up(refused, Cost.PRODUCER)
            return None

    # --- answers

    def told_coordinator(self, whose: CoordinatorOf, answer: Message, now: float) -> None:
        """FindCoordinator was answered."""
        self._looking_for.discard(whose)
        code, call = answer.error_code, self._call
        if not code:
            self._directory.coordinators[whose] = Endpoint(answer.host, answer.port)
        elif call is not None and call.coordinator == whose:
            if cost_of(call.api_key, code) in (Cost.RETRY, Cost.MOVE):
                self._again(call, now, f"FindCoordinator: {error_name(code)}")
            else:
                is_of_group = code == ErrorCode.GROUP_AUTHORIZATION_FAILED  # the rest can still be aborted
                cost = Cost.TRANSACTION if is_of_group else Cost.PRODUCER
                self._give_up(error_of_call(f"FindCoordinator of {whose.key}", code), cost)

    def told(self, call: CoordinatorCall, answer: Message, now: float) -> None:
        """A coordinator has answered ``call``."""
        if call is not self._call:
            return
        call.is_asked = False
        code = code_of(call.api_key, answer)
        cost = cost_of(call.api_key, code)
        place = place_of(call.api_key, answer) if code else ""
        if cost is Cost.NOTHING:
            self._call = None
            call.answer(answer)
        elif call.fallback is not None and code == ErrorCode.UNSUPPORTED_VERSION:
            self._call = call.fallback
        elif cost in (Cost.RETRY, Cost.MOVE):
            if cost is Cost.MOVE:
                self._directory.coordinators.pop(call.coordinator, None)
            is_soon = code == ErrorCode.CONCURRENT_TRANSACTIONS and not call.attempts
            self._again(call, now, _in_words(place, error_name(code)), BUSY_PAUSE if is_soon else 0.0)
            call.last_code = code
        else:
            is_content = call.api_key is ApiKey.TXN_OFFSET_COMMIT
            what = _in_words(call.what, place)
            error = error_of_call(what, code, two_phase=call.needs_two_phase, is_content=is_content)
            self._give_up(error, cost)

    def lost(self, asked: list[InFlight], why: str, now: float) -> None:
        """A connection is gone, and with it the answers to ``asked``."""
        for each in asked:
            if each.api_key is ApiKey.FIND_COORDINATOR:
                self._looking_for.discard(each.about)
                if self._call is not None and self._call.coordinator == each.about:
                    self._again(self._call, now, f"FindCoordinator: {why}")
            elif self._call is not None and each.about is self._call:
                if each.api_key is ApiKey.TXN_OFFSET_COMMIT:
                    self._machine.stray_offsets.add(self._call.coordinator.key)
                self._again(self._call, now, why)

    def _again(self, call: CoordinatorCall, now: float, why: str, pause: float = 0.0) -> None:
        call.attempts += 1
        call.is_asked, call.last_code, call.last_error = False, 0, why
        call.retry_at = now + (pause or self._settings.pause_after(call.attempts))

    def _time_out(self, call: CoordinatorCall) -> None:
        is_content = call.api_key is ApiKey.TXN_OFFSET_COMMIT
        seconds = self._settings.operation_timeout
        if is_content and call.last_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            what = f"{call.what}: refused for {seconds:g} s: {call.last_error.partition(': ')[0]}"
            self._give_up(error_of_call(what, call.last_code), Cost.TRANSACTION)
            return
        reasons = "; ".join(dict.fromkeys(reason for reason in (call.last_error, self._peers.why_not()) if reason))
        kind = AnswerLostError if call.decides else KafkaUnavailableError
        error = kind(f"{call.what}: no answer in {seconds:g} s: {reasons or self._silence(call)}")
        self._give_up(error, Cost.TRANSACTION if is_content else Cost.PRODUCER)

    def _silence(self, call: CoordinatorCall) -> str:
        """The broker that has not answered, if no other reason is known."""
        coordinator = self._directory.coordinators.get(call.coordinator)
        asked = dict.fromkeys(self._directory.candidates() if coordinator is None else (coordinator,))
        return f"broker {', '.join(map(str, asked))} says nothing"


def _in_words(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
