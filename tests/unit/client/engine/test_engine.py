"""The native producer's engine against a simulated cluster: one case after another, step by step."""

from collections import deque
from typing import Any

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.contract import Close, Open, Send
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset, CoordinatorOf, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import MAX_PRODUCER_EPOCH, Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.compression import Codec
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import recorded
from tests.support.client.simulated_cluster import (
    FATES,
    NODES,
    TV2_VERSIONS,
    TXN_ID,
    RequestFate,
    SimulatedCluster,
    SimulatedDriver,
)

T0 = TopicPartition("t", 0)
MEMBER = GroupMember("g", 3, "member-1")


def ready(cluster: SimulatedCluster | None = None, **settings: Any) -> SimulatedDriver:
    """A producer that is initialised and has found its way about."""
    driver = SimulatedDriver(cluster or SimulatedCluster(), **settings)
    driver.init()
    driver.begin(b"first")
    driver.commit()
    driver.cluster.requests.clear()
    return driver


def refuse(driver: SimulatedDriver, api_key: ApiKey, *codes: ErrorCode) -> None:
    driver.cluster.refusals[api_key] = deque(codes)


def committed(driver: SimulatedDriver, partition: int = 0) -> list[bytes | None]:
    return driver.cluster.logs[TopicPartition("t", partition)].committed()[1 if not partition else 0 :]


# --- the happy way


def test_a_unit_of_one_record_takes_two_requests() -> None:
    driver = ready()
    driver.begin(b"a")
    state = driver.prepare()
    assert driver.complete(state) is TransactionResult.COMMITTED
    assert driver.cluster.requests == [ApiKey.PRODUCE, ApiKey.END_TXN]
    assert committed(driver) == [b"a"]


def test_every_transaction_has_an_identity_of_its_own() -> None:
    driver = ready()
    states = []
    for value in (b"a", b"b"):
        driver.begin(value)
        states.append(driver.prepare())
        driver.commit()
    assert states[0] != states[1]
    assert all(state.anchor is None for state in states)


def test_a_transaction_without_records_sends_nothing_and_has_the_empty_state() -> None:
    driver = ready()
    driver.begin()
    assert driver.prepare() == PreparedTxnState()
    assert driver.complete(PreparedTxnState()) is TransactionResult.NOTHING
    driver.begin()
    assert driver.commit() is TransactionResult.NOTHING
    driver.begin()
    assert driver.abort() is TransactionResult.NOTHING
    assert driver.cluster.requests == []


def test_records_that_were_not_sent_are_aborted_without_a_request() -> None:
    driver = ready()
    driver.begin(b"a")
    assert driver.abort() is TransactionResult.NOTHING
    assert driver.cluster.requests == []
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"b"]


def test_sent_records_are_aborted_by_the_coordinator() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.run(driver.engine.flush(driver.now))
    assert driver.abort() is TransactionResult.ABORTED
    assert driver.cluster.requests == [ApiKey.PRODUCE, ApiKey.END_TXN]
    assert committed(driver) == []


def test_partitions_of_one_leader_share_a_request() -> None:
    driver = ready(SimulatedCluster(partitions=3))
    driver.begin()
    for partition in range(3):
        driver.produce(b"%d" % partition, partition=partition)
    driver.commit()
    assert driver.cluster.requests == [ApiKey.PRODUCE, ApiKey.END_TXN]
    assert [committed(driver, partition) for partition in (1, 2)] == [[b"1"], [b"2"]]


def test_no_request_exceeds_the_largest_message_size() -> None:
    driver = ready(SimulatedCluster(partitions=3), max_message_bytes=1000)
    driver.begin()
    for partition in range(3):
        driver.produce(b"x" * 600, partition=partition)
    driver.commit()
    assert driver.cluster.requests == [ApiKey.PRODUCE] * 3 + [ApiKey.END_TXN]


def test_full_batches_are_sent_while_the_unit_of_work_goes_on() -> None:
    driver = ready(batch_size=200)
    driver.begin(*[b"x" * 50] * 2)
    assert not driver.engine.has_news
    driver.produce(b"x" * 50)
    assert driver.engine.has_news
    driver.turn()
    assert driver.cluster.requests == [ApiKey.PRODUCE]
    assert driver.engine.state is ProducerState.IN_TRANSACTION
    driver.commit()
    assert len(committed(driver)) == 3


def test_compressed_batches_are_sent() -> None:
    driver = SimulatedDriver(SimulatedCluster(), codec=Codec.GZIP)
    driver.init()
    driver.begin()
    driver.produce(b"x" * 5000)
    commands: list[Any] = []
    perform = driver.perform

    def watched(command: Any) -> None:
        commands.append(command)
        if not (isinstance(command, Send) and command.request.api_key is ApiKey.PRODUCE):
            perform(command)

    driver.perform = watched  # type: ignore[method-assign]
    driver.engine.prepare_transaction(driver.now)
    while not any(isinstance(one, Send) and one.request.api_key is ApiKey.PRODUCE for one in commands):
        driver.turn()
    (batch,) = commands[-1].request.message.batches
    assert len(batch.data) < 1000


def test_delivery_callbacks_get_the_positions_of_their_records() -> None:
    driver, told = ready(), []
    driver.begin(b"a", b"b", on_delivery=lambda error, record: told.append((error, record)))
    driver.prepare()
    assert told == []  # the engine calls nobody
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert [(error, record.topic(), record.partition(), record.value()) for error, record in told] == [
        (None, "t", 0, b"a"),
        (None, "t", 0, b"b"),
    ]
    assert told[1][1].offset() == told[0][1].offset() + 1
    assert (told[0][1].key(), told[0][1].headers(), told[0][1].error(), len(told[0][1])) == (None, None, None, 1)
    assert told[0][1].timestamp() == (1, 0)
    assert driver.engine.take_reports() == []


def test_at_the_highest_epoch_the_next_transaction_has_another_producer_id() -> None:
    cluster = SimulatedCluster()
    cluster.begin_at(recorded(producer=ProducerIdentity(7, MAX_PRODUCER_EPOCH - 3)))
    driver = SimulatedDriver(cluster)
    driver.init()
    names = []
    for value in (b"a", b"b", b"c"):
        driver.begin(value)
        names.append(str(driver.prepare()))
        driver.commit()
    assert names == ["7:32765", "7:32766", "1000:0"] or names == ["7:32765", "1000:0", "1000:1"]
    assert cluster.logs[T0].committed() == [b"a", b"b", b"c"]


# --- offsets


def test_offsets_join_the_transaction_by_being_committed() -> None:
    driver = ready()
    driver.begin()
    driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 42)], MEMBER, driver.now))
    state = driver.prepare()
    assert state
    driver.complete(state)
    assert driver.cluster.requests == [ApiKey.FIND_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN]
    assert driver.cluster.offsets == [(state.producer, "in", 42)]


def test_offsets_that_may_come_late_never_overtake_newer_ones() -> None:
    driver = ready()
    driver.begin()
    fates = FATES[ApiKey.TXN_OFFSET_COMMIT]
    losing = [fates.index(RequestFate.NOT_ANSWERED)]
    driver.cluster.fate = lambda options: losing.pop() if losing and options == len(fates) else 0
    driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 5)], MEMBER, driver.now))
    assert driver.cluster.requests.count(ApiKey.TXN_OFFSET_COMMIT) == 2
    other = GroupMember("another group")
    driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 1)], other, driver.now))
    with pytest.raises(PrepareFailedError, match="group g: some that were sent before may still be under way"):
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 9)], MEMBER, driver.now))
    assert driver.abort() is TransactionResult.ABORTED
    driver.begin()
    driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 9)], MEMBER, driver.now))
    assert driver.commit() is TransactionResult.COMMITTED


def test_an_empty_list_of_offsets_sends_no_request() -> None:
    driver = ready()
    driver.begin()
    driver.run(driver.engine.send_offsets_to_transaction([], MEMBER, driver.now))
    assert driver.commit() is TransactionResult.NOTHING
    assert driver.cluster.requests == []


def test_an_illegal_generation_leaves_the_transaction_only_abort() -> None:
    driver = ready()
    driver.begin(b"a")
    refuse(driver, ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION)
    with pytest.raises(KafkaRefusedError, match=r"group g .*ILLEGAL_GENERATION"):
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 42)], MEMBER, driver.now))
    assert driver.engine.state is ProducerState.ABORTABLE
    assert driver.abort() is TransactionResult.ABORTED
    assert driver.engine.state is ProducerState.READY


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, KafkaUnavailableError, "no answer in 30 s: .*COORDINATOR_LOAD"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaRefusedError, "refused for 30 s: in-0: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_offsets_that_are_never_taken_leave_the_transaction_only_abort(
    code: ErrorCode, kind: type[DualWriteError], said: str
) -> None:
    driver = ready()
    driver.begin(b"a")
    refuse(driver, ApiKey.TXN_OFFSET_COMMIT, *[code] * 1000)
    with pytest.raises(kind, match=f"group g.*: {said}"):
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 42)], MEMBER, driver.now))
    assert driver.engine.state is ProducerState.ABORTABLE
    driver.cluster.refusals.clear()
    assert driver.abort() is TransactionResult.ABORTED
    assert driver.engine.state is ProducerState.READY


def test_an_unauthorized_group_leaves_the_transaction_only_abort() -> None:
    driver = ready()
    driver.begin(b"a")
    refuse(driver, ApiKey.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaRefusedError, match=r"FindCoordinator of g: GROUP_AUTHORIZATION_FAILED"):
        driver.run(driver.engine.send_offsets_to_transaction([CommittedOffset("in", 0, 42)], MEMBER, driver.now))
    assert driver.engine.state is ProducerState.ABORTABLE
    driver.abort()
    assert driver.engine.state is ProducerState.READY


# --- init


def test_init_aborts_what_a_predecessor_left() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    driver.cluster.requests.clear()
    successor.init()
    assert successor.engine.state is ProducerState.READY
    assert driver.cluster.requests == [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN]
    assert committed(driver) == []
    with pytest.raises(FencedError):
        driver.commit()
    assert driver.engine.state is ProducerState.FAILED


def test_an_init_that_refuses_an_open_transaction_leaves_it_to_be_decided() -> None:
    driver = ready()
    driver.begin(b"a")
    state = driver.prepare()
    late = SimulatedDriver(driver.cluster)
    with pytest.raises(FencedError, match="another process has begun a transaction, which stays open"):
        late.init(refuse_open=True)
    assert late.engine.state is ProducerState.FAILED
    assert driver.cluster.requests[-1] is ApiKey.INIT_PRODUCER_ID
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    assert successor.complete(state) is TransactionResult.COMMITTED
    successor.init(refuse_open=True)
    successor.begin(b"b")
    successor.commit()
    assert committed(driver) == [b"a", b"b"]


@pytest.mark.parametrize("matches", [True, False])
def test_a_kept_transaction_is_completed_by_its_state(matches: bool) -> None:
    driver = ready()
    driver.begin(b"a")
    state = driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    assert successor.engine.ongoing == state.producer
    with pytest.raises(InvalidTransactionStateError):
        successor.begin()
    ended = successor.complete(state if matches else PreparedTxnState())
    assert ended is (TransactionResult.COMMITTED if matches else TransactionResult.ABORTED)
    assert committed(driver) == ([b"a"] if matches else [])
    successor.init()
    successor.begin(b"b")
    successor.commit()
    assert committed(driver)[-1:] == [b"b"]


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_no_transaction_is_ended_if_none_was_kept(verb: str) -> None:
    driver = ready()
    driver.init_kept = SimulatedDriver(driver.cluster)  # type: ignore[attr-defined]
    successor = SimulatedDriver(driver.cluster)
    successor.init(keep=True)
    driver.cluster.requests.clear()
    assert getattr(successor, verb)() is TransactionResult.NOTHING
    assert driver.cluster.requests == []


def test_a_state_with_an_anchor_is_not_judged_by_the_identity_alone() -> None:
    driver = ready()
    with pytest.raises(InvalidTransactionStateError, match="anchor"):
        driver.engine.complete_transaction(PreparedTxnState(ProducerIdentity(1, 2), Anchor("t", 0, 5)), 0.0)


def test_without_two_phase_commit_init_is_plain_and_times_out() -> None:
    driver = SimulatedDriver(SimulatedCluster(), two_phase_commit=False, transaction_timeout_ms=5000)
    driver.init()
    assert driver.cluster.entry() is not None
    assert driver.cluster.entry().timeout_ms == 5000  # type: ignore[union-attr]


def test_a_transaction_without_two_phase_commit_is_prepared_and_completed_by_its_state() -> None:
    """KIP-939 answers INVALID_TXN_STATE; docs/decisions/0022 says why this client does not."""
    driver = SimulatedDriver(SimulatedCluster(), two_phase_commit=False, transaction_timeout_ms=5000)
    driver.init()
    for record, decided, ending in (
        (b"a", True, TransactionResult.COMMITTED),
        (b"b", False, TransactionResult.ABORTED),
    ):
        driver.begin(record)
        state = driver.prepare()
        assert state
        with pytest.raises(InvalidTransactionStateError):
            driver.begin(b"late")
        assert driver.complete(state if decided else PreparedTxnState()) is ending
    assert driver.cluster.logs[T0].committed() == [b"a"]


def test_where_keeping_is_not_supported_init_is_plain() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    successor = SimulatedDriver(driver.cluster)
    refuse(driver, ApiKey.INIT_PRODUCER_ID, ErrorCode.UNSUPPORTED_VERSION)
    driver.cluster.requests.clear()
    successor.init()
    assert driver.cluster.requests == [ApiKey.FIND_COORDINATOR, *[ApiKey.INIT_PRODUCER_ID] * 2]
    assert committed(driver) == []
    refuse(driver, ApiKey.INIT_PRODUCER_ID, ErrorCode.UNSUPPORTED_VERSION)
    with pytest.raises(TwoPhaseCommitUnavailableError):
        SimulatedDriver(driver.cluster).init(keep=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TwoPhaseCommitUnavailableError),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, KafkaRefusedError),
    ],
)
def test_an_init_that_is_refused_says_why(code: ErrorCode, kind: type[DualWriteError]) -> None:
    driver = SimulatedDriver(SimulatedCluster())
    refuse(driver, ApiKey.INIT_PRODUCER_ID, code)
    with pytest.raises(kind, match=code.name):
        driver.init()
    assert driver.engine.state is ProducerState.FAILED


def test_a_cluster_without_tv2_is_refused_by_name() -> None:
    cluster = SimulatedCluster()
    cluster.is_tv2 = False
    with pytest.raises(ConfigurationError, match=r'transaction.version is 0.*producer="librdkafka"'):
        SimulatedDriver(cluster).init()


def test_a_broker_without_init_v6_has_no_two_phase_commit() -> None:
    driver = SimulatedDriver(SimulatedCluster())
    ranges = {**TV2_VERSIONS.ranges, ApiKey.INIT_PRODUCER_ID: TV2_VERSIONS.ranges[ApiKey.END_TXN]}
    operation = driver.engine.init_transactions(0.0)
    (opening,) = driver.engine.step(0.0)
    assert isinstance(opening, Open)
    driver.engine.opened(opening.endpoint, Versions(ranges, TV2_VERSIONS.features, 1), 0.0)
    driver.engine.metadata.coordinators[CoordinatorOf(1, TXN_ID)] = opening.endpoint
    driver.engine.step(0.0)
    with pytest.raises(TwoPhaseCommitUnavailableError, match="offers versions 0 to 5"):
        operation.outcome()


# --- trouble


@pytest.mark.parametrize(("gives_hints", "seconds"), [(True, 0.0), (False, 0.1)])
def test_a_moved_leader_is_found_again_without_a_pause_if_its_predecessor_names_it(
    gives_hints: bool, seconds: float
) -> None:
    driver = ready(batch_records=1)
    driver.begin(b"a", b"b", b"c")
    driver.cluster.leader, driver.cluster.gives_hints = 1, gives_hints
    began = driver.now
    driver.commit()
    assert driver.now - began == pytest.approx(seconds)
    assert driver.cluster.requests.count(ApiKey.METADATA) == 1, "other partitions may have moved too"
    assert committed(driver) == [b"a", b"b", b"c"]


def test_one_refused_refresh_does_not_blind_the_producer_to_a_topic_that_it_knows() -> None:
    driver = ready(metadata_max_age=300.0)
    driver.cluster.gives_hints = False
    driver.cluster.topic_errors = deque([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    driver.now += 400.0
    driver.begin(b"a")
    driver.commit()
    while driver.cluster.topic_errors:
        driver.turn()
    while driver.events:
        driver.turn()
    driver.cluster.leader = 1
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"a", b"b"]


def test_a_refused_topic_that_is_not_known_is_asked_for_when_it_is_written_to_again() -> None:
    driver = ready()
    driver.cluster.topic_errors = deque([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    driver.begin()
    driver.produce(b"a", topic="u")
    with pytest.raises(KafkaRefusedError, match="topic 'u': TOPIC_AUTHORIZATION_FAILED"):
        driver.prepare()
    driver.abort()
    driver.begin()
    driver.produce(b"b", topic="u")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("u", 0)].committed() == [b"b"]


def test_a_partition_without_a_leader_is_asked_for_with_growing_pauses() -> None:
    driver = ready()
    driver.cluster.has_leaders = False
    driver.begin(b"a")
    driver.cluster.leader = 1  # the old one refuses the record
    operation = driver.engine.prepare_transaction(driver.now)
    began = driver.now
    while driver.now < began + 10.0:
        driver.turn()
        assert driver.cluster.requests.count(ApiKey.METADATA) < 25, "pauses grow to a second"
    assert driver.cluster.requests.count(ApiKey.METADATA) > 5
    driver.cluster.has_leaders = True
    driver.run(operation)
    driver.commit()
    assert committed(driver) == [b"a"]


def test_a_topic_that_did_not_come_to_be_is_not_asked_for_after_its_transaction() -> None:
    driver = ready(topic_propagation=5.0)
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    driver.begin()
    driver.produce(b"a", topic="mistyped")
    with pytest.raises(KafkaRefusedError, match="not acknowledged in 5 s: mistyped: UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    driver.abort()
    driver.cluster.topic_errors.clear()
    while driver.events:
        driver.turn()
    driver.cluster.requests.clear()
    for _ in range(3):
        driver.now += 2.0
        driver.begin(b"b")
        driver.commit()
    assert ApiKey.METADATA not in driver.cluster.requests[1:], "at most once, of those that there are"
    assert list(driver.engine.metadata.wanted) == ["t"]
    driver.begin()
    driver.produce(b"c", topic="mistyped")  # somebody has made it
    driver.commit()
    assert driver.cluster.logs[TopicPartition("mistyped", 0)].committed() == [b"c"]


def test_a_topic_that_was_deleted_is_forgotten_with_the_transaction_that_found_it_gone() -> None:
    driver = ready(delivery_timeout=5.0)
    driver.begin(b"a")
    refuse(driver, ApiKey.PRODUCE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    driver.cluster.topic_errors = deque([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        driver.prepare()
    driver.abort()
    assert not driver.engine.metadata.wanted
    assert not driver.engine.metadata.topics
    assert not driver.engine.metadata.is_stale
    refuse(driver, ApiKey.PRODUCE)
    driver.cluster.topic_errors.clear()
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"b"]


def test_an_answer_that_comes_after_its_transaction_brings_no_topic_back() -> None:
    driver = ready()
    driver.begin()
    driver.produce(b"a", topic="u")
    for command in driver.engine.step(driver.now):
        driver.perform(command)  # the answer is on its way
    driver.abort()
    while driver.events:
        driver.turn()
    assert not driver.engine.metadata.is_stale
    assert list(driver.engine.metadata.topics) == ["t"]


def test_metadata_of_an_unused_topic_is_dropped_after_its_maximum_age() -> None:
    driver = ready(metadata_max_age=100.0)
    for _ in range(5):
        driver.now += 101.0
        driver.begin()
        driver.produce(b"a", topic="u")
        driver.commit()
        driver.turn()
    assert list(driver.engine.metadata.wanted) == list(driver.engine.metadata.topics) == ["u"]
    driver.begin(b"b")
    driver.commit()
    assert committed(driver) == [b"b"]


def test_metadata_of_a_topic_is_refreshed_when_it_is_written_to_after_a_long_time() -> None:
    driver = ready()
    driver.cluster.gives_hints = False
    driver.now += 10_000.0
    driver.cluster.partitions = 2
    driver.begin()
    driver.produce(b"a", partition=1)  # one that there was not when it was written to last
    driver.commit()
    assert committed(driver, 1) == [b"a"]
    driver.begin(b"b")
    driver.now += 10_000.0
    driver.cluster.leader = 1
    driver.commit()
    assert committed(driver) == [b"b"]


@pytest.mark.parametrize("topic", ["t\ud800", "", "a b", "..", "x" * 250])
def test_an_invalid_topic_name_is_refused_at_once_and_affects_no_other_topic(topic: Any) -> None:
    driver = ready()
    driver.begin()
    with pytest.raises(KafkaRefusedError, match=r"a name has 1 to 249 letters, .*: INVALID_TOPIC_EXCEPTION"):
        driver.produce(b"a", topic=topic)
    assert driver.abort() is TransactionResult.NOTHING
    driver.begin()
    driver.produce(b"b", topic="u")
    driver.commit()
    assert driver.cluster.logs[TopicPartition("u", 0)].committed() == [b"b"]


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


# --- order


def test_a_call_that_is_under_way_forbids_another() -> None:
    driver = ready()
    driver.begin(b"a")
    operation = driver.engine.prepare_transaction(driver.now)
    for verb in (driver.engine.abort_transaction, driver.engine.commit_transaction, driver.engine.flush):
        with pytest.raises(InvalidTransactionStateError, match="another call"):
            verb(driver.now)
    with pytest.raises(InvalidTransactionStateError, match="another call"):
        driver.produce(b"b")
    driver.run(operation)


def test_an_abandoned_prepare_can_be_aborted() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.engine.prepare_transaction(driver.now)
    driver.engine.step(driver.now)
    driver.engine.abandon()
    assert driver.engine.state is ProducerState.ABORTABLE
    assert driver.abort() is TransactionResult.ABORTED


def test_an_abandoned_commit_fails_the_producer() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.prepare()
    driver.engine.commit_transaction(driver.now)
    driver.engine.abandon()
    assert driver.engine.state is ProducerState.FAILED


def test_a_full_buffer_takes_nothing_until_something_is_acknowledged() -> None:
    driver = ready(buffer_records=2)
    driver.begin(b"a", b"b")
    assert not driver.engine.produce(OutgoingRecord("t", b"c", partition=0), 0, driver.now)
    driver.run(driver.engine.room(driver.now))
    driver.produce(b"c")
    driver.commit()
    assert committed(driver) == [b"a", b"b", b"c"]


def test_records_whose_topic_is_not_known_yet_fill_the_buffer_too() -> None:
    driver = ready(buffer_bytes=10_000)
    driver.begin()
    taken = 0
    while driver.engine.produce(OutgoingRecord("u", bytes(3000), partition=0), 0, driver.now):
        taken += 1
        assert taken < 10, "the buffer takes everything"
    assert taken == 4
    driver.run(driver.engine.room(driver.now))
    driver.produce(b"a", topic="u")
    driver.commit()
    assert len(driver.cluster.logs[TopicPartition("u", 0)].committed()) == 5
    driver.begin()
    driver.produce(bytes(6000), topic="v")
    driver.abort()
    driver.begin()
    driver.produce(bytes(6000), topic="w")  # what was aborted weighs nothing
    assert driver.engine.produce(OutgoingRecord("w", b"a", partition=0), 0, driver.now)
    driver.commit()


@pytest.mark.parametrize("topic", ["t", "not-known-yet"])
def test_an_unencodable_header_raises_in_its_own_produce_call(topic: str) -> None:
    driver = ready()
    driver.begin()
    wrong: Any = [(5, b"x")]
    with pytest.raises(AttributeError):
        driver.engine.produce(OutgoingRecord(topic, b"bad", partition=0)._replace(headers=wrong), 0, driver.now)
    driver.produce(b"good", topic=topic)
    driver.commit()
    assert driver.cluster.logs[TopicPartition(topic, 0)].committed()[-1:] == [b"good"]


def test_an_interrupt_while_records_are_partitioned_fails_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, told = ready(), []
    driver.begin()
    driver.produce(b"a", b"b", b"c", topic="u", on_delivery=lambda error, record: told.append(record.value()))
    append = RecordAccumulator.append

    def interrupted(self: RecordAccumulator, queue: Any, record: OutgoingRecord, *others: Any) -> bool:
        if record.value == b"b":
            raise KeyboardInterrupt
        return append(self, queue, record, *others)

    with monkeypatch.context() as patch:
        patch.setattr(RecordAccumulator, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            all(iter(driver.turn, False))  # as poll() does
    with pytest.raises(PrepareFailedError, match="3 records not acknowledged: u: KeyboardInterrupt"):
        driver.prepare()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert told == [b"a", b"b", b"c"]
    assert driver.abort() is TransactionResult.NOTHING
    driver.begin(b"d")
    driver.commit()
    assert committed(driver) == [b"d"]


def test_every_records_callback_gets_the_error_of_a_missing_partition() -> None:
    driver, told = ready(), []
    driver.begin()
    for value, partition in ((b"a", 0), (b"b", 7), (b"c", 0)):
        driver.produce(
            value,
            topic="u",
            partition=partition,
            on_delivery=lambda error, record: told.append((error, record.value())),
        )
    with pytest.raises(KafkaRefusedError, match="3 records not acknowledged: u-7") as caught:
        driver.prepare()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert told == [(caught.value, b"a"), (caught.value, b"b"), (caught.value, b"c")]


def test_a_lost_brokers_earlier_answer_is_not_the_reason_for_giving_records_up() -> None:
    driver = ready(delivery_timeout=10.0)
    driver.begin(b"a")
    refuse(driver, ApiKey.PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    lost = FATES[ApiKey.PRODUCE].index(RequestFate.NOT_SENT)
    driver.cluster.fate = lambda options: lost if driver.cluster.requests else 0  # only the first gets an answer
    with pytest.raises(PrepareFailedError, match=r"not acknowledged in 10 s: t-0: .*reset") as caught:
        driver.prepare()
    assert not isinstance(caught.value, KafkaRefusedError)


def test_closing_ends_nothing_and_reports_what_was_not_acknowledged() -> None:
    driver, told = ready(), []
    driver.begin(b"a", on_delivery=lambda error, record: told.append(error))
    operation = driver.engine.prepare_transaction(driver.now)
    driver.engine.close()
    with pytest.raises(KafkaUnavailableError, match="closed"):
        operation.outcome()
    for on_delivery, error, record in driver.engine.take_reports():
        on_delivery(error, record)
    assert [type(error) for error in told] == [KafkaUnavailableError]
    assert driver.engine.state is ProducerState.CLOSED
    with pytest.raises(InvalidTransactionStateError):
        driver.begin()


def test_events_of_connections_that_were_closed_are_passed_over() -> None:
    driver = ready()
    stranger = Endpoint("three", 3)
    driver.engine.opened(stranger, TV2_VERSIONS._replace(features={}), driver.now)
    driver.engine.lost(stranger, KafkaUnavailableError("gone"), driver.now)
    driver.engine.answered(stranger, 1, None, driver.now)
    assert driver.engine.state is ProducerState.READY
