"""An administrator at work among transactions while the broker dies; the oracle compares the disk with what was told.

The topic is deleted and made anew, grows, changes its settings and loses its beginning by DeleteRecords, while clients
leave prepared transactions and recover them, a group commits offsets, and retention and compaction run. One seed
decides everything, as in ``crash_simulation``.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.commands import AddPartitions, EndTransaction, InitProducerId, VerifyPartitions
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.compaction import CleanerSettings, Compaction
from dualwrite.broker.runtime.groups.group_log import PARTITION
from dualwrite.broker.runtime.retention import Retention
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, peek_header
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.admin_oracle import (
    KEEPS_ALL,
    PER_INCARNATION,
    AdminHistory,
    AdminUnit,
    Place,
    Write,
    check,
    memory,
)
from tests.support.broker.crash_simulation import DISK_ERRORS, MortalFlusher, ends_its_start
from tests.support.broker.simulated import (
    TOPIC,
    Killed,
    LoopCleanerThread,
    Rooms,
    SimulatedClock,
    StoppableFiles,
    end_other_tasks,
    run,
)

GENERATIONS = 4
CLIENTS = ("app-0", "app-1", "app-1")
SETTINGS = (
    ("retention.ms", "2000"),
    ("retention.bytes", "500"),
    ("retention.bytes", "-1"),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete"),
    ("segment.ms", "500"),
    ("message.timestamp.type", "LogAppendTime"),
    ("min.cleanable.dirty.ratio", "0.0"),
    ("delete.retention.ms", "100"),
    ("index.interval.bytes", "1"),
)


class Actor:
    """A client with seeded random actions."""

    def __init__(self, rooms: Rooms, history: AdminHistory, rng: random.Random) -> None:
        self.rooms, self.history, self.rng = rooms, history, rng

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)

    def topic(self) -> TopicCreated | None:
        return self.rooms.cluster.topic(TOPIC)

    async def make_topic(self) -> None:
        command = CreateTopic(TOPIC, self.rng.randint(1, 3), configs=dict(KEEPS_ALL))
        fact = self.rooms.cluster.create_topic(command).fact
        if fact is None:
            return
        self.history.incarnations[fact.topic_id] = len(self.history.incarnations) + 1
        await self.rooms.flusher.barrier()
        self.history.note_partitions(fact.topic_id, fact.partitions)


class Administrator(Actor):
    """Changes the topic."""

    async def work(self) -> None:
        actions = (self.delete_records, self.alter, self.let_time_pass)
        for _ in range(10):
            await self.pause()
            topic = self.topic()
            if topic is None:
                await self.make_topic()
                continue
            await self.rng.choice((*actions, *actions, self.grow, self.delete, self.commit))(topic)

    async def let_time_pass(self, topic: TopicCreated) -> None:
        self.rooms.clock.now_ms += self.rng.choice((10, 300, 3000))
        self.history.now_ms = self.rooms.clock.now_ms

    async def delete_records(self, topic: TopicCreated) -> None:
        config = self.rooms.cluster.config(TOPIC)
        if config.compacts and not config.deletes:
            return
        index = self.rng.randrange(topic.partitions)
        partition, place = self.rooms.partition(index), (topic.topic_id, index)
        end = partition.state.high_watermark
        offset = self.rng.choice((end, self.rng.randint(0, end)))
        self.history.may_begin[place] = max(offset, self.history.may_begin.get(place, 0))
        partition.truncate_before(offset)
        await self.rooms.flusher.barrier()
        self.history.begins[place] = max(offset, self.history.begins.get(place, 0))
        self.history.events["records deleted"] += 1

    async def grow(self, topic: TopicCreated) -> None:
        assert self.rooms.cluster.add_partitions(TOPIC, topic.partitions + 1, None, False).fact is not None
        await self.rooms.flusher.barrier()
        self.history.note_partitions(topic.topic_id, topic.partitions + 1)
        self.history.events["grown"] += 1

    async def delete(self, topic: TopicCreated) -> None:
        self.history.doomed.add(topic.topic_id)
        await self.rooms.cluster.delete_topic(TOPIC)
        self.history.deleted.add(topic.topic_id)
        self.history.events["topic deleted"] += 1

    async def alter(self, topic: TopicCreated) -> None:
        name, value = self.rng.choice(SETTINGS)
        configs = {**topic.configs, name: value}
        self.history.note_settings(topic.topic_id, configs)
        assert self.rooms.cluster.configure_topic(TOPIC, configs, False).fact is not None
        await self.rooms.flusher.barrier()
        self.history.events["altered"] += 1

    async def commit(self, topic: TopicCreated) -> None:
        position = CommittedPosition(self.history.incarnations[topic.topic_id] * PER_INCARNATION)
        index = self.rng.randrange(topic.partitions)
        await self.rooms.offsets.commit(CommitOffsets("plain", {TopicPartition(TOPIC, index): position}))


class HouseKeeper(Actor):
    """Retention, compaction, and segments of changing sizes."""

    async def work(self) -> None:
        rooms = self.rooms
        retention = Retention(rooms.cluster, rooms.flusher, rooms.clock)
        compaction = Compaction(
            rooms.files, rooms.cluster, rooms.flusher, rooms.clock, CleanerSettings(), LoopCleanerThread()
        )
        for _ in range(14):
            await self.pause()
            for partition in rooms.cluster.partitions():
                if self.rng.random() < 0.3:
                    sizes = self.rng.choice((0, 200, 100_000)), self.rng.choice((1, 200, 4096))
                    partition.log.settings = LogSettings(sizes[0], index_interval_bytes=sizes[1])
            with rooms.flusher.critical():  # a failed chore ends the process
                await self.rng.choice((retention.run_once, compaction.run_once, rooms.coordinator.end_overdue))()


class SimulatedAdminClient(Actor):
    """One client of one transactional id, which prepares its transactions and may recover them."""

    def __init__(self, transactional_id: str, rooms: Rooms, history: AdminHistory, rng: random.Random) -> None:
        super().__init__(rooms, history, rng)
        self._id = transactional_id
        self._identity = NO_PRODUCER
        self._sequences: Counter[Place] = Counter()
        self._version = rng.choice((TransactionVersion.TV1, TransactionVersion.TV2))

    async def work(self) -> None:
        for _ in range(12):
            await self.pause()
            if not self._identity or self.rng.random() < 0.2:
                await self._introduce_itself()
            elif self.rng.random() < 0.25:
                await self._append_plainly()
            elif not await self._run_transaction():
                self._identity = NO_PRODUCER

    async def _introduce_itself(self) -> None:
        keep = self.rng.random() < 0.7
        if not keep:
            self.history.let_abort(self._id)
        reply = await self.rooms.coordinator.execute(InitProducerId(self._id, 60_000, True, keep))
        self._become(reply.producer if reply.error is ErrorCode.NONE else NO_PRODUCER)
        if self._identity and reply.ongoing:
            self.history.events["kept"] += 1
            await self._end(next(unit for unit in reversed(self.history.units) if unit.producer == reply.ongoing))

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self._identity:
            self._sequences.clear()
        self._identity = identity

    async def _append_plainly(self) -> None:
        topic = self.topic()
        if topic is None:
            return
        write = self._append(topic, self.rng.randrange(topic.partitions), NO_PRODUCER)
        assert write is not None
        await self.rooms.flusher.barrier()
        self.history.plain.append(write)

    def _append(self, topic: TopicCreated, index: int, producer: ProducerIdentity) -> Write | None:
        place, key = (topic.topic_id, index), b"key %d" % self.rng.randrange(4)
        fields = BatchFields(producer, self._sequences[place] if producer else -1, transactional=bool(producer))
        value = b"%d" % self.rng.getrandbits(60)
        batch = build_batch([Record(key, value, self.rooms.clock.now_ms)], fields)
        result = self.rooms.partition(index).append(batch, peek_header(batch))
        if not result.verdict.appends:
            return None
        if producer:
            self._sequences[place] += 1
        return Write(place, result.base_offset, key, value)

    async def _run_transaction(self) -> bool:
        """False if the client has crashed, or must begin a new session."""
        unit = AdminUnit(self._id, self._identity)
        self.history.units.append(unit)
        for _ in range(self.rng.randint(1, 4)):
            topic = self.topic()
            if topic is None:
                return False
            index = self.rng.randrange(topic.partitions)
            name = PARTITION if self.rng.random() < 0.2 else TopicPartition(TOPIC, index)
            if not await self._joins(name) or not self._take_part(unit, name, index):
                return False
            self.history.open[self._id] = unit
            await self.rooms.flusher.barrier()
            unit.acknowledged = list(unit.appended)
        return self.rng.random() < 0.6 and await self._end(unit)

    async def _joins(self, name: TopicPartition) -> bool:
        names = frozenset({name})
        reply = await self.rooms.coordinator.execute(AddPartitions(self._id, self._identity, names))
        if reply.error is not ErrorCode.NONE:
            return False
        await self.pause()
        return self.rooms.coordinator.check(VerifyPartitions(self._id, self._identity, names)).error is ErrorCode.NONE

    def _take_part(self, unit: AdminUnit, name: TopicPartition, index: int) -> bool:
        """Nothing may come between the look above and this; but the topic may be another one by now."""
        topic = self.topic()
        if topic is None or index >= topic.partitions:
            return False
        if name == PARTITION:
            position = CommittedPosition(self.history.incarnations[topic.topic_id] * PER_INCARNATION + 1)
            positions = {TopicPartition(TOPIC, index): position}
            self.rooms.offsets.commit_now(CommitOffsets("group", positions, is_transactional=True), self._identity)
            return True
        write = self._append(topic, index, self._identity)
        if write is not None:
            unit.appended.append(write)
        return write is not None

    async def _end(self, unit: AdminUnit) -> bool:
        marker = self.rng.choice((Marker.COMMIT, Marker.COMMIT, Marker.ABORT))
        unit.asked.add(marker)
        if self.history.open.get(self._id) is unit:
            del self.history.open[self._id]
        reply = await self.rooms.coordinator.execute(EndTransaction(self._id, self._identity, marker, self._version))
        if reply.error is not ErrorCode.NONE:
            self._become(NO_PRODUCER)
            return False
        unit.answered = marker
        self._become(reply.producer)
        self.history.events["ended"] += 1
        return True


# --- the run


def simulate(seed: int, durable: bool = True, failing: bool = False) -> AdminHistory:
    """Several lives of one broker. An AssertionError begins with the seed that repeats it.

    :param failing: each life ends by an error of its disk, else by a kill.
    """
    try:
        return run(_simulate(random.Random(seed), durable, failing), seed)
    except AssertionError as error:
        raise AssertionError(f"simulate(seed={seed}, durable={durable}, failing={failing}): {error}") from error


def _opened(files: StoppableFiles, history: AdminHistory, rng: random.Random, durable: bool) -> Rooms:
    return Rooms(files, MortalFlusher(files, durable), clock=SimulatedClock(history.now_ms), rng=rng)


async def _simulate(rng: random.Random, durable: bool, failing: bool) -> AdminHistory:
    history, disk = AdminHistory(), MemoryFiles()
    for _ in range(GENERATIONS):
        error = rng.choice(DISK_ERRORS) if failing else None
        files = StoppableFiles(disk, rng, stop_at=rng.randint(1, rng.choice((400, 3000))), error=error)
        await _live(files, history, rng, durable)
        if durable:
            disk = disk.power_cut(rng)
    rooms = _opened(StoppableFiles(disk, rng), history, rng, durable)
    await rooms.coordinator.finish_decided()
    await rooms.flusher.barrier()
    check(rooms, history)
    assert memory(_opened(StoppableFiles(disk, rng), history, rng, durable)) == memory(rooms)
    return history


async def _live(files: StoppableFiles, history: AdminHistory, rng: random.Random, durable: bool) -> None:
    async def life() -> None:
        with ends_its_start(files, lambda event: history.events.update([event])):
            rooms = _opened(files, history, rng, durable)
        await rooms.coordinator.finish_decided()
        await rooms.flusher.barrier()
        check(rooms, history)
        will: Callable[[], random.Random] = lambda: random.Random(rng.random())  # noqa: E731
        clients = [SimulatedAdminClient(name, rooms, history, will()) for name in CLIENTS]
        others = [Administrator(rooms, history, will()), HouseKeeper(rooms, history, will())]
        await asyncio.gather(*(actor.work() for actor in (*clients, *others)))
        rooms.coordinator.write_ends()
        await rooms.flusher.close()
        history.events["outlived its work"] += 1
        check(rooms, history)
        again = _opened(StoppableFiles(files.beneath, rng), history, rng, durable)
        assert memory(again) == memory(rooms), "memory is not the replay of the log"
        if rng.random() < 0.5:
            with rooms.flusher.critical():
                rooms.cluster.checkpoint()

    await until_dead(life(), files)


async def until_dead(life: Coroutine[Any, Any, None], files: StoppableFiles) -> None:
    """Let ``life`` go on until its end, or the disk's."""
    working, stopped = asyncio.ensure_future(life), asyncio.ensure_future(files.stopped.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await end_other_tasks()
    if not working.cancelled() and working.exception() is not None and not isinstance(working.exception(), Killed):
        working.result()
