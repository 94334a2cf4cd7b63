"""Committed offsets at run time: what is on disk, and when, before a reply is sent."""

import asyncio
import random
from pathlib import Path

import pytest

from dualwrite.broker.core.offsets import LONGEST_METADATA, CommitOffsets, CommittedPosition
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.groups.offsets import LARGEST_COMMIT_BYTES, GroupOffsets
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import DATA_DIR, TOPIC, Rooms, run

SEEDS = range(8)
JOURNAL = Path(DATA_DIR, "__consumer_offsets-0")


def at(offset: int, *indexes: int, group: str = "g", metadata: str = "") -> CommitOffsets:
    """A commit of ``offset`` in each of the partitions."""
    position = CommittedPosition(offset, metadata=metadata)
    return CommitOffsets(group, {TopicPartition(TOPIC, index): position for index in indexes})


async def opened(files: MemoryFiles, partitions: int = 3) -> tuple[Rooms, GroupOffsets]:
    rooms = await Rooms(files).with_topic(partitions)
    return rooms, rooms.offsets


async def offsets_in(files: MemoryFiles, group: str = "g") -> dict[int, int]:
    """Partition and offset of what a broker finds that starts on ``files``."""
    _, offsets = await opened(files)
    return {name.partition: fact.offset for name, fact in (await offsets.committed(group)).items()}


def test_an_acknowledged_commit_survives_a_power_cut() -> None:
    async def main() -> None:
        files = MemoryFiles()
        _, offsets = await opened(files)
        for offset in (5, 9, 2):
            assert set((await offsets.commit(at(offset, 0, 2))).values()) == {ErrorCode.NONE}
            for seed in SEEDS:
                assert await offsets_in(files.power_cut(random.Random(seed))) == {0: offset, 2: offset}

    run(main())


def test_an_acknowledged_deletion_survives_a_power_cut() -> None:
    """A consumer would otherwise begin where a deleted offset says."""

    async def main() -> None:
        files = MemoryFiles()
        _, offsets = await opened(files)
        await offsets.commit(at(5, 0, 1))
        await offsets.commit(at(7, 2, group="other"))
        assert (await offsets.delete("g", (TopicPartition(TOPIC, 0),)))[0] is ErrorCode.NONE
        for seed in SEEDS:
            assert await offsets_in(files.power_cut(random.Random(seed))) == {1: 5}
        assert await offsets.delete_group("other") is ErrorCode.NONE
        for seed in SEEDS:
            assert await offsets_in(files.power_cut(random.Random(seed)), "other") == {}

    run(main())


def test_a_power_cut_takes_all_of_an_unacknowledged_commit_or_nothing() -> None:
    async def main() -> None:
        files = MemoryFiles()
        _, offsets = await opened(files)
        await offsets.commit(at(5, 0, 1, 2))
        pending = asyncio.ensure_future(offsets.commit(at(6, 0, 1, 2)))
        await asyncio.sleep(0)
        assert not pending.done()
        outcomes = [await offsets_in(files.power_cut(random.Random(seed))) for seed in range(40)]
        assert {tuple(found.values()) for found in outcomes} == {(5, 5, 5), (6, 6, 6)}
        await pending

    run(main())


def test_a_commit_is_not_acknowledged_before_it_is_durable() -> None:
    async def main() -> None:
        files = MemoryFiles()
        _, offsets = await opened(files)
        committing = asyncio.ensure_future(offsets.commit(at(5, 0)))
        await asyncio.sleep(0)
        fetching = asyncio.ensure_future(offsets.committed("g"))
        await asyncio.sleep(0)
        assert not fetching.done()
        (found,) = (await fetching).values()
        assert found.offset == 5
        for seed in SEEDS:
            assert await offsets_in(files.power_cut(random.Random(seed))) == {0: 5}
        await committing

    run(main())


def test_requested_offsets_have_the_time_of_their_commit() -> None:
    async def main() -> None:
        rooms, offsets = await opened(MemoryFiles())
        rooms.clock.now_ms = 77
        await offsets.commit(at(5, 0, 1, metadata="m"))
        names = [TopicPartition(TOPIC, index) for index in (1, 2)]
        assert await offsets.committed("g", names) == {names[0]: OffsetCommitted("g", names[0], 5, -1, "m", 77)}
        assert await offsets.committed("other") == {}

    run(main())


def test_a_refused_commit_leaves_no_trace() -> None:
    async def main() -> None:
        files = MemoryFiles()
        _, offsets = await opened(files)
        missing = TopicPartition(TOPIC, 99)
        assert await offsets.commit(at(5, 99)) == {missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await offsets.commit(at(5)) == {}
        assert offsets.table.groups == {}
        assert Journal.open(files, JOURNAL, lambda record: None).log.end_offset == 0

    run(main())


@pytest.mark.slow
def test_a_commit_that_is_too_large_is_refused_whole_and_one_that_just_fits_is_stored() -> None:
    async def main() -> None:
        files = MemoryFiles()
        group, metadata = "g" * LONGEST_STRING, "€" * LONGEST_METADATA
        fits = LARGEST_COMMIT_BYTES // (LONGEST_STRING + 3 * LONGEST_METADATA + 100)
        _, offsets = await opened(files, partitions=fits + 2)
        refused = await offsets.commit(at(5, *range(fits + 2), 1000, group=group, metadata=metadata))
        assert refused.pop(TopicPartition(TOPIC, 1000)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert set(refused.values()) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert offsets.table.groups == {}
        accepted = await offsets.commit(at(5, *range(fits), group=group, metadata=metadata))
        assert set(accepted.values()) == {ErrorCode.NONE}
        _, again = await opened(files)
        assert again.table.groups == offsets.table.groups

    run(main())


def test_expired_offsets_are_forgotten_for_good() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms, offsets = await opened(files)
        await offsets.commit(at(5, 0))
        rooms.clock.now_ms += 10_080 * 60_000 - 1
        assert await offsets.expire() == 0
        await offsets.commit(at(6, 1))
        rooms.clock.now_ms += 1
        assert await offsets.expire() == 1
        await rooms.flusher.barrier()
        assert await offsets_in(files.power_cut(random.Random(1))) == {1: 6}

    run(main())


def test_other_tasks_have_their_turn_between_two_groups_that_expire() -> None:
    async def main() -> None:
        rooms, offsets = await opened(MemoryFiles())
        for group in ("a", "b"):
            await offsets.commit(at(5, 0, group=group))
        rooms.clock.now_ms += 10_080 * 60_000
        expiring = asyncio.ensure_future(offsets.expire())
        await asyncio.sleep(0)
        assert list(offsets.table.groups) == ["b"]
        await expiring
        assert not offsets.table.groups

    run(main())


def test_other_tasks_have_their_turn_between_two_groups_of_which_nothing_expires() -> None:
    async def main() -> None:
        _, offsets = await opened(MemoryFiles())
        for group in ("a", "b", "c"):
            await offsets.commit(at(5, 0, group=group))
        expiring = asyncio.ensure_future(offsets.expire())
        for _ in range(3):
            await asyncio.sleep(0)
            assert not expiring.done()
        assert await expiring == 0

    run(main())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(None, b""), "has a key"),
        (Record(b"\x00\x10", b""), "unknown type"),
        (Record(b"\x00\x02", b""), "without a size"),
    ],
)
def test_a_journal_that_holds_something_else_is_not_started_from(record: Record, message: str) -> None:
    async def main() -> None:
        files = MemoryFiles()
        Journal.open(files, JOURNAL, lambda record: None).append([record])
        with pytest.raises(CorruptLogError, match=f"{JOURNAL.name}: record at offset 0: .*{message}"):
            await opened(files)

    run(main())


def test_offsets_that_a_power_cut_left_of_a_deleted_topic_are_forgotten_at_the_start() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms, offsets = await opened(files)
        await offsets.commit(at(5, 0, 2))
        rooms.cluster.deletion_listeners.clear()  # as if what they append were lost
        await rooms.cluster.delete_topic(TOPIC)
        again = Rooms(files)
        await again.flusher.barrier()
        assert await again.offsets.committed("g") == {}
        assert await offsets_in(files) == {}

    run(main())


def test_a_topic_that_a_power_cut_brings_back_has_its_offsets() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms, offsets = await opened(files)
        await offsets.commit(at(5, 0, 2))
        deletion = asyncio.ensure_future(rooms.cluster.delete_topic(TOPIC))
        brought_back = 0
        while not deletion.done():
            await asyncio.sleep(0)
            for seed in SEEDS:
                again = Rooms(files.power_cut(random.Random(seed)))
                if again.cluster.topic(TOPIC) is not None:
                    brought_back += 1
                    assert len(await again.offsets.committed("g")) == 2
        assert brought_back, "sometimes: the cut came before the deletion was durable"

    run(main())
