"""The sender of requests to coordinators on its own: what it sends, when it sends it again, and how it gives up."""

from typing import Any

import pytest

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.connection_states import ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER, Send
from dualwrite.client.engine.coordinator_request import CoordinatorRequest, end_request, offsets_request
from dualwrite.client.engine.coordinator_sender import BUSY_PAUSE, CoordinatorSender
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.protocol.requests import GROUP, TRANSACTION, CommittedOffset, CoordinatorOf, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import ErrorClass
from dualwrite.client.terms.versions import VersionRange, Versions
from dualwrite.errors import AnswerLostError, DualWriteError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

ONE, TWO = Endpoint("one", 1), Endpoint("two", 2)
PRODUCER = ProducerIdentity(7, 0)
OF_TRANSACTION, OF_GROUP = CoordinatorOf(TRANSACTION, "app-0"), CoordinatorOf(GROUP, "g")
RANGES = {
    ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
    ApiKey.END_TXN: VersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 5),
}
MOVED = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]
LOADING, BUSY = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class ConnectedSender:
    """A coordinator sender that is connected to two brokers. The coordinators are known unless a test forgets them."""

    def __init__(self, ranges: dict[ApiKey, VersionRange] | None = None) -> None:
        self.settings = ProducerSettings(ClientSettings((ONE, TWO)), "app-0")
        self.metadata = ProducerMetadata(self.settings, lambda count: 0)
        self.metadata.coordinators.update({OF_TRANSACTION: ONE, OF_GROUP: ONE})
        self.given_up: list[tuple[DualWriteError, ErrorClass]] = []
        self.answers: list[Message] = []
        self.connections = ConnectionStates(self.settings)
        self.sender = CoordinatorSender(
            self.settings,
            TransactionManager(),
            self.connections,
            self.metadata,
            lambda error, error_class: self.given_up.append((error, error_class)),
        )
        for broker in (ONE, TWO):
            self.connections.open_connection(broker, 0.0)
            self.connections.opened(broker, Versions(RANGES if ranges is None else ranges, {}), 0.0)
        self.connections.take_commands()

    def call_end(self, now: float = 0.0) -> CoordinatorRequest:
        """Begin a call of EndTxn."""
        call = end_request(self.settings, PRODUCER, True, self.answers.append)
        self.sender.call(call, now)
        return call

    def call_offsets(self) -> CoordinatorRequest:
        """Begin a call of TxnOffsetCommit."""
        offsets = [CommittedOffset("in", 3, 42)]
        call = offsets_request(self.settings, PRODUCER, offsets, GroupMember("g"), self.answers.append)
        self.sender.call(call, 0.0)
        return call

    def step(self, now: float) -> list[ApiKey]:
        """The requests that are sent at ``now``."""
        self.sender.step(now)
        return [one.request.api_key for one in self.connections.take_commands() if isinstance(one, Send)]

    def refuse(self, call: CoordinatorRequest, code: int, now: float) -> float:
        """Answer ``call`` with ``code``; the seconds until the next attempt."""
        if call.request.api_key is ApiKey.TXN_OFFSET_COMMIT:
            topic_class = APIS[ApiKey.TXN_OFFSET_COMMIT].response.TxnOffsetCommitResponseTopic
            entry = topic_class.TxnOffsetCommitResponsePartition(partition_index=3, error_code=code)
            fields: dict[str, Any] = {"topics": [topic_class(name="in", partitions=[entry])]}
        else:
            fields = {"error_code": code}
        answer = APIS[call.request.api_key].response(throttle_time_ms=0, **fields)
        self.sender.answered(call, answer, now)
        return self.sender.wake_at(now) - now

    def found(self, code: int, now: float, whose: CoordinatorOf = OF_TRANSACTION) -> float:
        """Answer FindCoordinator; the seconds until the next attempt."""
        response = APIS[ApiKey.FIND_COORDINATOR].response
        answer = response(
            throttle_time_ms=0, error_code=code, error_message=None, node_id=2, host=TWO.host, port=TWO.port
        )
        self.sender.coordinator_answered(whose, answer, now)
        return self.sender.wake_at(now) - now

    def lose(self, api_key: ApiKey, about: Any, now: float) -> float:
        """Lose the answer to one request; the seconds until the next attempt."""
        self.sender.lost([InFlight(api_key, about, 60.0)], "broker one:1: reset", now)
        return self.sender.wake_at(now) - now


@pytest.fixture
def connected() -> ConnectedSender:
    return ConnectedSender()


@pytest.fixture
def searching() -> ConnectedSender:
    """It knows no coordinator."""
    made = ConnectedSender()
    made.metadata.coordinators.clear()
    return made


# --- one request at a time


def test_a_request_that_is_not_answered_yet_is_not_sent_again(connected: ConnectedSender) -> None:
    call = connected.call_end()
    assert connected.sender.is_asked is False
    assert connected.step(0.0) == [ApiKey.END_TXN]
    assert connected.sender.is_asked is True
    assert connected.step(1.0) == []
    connected.refuse(call, ErrorCode.NONE, 2.0)
    assert len(connected.answers) == 1
    assert connected.sender.is_asked is False
    assert connected.sender.wake_at(2.0) == NEVER


def test_a_refused_request_is_not_in_progress_until_it_is_sent_again(connected: ConnectedSender) -> None:
    call = connected.call_end()
    connected.step(0.0)
    connected.refuse(call, LOADING, 1.0)
    assert connected.sender.is_asked is False
    assert connected.step(1.0) == []
    assert connected.step(1.1) == [ApiKey.END_TXN]


def test_a_coordinator_is_looked_for_once_at_a_time(searching: ConnectedSender) -> None:
    searching.call_end()
    assert searching.step(0.0) == [ApiKey.FIND_COORDINATOR]
    assert searching.step(0.0) == []
    searching.found(ErrorCode.NONE, 0.0)
    assert searching.step(0.0) == [ApiKey.END_TXN]


# --- pauses


@pytest.mark.parametrize(
    ("codes", "pauses"),
    [
        ([LOADING] * 3, [0.1, 0.2, 0.4]),
        ([BUSY] * 3, [BUSY_PAUSE, 0.2, 0.4]),
        ([LOADING, BUSY], [0.1, 0.2]),
        (MOVED, [0.1, 0.2]),
    ],
    ids=["loading", "busy", "loading, then busy", "moved"],
)
def test_pauses_grow_with_each_refusal_and_only_a_first_busy_answer_shortens_one(
    connected: ConnectedSender, codes: list[ErrorCode], pauses: list[float]
) -> None:
    call = connected.call_end()
    connected.step(0.0)
    assert [connected.refuse(call, code, 1.0) for code in codes] == pytest.approx(pauses)
    assert not connected.given_up


def test_pauses_grow_while_a_coordinator_cannot_be_found(searching: ConnectedSender) -> None:
    searching.call_end()
    searching.step(0.0)
    pauses = [searching.found(code, 1.0) for code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, LOADING)]
    assert pauses == pytest.approx([0.1, 0.2])
    assert not searching.given_up
    assert searching.step(1.1) == []
    assert searching.step(1.2) == [ApiKey.FIND_COORDINATOR]


def test_a_coordinator_that_has_moved_is_looked_for_even_if_it_was_forgotten_meanwhile(
    connected: ConnectedSender,
) -> None:
    call = connected.call_end()
    connected.step(0.0)
    connected.metadata.forget_coordinators(ONE)
    connected.refuse(call, ErrorCode.NOT_COORDINATOR, 1.0)
    assert connected.step(2.0) == [ApiKey.FIND_COORDINATOR]


# --- lost answers


def test_a_lost_answer_is_asked_for_again(connected: ConnectedSender) -> None:
    call = connected.call_end()
    connected.step(0.0)
    assert connected.lose(ApiKey.END_TXN, call, 1.0) == pytest.approx(0.1)
    assert connected.step(1.1) == [ApiKey.END_TXN]


def test_a_lost_lookup_is_begun_again(searching: ConnectedSender) -> None:
    searching.call_end()
    searching.step(0.0)
    assert searching.lose(ApiKey.FIND_COORDINATOR, OF_TRANSACTION, 1.0) == pytest.approx(0.1)
    assert searching.step(1.1) == [ApiKey.FIND_COORDINATOR]


@pytest.mark.parametrize(("api_key", "about"), [(ApiKey.METADATA, None), (ApiKey.FIND_COORDINATOR, OF_GROUP)])
def test_the_loss_of_another_request_leaves_the_call_in_progress(
    connected: ConnectedSender, api_key: ApiKey, about: Any
) -> None:
    connected.call_end()
    connected.step(0.0)
    assert connected.lose(api_key, about, 1.0) == 29.0
    assert connected.sender.is_asked


@pytest.mark.parametrize(("api_key", "about"), [(ApiKey.PRODUCE, []), (ApiKey.FIND_COORDINATOR, OF_TRANSACTION)])
def test_a_loss_without_a_call_does_nothing(connected: ConnectedSender, api_key: ApiKey, about: Any) -> None:
    assert connected.lose(api_key, about, 1.0) == NEVER
    assert connected.step(1.0) == []


# --- answers to lookups of a call before


def test_a_refused_lookup_of_another_coordinator_leaves_the_call_in_progress(connected: ConnectedSender) -> None:
    connected.call_end()
    connected.step(0.0)
    assert connected.found(ErrorCode.GROUP_AUTHORIZATION_FAILED, 1.0, OF_GROUP) == 29.0
    assert connected.found(ErrorCode.COORDINATOR_NOT_AVAILABLE, 1.0, OF_GROUP) == 29.0
    assert not connected.given_up


def test_a_refused_lookup_without_a_call_does_nothing(connected: ConnectedSender) -> None:
    assert connected.found(ErrorCode.COORDINATOR_NOT_AVAILABLE, 1.0) == NEVER
    assert not connected.given_up


# --- calls that are given up


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorClass.ABORTABLE),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorClass.FATAL),
    ],
)
def test_a_lookup_that_is_refused_for_good_gives_the_call_up(
    searching: ConnectedSender, code: ErrorCode, error_class: ErrorClass
) -> None:
    searching.call_end()
    searching.step(0.0)
    searching.found(code, 1.0)
    ((error, found_class),) = searching.given_up
    assert isinstance(error, KafkaRefusedError)
    assert (error.code, found_class) == (code, error_class)


@pytest.mark.parametrize("unsupported", [ApiKey.END_TXN, ApiKey.FIND_COORDINATOR])
def test_a_request_that_the_broker_does_not_offer_is_given_up_and_not_sent(unsupported: ApiKey) -> None:
    connected = ConnectedSender({key: versions for key, versions in RANGES.items() if key is not unsupported})
    if unsupported is ApiKey.FIND_COORDINATOR:
        connected.metadata.coordinators.clear()
    connected.call_end()
    assert connected.step(0.0) == []
    ((error, error_class),) = connected.given_up
    assert isinstance(error, KafkaRefusedError)
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    assert f" of app-0: broker one:1: {unsupported.name}: not offered by the broker" in str(error)
    assert error_class is ErrorClass.FATAL
    assert not connected.sender.is_asked


def test_the_last_reason_of_a_lookup_is_told_when_the_time_is_up(searching: ConnectedSender) -> None:
    searching.call_end(now=5.0)
    searching.step(5.0)
    searching.found(ErrorCode.COORDINATOR_NOT_AVAILABLE, 6.0)
    assert searching.step(34.9) == [ApiKey.FIND_COORDINATOR]
    assert not searching.given_up
    searching.step(35.0)
    ((error, error_class),) = searching.given_up
    reason = "no answer in 30 s: FindCoordinator: COORDINATOR_NOT_AVAILABLE"
    assert (type(error), str(error)) == (AnswerLostError, f"EndTxn (commit) of app-0: {reason}")
    assert error_class is ErrorClass.FATAL


def test_a_lost_connection_is_told_as_the_reason_when_the_time_is_up(connected: ConnectedSender) -> None:
    call = connected.call_end()
    connected.step(0.0)
    connected.lose(ApiKey.END_TXN, call, 1.0)
    connected.step(30.0)
    ((error, _),) = connected.given_up
    assert str(error) == "EndTxn (commit) of app-0: no answer in 30 s: broker one:1: reset"


def test_the_reasons_of_other_connections_are_told_too_and_none_twice(connected: ConnectedSender) -> None:
    call = connected.call_end()
    connected.step(0.0)
    connected.lose(ApiKey.END_TXN, call, 1.0)
    for broker, why in ((ONE, "reset"), (TWO, "refused")):
        connected.connections.lost(broker, KafkaUnavailableError(f"broker {broker}: {why}"), 1.0)
    connected.step(30.0)
    ((error, _),) = connected.given_up
    assert str(error).endswith(": no answer in 30 s: broker one:1: reset; broker two:2: refused")


def test_offsets_of_a_missing_partition_are_refused_by_its_name(connected: ConnectedSender) -> None:
    call = connected.call_offsets()
    connected.step(0.0)
    connected.refuse(call, MISSING, 1.0)
    connected.step(30.0)
    ((error, error_class),) = connected.given_up
    assert isinstance(error, KafkaRefusedError)
    assert str(error) == f"{call.request.operation}: refused for 30 s: in-3: UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert error_class is ErrorClass.ABORTABLE


@pytest.mark.parametrize("later", ["a loss", "another refusal"])
def test_a_missing_partition_is_not_the_reason_if_a_later_attempt_has_failed_otherwise(
    connected: ConnectedSender, later: str
) -> None:
    call = connected.call_offsets()
    connected.step(0.0)
    connected.refuse(call, MISSING, 1.0)
    connected.step(2.0)
    if later == "a loss":
        connected.lose(ApiKey.TXN_OFFSET_COMMIT, call, 3.0)
    else:
        connected.refuse(call, LOADING, 3.0)
    connected.step(30.0)
    ((error, error_class),) = connected.given_up
    reason = "broker one:1: reset" if later == "a loss" else "in-3: COORDINATOR_LOAD_IN_PROGRESS"
    assert (type(error), str(error)) == (
        KafkaUnavailableError,
        f"{call.request.operation}: no answer in 30 s: {reason}",
    )
    assert error_class is ErrorClass.ABORTABLE
