"""The parts of the simulation: faults wait at their places, the disk tears, the loop's time is the scheduler's."""

import asyncio
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.ids import MAX_PRODUCER_EPOCH
from dualwrite.testing.files import MemoryFiles
from tests.support.simulation.broker.broker_disk import BrokerDisk, BrokerEnded
from tests.support.simulation.conditions import conditions_of
from tests.support.simulation.faults import (
    OTHER_BROKER,
    FaultPlace,
    FaultPlan,
    PlannedFault,
    SimulatedFault,
    faults_of,
    has_two_clusters,
    lane_of,
)
from tests.support.simulation.network import SimulatedLink, SimulatedNetwork
from tests.support.simulation.scheduler import MachineClock, ProcessKilled, Scheduler, SimulatedProcess
from tests.support.simulation.timeline import as_svg, as_text, lanes_of
from tests.support.simulation.virtual_loop import VirtualLoop

FILE = Path("/data/log")


def fault(at: int, kind: SimulatedFault = SimulatedFault.KILL, place: FaultPlace = FaultPlace.TURN) -> PlannedFault:
    return PlannedFault(kind, place, "app-0", at, 1.0)


# --- faults


def test_the_faults_of_a_seed_are_the_same_again_and_those_of_another_differ() -> None:
    assert faults_of(3) == faults_of(3) != faults_of(4)


def test_every_kind_of_fault_is_in_some_seed_and_some_seeds_have_none() -> None:
    plans = [faults_of(seed) for seed in range(100)]
    assert {planned.kind for plan in plans for planned in plan} == set(SimulatedFault)
    assert [] in plans


def test_in_some_seeds_faults_strike_later_and_in_some_they_last_longer() -> None:
    plans = [[one for one in faults_of(seed) if one.place is FaultPlace.TURN] for seed in range(200)]
    late = [max(one.at for one in plan) > 110 for plan in plans if plan]
    long = [max(one.seconds for one in plan) > 9.0 for plan in plans if plan]
    assert 20 < sum(late) < 80
    assert 10 < sum(long) < 60
    assert any(is_late and not is_long for is_late, is_long in zip(late, long, strict=True))
    assert any(is_long and not is_late for is_late, is_long in zip(late, long, strict=True))


def test_some_seeds_have_a_second_cluster_and_its_broker_has_faults_of_its_own() -> None:
    two = [seed for seed in range(100) if has_two_clusters(seed)]
    assert 10 < len(two) < 40
    lanes = {seed: {planned.lane for planned in faults_of(seed)} for seed in range(100)}
    assert any(OTHER_BROKER in lanes[seed] for seed in two)
    assert [seed for seed in range(100) if OTHER_BROKER in lanes[seed] and seed not in two] == []


def test_in_some_seeds_the_broker_compacts_and_in_some_producer_ids_have_few_epochs() -> None:
    conditions = [conditions_of(seed) for seed in range(400)]
    assert conditions == [conditions_of(seed) for seed in range(400)]
    assert sum(each.segment_bytes is not None for each in conditions) in range(70, 130)
    assert sum(each.last_epoch < 10 for each in conditions) in range(20, 60)
    assert {each.last_epoch for each in conditions} == {*range(3, 10), MAX_PRODUCER_EPOCH}


def test_a_fault_strikes_at_its_event_and_a_second_one_at_the_next() -> None:
    plan = FaultPlan([fault(3), fault(3, SimulatedFault.STALL), fault(9)])
    trigger = plan.trigger(FaultPlace.TURN, lane_of(0))
    struck = [trigger.pull() for _ in range(10)]
    assert {number: one.kind for number, one in enumerate(struck, 1) if one is not None} == {
        3: SimulatedFault.STALL,
        4: SimulatedFault.KILL,
        9: SimulatedFault.KILL,
    }


def test_a_fault_of_another_lane_or_place_does_not_strike() -> None:
    plan = FaultPlan([fault(1)])
    for place, lane in ((FaultPlace.MESSAGE, lane_of(0)), (FaultPlace.TURN, lane_of(1))):
        assert plan.trigger(place, lane).pull() is None


# --- clocks and processes


def test_a_process_has_clocks_of_its_own() -> None:
    scheduler = Scheduler(1)
    process = SimulatedProcess(scheduler, 0, {}, MachineClock(100.0, 2.0, 5000.0))
    woken: list[tuple[float, float, int]] = []

    def sleep() -> None:
        process.sleep(4.0)
        woken.append((scheduler.now, process.monotonic(), process.wall_ms()))

    process.start_thread(sleep, "main")
    scheduler.run()
    ((now, monotonic, wall),) = woken
    assert 2.0 <= now < 2.1
    assert monotonic == pytest.approx(100.0 + 2 * now)
    assert wall == int((5000.0 + 2 * now) * 1000)


def test_a_wait_until_a_time_of_the_process_ends_when_its_clock_shows_it() -> None:
    process = SimulatedProcess(Scheduler(1), 0, {}, MachineClock(123.456, 1.0375))
    for monotonic in (200.0, 333.333, 1e6 + 0.1):
        process.scheduler.now = process.when(monotonic)
        assert process.monotonic() >= monotonic


# --- the disk


def disk_of(files: MemoryFiles, last_uses: int, ended: list[str]) -> BrokerDisk:
    """A disk that ends the process at the use after ``last_uses`` uses."""
    uses = iter([False] * last_uses + [True])
    return BrokerDisk(files, random.Random(2), lambda: next(uses), lambda: ended.append("ended"))


def test_a_process_that_ends_in_a_write_leaves_a_part_of_it() -> None:
    files, ended = MemoryFiles(), list[str]()
    files.make_directory(FILE.parent)
    disk = disk_of(files, 2, ended)
    file = disk.open(FILE)
    file.append(b"whole ")
    file.sync()
    with pytest.raises(BrokerEnded):
        file.append(b"0123456789")
    assert ended == ["ended"]
    left = files.open(FILE).read(0, 100)
    assert left.startswith(b"whole ")
    assert b"whole 0123456789".startswith(left)


def test_a_process_whose_disk_gives_an_error_in_a_write_has_written_a_part_and_goes_on() -> None:
    files, rng = MemoryFiles(), random.Random(4)
    files.make_directory(FILE.parent)

    def give_error() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    uses = iter([True, False])
    file = BrokerDisk(files, rng, lambda: next(uses), give_error).open(FILE)
    with pytest.raises(OSError, match="No space left"):
        file.append(b"0123456789")
    left = file.size()
    assert 0 < left < 10
    file.append(b"abc")
    assert file.read(0, 100) == b"0123456789"[:left] + b"abc"


def test_a_process_that_has_ended_can_use_its_disk_no_more() -> None:
    files = MemoryFiles()
    files.make_directory(FILE.parent)
    disk = disk_of(files, 5, [])
    file = disk.open(FILE)
    disk.has_ended = True
    for use in (lambda: disk.open(FILE), lambda: file.append(b"x"), file.sync, lambda: disk.remove(FILE)):
        with pytest.raises(BrokerEnded):
            use()
    assert files.open(FILE).size() == 0


# --- the event loop


class LoopRig:
    """A loop on a scheduler, with what it has done."""

    def __init__(self, clock: MachineClock = MachineClock()) -> None:  # noqa: B008
        self.scheduler = Scheduler(1)
        self.process = SimulatedProcess(self.scheduler, 0, {}, clock)
        self.errors: list[str] = []
        self.steps = 0
        self.loop = VirtualLoop(self.process, self._step, lambda error, message: self.errors.append(repr(error)))
        self.done: list[Any] = []

    def _step(self) -> None:
        self.steps += 1

    def begin(self, work: Any) -> None:
        async def note() -> None:
            self.done.append(await work)

        self.loop.call_soon(lambda: self.loop.create_task(note()))


def test_the_loops_time_is_virtual() -> None:
    rig = LoopRig(MachineClock(50.0, 0.5))

    async def sleep() -> float:
        await asyncio.sleep(100.0)
        return asyncio.get_running_loop().time()

    rig.begin(sleep())
    rig.scheduler.run()
    assert rig.done == [pytest.approx(150.0)]
    assert rig.scheduler.now == pytest.approx(200.0)


def test_work_in_a_thread_has_its_effect_later_and_its_end_later_still() -> None:
    rig, moments = LoopRig(), list[float]()

    async def work() -> float:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: moments.append(rig.scheduler.now))
        return rig.scheduler.now

    rig.begin(work())
    rig.scheduler.run()
    assert 0 < moments[0] < rig.done[0]


def test_an_error_in_a_thread_is_raised_where_it_is_awaited() -> None:
    rig = LoopRig()

    async def work() -> str:
        try:
            await asyncio.get_running_loop().run_in_executor(None, lambda: {}["missing"])
        except KeyError:
            return "raised"
        return "not raised"

    rig.begin(work())
    rig.scheduler.run()
    assert rig.done == ["raised"]


def test_a_process_that_stalls_goes_on_where_it_was() -> None:
    rig = LoopRig()

    async def work() -> float:
        rig.process.stalled_until = 7.0
        await asyncio.sleep(0)
        return rig.scheduler.now

    rig.begin(work())
    rig.scheduler.run()
    assert rig.done == [7.0]


def test_a_process_that_dies_goes_on_nowhere_and_its_tasks_are_unwound() -> None:
    rig, unwound = LoopRig(), list[str]()

    async def work() -> None:
        try:
            rig.process.is_alive = False
            await asyncio.sleep(0)
            rig.done.append("went on")
        finally:
            unwound.append("unwound")

    rig.begin(work())
    rig.scheduler.run()
    assert (rig.done, unwound) == ([], [])
    rig.loop.end()
    assert (rig.done, unwound, rig.errors) == ([], ["unwound"], [])


# --- the network


class DeafMachine:
    """A machine on which no broker listens."""

    is_listening = False


def refused_link() -> tuple[Scheduler, SimulatedLink]:
    scheduler = Scheduler(1)
    network = SimulatedNetwork(DeafMachine(), lambda lane: None, lambda lane, event: None)  # type: ignore[arg-type]
    return scheduler, network.connect(SimulatedProcess(scheduler, 0, {}), "app-0")


def test_a_connection_to_a_machine_without_a_broker_is_refused() -> None:
    scheduler, link = refused_link()
    scheduler.run()
    assert link.lost == "Connection refused"


def test_a_client_that_has_closed_its_connection_hears_nothing() -> None:
    scheduler, link = refused_link()
    link.close()
    scheduler.run()
    assert link.lost is None


def test_bytes_keep_their_order_on_one_connection() -> None:
    machine = SimpleNamespace(
        is_listening=True,
        loop=SimpleNamespace(call_soon=lambda *_: None),
        context=SimpleNamespace(memory=ConnectionMemory()),
    )
    scheduler = Scheduler(1)
    network = SimulatedNetwork(machine, lambda lane: None, lambda lane, event: None)  # type: ignore[arg-type]
    link = network.connect(SimulatedProcess(scheduler, 0, {}), "app-0")
    sent = [bytes([number]) for number in range(50)]
    for data in sent:
        link.answer(data)
    scheduler.run()
    assert list(link.inbox) == sent


def test_what_a_dead_process_does_reaches_no_broker() -> None:
    _, link = refused_link()
    link.process.is_alive = False
    with pytest.raises(ProcessKilled):
        link.send(b"never sent")
    link.close()
    assert not link.is_closed  # the system closes it, or a machine without power does not


# --- the timeline


EVENTS = [(0.5, "3:worker-0", "commit a-0"), (0.75, "broker", "fault: <it> ends"), (1.0, "db", "is quiet")]


def test_a_timeline_has_a_column_for_each_lane_and_marks_faults_and_decisions() -> None:
    events = lanes_of(EVENTS, {"3": "app-1"})
    assert as_text(events).splitlines() == [
        "    0.500000  app-1     commit a-0",
        "    0.750000  broker    fault: <it> ends",
        "    1.000000  db        is quiet",
    ]
    svg = as_svg(events, "seed 1: a & b")
    assert svg.count('class="lane"') == 2
    assert 'class="decision"' in svg
    assert 'class="fault"' in svg
    assert "&lt;it&gt;" in svg
    assert "a &amp; b" in svg
