"""flush.messages and flush.ms with durability=os: what is synced, when, and what a power cut leaves."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.runtime.flush_limits import NO_LIMIT, FlushLimits
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import TOPIC, Rooms, append, never, read_log, run
from tests.support.waiting import PATIENCE_SECONDS

HOUR_MS = 3_600_000


class CountedLog:
    """A log of numbers, and how often it was synced."""

    def __init__(self) -> None:
        self.end_offset = self.synced_offset = 0
        self.syncs: list[int] = []

    def sync(self) -> None:
        self.synced_offset = self.end_offset
        self.syncs.append(self.end_offset)


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 20))
def test_no_append_leaves_as_many_records_unsynced_as_flush_messages(batches: list[int], messages: int) -> None:
    log = CountedLog()
    limits = FlushLimits(log, messages, NO_LIMIT, log.sync)
    unsynced = 0
    for count in batches:
        log.end_offset += count
        unsynced += count
        limits.appended()
        assert (log.synced_offset == log.end_offset) is (unsynced >= messages), "neither later nor sooner"
        unsynced = log.end_offset - log.synced_offset


async def until(is_true: Callable[[], bool]) -> None:
    """Let the loop run until ``is_true``."""
    while not is_true():
        await asyncio.sleep(0)


def test_a_record_is_synced_once_its_time_has_come() -> None:
    async def main() -> None:
        log = CountedLog()
        limits = FlushLimits(log, NO_LIMIT, 1, log.sync)
        for _ in range(3):
            log.end_offset += 1
            limits.appended()
        assert log.syncs == []
        await until(lambda: bool(log.syncs))
        assert log.syncs == [3], "the three share one fsync"
        log.end_offset += 1
        limits.appended()
        await until(lambda: len(log.syncs) > 1)
        assert log.syncs == [3, 4], "the time of the fourth begins with its own append"

    asyncio.run(main())


def test_the_time_of_a_record_counts_also_after_an_fsync_for_the_number_of_records() -> None:
    async def main() -> None:
        log = CountedLog()
        limits = FlushLimits(log, 2, 1, log.sync)
        for _ in range(3):
            log.end_offset += 1
            limits.appended()
        assert log.syncs == [2]
        await asyncio.wait_for(until(lambda: log.synced_offset == 3), PATIENCE_SECONDS)

    asyncio.run(main())


def test_what_another_fsync_has_synced_needs_no_other() -> None:
    async def main() -> None:
        log = CountedLog()
        limits = FlushLimits(log, NO_LIMIT, 0, log.sync)
        log.end_offset += 1
        limits.appended()
        log.synced_offset = log.end_offset  # a segment was sealed
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, ended.set)  # after the limit's own timer
        await ended.wait()
        assert log.syncs == []

    asyncio.run(main())


def test_a_cancelled_limit_syncs_nothing() -> None:
    async def main() -> None:
        log = CountedLog()
        limits = FlushLimits(log, NO_LIMIT, 0, log.sync)
        log.end_offset += 1
        limits.appended()
        limits.cancel()
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, ended.set)
        await ended.wait()
        assert log.syncs == []

    asyncio.run(main())


# --- in a partition


def with_topic(
    test: Callable[[Rooms, Partition], Awaitable[None]], durable: bool = False, **configs: int
) -> MemoryFiles:
    """Run ``test`` on a new topic with these settings (their names with underscores); return its disk."""
    files = MemoryFiles()

    async def main() -> None:
        rooms = Rooms(files, Flusher(durable, on_failure=never))
        settings: dict[str, str | None] = {name.replace("_", "."): str(value) for name, value in configs.items()}
        assert rooms.cluster.create_topic(CreateTopic(TOPIC, configs=settings)).fact is not None
        await rooms.flusher.barrier()
        await test(rooms, rooms.partition(0))

    run(main())
    return files


def test_the_request_of_the_last_record_waits_for_the_disk() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"first")
        assert not rooms.flusher.must_wait
        assert (partition.log.synced_offset, partition.visible_before(committed_only=False)) == (0, 1)
        append(partition, b"second")
        assert rooms.flusher.must_wait
        await rooms.flusher.barrier()
        assert (partition.log.synced_offset, partition.visible_before(committed_only=False)) == (2, 2)
        append(partition, b"third")
        assert not rooms.flusher.must_wait

    with_topic(test, flush_messages=2)


def test_records_that_are_appended_during_an_fsync_are_counted_for_the_next() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"first")
        waiting = asyncio.ensure_future(rooms.flusher.barrier())
        await asyncio.sleep(0)
        append(partition, b"second")
        await waiting
        await rooms.flusher.barrier()
        assert partition.log.synced_offset == 2

    with_topic(test, flush_messages=1)


def test_a_changed_setting_counts_from_the_next_record_on() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"first")
        rooms.cluster.configure_topic(TOPIC, {"flush.messages": "1"}, validate_only=False)
        append(partition, b"second")
        await rooms.flusher.barrier()
        assert partition.log.synced_offset == 2
        rooms.cluster.configure_topic(TOPIC, {}, validate_only=False)
        append(partition, b"third")
        assert not rooms.flusher.must_wait
        assert partition.log.synced_offset == 2

    with_topic(test)


@pytest.mark.parametrize(
    "change",
    [
        lambda rooms: rooms.cluster.configure_broker("", {"max.connections": "100"}),
        lambda rooms: rooms.cluster.configure_topic(
            TOPIC, {"flush.ms": "1", "retention.ms": "60000"}, validate_only=False
        ),
    ],
    ids=["of the broker", "of the topic"],
)
def test_another_settings_change_does_not_forget_that_a_record_must_be_synced(change: Callable[[Rooms], None]) -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"v")
        change(rooms)
        await asyncio.wait_for(until(lambda: partition.log.synced_offset == 1), PATIENCE_SECONDS)

    with_topic(test, flush_ms=1)


@pytest.mark.parametrize("configs", [{"flush.ms": str(HOUR_MS)}, {"flush.messages": "5"}])
def test_a_new_limit_counts_for_the_records_before_it(configs: dict[str, str]) -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"v")
        rooms.cluster.configure_topic(TOPIC, configs, validate_only=False)
        await rooms.flusher.barrier()
        assert partition.log.synced_offset == 1

    with_topic(test)


def test_the_brokers_setting_is_that_of_every_topic() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        rooms.cluster.configure_broker("", {"log.flush.interval.messages": "1"})
        append(partition, b"v")
        await rooms.flusher.barrier()
        assert partition.log.synced_offset == 1

    with_topic(test)


def test_a_deleted_topic_is_not_synced_any_more() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"v")
        await rooms.cluster.delete_topic(TOPIC)
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, ended.set)
        await ended.wait()
        assert not rooms.flusher.must_wait

    with_topic(test, flush_ms=1)


def test_with_durability_fsync_there_is_nothing_to_limit() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        assert not partition.has_flush_limits
        append(partition, b"v")
        assert partition.visible_before(committed_only=False) == 0, "not before it is on disk, whatever the limit"
        await rooms.flusher.barrier()
        assert partition.visible_before(committed_only=False) == 1

    with_topic(test, durable=True, flush_messages=1000, flush_ms=HOUR_MS)


# --- a power cut


def left_after_a_power_cut(files: MemoryFiles, seed: int) -> list[bytes | None]:
    """The records of the topic on one possible disk; none if the topic is lost, too."""
    found: list[bytes | None] = []

    async def look() -> None:
        rooms = Rooms(files.power_cut(random.Random(seed)), Flusher(durable=False, on_failure=never))
        if rooms.cluster.topic(TOPIC) is not None:
            found.extend(entry.value for entry in read_log(rooms.partition(0)))

    run(look())
    return found


def test_the_brokers_setting_syncs_the_topics_that_exist() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        rooms.cluster.configure_broker("", {"log.flush.interval.messages": "1"})
        await rooms.flusher.barrier()
        append(partition, b"v")
        await rooms.flusher.barrier()

    files = with_topic(test)
    assert [left_after_a_power_cut(files, seed) for seed in range(50)] == [[b"v"]] * 50


@pytest.mark.parametrize("configs", [{"flush_messages": 1}, {"flush_ms": 1}])
def test_a_record_that_was_synced_survives_every_power_cut(configs: dict[str, int]) -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"v")
        await until(lambda: partition.log.synced_offset == 1)
        await rooms.flusher.barrier()

    files = with_topic(test, **configs)
    assert [left_after_a_power_cut(files, seed) for seed in range(50)] == [[b"v"]] * 50


def test_a_record_that_was_not_synced_is_lost_by_some_power_cut() -> None:
    async def test(rooms: Rooms, partition: Partition) -> None:
        append(partition, b"v")
        await rooms.flusher.barrier()

    files = with_topic(test, flush_messages=2)
    assert [] in [left_after_a_power_cut(files, seed) for seed in range(50)]
