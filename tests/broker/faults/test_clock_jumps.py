"""The wall clock of a running broker jumps by hours and years: nothing ends or expires before its time, or never."""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker.core.commands import AddPartitions, EndTransaction, InitProducerId
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.facts.transactions import TransactionStatus, TransactionVersion
from dualwrite.broker.runtime.expiry_clock import ExpiryClock
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, peek_header
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import TOPIC, FakeClock, Rooms, append, run

HOUR_MS, YEAR_MS = 3_600_000, 31_536_000_000
TIMEOUT_MS = 60_000
PARTITION = TopicPartition(TOPIC, 0)
JUMPS = [HOUR_MS, -HOUR_MS, YEAR_MS, -YEAR_MS]

Test = Callable[[Rooms, FakeClock], Awaitable[None]]


def with_rooms(test: Test, files: MemoryFiles | None = None, clock: FakeClock | None = None) -> None:
    made = clock or FakeClock(2 * YEAR_MS)

    async def main() -> None:
        rooms = Rooms(files or MemoryFiles(), clock=made, settings=TransactionSettings(id_expiration_ms=TIMEOUT_MS))
        await rooms.with_topic()
        await test(rooms, made)

    run(main())


async def begun(rooms: Rooms, name: str = "app", two_phase: bool = False) -> ProducerIdentity:
    producer = (await rooms.coordinator.execute(InitProducerId(name, TIMEOUT_MS, two_phase))).producer
    await rooms.coordinator.execute(AddPartitions(name, producer, frozenset({PARTITION})))
    assert append(rooms.partition(0), b"v", producer, 0).verdict.appends
    await rooms.flusher.barrier()
    return producer


def status_of(rooms: Rooms, name: str = "app") -> TransactionStatus:
    return rooms.coordinator.table.entries[name].status


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_a_transaction_times_out_exactly_in_time_whatever_the_wall_clock_does(jump_ms: int) -> None:
    async def test(rooms: Rooms, clock: FakeClock) -> None:
        await begun(rooms)
        clock.jumped_ms += jump_ms
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.ONGOING
        clock.now_ms += TIMEOUT_MS - 1
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.ONGOING
        clock.now_ms += 1
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.COMPLETE_ABORT
        await begun(rooms)
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.ONGOING, "the next transaction has a time of its own"

    with_rooms(test)


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_a_prepared_transaction_stays_through_every_jump_and_restart(jump_ms: int) -> None:
    files = MemoryFiles()

    async def before(rooms: Rooms, clock: FakeClock) -> None:
        await begun(rooms, two_phase=True)
        clock.jumped_ms += jump_ms
        clock.now_ms += YEAR_MS
        await rooms.coordinator.end_overdue()

    async def after(rooms: Rooms, clock: FakeClock) -> None:
        clock.jumped_ms -= 2 * jump_ms
        await rooms.coordinator.end_overdue()
        kept = (await rooms.coordinator.execute(InitProducerId("app", TIMEOUT_MS, True, True))).producer
        reply = await rooms.coordinator.execute(EndTransaction("app", kept, Marker.COMMIT, TransactionVersion.TV2))
        assert reply.error is ErrorCode.NONE

    clock = FakeClock(4 * YEAR_MS)
    with_rooms(before, files, clock)
    with_rooms(after, files, clock)


@pytest.mark.parametrize(
    ("passed_ms", "jump_ms", "left_ms"),
    [
        (20_000, 0, 40_000),
        (20_000, -HOUR_MS, 60_000),  # the clock was put back: the transaction has its whole time, and not an hour more
        (HOUR_MS, 0, 0),
        (0, HOUR_MS, 0),  # as if the broker had been down for an hour
    ],
)
def test_after_a_restart_the_wall_clock_counts_up_to_the_timeout(passed_ms: int, jump_ms: int, left_ms: int) -> None:
    files, clock = MemoryFiles(), FakeClock(YEAR_MS)

    async def before(rooms: Rooms, _: FakeClock) -> None:
        await begun(rooms)

    async def after(rooms: Rooms, clock: FakeClock) -> None:
        if left_ms:
            clock.now_ms += left_ms - 1
            await rooms.coordinator.end_overdue()
            assert status_of(rooms) is TransactionStatus.ONGOING
            clock.now_ms += 1
        await rooms.coordinator.end_overdue()
        assert status_of(rooms) is TransactionStatus.COMPLETE_ABORT

    with_rooms(before, files, clock)
    clock.now_ms += passed_ms
    clock.jumped_ms += jump_ms
    with_rooms(after, files, clock)


def test_a_jump_forward_forgets_no_transactional_id_no_offset_and_no_producer() -> None:
    async def test(rooms: Rooms, clock: FakeClock) -> None:
        await rooms.coordinator.execute(InitProducerId("idle", TIMEOUT_MS))
        await rooms.offsets.commit(CommitOffsets("g", {PARTITION: CommittedPosition(1)}))
        append(rooms.partition(0), b"v")
        await rooms.flusher.barrier()
        clock.jumped_ms += YEAR_MS
        await rooms.coordinator.forget_idle()
        assert await rooms.offsets.expire() == 0
        assert "idle" in rooms.coordinator.table.entries
        clock.now_ms += TIMEOUT_MS
        await rooms.coordinator.forget_idle()
        assert "idle" not in rooms.coordinator.table.entries
        clock.now_ms += YEAR_MS
        assert await rooms.offsets.expire() > 0

    with_rooms(test)


def test_the_state_of_an_idle_producer_survives_a_jump_forward() -> None:
    async def test(rooms: Rooms, clock: FakeClock) -> None:
        producer = ProducerIdentity(rooms.cluster.take_producer_id(), 0)
        batch = build_batch([Record(None, b"v", clock.wall_ms())], BatchFields(producer, 0))
        assert rooms.partition(0).append(batch, peek_header(batch)).verdict.appends
        clock.jumped_ms += YEAR_MS
        rooms.cluster.expire_producers(HOUR_MS)
        assert producer.producer_id in rooms.partition(0).state.producers
        clock.now_ms += HOUR_MS
        rooms.cluster.expire_producers(HOUR_MS)
        assert producer.producer_id not in rooms.partition(0).state.producers

    with_rooms(test)


@given(st.lists(st.tuples(st.integers(0, YEAR_MS), st.integers(-YEAR_MS, YEAR_MS)), max_size=20))
@settings(max_examples=200)
def test_the_clock_of_expiry_never_passes_more_time_than_has_passed(steps: list[tuple[int, int]]) -> None:
    clock = FakeClock(100 * YEAR_MS)
    expiry = ExpiryClock(clock)
    began_ms, passed_ms = expiry.now_ms(), 0
    for step_ms, jump_ms in steps:
        clock.now_ms += step_ms
        clock.jumped_ms += jump_ms
        passed_ms += step_ms
        assert expiry.now_ms() <= min(clock.wall_ms(), began_ms + passed_ms)
    clock.jumped_ms = 0
    assert expiry.now_ms() == began_ms + passed_ms
