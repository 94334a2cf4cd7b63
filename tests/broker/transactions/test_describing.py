"""DescribeTransactions, ListTransactions, DescribeProducers (KIP-664), and transactions that exceed their timeout."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import (
    ApiKey,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    Message,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    describe,
    end,
    identity,
    init,
    metadata,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually


def began(client: RawClient, topic: str, **more: object) -> tuple[str, ProducerIdentity]:
    transactional_id = unique("tx")
    producer = identity(init(client, transactional_id, **more))  # type: ignore[arg-type]
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
    return transactional_id, producer


def listing(client: RawClient, version: int = 2, **filters: object) -> Message:
    fields = {"state_filters": [], "producer_id_filters": [], **filters}
    return client.ask(ListTransactionsRequest(**fields), version)


def listed(client: RawClient, version: int = 2, **filters: object) -> dict[str, str]:
    """Transactional ids and states that pass the filters."""
    answer = listing(client, version, **filters)
    assert answer.error_code == ErrorCode.NONE
    return {entry.transactional_id: entry.transaction_state for entry in answer.transaction_states}


# --- DescribeTransactions


def test_a_transaction_is_described_through_its_life(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    empty = describe(client, transactional_id)
    assert (empty.transaction_state, empty.transaction_start_time_ms, empty.topics) == ("Empty", -1, [])
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
    ongoing = describe(client, transactional_id)
    assert (ongoing.transaction_state, ongoing.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (ongoing.producer_id, ongoing.producer_epoch) == (producer.producer_id, producer.epoch)
    assert ongoing.transaction_start_time_ms > 0
    following = identity(end(client, transactional_id, producer, commit=False))
    ended = describe(client, transactional_id)
    assert (ended.transaction_state, ended.producer_epoch, ended.topics) == ("CompleteAbort", following.epoch, [])


def test_unknown_and_empty_transactional_ids_have_different_errors(client: RawClient) -> None:
    known = unique("tx")
    new_producer(client, known)
    answer = client.ask(DescribeTransactionsRequest(transactional_ids=[known, "never seen", ""]), 0)
    assert [(state.transactional_id, state.error_code) for state in answer.transaction_states] == [
        (known, ErrorCode.NONE),
        ("never seen", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_REQUEST),
    ]


# --- ListTransactions


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed_by_state_and_producer(client: RawClient, version: int) -> None:
    topic = new_topic(client)
    open_one, producer = began(client, topic)
    ended, other = began(client, topic)
    end(client, ended, other)
    everything = listed(client, version)
    assert (everything[open_one], everything[ended]) == ("Ongoing", "CompleteCommit")
    assert set(listed(client, version, state_filters=["Ongoing"]).values()) == {"Ongoing"}
    assert listed(client, version, producer_id_filters=[producer.producer_id]) == {open_one: "Ongoing"}
    assert listed(client, version, producer_id_filters=[producer.producer_id], state_filters=["CompleteCommit"]) == {}


@pytest.mark.slow
def test_other_clients_are_served_during_a_slow_pattern(broker: EmbeddedBroker) -> None:
    long_id = "a" * 30_000
    pattern = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern="(.*a){60}c"
    )
    with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as bystander:
        for number in range(20):
            new_producer(client, long_id + str(number))
        metadata(bystander)
        correlation = client.send(pattern, 2)
        for _ in range(5):
            metadata(bystander)
        client.give_up_after(0.0)
        with pytest.raises(BlockingIOError):
            client.receive_frame()
        client.give_up_after(PATIENCE_SECONDS)
        assert client.receive(ApiKey.LIST_TRANSACTIONS, 2, correlation).transaction_states == []


def test_states_that_do_not_exist_are_answered(client: RawClient) -> None:
    answer = listing(client, state_filters=["Ongoing", "Sleeping"])
    assert (answer.error_code, answer.unknown_state_filters) == (ErrorCode.NONE, ["Sleeping"])


def test_a_duration_asks_for_transactions_that_began_longer_ago(client: RawClient) -> None:
    topic = new_topic(client)
    ended, other = began(client, topic)
    end(client, ended, other)
    open_one, _ = began(client, topic)
    older = eventually(lambda: listed(client, 1, duration_filter=1), lambda seen: open_one in seen)
    assert {open_one, ended} <= set(older)
    still_open = listed(client, 1, duration_filter=1, state_filters=["Ongoing"])
    assert open_one in still_open
    assert ended not in still_open
    assert open_one not in listed(client, 1, duration_filter=3_600_000)


def test_a_pattern_must_match_the_whole_transactional_id(client: RawClient) -> None:
    name = unique("tx")
    new_producer(client, name)
    assert listed(client, transactional_id_pattern=name) == {name: "Empty"}
    assert listed(client, transactional_id_pattern=name[1:]) == {}
    assert name in listed(client, transactional_id_pattern=name[:-1] + ".*")


@pytest.mark.parametrize("pattern", ["", None])
def test_an_empty_pattern_matches_everything(client: RawClient, pattern: str | None) -> None:
    name = unique("tx")
    new_producer(client, name)
    assert name in listed(client, transactional_id_pattern=pattern)


def test_a_pattern_cannot_keep_the_broker_busy(client: RawClient) -> None:
    """With a matcher that tries every way, these 40 characters would take longer than the universe is old."""
    name = unique("tx") + "a" * 40
    new_producer(client, name)
    assert listed(client, transactional_id_pattern="tx-[0-9]*(a|a|aa)*b") == {}
    assert listed(client, transactional_id_pattern="tx-[0-9]*(a|a|aa)+") == {name: "Empty"}


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "(" * 20_000, "(?=ahead)", r"(a)\1", "((a{100}){100}){100}"])
def test_an_invalid_pattern_is_refused(client: RawClient, pattern: str) -> None:
    assert listing(client, transactional_id_pattern=pattern).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


# --- DescribeProducers


def test_producers_of_unknown_partitions_are_refused_by_themselves(client: RawClient) -> None:
    topic = new_topic(client)
    _, producer = began(client, topic)
    entry = DescribeProducersRequest.TopicRequest
    wanted = [entry(name=topic, partition_indexes=[0, 3]), entry(name="missing", partition_indexes=[0])]
    answer = client.ask(DescribeProducersRequest(topics=wanted), 0)
    errors = {
        (entry.name, part.partition_index): part.error_code for entry in answer.topics for part in entry.partitions
    }
    assert errors == {
        (topic, 0): ErrorCode.NONE,
        (topic, 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    (state,) = answer.topics[0].partitions[0].active_producers
    assert (state.producer_id, state.producer_epoch, state.current_txn_start_offset) == (
        producer.producer_id,
        producer.epoch,
        0,
    )


# --- timeouts


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[RawClient]:
    """A connection to a broker that looks for overdue transactions all the time."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20"}
    with ForkedBroker(tmp_path, config=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        yield client


def state_of(client: RawClient, transactional_id: str) -> str:
    return str(describe(client, transactional_id).transaction_state)


def ended_state(client: RawClient, transactional_id: str) -> str:
    """The state of a transaction that is no longer open, once its markers are written."""
    return eventually(lambda: state_of(client, transactional_id), lambda state: state.startswith("Complete"))


def test_a_transaction_is_aborted_after_its_timeout_and_its_late_requests_are_refused(impatient: RawClient) -> None:
    topic = new_topic(impatient)
    transactional_id, producer = began(impatient, topic, timeout_ms=50)
    assert ended_state(impatient, transactional_id) == "CompleteAbort"
    assert read_all(impatient, topic) == []
    late = produce(impatient, topic, tx_batch([b"late"], producer, 1), transactional_id, version=12)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(impatient, transactional_id, producer, version=4).error_code == ErrorCode.PRODUCER_FENCED
    assert end(impatient, transactional_id, producer, version=5).error_code == ErrorCode.INVALID_TXN_STATE


def test_a_kept_transaction_without_two_phase_commit_still_times_out(impatient: RawClient) -> None:
    topic = new_topic(impatient)
    transactional_id, _ = began(impatient, topic, timeout_ms=200)
    init(impatient, transactional_id, keep=True, timeout_ms=200)
    assert ended_state(impatient, transactional_id) == "CompleteAbort"
    assert read_all(impatient, topic) == []


@pytest.mark.slow_cases
@pytest.mark.parametrize("asked", [{"two_phase": True, "timeout_ms": 1}, {"timeout_ms": 2147483647}])
def test_a_two_phase_transaction_never_times_out(impatient: RawClient, asked: dict[str, int]) -> None:
    topic, other = new_topic(impatient), new_topic(impatient)
    prepared, producer = began(impatient, topic, **asked)
    kept, _ = began(impatient, topic, **asked)
    recovered = new_producer(impatient, kept, keep=True)
    ordinary, _ = began(impatient, other, timeout_ms=50)  # younger than both: once it is gone, they were looked at
    assert ended_state(impatient, ordinary) == "CompleteAbort"
    assert (state_of(impatient, prepared), state_of(impatient, kept)) == ("Ongoing", "Ongoing")
    assert end(impatient, prepared, producer).error_code == ErrorCode.NONE
    assert end(impatient, kept, recovered).error_code == ErrorCode.NONE
    assert read_all(impatient, topic) == [b"v", b"v"]


@pytest.mark.slow
def test_an_idle_transactional_id_is_forgotten_and_an_open_one_is_not(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        topic, idle = new_topic(client), unique("tx")
        new_producer(client, idle)
        open_one, producer = began(client, topic, two_phase=True)
    settings = {
        "transaction.remove.expired.transaction.cleanup.interval.ms": "20",
        "transactional.id.expiration.ms": "1",
    }
    with ForkedBroker(tmp_path, config=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        seen = eventually(lambda: describe(client, idle).error_code, lambda code: code != ErrorCode.NONE)
        assert seen == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert state_of(client, open_one) == "Ongoing"
        assert end(client, open_one, producer).error_code == ErrorCode.NONE
        assert read_all(client, topic) == [b"v"]
