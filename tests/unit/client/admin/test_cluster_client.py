"""Finding whom to ask, and asking again: on scripted brokers, with a clock of the test's own."""

from typing import Any

import pytest

from dualwrite.client.admin.cluster_client import FIRST_PAUSE, LONGEST_PAUSE, ClusterClient
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.protocol import requests
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import AnswerLostError, ConfigurationError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.child import in_child
from tests.support.client.scripted_broker import (
    HANG_UP,
    FakeClock,
    ScriptedBroker,
    coordinator_is,
    ended,
    listed,
    scripted,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
DEADLINE = FakeClock().now + 60.0
TRANSIENT = [
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
]


def cluster(
    *brokers: ScriptedBroker | Endpoint, clock: FakeClock | None = None, timeout: float = 60.0
) -> ClusterClient:
    clock = clock or FakeClock()
    bootstrap = tuple(broker if isinstance(broker, Endpoint) else broker.endpoint for broker in brokers)
    settings = ClientSettings(bootstrap, connect_timeout=5, request_timeout=5)
    return ClusterClient(settings, timeout=timeout, clock=clock.monotonic, sleep=clock.sleep)


def end_txn(repeatable: bool = True) -> VersionedRequest:
    return requests.end_txn("a", ProducerIdentity(1, 2), True, bumps_epoch=False, repeatable=repeatable)


def unreachable() -> Endpoint:
    with scripted() as broker:
        return broker.endpoint


@pytest.mark.parametrize("code", TRANSIENT)
def test_a_transient_answer_is_asked_again(code: int) -> None:
    clock = FakeClock()
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, ended(code), ended(code), ended())
        asking = cluster(broker, clock=clock)
        assert asking.ask_coordinator("a", end_txn()).error_code == 0
        asking.close()
        assert len(broker.requests(ApiKey.END_TXN)) == 3
        assert clock.pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_any_other_answer_is_the_callers_to_judge(code: int) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, ended(code))
        asking = cluster(broker)
        assert asking.ask_coordinator("a", end_txn()).error_code == code
        asking.close()
        assert len(broker.requests(ApiKey.END_TXN)) == 1


def test_pauses_grow_up_to_a_bound_and_end_at_the_deadline() -> None:
    clock = FakeClock()
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, ended(ErrorCode.CONCURRENT_TRANSACTIONS))
        asking = cluster(broker, clock=clock, timeout=10)
        with pytest.raises(
            KafkaUnavailableError, match=r"EndTxn \(commit\) of a: .*CONCURRENT_TRANSACTIONS \(gave up after 10 s\)"
        ):
            asking.ask_coordinator("a", end_txn())
        asking.close()
    assert clock.pauses == sorted(clock.pauses)
    assert max(clock.pauses) == LONGEST_PAUSE
    assert sum(clock.pauses) <= 10 < sum(clock.pauses) + 2 * LONGEST_PAUSE


def test_the_coordinator_is_looked_up_once_while_it_stays() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, ended())
        asking = cluster(broker)
        for _ in range(3):
            asking.ask_coordinator("a", end_txn())
        asking.close()
        (lookup,) = broker.requests(ApiKey.FIND_COORDINATOR)
        assert (lookup.message.key, lookup.message.key_type, lookup.version) == ("a", 1, 3)
        assert {seen.connection for seen in broker.seen} == {1}


def test_a_coordinator_that_moved_is_looked_up_again() -> None:
    with scripted() as first, scripted() as second:
        first.answer(ApiKey.FIND_COORDINATOR, coordinator_is(first.endpoint), coordinator_is(second.endpoint))
        first.answer(ApiKey.END_TXN, ended(ErrorCode.NOT_COORDINATOR))
        second.answer(ApiKey.END_TXN, ended())
        asking = cluster(first)
        asking.ask_coordinator("a", end_txn())
        asking.close()
        assert (len(first.requests(ApiKey.END_TXN)), len(second.requests(ApiKey.END_TXN))) == (1, 1)


def test_a_coordinator_that_is_not_there_yet_is_waited_for() -> None:
    with scripted() as broker:
        none = coordinator_is(Endpoint("", -1), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        broker.answer(ApiKey.FIND_COORDINATOR, none, none, coordinator_is(broker.endpoint))
        broker.answer(ApiKey.END_TXN, ended())
        asking = cluster(broker)
        asking.ask_coordinator("a", end_txn())
        asking.close()
        assert len(broker.requests(ApiKey.FIND_COORDINATOR)) == 3


def test_a_coordinator_lookup_that_is_refused_is_an_error() -> None:
    with scripted() as broker:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        broker.answer(ApiKey.FIND_COORDINATOR, coordinator_is(Endpoint("", -1), code))
        asking = cluster(broker)
        with pytest.raises(KafkaRefusedError, match="FindCoordinator of a: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            asking.ask_coordinator("a", end_txn())
        asking.close()


def test_a_lost_answer_is_asked_for_again_if_that_changes_nothing() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, HANG_UP, ended())
        asking = cluster(broker)
        asking.ask_coordinator("a", end_txn(repeatable=True))
        asking.close()
        assert [seen.connection for seen in broker.requests(ApiKey.END_TXN)] == [1, 2]
        assert asking.lost_connections >= 1


def test_a_lost_answer_is_not_asked_for_again_otherwise() -> None:
    clock = FakeClock()
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, HANG_UP, ended())
        asking = cluster(broker, clock=clock)
        with pytest.raises(AnswerLostError):
            asking.ask_coordinator("a", end_txn(repeatable=False))
        asking.close()
        assert len(broker.requests(ApiKey.END_TXN)) == 1
        assert clock.pauses == []


def test_an_unrepeatable_request_that_was_never_executed_is_sent_again() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.FIND_COORDINATOR, HANG_UP, coordinator_is(broker.endpoint))
        broker.answer(ApiKey.END_TXN, ended(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ended())
        asking = cluster(broker)
        asking.ask_coordinator("a", end_txn(repeatable=False))
        asking.close()
        assert len(broker.requests(ApiKey.END_TXN)) == 2


def test_a_connection_that_died_while_idle_is_replaced_before_it_is_used() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, ended())
        asking = cluster(broker)
        asking.ask_coordinator("a", end_txn(repeatable=False))
        broker.hang_up()
        asking.ask_coordinator("a", end_txn(repeatable=False))
        asking.close()
        assert [seen.connection for seen in broker.requests(ApiKey.END_TXN)] == [1, 2]


def test_a_connection_is_counted_as_lost_once_and_only_if_the_broker_closed_it() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.LIST_TRANSACTIONS, listed())
        asking = cluster(broker)
        for _ in range(2):
            asking.ask(broker.endpoint, requests.list_transactions(), DEADLINE)
            asking.close()
        assert asking.lost_connections == 0
        asking.ask(broker.endpoint, requests.list_transactions(), DEADLINE)
    for _ in range(2):
        with pytest.raises(KafkaUnavailableError, match="refused"):
            asking.ask(broker.endpoint, requests.list_transactions(), DEADLINE)
    assert asking.lost_connections == 1


def test_every_bootstrap_broker_is_tried_and_named() -> None:
    first, second = unreachable(), unreachable()
    asking = cluster(first, second, timeout=0)
    with pytest.raises(KafkaUnavailableError, match=f"broker {first}: .*; broker {second}: .*gave up after 0 s"):
        asking.any_connection()
    with pytest.raises(KafkaUnavailableError, match=f"{first}.*{second}"):
        asking.ask_any(requests.list_transactions(), DEADLINE)


def test_one_bootstrap_broker_that_answers_is_enough() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.LIST_TRANSACTIONS, listed())
        asking = cluster(unreachable(), broker)
        assert asking.ask_any(requests.list_transactions(), DEADLINE).error_code == 0
        assert asking.any_connection().endpoint == broker.endpoint
        asking.close()


def test_a_broker_that_metadata_has_named_answers_once_no_bootstrap_broker_is_left() -> None:
    with scripted() as second:
        second.answer(ApiKey.LIST_TRANSACTIONS, listed())
        with scripted() as first:
            first.nodes[2] = second.endpoint
            asking = cluster(first)
            asking.brokers(DEADLINE)
        assert asking.ask_any(requests.list_transactions(), DEADLINE).error_code == 0
        asking.close()


def test_a_request_that_must_not_be_carried_out_twice_is_sent_once() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.LIST_TRANSACTIONS, HANG_UP, listed())
        asking = cluster(unreachable(), broker)
        with pytest.raises(AnswerLostError):
            asking.ask_once(requests.list_transactions())
        assert len(broker.requests(ApiKey.LIST_TRANSACTIONS)) == 1
        asking.close()


def test_a_configuration_error_is_not_asked_again() -> None:
    def connect(endpoint: Endpoint, settings: ClientSettings) -> Any:
        raise ConfigurationError(f"sasl.password: {endpoint} {settings.client_id}")

    clock = FakeClock()
    settings = ClientSettings((Endpoint("h", 1),))
    asking = ClusterClient(settings, clock=clock.monotonic, sleep=clock.sleep, connect=connect)
    with pytest.raises(ConfigurationError, match="h:1 dualwrite"):
        asking.any_connection()
    assert clock.pauses == []


class SilentBrokers:
    """Accept connections, and say nothing: each attempt takes as long as it may."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.waited: list[tuple[str, float]] = []

    def connect(self, endpoint: Endpoint, settings: ClientSettings) -> Any:
        self.waited.append((endpoint.host, settings.connect_timeout))
        self._clock.now += settings.connect_timeout
        raise KafkaUnavailableError(f"broker {endpoint}: timed out")


@pytest.mark.parametrize(
    ("connect_timeout", "timeout", "waited"),
    [
        (10.0, 60.0, 10.0),
        (10.0, 0.75, 0.25),
        (0.1, 0.75, 0.1),
    ],
)
def test_silent_brokers_share_the_time_that_a_call_may_take(
    connect_timeout: float, timeout: float, waited: float
) -> None:
    clock = FakeClock()
    brokers, began = SilentBrokers(clock), clock.now
    settings = ClientSettings(tuple(Endpoint(name, 1) for name in "abc"), connect_timeout=connect_timeout)
    asking = ClusterClient(settings, timeout=timeout, clock=clock.monotonic, sleep=clock.sleep, connect=brokers.connect)
    with pytest.raises(KafkaUnavailableError, match=f"a:1: .*b:1: .*c:1: .*gave up after {timeout:g} s"):
        asking.any_connection()
    assert brokers.waited[:3] == [(name, pytest.approx(waited)) for name in "abc"]
    assert clock.now <= began + timeout + 1e-6


class MuteConnection:
    """Takes every request, and lets its client wait for as long as the client wants."""

    def __init__(self, endpoint: Endpoint, clock: FakeClock) -> None:
        self.endpoint = endpoint
        self._clock = clock

    def is_usable(self) -> bool:
        return True

    def request(self, call: VersionedRequest, *, timeout: float = 1000.0) -> Any:
        self._clock.now += timeout
        raise AnswerLostError(f"broker {self.endpoint}: timed out")


@pytest.mark.parametrize("is_any", [False, True])
def test_a_broker_that_takes_a_request_and_stays_silent_is_left_at_the_deadline(is_any: bool) -> None:
    clock = FakeClock()
    began = clock.now
    settings = ClientSettings((Endpoint("a", 1),), connect_timeout=5)

    def connect(endpoint: Endpoint, _: ClientSettings) -> Any:
        return MuteConnection(endpoint, clock)

    def attempt(deadline: float) -> Any:
        clock.now += 0.5  # an earlier step of the call took this long
        call = requests.list_transactions()
        return asking.ask_any(call, deadline) if is_any else asking.ask(Endpoint("a", 1), call, deadline)

    asking = ClusterClient(settings, timeout=2, clock=clock.monotonic, sleep=clock.sleep, connect=connect)
    with pytest.raises(KafkaUnavailableError, match=r"a:1: timed out.*gave up after 2 s"):
        asking.persist(attempt)
    assert clock.now <= began + 2 + FIRST_PAUSE


def test_a_silent_broker_is_not_tried_again_while_there_is_a_connection_to_another() -> None:
    clock = FakeClock()
    silent = SilentBrokers(clock)
    settings = ClientSettings((Endpoint("a", 1), Endpoint("b", 1)), connect_timeout=5)

    def connect(endpoint: Endpoint, given: ClientSettings) -> Any:
        return silent.connect(endpoint, given) if endpoint.host == "a" else MuteConnection(endpoint, clock)

    asking = ClusterClient(settings, timeout=60, clock=clock.monotonic, sleep=clock.sleep, connect=connect)
    assert [asking.any_connection().endpoint.host for _ in range(3)] == ["b"] * 3
    assert silent.waited == [("a", 5)]


class AnsweringConnection(MuteConnection):
    """Answers every request at once."""

    def request(self, call: VersionedRequest, *, timeout: float = 1000.0) -> Any:
        return listed()


def test_a_broker_that_falls_silent_leaves_the_others_their_share_of_the_time() -> None:
    clock = FakeClock()
    began = clock.now
    settings = ClientSettings((Endpoint("a", 1), Endpoint("b", 1)))

    def connect(endpoint: Endpoint, _: ClientSettings) -> Any:
        return (MuteConnection if endpoint.host == "a" else AnsweringConnection)(endpoint, clock)

    asking = ClusterClient(settings, clock=clock.monotonic, sleep=clock.sleep, connect=connect)
    assert asking.ask_any(requests.list_transactions(), began + 8).error_code == 0
    assert clock.now == began + 4, "the silent one has had its half"


def test_leaders_are_where_metadata_says() -> None:
    with scripted() as first, scripted() as second:
        first.nodes[2] = second.endpoint
        first.leaders["t", 1] = 2
        asking = cluster(first)
        assert asking.leaders([T1, T0, T1], DEADLINE) == {T0: first.endpoint, T1: second.endpoint}
        assert asking.brokers(DEADLINE) == (first.endpoint, second.endpoint)
        asking.close()
        asked = first.requests(ApiKey.METADATA)[0].message
        assert ([topic.name for topic in asked.topics], asked.allow_auto_topic_creation) == (["t"], False)


@pytest.mark.parametrize("partition", [TopicPartition("nope", 0), TopicPartition("t", 2)])
def test_an_unknown_partition_is_named(partition: TopicPartition) -> None:
    with scripted() as broker:
        asking = cluster(broker)
        with pytest.raises(KafkaRefusedError, match=f"{partition.topic}.*UNKNOWN_TOPIC_OR_PARTITION"):
            asking.leaders([T0, partition], DEADLINE)
        asking.close()


def test_a_partition_that_may_have_been_deleted_is_left_out() -> None:
    with scripted() as broker:
        asking = cluster(broker)
        wanted = [T0, TopicPartition("nope", 0), TopicPartition("t", 2)]
        assert asking.leaders(wanted, DEADLINE, deleted_too=True) == {T0: broker.endpoint}
        assert asking.lost_connections == 0
        asking.close()


@pytest.mark.parametrize("deleted_too", [False, True])
def test_a_broker_that_does_not_know_the_cluster_yet_knows_of_no_deleted_topic(deleted_too: bool) -> None:
    """With ZooKeeper, one that has just started answers without brokers, and that every topic is unknown."""
    with scripted() as starting, scripted() as broker:
        starting.nodes, starting.topics = {}, {}
        asking = cluster(starting)
        with pytest.raises(
            KafkaUnavailableError, match=f"broker {starting.endpoint}: .* does not know the cluster yet"
        ):
            asking.leaders([T0], DEADLINE, deleted_too=deleted_too)
        asking.close()
        asking = cluster(starting, broker)
        assert asking.leaders([T0], DEADLINE, deleted_too=deleted_too) == {T0: broker.endpoint}
        asking.close()


def test_a_topic_that_may_not_be_described_is_not_taken_for_a_deleted_one() -> None:
    """Left out, its partition would read as one without an open transaction."""
    with scripted() as broker:
        broker.topics["secret"] = 0
        broker.topic_codes["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        asking = cluster(broker)
        with pytest.raises(KafkaRefusedError, match="topic secret: TOPIC_AUTHORIZATION_FAILED"):
            asking.leaders([T0, TopicPartition("secret", 0)], DEADLINE, deleted_too=True)
        asking.close()


def test_a_partition_without_a_leader_is_unavailable() -> None:
    with scripted() as broker:
        broker.leaders["t", 1] = -1
        asking = cluster(broker)
        with pytest.raises(KafkaUnavailableError, match="partition t-1: LEADER_NOT_AVAILABLE"):
            asking.leaders([T0, T1], DEADLINE)
        asking.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_process_gets_connections_of_its_own() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.LIST_TRANSACTIONS, listed())
        asking = cluster(broker)

        def ask_twice() -> bool:
            codes = [asking.ask_any(requests.list_transactions(), DEADLINE).error_code for _ in range(2)]
            return codes == [0, 0]

        asking.ask_any(requests.list_transactions(), DEADLINE)
        for _ in range(2):
            assert in_child(ask_twice)
        asking.ask_any(requests.list_transactions(), DEADLINE)
        asking.close()
        assert [seen.connection for seen in broker.requests(ApiKey.LIST_TRANSACTIONS)] == [1, 2, 2, 3, 3, 1]
