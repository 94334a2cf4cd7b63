"""The native producer's engine against a simulated cluster: one case after another, step by step."""

from typing import Any

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.contract import Send
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import (
    DualWriteError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import MAX_PRODUCER_EPOCH, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.compression import Codec
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import recorded
from tests.support.client.simulated_cluster import FATES, TV2_VERSIONS, RequestFate, SimulatedCluster, SimulatedDriver
from tests.support.client.simulated_engine import MEMBER, T0, committed, ready, refuse

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
