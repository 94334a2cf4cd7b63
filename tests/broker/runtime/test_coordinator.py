"""The transaction coordinator at run time: what is on disk, and when, before a reply is sent."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    Decision,
    EndTransaction,
    InitProducerId,
    Reply,
    VerifyPartitions,
)
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.core.transactions import IllegalTransitionError
from dualwrite.broker.facts.transaction_log import encode_fact
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus, TransactionVersion
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime import coordinator as coordinator_module
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import (
    DATA_DIR,
    TOPIC,
    Rooms,
    SimulatedClock,
    append,
    never,
    read_log,
    reserved,
    run,
)

TXN_ID = "app-0"
SEEDS = range(8)
COMMITTED, ABORTED = TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT


def names(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPIC, index) for index in indexes)


def init(transactional_id: str = TXN_ID, two_phase: bool = False, keep: bool = False) -> InitProducerId:
    return InitProducerId(transactional_id, 60_000, two_phase, keep)


def end(producer: ProducerIdentity, marker: Marker = Marker.COMMIT) -> EndTransaction:
    return EndTransaction(TXN_ID, producer, marker, TransactionVersion.TV2)


async def begun(rooms: Rooms, *indexes: int, two_phase: bool = False) -> ProducerIdentity:
    """A transaction of TXN_ID with one record in each of the partitions."""
    producer = (await rooms.coordinator.execute(init(two_phase=two_phase))).producer
    await rooms.coordinator.execute(AddPartitions(TXN_ID, producer, names(*indexes)))
    for index in indexes:
        assert append(rooms.partition(index), b"v", producer, 0).verdict.appends
    await rooms.flusher.barrier()
    return producer


def status_of(rooms: Rooms) -> TransactionStatus:
    return rooms.coordinator.table.entries[TXN_ID].status


def markers_in(rooms: Rooms, index: int) -> list[tuple[ProducerIdentity, Marker]]:
    return [(entry.producer, entry.marker) for entry in read_log(rooms.partition(index)) if entry.marker is not None]


def with_rooms(test: Callable[[Rooms, MemoryFiles], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        files = MemoryFiles()
        await test(await Rooms(files, **options).with_topic(), files)

    run(main())


async def after_power_cut(files: MemoryFiles, seed: int) -> Rooms:
    return await Rooms(files.power_cut(random.Random(seed))).with_topic()


def test_the_state_of_a_sent_reply_survives_a_power_cut() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        reply = await rooms.coordinator.execute(init())
        for seed in SEEDS:
            recovered = await after_power_cut(files, seed)
            assert recovered.coordinator.table.entries[TXN_ID].client == reply.producer

    with_rooms(test)


def test_an_end_is_answered_when_the_decision_is_on_disk_and_no_power_cut_undoes_it() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0, 2)
        reply = await rooms.coordinator.execute(end(producer))

        assert reply == Reply(producer=ProducerIdentity(producer.producer_id, producer.epoch + 1))
        assert status_of(rooms) is COMMITTED
        disks = [files.power_cut(random.Random(seed)) for seed in SEEDS]
        await rooms.flusher.barrier()
        for index in (0, 2):
            assert rooms.partition(index).visible_before(committed_only=True) == 2
        for disk in disks:
            recovered = await Rooms(disk).with_topic()
            await recovered.coordinator.finish_decided()
            assert status_of(recovered) is COMMITTED
            for index in (0, 2):
                assert set(markers_in(recovered, index)) == {(reply.producer, Marker.COMMIT)}
            assert markers_in(recovered, 1) == []

    with_rooms(test)


def test_a_clients_next_transaction_never_has_to_wait() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0)
        for _ in range(5):
            producer = (await rooms.coordinator.execute(end(producer))).producer
            added = await rooms.coordinator.execute(AddPartitions(TXN_ID, producer, names(0, 1)))
            assert added.error is ErrorCode.NONE

    with_rooms(test)


def test_until_the_decision_is_durable_other_requests_get_concurrent_transactions_at_once() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0)
        ending = asyncio.ensure_future(rooms.coordinator.execute(end(producer)))
        await asyncio.sleep(0)
        assert status_of(rooms) is TransactionStatus.PREPARE_COMMIT
        assert markers_in(rooms, 0) == [], "no marker before the decision is durable"
        commands = (init(), AddPartitions(TXN_ID, producer, names(0)), end(producer))
        replies = await asyncio.gather(*map(rooms.coordinator.execute, commands))
        assert [reply.error for reply in replies] == [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
        assert (await ending).error is ErrorCode.NONE

    with_rooms(test)


def test_after_a_crash_decided_transactions_are_finished_and_open_ones_stay_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        decided = await begun(rooms, 0, 1)
        reply = await rooms.coordinator.execute(init("app-1"))
        await rooms.coordinator.execute(AddPartitions("app-1", reply.producer, names(0)))
        ending = asyncio.ensure_future(rooms.coordinator.execute(end(decided, Marker.ABORT)))
        while markers_in(rooms, 0) == []:
            disk = files.power_cut(random.Random(1))  # the last one before the markers has the decision alone
            await asyncio.sleep(0)
        recovered = await Rooms(disk).with_topic()
        assert status_of(recovered) is TransactionStatus.PREPARE_ABORT
        with caplog.at_level(logging.INFO):
            assert await recovered.coordinator.finish_decided() == 1
        assert "finishing PrepareAbort of 'app-0'" in caplog.text
        assert status_of(recovered) is ABORTED
        assert recovered.coordinator.table.entries["app-1"].status is TransactionStatus.ONGOING
        assert await recovered.coordinator.finish_decided() == 0
        await ending

    with_rooms(test)


def test_a_new_session_is_answered_when_the_abandoned_transaction_is_aborted() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0, 1)
        reply = await rooms.coordinator.execute(init())
        assert reply.producer == ProducerIdentity(producer.producer_id, producer.epoch + 2)
        for index in (0, 1):
            fencing = ProducerIdentity(producer.producer_id, producer.epoch + 1)
            assert markers_in(rooms, index) == [(fencing, Marker.ABORT)]
            assert (
                append(rooms.partition(index), b"late", producer, 1).verdict.error is ErrorCode.INVALID_PRODUCER_EPOCH
            )

    with_rooms(test)


def test_concurrent_inits_leave_one_client_unfenced() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        await begun(rooms, 0)
        replies = await asyncio.gather(*(rooms.coordinator.execute(init()) for _ in range(5)))
        told = [reply.producer for reply in replies if reply.error is ErrorCode.NONE]
        refused = {reply.error for reply in replies} - {ErrorCode.NONE}
        assert len(told) == len(set(told)) >= 1
        assert refused <= {ErrorCode.CONCURRENT_TRANSACTIONS}
        assert rooms.coordinator.table.entries[TXN_ID].client == max(told)

    with_rooms(test)


def test_a_verification_is_answered_without_any_wait() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0)
        assert rooms.coordinator.check(VerifyPartitions(TXN_ID, producer, names(0))) == Reply()
        with pytest.raises(AssertionError, match="changes state"):
            rooms.coordinator.check(AddPartitions(TXN_ID, producer, names(1)))

    with_rooms(test)


def test_house_keeping_aborts_overdue_transactions_and_forgets_idle_ids() -> None:
    clock, settings = SimulatedClock(), TransactionSettings(id_expiration_ms=100_000)

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        await begun(rooms, 0)
        await rooms.coordinator.execute(init("idle"))
        clock.now_ms += 59_999
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.ONGOING
        clock.now_ms += 1
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is ABORTED
        clock.now_ms += 40_000
        await rooms.coordinator.forget_idle()
        assert set(rooms.coordinator.table.entries) == {TXN_ID}
        recovered = await after_power_cut(files, 1)
        assert set(recovered.coordinator.table.entries) == {TXN_ID}

    with_rooms(test, clock=clock, settings=settings)


def test_house_keeping_leaves_a_transaction_of_two_phase_commit_alone_for_ever() -> None:
    clock = SimulatedClock()

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0, two_phase=True)
        clock.now_ms = 2**60
        await rooms.coordinator.end_overdue()
        recovered = await Rooms(files, clock=clock).with_topic()
        await recovered.coordinator.end_overdue()
        kept = await recovered.coordinator.execute(init(keep=True))
        assert kept.ongoing == producer
        assert (await recovered.coordinator.execute(end(kept.producer))).error is ErrorCode.NONE
        await recovered.flusher.barrier()
        assert recovered.partition(0).visible_before(committed_only=True) == 2

    with_rooms(test, clock=clock)


def test_with_durability_os_a_killed_process_loses_nothing() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        await reserved(rooms)
        before = files.syncs.count
        producer = await begun(rooms, 0)
        await rooms.coordinator.execute(end(producer))
        assert files.syncs.count == before, "only the reservation of producer ids is synced"
        reopened = await Rooms(files).with_topic()
        await reopened.coordinator.finish_decided()
        assert reopened.coordinator.table == rooms.coordinator.table

    with_rooms(test, flusher=Flusher(durable=False, on_failure=never))


TV1, TV2 = TransactionVersion.TV1, TransactionVersion.TV2


@pytest.mark.parametrize(("version", "left"), [(TV1, COMMITTED), (TV2, TransactionStatus.PREPARE_COMMIT)])
def test_a_restart_after_a_kill_repeats_no_marker(version: TransactionVersion, left: TransactionStatus) -> None:
    """Under TV2 the end of a transaction is written with the next fact, which may never come."""

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0, 1)
        await rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, version))
        reopened = await Rooms(files).with_topic()
        assert status_of(reopened) is left
        assert await reopened.coordinator.finish_decided() == (0 if left is COMMITTED else 1)
        assert status_of(reopened) is COMMITTED
        assert [len(markers_in(reopened, index)) for index in (0, 1)] == [1, 1]
        again = await Rooms(files).with_topic()
        assert status_of(again) is COMMITTED

    with_rooms(test, flusher=Flusher(durable=False, on_failure=never))


def test_under_tv1_a_restart_ends_no_records_that_came_without_a_fact() -> None:
    """As they do if transaction.partition.verification.enable is off."""

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0)
        await rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV1))
        append(rooms.partition(0), b"next", producer, 1)
        reopened = await Rooms(files).with_topic()
        await reopened.coordinator.finish_decided()
        assert len(markers_in(reopened, 0)) == 1
        assert list(reopened.partition(0).state.open_transactions) == [producer.producer_id]

    with_rooms(test)


def test_a_power_cut_during_a_start_leaves_no_end_without_its_markers() -> None:
    """Under TV1 a later start could not tell that they are missing."""

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await begun(rooms, 0)
        ending = asyncio.ensure_future(rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV1)))
        while markers_in(rooms, 0) == []:
            decided = files.power_cut(random.Random(1))
            await asyncio.sleep(0)
        await ending
        started = await Rooms(decided).with_topic()
        assert status_of(started) is TransactionStatus.PREPARE_COMMIT
        finishing = asyncio.ensure_future(started.coordinator.finish_decided())
        disks: list[MemoryFiles] = []
        while not finishing.done():
            disks += [decided.power_cut(random.Random(seed)) for seed in SEEDS]
            await asyncio.sleep(0)
        assert await finishing == 1
        for disk in disks:
            again = await Rooms(disk).with_topic()
            await again.coordinator.finish_decided()
            assert status_of(again) is COMMITTED
            assert not again.partition(0).state.open_transactions

    with_rooms(test)


async def client_after_tv1(rooms: Rooms) -> ProducerIdentity:
    """A client that has ended a transaction under TV1, and goes on with the same epoch."""
    producer = await begun(rooms, 0)
    await rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV1))
    return producer


def test_a_join_that_had_to_wait_is_refused_if_its_client_was_fenced_meanwhile() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        producer = await client_after_tv1(rooms)
        joining = asyncio.ensure_future(rooms.coordinator.join(AddPartitions(TXN_ID, producer, names(1), TV2)))
        await asyncio.sleep(0)
        fencing = asyncio.ensure_future(rooms.coordinator.execute(init()))
        assert await joining in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED)
        assert (await fencing).error is ErrorCode.NONE

    with_rooms(test)


def test_a_join_that_had_to_wait_is_refused_for_its_first_reason() -> None:
    """After TRANSACTION_ABORTABLE a client would abort, and a prepared transaction can only end as it was decided."""

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        await begun(rooms, 0, two_phase=True)
        recovered = await rooms.coordinator.execute(init(two_phase=True, keep=True))
        other = asyncio.ensure_future(rooms.coordinator.execute(init("app-1")))
        await asyncio.sleep(0)
        assert rooms.flusher.must_wait
        joining = AddPartitions(TXN_ID, recovered.producer, names(1), TV2)
        assert await rooms.coordinator.join(joining) is ErrorCode.INVALID_TXN_STATE
        await other

    with_rooms(test)


# --- producer ids, and what must not get to the disk


def journal_of(files: MemoryFiles) -> Journal:
    return Journal.open(files, DATA_DIR / "__transaction_state-0", lambda record: None)


NEW = TransactionRecorded(TXN_ID, ProducerIdentity(1500, 0), TransactionStatus.EMPTY, 60_000, 1)
OPEN = NEW._replace(
    producer=ProducerIdentity(3, 32_766), status=TransactionStatus.ONGOING, partitions=names(0), started_ms=1
)
KEPT = OPEN._replace(next_producer=ProducerIdentity(1500, 0))


@pytest.mark.parametrize("facts", [(NEW,), (OPEN, KEPT)], ids=["a new client", "a successor of a kept transaction"])
def test_a_producer_id_whose_reservation_was_lost_is_not_given_out_again(facts: Sequence[TransactionRecorded]) -> None:
    """Both were appended at once; a power cut kept the transaction's fact, and not the reservation."""

    async def main() -> None:
        files = MemoryFiles()
        journal = journal_of(files)
        journal.append([Record(*encode_fact(fact)) for fact in facts])
        rooms = await Rooms(files).with_topic()
        other = await rooms.coordinator.execute(init("app-1"))
        assert other.producer.producer_id == 1501
        assert rooms.cluster.state.reserved_before > 1501
        reopened = await Rooms(files).with_topic()
        assert reopened.cluster.take_producer_id() > 1501

    run(main())


def test_an_illegal_fact_stops_the_broker_before_it_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await Rooms(files).with_topic()
        await begun(rooms, 0)
        before = rooms.coordinator.table.entries[TXN_ID]

        def forget_the_transaction(table: Any, command: Command, *rest: Any) -> Decision:
            fact = TransactionRecorded(TXN_ID, before.producer, TransactionStatus.EMPTY, 60_000, 1)
            return Decision(Reply(), (fact,))

        with monkeypatch.context() as broken:
            broken.setattr(coordinator_module, "decide", forget_the_transaction)
            with pytest.raises(IllegalTransitionError):
                await rooms.coordinator.execute(init())
        assert Rooms(files).coordinator.table.entries[TXN_ID] == before

    run(main())


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(b"\x00\x09", b""), "key of an unknown version"),
        (Record(b"\x00\x00\x00\x01a", b"\x00\x01"), "cut short"),
        (Record(None, b""), "a transaction fact has a key"),
    ],
)
def test_a_journal_that_cannot_be_understood_is_named_with_the_place(record: Record, reason: str) -> None:
    async def main() -> None:
        files = MemoryFiles()
        journal = journal_of(files)
        fact = TransactionRecorded(TXN_ID, ProducerIdentity(1, 0), TransactionStatus.EMPTY, 60_000, 1)
        journal.append([Record(*encode_fact(fact))])
        journal.append([record])
        with pytest.raises(CorruptLogError, match=rf"/data/__transaction_state-0: record at offset 1: .*{reason}"):
            Rooms(files)

    run(main())


def test_a_journal_that_contradicts_itself_is_named_with_the_place() -> None:
    async def main() -> None:
        files = MemoryFiles()
        journal = journal_of(files)
        fact = TransactionRecorded(TXN_ID, ProducerIdentity(1, 0), TransactionStatus.EMPTY, 60_000, 1)
        journal.append([Record(*encode_fact(fact)), Record(*encode_fact(fact))])
        with pytest.raises(CorruptLogError, match="record at offset 1: illegal transition"):
            Rooms(files)

    run(main())
