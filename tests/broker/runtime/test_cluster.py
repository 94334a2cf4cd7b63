"""Topics and producer ids at run time: acknowledged ones survive, and no producer id is handed out twice."""

import asyncio
import random
import uuid
from pathlib import Path

import pytest

from dualwrite.broker.core.cluster import PRODUCER_ID_BLOCK, CreateTopic
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.facts.cluster import ClusterCreated, ProducerIdsReserved, TopicCreated, encode_fact
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.logs import opened as open_log
from tests.support.broker.simulated import DATA_DIR, Rooms, append, never, read_log, run


async def opened(files: MemoryFiles, seed: int = 1) -> Rooms:
    rooms = Rooms(files, rng=random.Random(seed))
    await rooms.flusher.barrier()
    return rooms


def test_a_cluster_keeps_its_id() -> None:
    async def main() -> None:
        files = MemoryFiles()
        first = (await opened(files)).cluster.state.cluster_id
        assert uuid.UUID(first)
        second = (await opened(files.power_cut(random.Random(1)), seed=2)).cluster.state.cluster_id
        assert second == first
        assert (await opened(MemoryFiles(), seed=2)).cluster.state.cluster_id != first

    run(main())


def test_a_topic_survives_with_its_id_its_settings_and_its_records() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        decision = rooms.cluster.create_topic(CreateTopic("t", 2, configs={"max.message.bytes": "99"}))
        append(rooms.partition(1), b"v")
        await rooms.flusher.barrier()
        for seed in range(8):
            cluster = (await opened(files.power_cut(random.Random(seed)))).cluster
            assert cluster.state.topics == {"t": decision.fact}
            assert cluster.topic("t") == decision.fact
            assert decision.fact is not None
            assert cluster.topic_name(decision.fact.topic_id) == "t"
            assert cluster.config("t").max_message_bytes == 99
            partition = cluster.partition(TopicPartition("t", 1))
            assert partition is not None
            assert [entry.value for entry in read_log(partition)] == [b"v"]

    run(main())


def test_a_new_topic_does_not_show_files_of_a_topic_whose_creation_a_crash_lost() -> None:
    async def main() -> None:
        files = MemoryFiles()
        leftover = open_log(files, DATA_DIR / "t-0")
        leftover.append(bytearray(build_batch([Record(None, b"never acknowledged")])))
        leftover.sync()
        foreign = DATA_DIR / "t-0" / "notes.txt"
        files.open(foreign).append(b"not a segment")
        files.open(DATA_DIR / "t-0" / "cleaner-offset").append(b"1\n")
        rooms = await opened(files)
        rooms.cluster.create_topic(CreateTopic("t", 1))
        assert read_log(rooms.partition(0)) == []
        assert "cleaner-offset" not in files.list(DATA_DIR / "t-0")
        append(rooms.partition(0), b"first")
        await rooms.flusher.barrier()
        reopened = (await opened(files.power_cut(random.Random(3)))).partition(0)
        assert [entry.value for entry in read_log(reopened)] == [b"first"]
        assert "notes.txt" in files.list(DATA_DIR / "t-0")

    run(main())


def take_away(files: MemoryFiles, directory: Path) -> None:
    """What ``rm -r`` does."""
    for name in files.list(directory):
        files.remove(directory / name)
    files.remove_directory(directory)


@pytest.mark.parametrize("name", ["t-0", "t-2", "__consumer_offsets-0", "__transaction_state-0"])
def test_a_missing_partition_directory_is_named_until_it_is_back(name: str) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        rooms.cluster.create_topic(CreateTopic("t", 2))
        rooms.cluster.add_partitions("t", 3, None, False)
        await rooms.flusher.barrier()
        take_away(files, DATA_DIR / name)
        for _ in range(2):
            with pytest.raises(
                CorruptLogError, match=f"/data/{name} is missing, .*: restore it from a copy, or create"
            ):
                Rooms(files)
        files.make_directory(DATA_DIR / name)
        assert read_log((await opened(files)).partition(0)) == []

    run(main())


def test_a_directory_from_before_the_brokers_own_topics_gets_them() -> None:
    async def main() -> None:
        files = MemoryFiles()
        journal = Journal.open(files, DATA_DIR / JOURNAL_DIRECTORY, lambda record: None)
        for fact in (ClusterCreated(uuid.UUID(int=7).hex), TopicCreated("t", uuid.UUID(int=1), 1)):
            journal.append([Record(*encode_fact(fact))])
        files.make_directory(DATA_DIR / "t-0")
        assert (await opened(files)).cluster.state.internal == {"__consumer_offsets", "__transaction_state"}
        take_away(files, DATA_DIR / "__consumer_offsets-0")
        with pytest.raises(CorruptLogError, match="__consumer_offsets-0 is missing"):
            Rooms(files)

    run(main())


@pytest.mark.parametrize("note", [b"", b"5", b"5\r\n"])
def test_a_topic_is_not_created_over_a_log_whose_recovery_point_was_edited(note: bytes) -> None:
    async def main() -> None:
        files = MemoryFiles()
        files.make_directory(DATA_DIR / "t-1")
        files.open(DATA_DIR / "t-1" / "recovery-point").append(note)
        rooms = await opened(files)
        decision = rooms.cluster.create_topic(CreateTopic("t", 2))
        assert decision.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "t-1 holds a log that belongs to no topic" in (decision.message or "")
        assert rooms.cluster.create_topic(CreateTopic("u", 2)).fact is not None, "others are made as ever"

    run(main())


def test_a_topic_is_not_made_over_a_log_that_has_seen_a_clean_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        files = MemoryFiles()
        stray = open_log(files, DATA_DIR / "t-1")
        stray.append(bytearray(build_batch([Record(None, b"acknowledged long ago")])))
        stray.checkpoint()
        rooms = await opened(files)
        decision = rooms.cluster.create_topic(CreateTopic("t", 2))
        assert decision.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "t-1 holds a log that belongs to no topic" in (decision.message or "")
        assert rooms.cluster.create_topic(CreateTopic("t", 2)).error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert caplog.messages == [decision.message], "once, however often a client asks"
        assert rooms.cluster.create_topic(CreateTopic("t", 1)).fact is not None
        assert open_log(files, DATA_DIR / "t-1").end_offset == 1

    run(main())


def test_unknown_topics_and_partitions_are_looked_up_as_none() -> None:
    async def main() -> None:
        cluster = (await opened(MemoryFiles())).cluster
        cluster.create_topic(CreateTopic("t", 2))
        for name in (TopicPartition("t", 2), TopicPartition("t", -1), TopicPartition("u", 0)):
            assert cluster.partition(name) is None
        assert cluster.topic("u") is None
        assert cluster.topic_name(uuid.UUID(int=1)) is None
        assert cluster.topic_name(None) is None

    run(main())


def test_a_topic_that_is_refused_or_only_validated_is_not_made() -> None:
    async def main() -> None:
        files = MemoryFiles()
        cluster = (await opened(files)).cluster
        assert cluster.create_topic(CreateTopic("t"), validate_only=True).error is ErrorCode.NONE
        assert cluster.create_topic(CreateTopic("u", 0)).error is ErrorCode.INVALID_PARTITIONS
        assert not cluster.state.topics
        assert files.list(DATA_DIR) == [JOURNAL_DIRECTORY, "__consumer_offsets-0", "__transaction_state-0"]

    run(main())


@pytest.mark.parametrize("durable", [True, False], ids=["fsync", "os"])
def test_no_producer_id_is_given_out_twice_over_any_number_of_power_cuts(durable: bool) -> None:
    async def main() -> None:
        files, given = MemoryFiles(), []
        for seed in range(6):
            rooms = Rooms(files, flusher=Flusher(durable, never), rng=random.Random(1))
            await rooms.flusher.barrier()
            for _ in range(PRODUCER_ID_BLOCK // 2 + 1):
                given.append(rooms.cluster.take_producer_id())
            await rooms.flusher.barrier()
            files = files.power_cut(random.Random(seed))
        assert len(set(given)) == len(given)
        assert given == sorted(given)

    run(main())


def test_producer_ids_are_written_to_disk_once_per_block() -> None:
    async def main() -> None:
        files = MemoryFiles()
        cluster = (await opened(files)).cluster
        cluster.take_producer_id()
        before = files.appends.count
        for _ in range(PRODUCER_ID_BLOCK - 1):
            cluster.take_producer_id()
        assert files.appends.count == before
        cluster.take_producer_id()
        assert files.appends.count == before + 1

    run(main())


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(b"quota:x", b"{}"), "unknown kind 'quota'"),
        (Record(b"cluster", None), "has no value"),
        (Record(b"cluster", b'{"cluster_id": "b"}'), "a cluster is created once"),
    ],
)
def test_a_journal_that_cannot_be_understood_is_named_with_the_place(record: Record, reason: str) -> None:
    async def main() -> None:
        files = MemoryFiles()
        await opened(files)
        journal = Journal.open(files, DATA_DIR / JOURNAL_DIRECTORY, lambda record: None)
        journal.append([record])
        with pytest.raises(CorruptLogError, match=rf"__cluster_metadata-0: record at offset \d+: .*{reason}"):
            Rooms(files)

    run(main())


@pytest.mark.parametrize(
    "fact", [ClusterCreated("again"), TopicCreated("t", uuid.UUID(int=1), 1), ProducerIdsReserved(0)]
)
def test_an_illegal_fact_stops_the_broker_before_it_is_on_disk(
    fact: ClusterCreated | TopicCreated | ProducerIdsReserved,
) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await (await opened(files)).with_topic()
        before = files.appends.count
        with pytest.raises(AssertionError):
            rooms.cluster.record(fact)
        assert files.appends.count == before

    run(main())


def test_a_cleaning_that_is_under_way_does_not_keep_a_topic_from_being_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class InUse(MemoryFiles):
        """Another thread removes one file of a directory that is being emptied, and writes another."""

        is_deleting = False

        def list(self, directory: Path) -> list[str]:
            names = super().list(directory)
            if self.is_deleting and "00000000000000000000.log" in names:
                names.append("00000000000000000000.cleaned")
            return names

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            if path.name == "t-0" and self.is_deleting:
                self.is_deleting = False
                self.open(path / "00000000000000000000.swap")

    async def main() -> None:
        files = InUse()
        rooms = await (await opened(files)).with_topic(1)
        append(rooms.partition(0), b"old")
        files.is_deleting = True
        await rooms.cluster.delete_topic("t")
        assert "in use" in caplog.text
        assert rooms.cluster.create_topic(CreateTopic("t", 1)).error is ErrorCode.NONE
        assert read_log(rooms.partition(0)) == []

    run(main())


def test_a_topic_whose_directory_was_removed_by_hand_can_be_deleted() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await (await opened(files)).with_topic(2)
        take_away(files, DATA_DIR / "t-0")
        await rooms.cluster.delete_topic("t")
        assert files.list(DATA_DIR / "t-1") == []
        assert rooms.cluster.create_topic(CreateTopic("t", 2)).fact is not None

    run(main())


def test_a_topic_that_is_being_deleted_keeps_its_name_until_all_of_it_is_gone() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        room = rooms.cluster.room
        await rooms.with_topic()
        rooms.offsets.commit_now(CommitOffsets("group", {TopicPartition("t", 0): CommittedPosition(7)}))
        deletion = asyncio.create_task(rooms.cluster.delete_topic("t"))
        refusals = 0
        while not deletion.done():
            await asyncio.sleep(0)
            if not deletion.done():
                assert rooms.cluster.create_topic(CreateTopic("t")).error is ErrorCode.TOPIC_ALREADY_EXISTS
                refusals += 1
        await deletion
        assert refusals > 3
        assert not rooms.flusher.must_wait, "also the deletion of its offsets is on disk"
        assert rooms.cluster.room == room
        assert rooms.cluster.create_topic(CreateTopic("t")).error is ErrorCode.NONE

    run(main())
