"""The broker's machine: a disk, and the broker processes that run on it one after another.

The process is the real one from its connections to its log. A kill leaves what the system had taken; a power cut keeps
of the rest what a disk may keep.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.connection import Connection
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.runtime.access_control import AccessControl
from dualwrite.broker.runtime.compaction import CleanerSettings, Compaction
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.ports import Files
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import LoopCleanerThread, Rooms
from tests.support.simulation.broker.broker_disk import BrokerDisk, BrokerEnded
from tests.support.simulation.broker.clean_stop import stop_cleanly
from tests.support.simulation.faults import BROKER, FaultPlace, FaultPlan, PlannedFault, SimulatedFault
from tests.support.simulation.scheduler import MachineClock, Scheduler, SimulatedProcess
from tests.support.simulation.shared.opening import OpeningAnswers
from tests.support.simulation.virtual_loop import VirtualLoop

PARTITIONS = 2
_MOST_BYTES = 1 << 20
HOST, PORT = "broker", 9092
ENDS_AFTER = 0.1
"""Seconds after which the broker writes what no request waits for (``broker/chores.py``)."""
CLEAN_STOP, COMPACTION_CUT = "a clean stop", "a compaction was cut short"
_LEAVES_ALL = (SimulatedFault.BROKER_KILL, SimulatedFault.BROKER_STOP)
"""What leaves what the system had taken; the rest loses what was not synced."""
_WRITES = 2
"""How often it writes after the last request."""
_OPTIONS = BrokerOptions(Path("/data"))


class BrokerClock:
    """The clock of the broker's process, with its timers."""

    def __init__(self, process: SimulatedProcess, loop: VirtualLoop) -> None:
        self.wall_ms = process.wall_ms
        self.monotonic = process.monotonic
        self.call_later = loop.call_later


class BrokerMachine:
    """The machine.

    :param make_process: makes the process of the next broker.
    :param strike: called with the fault that is due at a place, if any; the one that strikes.
    :param note: called with a lane and with what happens there.
    :param fail: called with the reason if the broker does what it must never do.
    :param died: called when its process has ended.
    :param happened: called with what has happened, for sometimes-properties.
    :param lane: its name.
    :param segment_bytes: the size of a segment of the broker's own topics. If it is given, the broker compacts them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        plan: FaultPlan,
        make_process: Callable[[MachineClock], SimulatedProcess],
        strike: Callable[[PlannedFault | None], PlannedFault | None],
        note: Callable[[str, str], None],
        fail: Callable[[str], None],
        died: Callable[[], None],
        happened: Callable[[str], None],
        lane: str = BROKER,
        segment_bytes: int | None = None,
    ) -> None:
        self.files: Files = MemoryFiles()
        self.is_listening = False
        self.shown: dict[TopicPartition, bytes] = {}
        """What a read_committed reader may have seen of each partition."""
        self._scheduler = scheduler
        self._make_process = make_process
        self._strike = strike
        self._note = partial(note, lane)
        self._fail = fail
        self._died = died
        self._happened = happened
        self._compacts = segment_bytes is not None
        own = {} if segment_bytes is None else {"log_segment_bytes": segment_bytes}
        self._settings = TransactionSettings(**own)
        self._disk_faults = plan.trigger(FaultPlace.DISK, lane)
        self._step_faults = plan.trigger(FaultPlace.STEP, lane)
        chance = scheduler.random
        self._clock = MachineClock(chance.random() * 1000, chance.uniform(0.9, 1.1), 1_000_000 + chance.random() * 60)
        self._writes_left = 0
        self._rng = random.Random(chance.random())

    def start(self) -> None:
        """Start a broker on the machine's disk."""
        self._note("starts")
        self.process = process = self._make_process(self._clock)
        self.loop = VirtualLoop(process, self._before_step, self._unhandled)
        self._disk = BrokerDisk(self.files, self._rng, self._is_struck, self._end_process)
        self._end: PlannedFault | None = None
        self._disk_error: PlannedFault | None = None
        self.openings = OpeningAnswers()
        self._writes_left = 0
        self._compacting: asyncio.Task[None] | None = None
        self._stop_due: PlannedFault | None = None
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self.loop.call_soon(lambda: self.loop.create_task(self._run()))

    async def _run(self) -> None:
        try:
            await self._serve()
        except OSError as error:  # a start whose disk fails ends as well
            self._storage_failed(error)

    async def _serve(self) -> None:
        """As ``broker/broker.py``: the order of recovery at a start."""
        flusher = Flusher(durable=True, on_failure=self._storage_failed)
        clock: Any = BrokerClock(self.process, self.loop)
        self.rooms = rooms = Rooms(self._disk, flusher, clock, self._settings, self._rng)
        cleaner = CleanerSettings(), LoopCleanerThread()
        self._compaction = Compaction(self._disk, rooms.cluster, flusher, clock, *cleaner)
        await rooms.coordinator.finish_decided()
        await rooms.with_topic(PARTITIONS)
        self._check_what_was_shown()
        access = AccessControl(rooms.cluster, _OPTIONS.access, clock)
        self.context = BrokerContext(
            rooms.cluster, access, rooms.coordinator, rooms.groups, rooms.consumer_groups, rooms.offsets,
            flusher, clock, HOST, PORT, True, _OPTIONS, ConnectionMemory(),
        )  # fmt: skip
        self.is_listening = True
        self._note("listens")
        self.heard()
        if self._stop_due is not None:  # the signal came during the start
            self._begin_stop(self._stop_due)

    def serve(self, connection: Connection) -> None:
        """Serve ``connection`` until it is closed."""
        task = self.loop.create_task(connection.serve())
        self._serving[task] = connection
        task.add_done_callback(self._serving.pop)

    def kill(self, fault: PlannedFault) -> None:
        """End the process, and start another after a while. Only a mere kill keeps what was not synced."""
        self._note(str(fault.kind.value))
        if self._is_compacting:
            self._happened(COMPACTION_CUT)
        if self.is_listening:
            self._remember_what_was_shown()
        self.process.is_alive = self.is_listening = False
        self._disk.has_ended = True
        if fault.kind not in _LEAVES_ALL:
            assert isinstance(self.files, MemoryFiles)
            self.files = self.files.power_cut(self._rng)
        self._died()
        now = self._scheduler.now
        self._scheduler.call_at(now, self.loop.end)
        self._scheduler.call_at(now + fault.seconds, self.start)

    def stop(self) -> None:
        """End the process for good: the run is over."""
        self.process.is_alive = self.is_listening = False
        self._disk.has_ended = True
        self.loop.end()

    def _before_step(self) -> None:
        due = self._step_faults.pull()
        fault = None if due is None else self._strike(due)
        if fault is not None and fault.kind is SimulatedFault.BROKER_STOP:
            self._stop_due = fault
            if self.is_listening:
                self._begin_stop(fault)
        elif fault is not None:
            self._note(f"stalls for {fault.seconds:.3f} s")
            self.process.stalled_until = self._scheduler.now + fault.seconds

    def _begin_stop(self, fault: PlannedFault) -> None:
        self._note("stops")
        self._remember_what_was_shown()
        self.is_listening = False
        if self._compacting is not None:
            self._compacting.cancel()
        self.loop.create_task(self._stop_cleanly(fault))

    async def _stop_cleanly(self, fault: PlannedFault) -> None:
        await stop_cleanly(self.context, self._serving)
        self._happened(CLEAN_STOP)
        self.kill(fault)
        raise BrokerEnded

    def heard(self) -> None:
        """A request has arrived. What it leaves to write is written a little later."""
        if not self._writes_left:
            self.loop.call_later(ENDS_AFTER, self._write_ends)
        self._writes_left = _WRITES

    def _write_ends(self) -> None:
        self.loop.create_task(self._write_the_rest())
        self._writes_left -= 1
        if self._writes_left:
            self.loop.call_later(ENDS_AFTER, self._write_ends)

    async def _write_the_rest(self) -> None:
        if not self.is_listening:
            return
        self.rooms.coordinator.write_ends()
        await self.rooms.flusher.barrier()
        if self._compacts and not self._is_compacting and self.is_listening:
            self._compacting = self.loop.create_task(self._compact())

    @property
    def _is_compacting(self) -> bool:
        return self._compacting is not None and not self._compacting.done()

    async def _compact(self) -> None:
        """Compact the broker's own topics, as its chores do."""
        try:
            await self._compaction.run_once()
        except Exception as error:  # noqa: BLE001  any error ends the broker
            self._fail(f"crash: the broker: compaction: {error!r}")

    def _is_struck(self) -> bool:
        due = self._disk_faults.pull()
        self._end = None if due is None else self._strike(due)
        return self._end is not None

    def _end_process(self) -> None:
        assert self._end is not None
        if self._end.kind is SimulatedFault.BROKER_DISK_ERROR:
            self._disk_error = self._end
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "simulated")
        self.kill(self._end)

    def _storage_failed(self, error: BaseException) -> NoReturn:
        if self._disk_error is not None:
            self.kill(self._disk_error)
            raise BrokerEnded
        self._fail(f"crash: the broker stops: {error!r}")
        raise error

    def _unhandled(self, error: BaseException | None, message: str) -> None:
        self._fail(f"crash: the broker: {message}: {error!r}")

    # --- what readers have seen

    def _remember_what_was_shown(self) -> None:
        for partition in self.rooms.partitions():
            self.shown[partition.name] = _content(partition, partition.visible_before(True))

    def _check_what_was_shown(self) -> None:
        """What a read_committed reader may have seen is there for ever, at the same offsets."""
        for partition in self.rooms.partitions():
            seen = self.shown.get(partition.name, b"")
            if not _content(partition, partition.log.end_offset).startswith(seen):
                self._fail(f"lost write: {partition.name} has lost what its readers have seen")


def _content(partition: Partition, end: int) -> bytes:
    """The log of ``partition`` up to the offset ``end``: some kilobytes, in one segment."""
    return bytes(partition.log.read(0, _MOST_BYTES, end))
