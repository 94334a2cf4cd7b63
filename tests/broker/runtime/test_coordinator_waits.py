"""What the transaction coordinator waits for, and what other clients may do while it waits."""

import asyncio
import random
from typing import Any

import pytest

from dualwrite.broker.api.transactions import write_txn_markers
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
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus, TransactionVersion
from dualwrite.broker.runtime import coordinator as coordinator_module
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import Message, WriteTxnMarkersRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import TOPIC, Rooms, SimulatedClock, append, everybody_may, run
from tests.support.requests.marker_calls import marker

TXN_ID = "app-0"
TIMEOUT_MS = 60_000
ONE = frozenset({TopicPartition(TOPIC, 0)})
TV1, TV2 = TransactionVersion.TV1, TransactionVersion.TV2


async def begun(rooms: Rooms, transactional_id: str = TXN_ID) -> ProducerIdentity:
    """A transaction with one record."""
    producer = (await rooms.coordinator.execute(InitProducerId(transactional_id, TIMEOUT_MS))).producer
    await rooms.coordinator.execute(AddPartitions(transactional_id, producer, ONE))
    assert append(rooms.partition(0), b"v", producer, 0).verdict.appends
    await rooms.flusher.barrier()
    return producer


def test_records_under_an_identity_that_is_not_on_disk_wait_for_it() -> None:
    """A client may guess its next epoch. A power cut that kept its records alone would leave them open for ever."""

    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        beginning = asyncio.ensure_future(rooms.coordinator.execute(InitProducerId(TXN_ID, TIMEOUT_MS)))
        while TXN_ID not in rooms.coordinator.table.entries:
            await asyncio.sleep(0)
        guessed = rooms.coordinator.table.entries[TXN_ID].client
        joining = rooms.coordinator.join(AddPartitions(TXN_ID, guessed, ONE, TV2))
        assert asyncio.isfuture(joining.send(None)), "it waits"
        joining.close()
        assert (await beginning).producer == guessed

    run(main())


def test_clients_may_begin_while_overdue_transactions_are_aborted() -> None:
    clock = SimulatedClock()

    async def main() -> None:
        rooms = await Rooms(MemoryFiles(), clock=clock).with_topic()
        for number in range(2):
            await begun(rooms, f"app-{number}")
        clock.now_ms += TIMEOUT_MS
        aborting = asyncio.ensure_future(rooms.coordinator.end_overdue())
        while rooms.coordinator.table.entries["app-0"].status is TransactionStatus.ONGOING:
            await asyncio.sleep(0)
        await rooms.coordinator.execute(InitProducerId("app-2", TIMEOUT_MS))
        await aborting
        statuses = {entry.status for name, entry in rooms.coordinator.table.entries.items() if name != "app-2"}
        assert statuses == {TransactionStatus.COMPLETE_ABORT}

    run(main())


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("decision", [Marker.COMMIT, Marker.ABORT])
def test_no_marker_contradicts_a_decision_that_is_on_its_way_to_the_disk(
    decision: Marker, version: TransactionVersion
) -> None:
    """The owner is told that its transaction has ended as it was decided. An operator's marker would come first."""

    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        producer = await begun(rooms)
        ending = asyncio.ensure_future(rooms.coordinator.execute(EndTransaction(TXN_ID, producer, decision, version)))
        while not rooms.coordinator.table.entries[TXN_ID].is_ended:
            await asyncio.sleep(0)
        assert rooms.partition(0).end_offset == 1, "its own marker is not written yet"
        opposite = marker(producer, (TOPIC, 0), commit=decision is Marker.ABORT)
        broker: Any = everybody_may(rooms)
        answer: Message = await write_txn_markers.handle(WriteTxnMarkersRequest(markers=[opposite]), 1, broker)
        assert (await ending).error is ErrorCode.NONE
        aborted = [ended.first_offset for ended in rooms.partition(0).state.aborted]
        assert aborted == ([] if decision is Marker.COMMIT else [0])
        assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode.INVALID_TXN_STATE

    run(main())


def test_a_kept_transaction_takes_no_late_record_while_its_decision_is_on_its_way_to_the_disk() -> None:
    """Also without verification: what was prepared is committed as it was prepared."""

    async def main() -> None:
        settings = TransactionSettings(partition_verification_enable=False)
        rooms = await Rooms(MemoryFiles(), settings=settings).with_topic()
        zombie = await begun(rooms)
        heir = (await rooms.coordinator.execute(InitProducerId(TXN_ID, TIMEOUT_MS, keep_prepared=True))).producer
        ending = asyncio.ensure_future(rooms.coordinator.execute(EndTransaction(TXN_ID, heir, Marker.COMMIT, TV2)))
        errors = set()
        for name in (TXN_ID, "another"):
            late = VerifyPartitions(name, zombie, ONE)
            while not rooms.coordinator.table.entries[TXN_ID].is_ended:
                await asyncio.sleep(0)
            errors.add(rooms.coordinator.check(late).error)
        assert rooms.partition(0).end_offset == 1, "its own marker is not written yet"
        assert (await ending).error is ErrorCode.NONE
        assert errors == {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    run(main())


def test_all_that_a_start_has_completed_is_on_disk() -> None:
    """So a client's first request does not wait for it."""

    async def main() -> None:
        files = MemoryFiles()
        rooms = await Rooms(files).with_topic()
        producer = await begun(rooms)
        ending = asyncio.ensure_future(rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV1)))
        while rooms.partition(0).end_offset == 1:
            decided = files.power_cut(random.Random(1))
            await asyncio.sleep(0)
        await ending
        started = await Rooms(decided).with_topic()
        assert await started.coordinator.finish_decided() == 1
        assert not started.flusher.must_wait

    run(main())


def test_the_end_of_a_transaction_is_on_disk_before_the_begin_of_the_next_one() -> None:
    """Under TV2 both are written at once; a start would refuse them in the other order."""

    async def main() -> None:
        files = MemoryFiles()
        rooms = await Rooms(files).with_topic()
        producer = await begun(rooms)
        ended = await rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV2))
        await rooms.coordinator.join(AddPartitions(TXN_ID, ended.producer, ONE, TV2))
        await rooms.flusher.barrier()
        restarted = Rooms(files)
        assert restarted.coordinator.table.entries == rooms.coordinator.table.entries
        assert restarted.coordinator.table.entries[TXN_ID].status is TransactionStatus.ONGOING

    run(main())


def test_a_transaction_ends_although_its_topic_was_deleted() -> None:
    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        producer = await begun(rooms)
        await rooms.cluster.delete_topic(TOPIC)
        ended = await rooms.coordinator.execute(EndTransaction(TXN_ID, producer, Marker.COMMIT, TV2))
        assert ended.error is ErrorCode.NONE
        assert rooms.coordinator.table.entries[TXN_ID].status is TransactionStatus.COMPLETE_COMMIT

    run(main())


def test_every_transactional_id_gets_a_producer_id_of_its_own() -> None:
    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        names = ("app-0", "app-1", "app-2")
        replies = await asyncio.gather(*(rooms.coordinator.execute(InitProducerId(name, TIMEOUT_MS)) for name in names))
        assert len({reply.producer.producer_id for reply in replies}) == len(names)

    run(main())


def test_a_fact_that_memory_refuses_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[BaseException] = []

    def stop(error: BaseException) -> Any:
        reasons.append(error)
        raise error

    def contradict(table: Any, command: Command, *rest: Any) -> Decision:
        fact = TransactionRecorded(TXN_ID, ProducerIdentity(-1, 0), TransactionStatus.EMPTY, TIMEOUT_MS, 1)
        return Decision(Reply(), (fact,))

    async def main() -> None:
        rooms = await Rooms(MemoryFiles(), Flusher(durable=True, on_failure=stop)).with_topic()
        monkeypatch.setattr(coordinator_module, "decide", contradict)
        with pytest.raises(AssertionError, match="illegal transition") as raised:
            await rooms.coordinator.execute(InitProducerId(TXN_ID, TIMEOUT_MS))
        assert reasons == [raised.value]

    run(main())
