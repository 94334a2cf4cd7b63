"""Clients at work while the broker dies again and again; the oracle compares its disk with what they were told.

One seed decides everything: the clients' commands, the order in which tasks run, when the disk stops, and what of the
unsynced bytes a power cut leaves. ``check`` names what it finds as Jepsen does.
"""

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from dualwrite.broker.api.transactions.joining import join_transaction
from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    EndTransaction,
    InitProducerId,
    Reply,
)
from dualwrite.broker.facts.transactions import TransactionStatus, TransactionVersion
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import (
    Killed,
    Logged,
    Rooms,
    StoppableFiles,
    append,
    end_other_tasks,
    everybody_may,
    read_log,
    run,
)

GENERATIONS = 3
TRANSACTIONAL_IDS = ("app-0", "app-1", "app-1")
"""One for each client at work: the second and the third take app-1 from one another."""
DISK_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
MOST_OPERATIONS = 300
ROUNDS = 12


@dataclass(eq=False, slots=True)
class CrashUnit:
    """One transaction as its clients know it."""

    token: int
    transactional_id: str
    producer: ProducerIdentity
    acknowledged: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(partition, offset, value) of every record whose append was acknowledged."""
    asked: set[Marker] = field(default_factory=set)
    """The requested ends: the outcome is one of them, once there is any."""
    answered: Marker | None = None


@dataclass(slots=True)
class CrashHistory:
    """What the clients of all generations did and were told."""

    units: list[CrashUnit] = field(default_factory=list)
    plain: list[tuple[int, int, bytes]] = field(default_factory=list)
    open: dict[str, CrashUnit] = field(default_factory=dict)
    """The transaction that must still be open, by transactional id."""
    identities: dict[str, list[ProducerIdentity]] = field(default_factory=dict)
    """Every identity that a client of the transactional id was told, in order."""
    aborting: Counter[str] = field(default_factory=Counter)
    """How many sessions are about to begin that abort what they find, by transactional id."""
    idempotent_ids: list[int] = field(default_factory=list)
    events: set[str] = field(default_factory=set)

    def told(self, transactional_id: str, producer: ProducerIdentity) -> None:
        known = self.identities.setdefault(transactional_id, [])
        if producer not in known:
            known.append(producer)

    @contextmanager
    def aborts(self, transactional_id: str) -> Iterator[None]:
        """A session begins that aborts what is open, if anything is, at some moment until it is answered."""
        self.aborting[transactional_id] += 1
        self.open.pop(transactional_id, None)
        for unit in self.units:
            if unit.transactional_id == transactional_id and unit.answered is None:
                unit.asked.add(Marker.ABORT)
        try:
            yield
        finally:
            self.aborting[transactional_id] -= 1

    def began(self, unit: CrashUnit) -> None:
        """A client is about to begin a transaction."""
        self.units.append(unit)
        if self.aborting[unit.transactional_id]:
            unit.asked.add(Marker.ABORT)

    def acknowledged(self, unit: CrashUnit, record: tuple[int, int, bytes]) -> None:
        """A client was told that its record is durable: its transaction stays open until somebody asks to end it."""
        unit.acknowledged.append(record)
        if not unit.asked:
            self.open[unit.transactional_id] = unit


class SimulatedClient:
    """One client of one transactional id, with a seeded will of its own."""

    def __init__(
        self, number: int, transactional_id: str, rooms: Rooms, history: CrashHistory, rng: random.Random
    ) -> None:
        self._number = number
        self._transactional_id = transactional_id
        self._rooms = rooms
        self._history = history
        self._rng = rng
        self._version = TransactionVersion.TV1 if number == 0 and rng.random() < 0.5 else TransactionVersion.TV2
        self._sequences: dict[int, int] = {}
        self._identity = NO_PRODUCER

    async def work(self) -> None:
        for _ in range(ROUNDS):
            if not self._identity or self._rng.random() < 0.2:
                await self._introduce_itself()
            elif self._rng.random() < 0.15:
                await self._append_plainly()
            else:
                await self._run_transaction()

    async def _execute(self, command: Command) -> Reply:
        reply = await self._rooms.coordinator.execute(command)
        self._history.events.add(reply.error.name)
        await asyncio.sleep(0)
        return reply

    async def _introduce_itself(self) -> None:
        keep = self._rng.random() < 0.6
        expected = self._identity if self._rng.random() < 0.3 else NO_PRODUCER
        with nullcontext() if keep else self._history.aborts(self._transactional_id):
            reply = await self._execute(InitProducerId(self._transactional_id, 60_000, True, keep, expected))
        if reply.error is not ErrorCode.NONE:
            self._identity = NO_PRODUCER
            return
        self._become(reply.producer)
        if reply.ongoing:
            self._history.events.add("kept")
            unit = next(unit for unit in reversed(self._history.units) if unit.producer == reply.ongoing)
            await self._end(unit)

    def _become(self, producer: ProducerIdentity) -> None:
        self._history.told(self._transactional_id, producer)
        if producer != self._identity:
            self._sequences.clear()
        self._identity = producer

    async def _append_plainly(self) -> None:
        index, value = self._rng.randrange(3), b"plain %d" % self._rng.getrandbits(60)
        result = append(self._rooms.partition(index), value)
        await self._rooms.flusher.barrier()
        self._history.plain.append((index, result.base_offset, value))
        producer_id = self._rooms.cluster.take_producer_id()
        await self._rooms.flusher.barrier()
        self._history.idempotent_ids.append(producer_id)

    async def _run_transaction(self) -> None:
        unit = CrashUnit(len(self._history.units), self._transactional_id, self._identity)
        self._history.began(unit)
        for number in range(self._rng.randint(1, 4)):
            if not await self._produce(unit, number):
                self._identity = NO_PRODUCER
                return
        if self._rng.random() < 0.7:
            await self._end(unit)
        else:
            self._identity = NO_PRODUCER  # it crashed

    async def _produce(self, unit: CrashUnit, number: int) -> bool:
        """One record, as a Produce request brings it: join the transaction, look again, append, wait for the disk."""
        index, value = self._rng.randrange(3), b"%d/%d" % (unit.token, number)
        partition = self._rooms.partition(index)
        names = frozenset({partition.name})
        if self._version is TransactionVersion.TV1:
            await self._execute(AddPartitions(self._transactional_id, self._identity, names))
        error = await self._join(names)
        self._history.events.add(error.name)
        if error is not ErrorCode.NONE:
            return False
        result = append(partition, value, self._identity, self._sequences.get(index, 0))
        assert result.verdict.appends, f"refused {value!r}: {result.verdict}"
        self._sequences[index] = self._sequences.get(index, 0) + 1
        await self._rooms.flusher.barrier()
        self._history.acknowledged(unit, (index, result.base_offset, value))
        return True

    async def _join(self, names: frozenset[TopicPartition]) -> ErrorCode:
        implicit = self._version is TransactionVersion.TV2
        broker: Any = everybody_may(self._rooms)
        return await join_transaction(broker, self._transactional_id, self._identity, names, implicit)

    async def _end(self, unit: CrashUnit) -> None:
        marker = self._rng.choice((Marker.COMMIT, Marker.COMMIT, Marker.ABORT))
        reply = await self._ask_to_end(unit, marker)
        if reply.error is ErrorCode.NONE and self._rng.random() < 0.2:
            self._history.events.add("retried")
            again = await self._ask_to_end(unit, marker)
            assert again.error in (ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)
        if reply.error is not ErrorCode.NONE:
            self._identity = NO_PRODUCER
            return
        unit.answered = marker
        self._become(reply.producer)

    async def _ask_to_end(self, unit: CrashUnit, marker: Marker) -> Reply:
        unit.asked.add(marker)
        if self._history.open.get(self._transactional_id) is unit:
            del self._history.open[self._transactional_id]
        return await self._execute(EndTransaction(self._transactional_id, self._identity, marker, self._version))


# --- the oracle


def fates(log: list[Logged]) -> Iterator[tuple[Logged, Marker | None]]:
    """Each record of a log, with the marker that ended its transaction; None if it is open."""
    for position, entry in enumerate(log):
        if entry.value is None:
            continue
        if not entry.producer:
            yield entry, Marker.COMMIT
            continue
        later = (other for other in log[position + 1 :] if other.marker is not None)
        yield entry, next((one.marker for one in later if one.producer.producer_id == entry.producer.producer_id), None)


def check(rooms: Rooms, history: CrashHistory) -> None:
    """Compare what a recovered broker holds with what its clients were told."""
    found: dict[bytes, tuple[int, int, Marker | None]] = {}
    for index, partition in enumerate(rooms.partitions()):
        for entry, fate in fates(read_log(partition)):
            assert entry.value is not None
            assert entry.value not in found, f"duplicate: {entry.value!r}"
            found[entry.value] = index, entry.offset, fate
    for index, offset, value in (*history.plain, *(record for unit in history.units for record in unit.acknowledged)):
        assert found.get(value, ())[:2] == (index, offset), f"lost write: {value!r} at {index}:{offset}"
    for unit in history.units:
        _check_unit(unit, [fate for value, (_, _, fate) in found.items() if value.startswith(b"%d/" % unit.token)])
    for unit in history.open.values():
        entry_of = rooms.coordinator.table.entries.get(unit.transactional_id)
        assert entry_of is not None, f"lost transaction: {unit}"
        assert entry_of.status is TransactionStatus.ONGOING, f"an open transaction was ended: {unit}, {entry_of}"
        assert entry_of.producer == unit.producer, f"another transaction: {unit}, {entry_of}"
    _check_hanging(rooms)
    _check_identities(rooms, history)


def _check_unit(unit: CrashUnit, ends: list[Marker | None]) -> None:
    assert len(set(ends)) <= 1, f"torn transaction: {unit} ended as {ends}"
    end = ends[0] if ends else None
    if unit.answered is not None and ends:
        assert end is unit.answered, f"{unit} was answered, and ended as {end}"
    assert end is None or end in unit.asked, f"{unit} ended as {end}, which no client requested"


def _check_hanging(rooms: Rooms) -> None:
    """An open transaction of a partition is one that the coordinator knows as ongoing there."""
    table = rooms.coordinator.table
    assert not list(table.unfinished()), "a decided transaction was left unfinished"
    ongoing = {
        (entry.producer, name)
        for entry in table.entries.values()
        if entry.status is TransactionStatus.ONGOING
        for name in entry.partitions
    }
    for partition in rooms.partitions():
        for producer_id in partition.state.open_transactions:
            producer = ProducerIdentity(producer_id, partition.state.producers[producer_id].epoch)
            assert (producer, partition.name) in ongoing, f"hanging transaction: {producer} in {partition.name}"


def _check_identities(rooms: Rooms, history: CrashHistory) -> None:
    owners: dict[int, str] = {}
    for transactional_id, told in history.identities.items():
        known = rooms.coordinator.table.entries.get(transactional_id)
        assert known is not None, f"lost transactional id: {transactional_id}, told {told}"
        client = known.client
        latest = max(one.epoch for one in [client, *told] if one.producer_id == client.producer_id)
        assert latest == client.epoch, f"{transactional_id} was told epoch {latest}, and is at {client}"
    for transactional_id, entry in rooms.coordinator.table.entries.items():
        for producer in (entry.client, entry.producer, *history.identities.get(transactional_id, ())):
            owner = owners.setdefault(producer.producer_id, transactional_id)
            assert owner == transactional_id, f"{producer} is {owner}'s and {transactional_id}'s"
    given = [*owners, *history.idempotent_ids]
    assert len(set(given)) == len(given), f"a producer id was given out twice: {sorted(given)}"
    assert rooms.cluster.next_producer_id > max(given, default=-1), "a producer id would be given out twice"


def assert_same(rooms: Rooms, reopened: Rooms) -> None:
    """Memory is the replay of the log."""
    assert reopened.coordinator.table == rooms.coordinator.table
    assert reopened.cluster.state == rooms.cluster.state
    for before, after in zip(rooms.partitions(), reopened.partitions(), strict=True):
        assert (after.state.producers, after.state.aborted) == (before.state.producers, before.state.aborted)
        assert list(after.state.open_transactions.items()) == list(before.state.open_transactions.items())
        assert after.state.end_offset == before.state.end_offset


# --- the run


def simulate(seed: int, durable: bool = True, failing: bool = False) -> CrashHistory:
    """Several lives of one broker; what its clients saw. An AssertionError begins with the seed that repeats it.

    :param failing: each life ends by an error of its disk, else by a kill.
    """
    try:
        return run(_simulate(random.Random(seed), durable, failing), seed)
    except AssertionError as error:
        raise AssertionError(f"simulate(seed={seed}, durable={durable}, failing={failing}): {error}") from error


async def _simulate(rng: random.Random, durable: bool, failing: bool) -> CrashHistory:
    history, disk = CrashHistory(), MemoryFiles()
    for _ in range(GENERATIONS):
        error = rng.choice(DISK_ERRORS) if failing else None
        files = StoppableFiles(disk, rng, stop_at=rng.randint(1, MOST_OPERATIONS), error=error)
        await _live(files, history, rng, durable)
        if durable:
            disk = disk.power_cut(rng)
    rooms = await _opened(StoppableFiles(disk, rng), rng, durable)
    await rooms.coordinator.finish_decided()
    check(rooms, history)
    assert_same(rooms, await _opened(StoppableFiles(disk, rng), rng, durable))
    await _abort_the_rest(rooms, history)
    check(rooms, history)
    return history


class MortalFlusher(Flusher):
    """No client gets an answer once the disk has stopped: a failed disk ends the process with all its tasks."""

    def __init__(self, files: StoppableFiles, durable: bool) -> None:
        super().__init__(durable, on_failure=files.end_process)
        self._files = files

    @property
    def must_wait(self) -> bool:
        return super().must_wait or self._files.stopped.is_set()

    async def barrier(self) -> None:
        await super().barrier()
        if self._files.stopped.is_set():
            raise Killed


@contextmanager
def ends_its_start(files: StoppableFiles, happened: Callable[[str], None]) -> Iterator[None]:
    """A start that the disk refuses: the broker ends without having changed what it had acknowledged."""
    try:
        yield
    except OSError as error:
        happened("could not start")
        files.end_process(error)


async def _opened(files: StoppableFiles, rng: random.Random, durable: bool) -> Rooms:
    return await Rooms(files, MortalFlusher(files, durable), rng=rng).with_topic()


async def _live(files: StoppableFiles, history: CrashHistory, rng: random.Random, durable: bool) -> None:
    """One life of the broker: recovery, the oracle's look, clients at work until the disk stops."""

    async def life() -> None:
        with ends_its_start(files, history.events.add):
            rooms = Rooms(files, MortalFlusher(files, durable), rng=rng)
        await rooms.with_topic()
        if await rooms.coordinator.finish_decided():
            history.events.add("finished a decided transaction")
        check(rooms, history)
        clients = [
            SimulatedClient(number, transactional_id, rooms, history, random.Random(rng.random()))
            for number, transactional_id in enumerate(TRANSACTIONAL_IDS)
        ]
        await asyncio.gather(*(client.work() for client in clients))
        await rooms.flusher.barrier()
        history.events.add("outlived its work")

    working, stopped = asyncio.ensure_future(life()), asyncio.ensure_future(files.stopped.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if files.stopped.is_set():
        history.events.add("killed")
    await end_other_tasks()
    if not working.cancelled() and working.exception() is not None and not isinstance(working.exception(), Killed):
        working.result()


async def _abort_the_rest(rooms: Rooms, history: CrashHistory) -> None:
    """With every transactional id taken over there is nothing open, and committed readers see everything."""
    for transactional_id in dict.fromkeys(TRANSACTIONAL_IDS):
        if transactional_id in history.open:
            history.events.add("open at the end")
        with history.aborts(transactional_id):
            reply = await rooms.coordinator.execute(InitProducerId(transactional_id, 60_000))
        history.told(transactional_id, reply.producer)
        await rooms.coordinator.execute(InitProducerId(f"new-{transactional_id}", 60_000))
    for partition in rooms.partitions():
        assert not partition.state.open_transactions
        shown = partition.visible_before(committed_only=True)
        assert shown == partition.end_offset, f"hanging transaction: {partition.name} is shown up to {shown}"
