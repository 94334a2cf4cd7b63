"""One run of the simulation: processes of one application, a Kafka, a database, and what goes wrong, all by a seed.

The recipe is the real one: pool, leases, heartbeat, sweeper, background, driver and recovery. In the end a last process
recovers, and both sides must agree on every unit of work.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from dualwrite.coordinator.concurrency.waiting import TaskThread
from dualwrite.coordinator.kafka.control_plane_recovery import by_participants
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.coordinator.slots.usage import PoolSettings
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.steps.observers import no_observer
from dualwrite.errors import DualWriteError, NoFreeSlotError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import FakeCluster, FakeKafka, Fault
from tests.support.coordinator.simulation.memory_database import (
    MemoryDatabase,
    MemorySlotLeases,
    MemoryStore,
    MemoryUnit,
)
from tests.support.coordinator.simulation.scheduler import Scheduler, SimulatedProcess, SimulatedThread
from tests.support.user_errors import UserError

LEASE_TIMEOUT = 3.0
WORKERS = 2
UNITS = 12
LONGEST_STALL = 3 * LEASE_TIMEOUT
_KILLS, _STALLS, _FAULTS = 5, 4, 6
"""The most of each in a run."""
_KILL, _STALL, _FAULT = 1 / 120, 1 / 150, 1 / 40
"""Their probabilities, at each turn of a thread and at each request."""

T = TypeVar("T")


class WatchedKafka(FakeKafka):
    """Kafka compares each end of a transaction with the database."""

    def __init__(self, world: "SimulationWorld", name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.before_effect = lambda request: world.before_request(f"{request} {name}")
        self.after_effect = lambda request: world.after_request()
        self.fault = lambda request: Fault(world.fault(2))
        self.is_slow = lambda: world.scheduler.random.random() < 0.5

    def end(self, *, commit: bool) -> None:
        values = set() if self.ongoing is None else set(self.ongoing.values)
        decided = values & set(self.world.database.units)
        if commit and decided != values:
            self.world.violate(f"aborted read: Kafka commits {sorted(values - decided)}, which are not in the database")
        if not commit and decided:
            self.world.violate(f"lost write: Kafka aborts {sorted(decided)}, which the database has committed")
        if values and self.requests[-1] == "complete":
            self.world.seen["recovery commits" if commit else "recovery aborts"] += 1
        super().end(commit=commit)


class SimulatedApplication:
    """The objects of one process, as DualWrite makes them."""

    def __init__(self, world: "SimulationWorld", process: SimulatedProcess) -> None:
        self.world = world
        self.process = process
        self.store = MemoryStore(world.database, process)
        settings = PoolSettings("a", world.pool_size, 20.0, LEASE_TIMEOUT)
        leases, counters = MemorySlotLeases(self.store), Counters(process.lock())
        registry = LeaseRegistry(process, leases, "a", process.new_owner(), LEASE_TIMEOUT)
        self.sweeper = Sweeper(
            process, registry, self.store, lambda: by_participants(self._participant), counters, no_observer
        )
        self.pool = Pool(
            process, settings, self.store, registry, self.sweeper, self._participant, counters, no_observer
        )
        self.counters = counters

    def _participant(self, transactional_id: str) -> Any:
        return self.world.cluster.of(transactional_id).participant()

    def run(self) -> None:
        """The process, from its start to its end."""
        workers = [TaskThread(self.process, self._work, f"worker-{number}") for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            while not worker.join(1.0):
                pass
        self.pool.close(5.0)
        self.world.seen["closed"] += 1

    def _work(self) -> None:
        while self.world.units_left:
            unit = self.world.units_left.pop()
            self.world.ends[unit] = "killed"
            self.world.ends[unit] = self._run_unit(unit)

    def _run_unit(self, unit: str) -> str:
        """As DualWrite.enter and leave; how it ended, for its caller."""
        user = object()
        driver: UnitDriver | None = None
        try:
            slot = self.pool.acquire(user)
            slot.collect_commit(wait=False)
            slot.recover()
            database, sends_commit = MemoryUnit(self.store, slot.lease), self.world.sends_commit
            number = self.process.number
            driver = UnitDriver(self.store, database, slot, no_observer, lambda: number, sends_commit=sends_commit)
            driver.begin()
            if driver.machine.result is None:
                driver.finish(self._block(driver, unit))
        except DualWriteError as error:
            self.world.scheduler.note(f"{unit}: {type(error).__name__}")
            self.world.seen[type(error).__name__] += 1
            if not (error.retriable or isinstance(error, NoFreeSlotError | LeaseLostError)):
                raise
        finally:
            if driver is not None:
                driver.release()
            self.pool.release(user)
        result = None if driver is None else driver.machine.result
        end = "never began" if result is None else result.name
        self.world.scheduler.note(f"{unit}: {end}")
        self.world.seen[end] += 1
        return end

    def _block(self, driver: UnitDriver, unit: str) -> Exception | None:
        """The user's code; its exception."""
        try:
            connection: Any = driver.connection
            connection.insert(unit)
            for _ in range(2):
                driver.produce(OutgoingRecord("events", unit))
            if self.world.scheduler.random.random() < 0.1:
                raise UserError
        except (DualWriteError, OSError, UserError) as error:
            return error
        return None

    def recover(self) -> None:
        """Recover everything; for the last process."""
        self.process.sleep(2 * LEASE_TIMEOUT)
        while True:
            _, errors = self.sweeper.attempt()
            if not errors and not self.world.cluster.ongoing:
                break
            self.world.seen["swept again"] += 1
            self.process.sleep(1.0)
        self.pool.close(5.0)


class SimulationWorld:
    """Everything; ``run`` it once.

    :param stalls: the most stalls of a run, and their probability at each turn.
    :param sends_commit: see UnitDriver.
    """

    def __init__(self, seed: int, stalls: tuple[int, float] = (_STALLS, _STALL), *, sends_commit: bool = False) -> None:
        self.sends_commit = sends_commit
        self.scheduler = Scheduler(seed)
        chance = self.scheduler.random
        self.database = MemoryDatabase(self.scheduler)
        self.database.is_lost = lambda: self.fault(3)
        self.database.later = lambda act: self._later(chance.random() * LEASE_TIMEOUT, act)
        self.cluster = FakeCluster()
        self.pool_size = chance.randint(1, 3)
        self.processes: dict[int, SimulatedProcess] = {}
        self.units_left = [f"unit-{number}" for number in range(UNITS)]
        self.ends: dict[str, str] = {}
        self.seen: Counter[str] = Counter()
        """What has happened, for sometimes-properties."""
        self._sees_deaths = chance.random() < 0.5
        self._left = Counter(kill=chance.randint(0, _KILLS), stall=chance.randint(0, stalls[0]), fault=_FAULTS)
        self._stall = stalls[1]
        self._outside = SimulatedProcess(self.scheduler, 0, self.processes)
        self.scheduler.before_turn = self._disturb
        self.cluster.of = self._kafka_of  # type: ignore[method-assign]

    def _kafka_of(self, transactional_id: str) -> FakeKafka:
        ids = self.cluster.ids
        if transactional_id not in ids:
            ids[transactional_id] = WatchedKafka(self, transactional_id)
        return ids[transactional_id]

    def run(self) -> "SimulationWorld":
        """Two processes, what goes wrong, the last process; then the oracle."""
        for _ in range(2):
            self._start(lambda application: application.run())
        self.scheduler.run()
        self._left.clear()
        self._start(lambda application: application.recover())
        self.scheduler.run()
        self.check()
        return self

    def _start(self, act: Callable[[SimulatedApplication], None]) -> None:
        process = SimulatedProcess(self.scheduler, len(self.processes), self.processes)
        process.sees_deaths = self._sees_deaths
        process.start_thread(lambda: act(SimulatedApplication(self, process)), "main")

    def before_request(self, request: str) -> None:
        """A request is on its way to Kafka."""
        self.scheduler.pause()
        self.scheduler.note(request)

    def after_request(self) -> None:
        """Its answer is on its way back."""
        self.scheduler.pause()

    def fault(self, kinds: int) -> int:
        """0 if nothing goes wrong; else which of ``kinds`` things."""
        if self._happens("fault", _FAULT):
            return self.scheduler.random.randint(1, kinds)
        return 0

    def violate(self, violation: str) -> None:
        """Both sides can never agree any more."""
        self.database.violations.append(f"{self.scheduler.now:.6f} {violation}")

    def _happens(self, what: str, probability: float) -> bool:
        if self._left[what] and self.scheduler.random.random() < probability:
            self._left[what] -= 1
            self.seen[what] += 1
            return True
        return False

    def _disturb(self, thread: SimulatedThread) -> None:
        process = thread.process
        if process is self._outside:
            return
        if self._happens("kill", _KILL):
            self._kill(process)
        elif self._happens("stall", self._stall):
            process.stalled_until = self.scheduler.now + self.scheduler.random.random() * LONGEST_STALL
            self.scheduler.note(f"{process.number} stalls until {process.stalled_until:.6f}")

    def _kill(self, process: SimulatedProcess) -> None:
        self.scheduler.kill(process)
        chance = self.scheduler.random
        notices, restarts = chance.random() * LEASE_TIMEOUT, chance.random() * 2 * LEASE_TIMEOUT
        for transaction in self.database.left_by(process):
            self._later(notices, transaction.rollback)
        self._later(restarts, lambda: self._start(lambda application: application.run()))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def wait_and_act() -> None:
            self._outside.sleep(seconds)
            act()

        self._outside.start_thread(wait_and_act, "outside")

    def check(self) -> None:
        """The oracle.

        :raises AssertionError: naming the anomaly.
        """
        assert not self.database.violations, self.database.violations
        assert not self.scheduler.failures, self.scheduler.failures
        alive = [process for process in self.processes.values() if process.is_alive]
        waiting = [thread.name for process in alive for thread in process.threads if not thread.has_ended]
        assert not waiting, f"threads wait for ever: {waiting}"
        assert self.cluster.ongoing == [], "a transaction is left open"
        rows, records = sorted(self.database.units), self.cluster.committed
        assert len(set(rows)) == len(rows), f"duplicate: {rows}"
        assert records == sorted(rows * 2), f"torn transaction: rows {rows}, records {records}"
        assert self.database.outcomes == [], f"a false alarm: {self.database.outcomes}"
        assert len(self.ends) == UNITS, f"units that no process began: {self.units_left}"
        for unit, end in self.ends.items():
            if end == Result.SUCCEEDED.name:
                assert unit in rows, f"lost write: {unit}"
            if end in (Result.ROLLED_BACK.name, "never began"):
                assert unit not in rows, f"its caller would run {unit} again, and it is there"
