"""InitProducerId (KIP-98, KIP-360, KIP-939): identities, fencing, and which transactions are kept or aborted."""

from collections.abc import Iterator

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    LIBRDKAFKA_TWO_PHASE_TIMEOUT,
    TWO_PHASE_TIMEOUT,
    add,
    describe,
    end,
    identity,
    init,
    new_producer,
    new_topic,
    ongoing,
    open_transaction,
    produce,
    producers,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient

MAX_TIMEOUT_MS = 900_000


@pytest.fixture(scope="module")
def one_phase_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"transaction.two.phase.commit.enable": "false"}
    with ForkedBroker(tmp_path_factory.mktemp("one-phase"), config=settings) as running:
        yield running


@pytest.fixture
def one_phase(one_phase_broker: EmbeddedBroker) -> Iterator[RawClient]:
    """A connection to a broker that allows no two-phase commit."""
    with RawClient(one_phase_broker.bootstrap_servers) as connected:
        yield connected


def prepared(client: RawClient, topic: str, **more: bool) -> tuple[str, ProducerIdentity]:
    """A transaction with one record in ``topic`` that its client left prepared."""
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id, **more)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"prepared"]})
    return transactional_id, producer


def errors_of(client: RawClient, topic: str, transactional_id: str, producer: ProducerIdentity) -> list[ErrorCode]:
    """The errors that ``producer`` gets from EndTxn v1 and v5, AddPartitionsToTxn v1 and v3, and Produce v9 and v12."""
    content = tx_batch([b"zombie"], producer, sequence=1)
    codes = [
        *(end(client, transactional_id, producer, version=version).error_code for version in (1, 5)),
        *(add(client, transactional_id, producer, (topic, 0), version=version)[topic, 0] for version in (1, 3)),
        *(produce(client, topic, content, transactional_id, version=version).error_code for version in (9, 12)),
    ]
    return [ErrorCode(code) for code in codes]


FENCED = [
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH,
]
"""The result of :func:`errors_of` for a fenced client."""


# --- the beginning of a session


@pytest.mark.parametrize("version", range(7))
def test_a_producer_without_transactions_gets_a_fresh_id(client: RawClient, version: int) -> None:
    first, second = (identity(init(client, None, version=version)) for _ in range(2))
    assert (first.epoch, second.epoch) == (0, 0)
    assert first.producer_id != second.producer_id


@pytest.mark.parametrize("version", range(7))
def test_a_transactional_id_keeps_its_producer_id_and_bumps_its_epoch(client: RawClient, version: int) -> None:
    transactional_id = unique("tx")
    first, second, third = (identity(init(client, transactional_id, version=version)) for _ in range(3))
    assert (first.epoch, second.epoch, third.epoch) == (0, 1, 2)
    assert first.producer_id == second.producer_id == third.producer_id


def test_no_transaction_was_kept_on_a_first_request(client: RawClient) -> None:
    assert ongoing(init(client, unique("tx"), keep=True)) == NO_PRODUCER


# --- refusals, in their order


@pytest.mark.parametrize(
    "timeout_ms", [0, -1, MAX_TIMEOUT_MS + 1, TWO_PHASE_TIMEOUT - 1, TWO_PHASE_TIMEOUT - 99, TWO_PHASE_TIMEOUT - 101]
)
@pytest.mark.parametrize("version", [1, 4, 6])
def test_a_timeout_that_makes_no_sense_is_refused(client: RawClient, version: int, timeout_ms: int) -> None:
    answer = init(client, unique("tx"), timeout_ms=timeout_ms, version=version)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1)


def test_the_longest_timeout_is_allowed(client: RawClient) -> None:
    assert init(client, unique("tx"), timeout_ms=MAX_TIMEOUT_MS).error_code == ErrorCode.NONE


@pytest.mark.parametrize("size", [0, 32768, 100_000])
def test_an_empty_or_endless_transactional_id_is_refused(client: RawClient, size: int) -> None:
    assert init(client, "x" * size).error_code == ErrorCode.INVALID_REQUEST


def test_a_transactional_id_as_long_as_its_key_allows_is_taken(client: RawClient) -> None:
    assert init(client, "ü" * 16383).error_code == ErrorCode.NONE


@pytest.mark.parametrize("half", [ProducerIdentity(5, -1), ProducerIdentity(-1, 3)])
def test_half_an_identity_is_refused(client: RawClient, half: ProducerIdentity) -> None:
    assert init(client, unique("tx"), expected=half).error_code == ErrorCode.INVALID_REQUEST


def test_an_empty_id_is_noticed_before_anything_else(one_phase: RawClient) -> None:
    assert init(one_phase, "", two_phase=True, timeout_ms=0).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [60_000, 0, TWO_PHASE_TIMEOUT])
@pytest.mark.parametrize("keep", [True, False])
def test_two_phase_commit_that_is_off_is_not_authorized(one_phase: RawClient, timeout_ms: int, keep: bool) -> None:
    answer = init(one_phase, unique("tx"), two_phase=True, keep=keep, timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("timeout_ms", [TWO_PHASE_TIMEOUT, LIBRDKAFKA_TWO_PHASE_TIMEOUT])
def test_a_timeout_asks_for_nothing_where_two_phase_commit_is_off(
    one_phase: RawClient, version: int, timeout_ms: int
) -> None:
    answer = init(one_phase, unique("tx"), timeout_ms=timeout_ms, version=version)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1)


def test_keeping_needs_no_two_phase_commit(one_phase: RawClient) -> None:
    topic = new_topic(one_phase)
    transactional_id, producer = prepared(one_phase, topic)
    answer = init(one_phase, transactional_id, keep=True)
    assert ongoing(answer) == producer
    end(one_phase, transactional_id, identity(answer))
    assert read_all(one_phase, topic) == [b"prepared"]


# --- two-phase commit


@pytest.mark.parametrize("timeout_ms", [1, 0, -7, 60_000])
def test_with_two_phase_commit_the_timeout_is_ignored(client: RawClient, timeout_ms: int) -> None:
    transactional_id = unique("tx")
    assert init(client, transactional_id, two_phase=True, timeout_ms=timeout_ms).error_code == ErrorCode.NONE
    assert describe(client, transactional_id).transaction_timeout_ms == TWO_PHASE_TIMEOUT


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("timeout_ms", [TWO_PHASE_TIMEOUT, LIBRDKAFKA_TWO_PHASE_TIMEOUT])
def test_two_phase_commit_may_be_asked_for_by_timeout(client: RawClient, version: int, timeout_ms: int) -> None:
    transactional_id = unique("tx")
    init(client, transactional_id, timeout_ms=timeout_ms, version=version)
    assert describe(client, transactional_id).transaction_timeout_ms == TWO_PHASE_TIMEOUT


def test_a_kept_transaction_never_loses_its_two_phase_commit(client: RawClient) -> None:
    transactional_id, _ = prepared(client, new_topic(client), two_phase=True)
    init(client, transactional_id, keep=True, timeout_ms=10)
    assert describe(client, transactional_id).transaction_timeout_ms == TWO_PHASE_TIMEOUT


# --- the identity that a client expects to have (KIP-360)


def test_the_expected_identity_is_bumped_and_a_retry_gets_the_same_answer(client: RawClient) -> None:
    transactional_id = unique("tx")
    first = new_producer(client, transactional_id)
    answers = [identity(init(client, transactional_id, expected=first)) for _ in range(2)]
    assert answers == [ProducerIdentity(first.producer_id, 1)] * 2


@pytest.mark.parametrize(("version", "error"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)])
def test_an_outdated_expectation_is_fenced(client: RawClient, version: int, error: ErrorCode) -> None:
    transactional_id = unique("tx")
    first, _, current = (new_producer(client, transactional_id) for _ in range(3))
    assert init(client, transactional_id, expected=first, version=version).error_code == error
    wrong_id = ProducerIdentity(current.producer_id + 12345, current.epoch)
    assert init(client, transactional_id, expected=wrong_id, version=version).error_code == error
    assert identity(init(client, transactional_id, expected=current, version=version)).epoch == current.epoch + 1


@pytest.mark.parametrize("version", [3, 5])
def test_an_outdated_expectation_does_not_abort_the_open_transaction(client: RawClient, version: int) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    first, _, current = (new_producer(client, transactional_id) for _ in range(3))
    open_transaction(client, transactional_id, current, {(topic, 0): [b"decided"]})
    assert init(client, transactional_id, expected=first, version=version).error_code != ErrorCode.NONE
    assert end(client, transactional_id, current).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"decided"]


# --- a plain request aborts


@pytest.mark.parametrize("two_phase", [True, False])
def test_a_plain_request_aborts_the_open_transaction_and_fences_its_owner(client: RawClient, two_phase: bool) -> None:
    topic = new_topic(client)
    transactional_id, producer = prepared(client, topic, two_phase=two_phase)
    answer = init(client, transactional_id)  # forceTerminateTransaction is nothing else
    assert (ongoing(answer), identity(answer).producer_id) == (NO_PRODUCER, producer.producer_id)
    assert errors_of(client, topic, transactional_id, producer) == FENCED
    assert (read_all(client, topic), read_all(client, topic, committed=False)) == ([], [b"prepared"])


def test_an_idle_owner_is_fenced_too(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    new_producer(client, transactional_id)
    assert errors_of(client, topic, transactional_id, producer) == FENCED
    assert read_all(client, topic, committed=False) == []


# --- keeping (KIP-939)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 1, 4, 5])
def test_a_kept_transaction_is_completed_with_the_new_identity(client: RawClient, version: int, commit: bool) -> None:
    topic = new_topic(client)
    transactional_id, producer = prepared(client, topic, two_phase=True)
    answer = init(client, transactional_id, two_phase=True, keep=True)
    recovered = identity(answer)
    assert (ongoing(answer), recovered) == (producer, ProducerIdentity(producer.producer_id, producer.epoch + 1))
    assert read_all(client, topic) == []
    assert end(client, transactional_id, recovered, commit, version).error_code == ErrorCode.NONE
    assert read_all(client, topic) == ([b"prepared"] if commit else [])
    assert producers(client, topic)[producer.producer_id].current_txn_start_offset == -1


@pytest.mark.parametrize("version", [4, 5])
def test_the_next_transaction_follows_a_kept_one(client: RawClient, version: int) -> None:
    topic = new_topic(client)
    transactional_id, _ = prepared(client, topic)
    recovered = new_producer(client, transactional_id, keep=True)
    ended = end(client, transactional_id, recovered, version=version)
    following = identity(ended) if version == 5 else recovered
    open_transaction(client, transactional_id, following, {(topic, 0): [b"next"]})
    assert end(client, transactional_id, following).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"prepared", b"next"]


def test_keeping_again_and_again_fences_every_former_incarnation(client: RawClient) -> None:
    topic = new_topic(client)
    transactional_id, producer = prepared(client, topic, two_phase=True)
    incarnations = [producer]
    for _ in range(4):
        answer = init(client, transactional_id, two_phase=True, keep=True)
        assert ongoing(answer) == producer
        incarnations.append(identity(answer))
    *former, latest = incarnations
    assert [incarnation.epoch for incarnation in incarnations] == [0, 1, 2, 3, 4]
    for incarnation in former:
        assert errors_of(client, topic, transactional_id, incarnation) == FENCED
    assert read_all(client, topic, committed=False) == [b"prepared"]
    assert end(client, transactional_id, latest).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"prepared"]


def test_the_recovering_client_may_only_end_the_kept_transaction(client: RawClient) -> None:
    topic = new_topic(client)
    transactional_id, _ = prepared(client, topic)
    recovered = new_producer(client, transactional_id, keep=True)
    assert add(client, transactional_id, recovered, (topic, 0))[topic, 0] == ErrorCode.INVALID_TXN_STATE
    for version in (9, 12):
        content = tx_batch([b"more"], recovered)
        assert produce(client, topic, content, transactional_id, version=version).error_code != ErrorCode.NONE
    assert read_all(client, topic, committed=False) == [b"prepared"]
    assert end(client, transactional_id, recovered).error_code == ErrorCode.NONE


def test_the_kept_transaction_is_described_under_its_own_identity(client: RawClient) -> None:
    topic = new_topic(client)
    transactional_id, producer = prepared(client, topic)
    new_producer(client, transactional_id, keep=True)
    state = describe(client, transactional_id)
    assert (state.transaction_state, state.producer_id, state.producer_epoch) == (
        "Ongoing",
        producer.producer_id,
        producer.epoch,
    )
    assert producers(client, topic)[producer.producer_id].current_txn_start_offset == 0


@pytest.mark.parametrize("commit", [True, False])
def test_keeping_when_nothing_is_open_is_success(client: RawClient, commit: bool) -> None:
    topic = new_topic(client)
    transactional_id, producer = prepared(client, topic)
    ended = identity(end(client, transactional_id, producer, commit))
    answer = init(client, transactional_id, two_phase=True, keep=True)
    assert (ongoing(answer), identity(answer).epoch) == (NO_PRODUCER, ended.epoch + 1)
    assert read_all(client, topic) == ([b"prepared"] if commit else [])


def test_a_plain_request_aborts_a_kept_transaction(client: RawClient) -> None:
    topic = new_topic(client)
    transactional_id, _ = prepared(client, topic, two_phase=True)
    recovered = new_producer(client, transactional_id, two_phase=True, keep=True)
    assert identity(init(client, transactional_id)).epoch > recovered.epoch
    assert errors_of(client, topic, transactional_id, recovered) == FENCED
    assert read_all(client, topic) == []


def test_a_prepared_transaction_outlives_the_broker(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        transactional_id, producer = prepared(client, topic, two_phase=True)
        kept_once = new_producer(client, transactional_id, two_phase=True, keep=True)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert producers(client, topic)[producer.producer_id].current_txn_start_offset == 0
        assert describe(client, transactional_id).transaction_timeout_ms == TWO_PHASE_TIMEOUT
        answer = init(client, transactional_id, two_phase=True, keep=True)
        assert (ongoing(answer), identity(answer).epoch) == (producer, kept_once.epoch + 1)
        assert errors_of(client, topic, transactional_id, kept_once) == FENCED
        assert end(client, transactional_id, identity(answer)).error_code == ErrorCode.NONE
        assert read_all(client, topic) == [b"prepared"]
