"""What the cluster refuses, loses or leaves unanswered, and what is then left to do."""

import pytest

from dualwrite.client.engine.contract import Close, Send
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import PreparedTxnState, TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import NODES, SimulatedCluster, SimulatedDriver
from tests.support.client.simulated_engine import MEMBER, committed, ready, refuse


def test_a_coordinator_that_moved_is_found_again() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    driver.cluster.coordinator = 1
    driver.commit()
    assert driver.cluster.requests == [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.FIND_COORDINATOR, ApiKey.END_TXN]


def test_a_lost_leader_is_left_for_another() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.cluster.leader = driver.cluster.coordinator = 1
    driver.unreachable.add(NODES[0])
    driver.opened.discard(NODES[0])
    driver.engine.lost(NODES[0], KafkaUnavailableError("broker one:1: gone"), driver.now)
    driver.commit()
    assert committed(driver) == [b"a"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_retriable_produce_errors_are_retried_with_growing_pauses(code: ErrorCode) -> None:
    driver = ready()
    driver.begin(b"a")
    refuse(driver, ApiKey.PRODUCE, *[code] * 4)
    began = driver.now
    driver.commit()
    assert committed(driver) == [b"a"]
    assert driver.now - began == pytest.approx(0.08 if code is ErrorCode.CONCURRENT_TRANSACTIONS else 1.5)


@pytest.mark.parametrize(
    ("code", "kind", "state"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, PrepareFailedError, ProducerState.ABORTABLE),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, PrepareFailedError, ProducerState.ABORTABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, KafkaRefusedError, ProducerState.ABORTABLE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, KafkaRefusedError, ProducerState.ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, FencedError, ProducerState.FAILED),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, PrepareFailedError, ProducerState.FAILED),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaRefusedError, ProducerState.FAILED),
    ],
)
@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_a_refused_record_fails_the_transaction_or_the_producer(
    verb: str, code: ErrorCode, kind: type[DualWriteError], state: ProducerState
) -> None:
    driver, told = ready(), []
    driver.begin(b"a", on_delivery=lambda error, record: told.append((error, record.offset())))
    refuse(driver, ApiKey.PRODUCE, code)
    with pytest.raises(kind, match=f"1 record not acknowledged: t-0: {code.name}") as caught:
        getattr(driver, verb)()
    assert driver.engine.state is state
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert told == [(caught.value, None)]
    if state is ProducerState.ABORTABLE:
        assert driver.abort() is TransactionResult.ABORTED
        driver.begin(b"b")
        driver.commit()
        assert committed(driver) == [b"b"]
    else:
        with pytest.raises(kind):
            driver.abort()


@pytest.mark.parametrize("writes", ["records", "offsets"])
def test_an_expired_transactional_id_fails_the_producer_and_is_not_fencing(writes: str) -> None:
    driver = ready()
    driver.cluster.forget_idle()
    driver.begin(b"a")
    engine, offsets = driver.engine, [CommittedOffset("in", 0, 5)]
    operation = (
        engine.flush(driver.now)
        if writes == "records"
        else engine.send_offsets_to_transaction(offsets, MEMBER, driver.now)
    )
    with pytest.raises(PrepareFailedError, match=r"INVALID_PRODUCER_ID_MAPPING .* has expired") as caught:
        driver.run(operation)
    assert caught.value.retriable
    assert driver.engine.state is ProducerState.FAILED
    with pytest.raises(PrepareFailedError):
        driver.abort()
    heir = SimulatedDriver(driver.cluster)
    heir.init(keep=True)
    assert heir.complete(PreparedTxnState()) is TransactionResult.NOTHING
    heir.init()
    heir.begin(b"again")
    heir.commit()
    assert committed(driver) == [b"again"]


def test_a_topic_that_is_never_created_fails_the_transaction() -> None:
    driver = ready()
    driver.begin(b"a")
    refuse(driver, ApiKey.PRODUCE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    began = driver.now
    with pytest.raises(KafkaRefusedError, match="not acknowledged in 30 s: t-0: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    assert driver.now - began == pytest.approx(30.0)


def test_a_topic_that_is_written_to_while_metadata_is_on_its_way_is_asked_for_at_once() -> None:
    driver = ready()
    began = driver.now
    driver.begin()
    driver.produce(b"a", topic="asked-for")
    for command in driver.engine.step(driver.now):
        driver.perform(command)  # the answer is on its way, and knows nothing of the other topic
    driver.produce(b"b", topic="not-asked-for")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("not-asked-for", 0)].committed() == [b"b"]
    assert driver.now == began, "nothing was waited for"


def test_a_missing_partition_fails_the_transaction() -> None:
    driver = ready()
    driver.begin()
    driver.produce(b"a", partition=7)
    with pytest.raises(KafkaRefusedError, match="t-7: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()


def test_missing_partitions_in_several_topics_fail_the_transaction_once() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    driver.init()
    driver.begin()
    for topic in ("t", "u", "v"):
        driver.produce(b"a", topic=topic, partition=7)
    with pytest.raises(KafkaRefusedError, match="3 records not acknowledged: t-7: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    assert driver.abort() is TransactionResult.NOTHING


def test_a_record_over_the_limit_is_refused_at_once() -> None:
    driver = ready(max_message_bytes=1000)
    driver.begin()
    with pytest.raises(KafkaRefusedError, match=r"message.max.bytes: MESSAGE_TOO_LARGE"):
        driver.produce(b"x" * 1000)
    assert driver.engine.state is ProducerState.ABORTABLE


@pytest.mark.parametrize(("commits", "kind"), [(True, AnswerLostError), (False, KafkaUnavailableError)])
def test_an_unanswered_commit_raises_answer_lost_error(commits: bool, kind: type[Exception]) -> None:
    driver = ready()
    driver.begin()
    driver.produce(b"a")
    state = driver.prepare()
    driver.unreachable.update(NODES)
    driver.opened.clear()
    for node in NODES:
        driver.engine.lost(node, KafkaUnavailableError(f"broker {node}: gone"), driver.now)
    with pytest.raises(
        KafkaUnavailableError, match=f"EndTxn .{'commit' if commits else 'abort'}. of .*: no answer in"
    ) as lost:
        driver.complete(state) if commits else driver.abort()
    assert type(lost.value) is kind
    assert lost.value.retriable is not commits
    assert driver.engine.state is ProducerState.FAILED


def test_a_server_that_says_nothing_is_named() -> None:
    engine = SimulatedDriver(SimulatedCluster(), delivery_timeout=3.0).engine
    operation = engine.init_transactions(now=0.0)
    engine.step(0.0)
    engine.step(3.0)
    with pytest.raises(KafkaUnavailableError, match=r"no answer in 3 s: broker one:1, two:2 says nothing$"):
        operation.outcome()


def test_a_coordinator_that_says_nothing_is_named_alone() -> None:
    driver = ready(delivery_timeout=3.0)
    driver.begin(b"a")
    driver.prepare()
    operation = driver.engine.commit_transaction(driver.now)
    assert [command.request.api_key for command in driver.engine.step(driver.now) if isinstance(command, Send)] == [
        ApiKey.END_TXN
    ]
    driver.engine.step(driver.now + 3.0)
    with pytest.raises(AnswerLostError, match=r"no answer in 3 s: broker (one:1|two:2) says nothing$"):
        operation.outcome()


def test_an_unreachable_cluster_is_an_error_that_names_each_broker_and_reason() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    driver.unreachable.update(NODES)
    with pytest.raises(KafkaUnavailableError, match=r"no answer in 30 s: broker one:1: refused; broker two:2: refused"):
        driver.init()
    assert driver.now == pytest.approx(30.0)


def test_an_unreachable_cluster_fails_a_transaction_with_waiting_records() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.unreachable.update(NODES)
    driver.opened.clear()
    for node in NODES:
        driver.engine.lost(node, KafkaUnavailableError(f"broker {node}: gone"), driver.now)
    with pytest.raises(PrepareFailedError, match=r"1 record not acknowledged in 30 s: t-0: .*refused"):
        driver.prepare()
    assert driver.engine.state is ProducerState.ABORTABLE


def test_an_error_names_no_broker_that_the_cluster_no_longer_has() -> None:
    driver = ready(bootstrap=NODES[1:])
    driver.begin(b"a")
    driver.cluster.listed, driver.cluster.has_leaders = NODES[1:], False
    driver.unreachable.add(NODES[0])
    driver.opened.discard(NODES[0])
    driver.engine.lost(NODES[0], KafkaUnavailableError("broker one:1: gone"), driver.now)
    with pytest.raises(PrepareFailedError, match=r"^1 record not acknowledged in 30 s: t-0: no answer$"):
        driver.prepare()


def test_a_producer_that_has_failed_asks_nothing_more() -> None:
    driver = ready()
    driver.begin()
    driver.produce(b"a", topic="unknown")
    refuse(driver, ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH)
    driver.produce(b"b")
    driver.cluster.topic_errors.extend([ErrorCode.LEADER_NOT_AVAILABLE] * 9)
    with pytest.raises(FencedError):
        driver.prepare()
    driver.cluster.requests.clear()
    while driver.turn():
        assert driver.now < 100, "it asks for ever"
    assert driver.cluster.requests == []
    assert driver.engine.wake_at() is None


def test_an_unanswered_commit_fails_the_producer() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    refuse(driver, ApiKey.END_TXN, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1000)
    with pytest.raises(KafkaUnavailableError, match=r"EndTxn \(commit\).*COORDINATOR_LOAD_IN_PROGRESS"):
        driver.commit()
    assert driver.engine.state is ProducerState.FAILED
    for verb in (driver.commit, driver.abort, driver.begin):
        with pytest.raises(KafkaUnavailableError):
            verb()
    with pytest.raises(InvalidTransactionStateError, match="close it and make a new one"):
        driver.init()


def test_a_commit_that_is_refused_for_good_can_be_aborted() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    refuse(driver, ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(KafkaRefusedError, match="TRANSACTION_ABORTABLE"):
        driver.commit()
    assert driver.abort() is TransactionResult.ABORTED


def test_a_silent_broker_is_hung_up_on() -> None:
    driver = ready(request_timeout=2.0)
    driver.begin(b"a")
    operation = driver.engine.prepare_transaction(driver.now)
    (send,) = driver.engine.step(driver.now)
    assert isinstance(send, Send)
    assert driver.engine.wake_at() == driver.now + 2.0
    driver.now += 2.0
    commands = driver.engine.step(driver.now)
    assert Close(send.endpoint) in commands
    driver.opened.discard(send.endpoint)
    for command in commands:
        driver.perform(command)
    driver.run(operation)
    driver.engine.answered(send.endpoint, send.request.tag, None, driver.now)  # far too late: nobody looks at it
    driver.commit()
    assert committed(driver) == [b"a"]


def test_a_wrong_password_ends_what_is_under_way_at_once() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    operation = driver.engine.init_transactions(0.0)
    (opening,) = driver.engine.step(0.0)
    driver.engine.lost(opening.endpoint, ConfigurationError("sasl.password: wrong"), 0.0)
    with pytest.raises(ConfigurationError, match="wrong"):
        operation.outcome()
