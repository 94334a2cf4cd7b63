"""One run of the simulation of the whole: applications, network, broker and database under one scheduler, by a seed.

First two applications work, and the faults of the plan strike. Then a last process recovers everything, and a reader
reads. The oracle (``oracle.py``) compares what is there with what the callers were told.
"""

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple

from dualwrite.broker.facts.transactions import TransactionStatus
from tests.support.simulation.application import LEASE_TIMEOUT, SimulatedApplication
from tests.support.simulation.broker_machine import PARTITIONS, BrokerMachine
from tests.support.simulation.database.memory_database import MemoryDatabase, MemoryTransaction
from tests.support.simulation.faults import (
    APPLICATIONS,
    DATABASE,
    FaultPlace,
    FaultPlan,
    PlannedFault,
    SimulatedFault,
    Trigger,
    faults_of,
    lane_of,
)
from tests.support.simulation.network import SimulatedNetwork
from tests.support.simulation.opening import share_openings
from tests.support.simulation.oracle import Ended, anomaly_in
from tests.support.simulation.reader import SimulatedReader
from tests.support.simulation.scheduler import MachineClock, Scheduler, SimulatedProcess, SimulatedThread
from tests.support.simulation.timeline import Event, lanes_of

UNITS = 8
RECOVERS_FOR = 60.0
"""Seconds within which the last process must have recovered everything."""
LAST = "last"
_OLDER = 0.3
"""The part of the runs with the older protocol."""
_LOST_COMMITS = {
    SimulatedFault.COMMIT_NEVER_ARRIVES: 1,
    SimulatedFault.COMMIT_ANSWER_LOST: 2,
    SimulatedFault.COMMIT_ARRIVES_LATER: 3,
}


class RunResult(NamedTuple):
    """What a run has found.

    :param anomaly: its name, by Jepsen's words where there are some, and what was found; empty if there is none.
    :param digest: a hash of all events, and of the log that the reader has read.
    :param struck: the faults that struck.
    """

    seed: int
    anomaly: str
    digest: str
    seen: Counter[str]
    struck: tuple[PlannedFault, ...]


class SimulatedWorld:
    """Everything; ``run`` it once.

    :param faults: in place of those of the seed.
    """

    def __init__(self, seed: int, faults: Iterable[PlannedFault] | None = None) -> None:
        share_openings()
        self.seed = seed
        self.plan = FaultPlan(faults_of(seed) if faults is None else faults)
        self.scheduler = scheduler = Scheduler(seed)
        chance = scheduler.random
        self.pool_size = chance.randint(1, 3)
        self.is_older = chance.random() < _OLDER
        """True if the applications speak the older transaction protocol, as librdkafka does."""
        self.sends_commit = chance.random() < 0.5 and not self.is_older
        self._sees_deaths = chance.random() < 0.5
        self._records = [chance.randint(1, 3) for _ in range(UNITS)]
        self.units_left = [f"u{number}" for number in range(UNITS)]
        self.answers: dict[str, str] = {}
        """What the caller of each attempt was told."""
        self.seen: Counter[str] = Counter()
        """What has happened, for sometimes-properties."""
        self.struck: list[PlannedFault] = []
        self.broken: list[str] = []
        """What must never happen, and has happened."""
        self.records: dict[int, list[str]] = {}
        """What the reader has read in the end, by partition."""
        self.shown: dict[int, list[str]] = {}
        """The most that it has read during the run."""
        self.read_bytes: dict[int, bytes] = {}
        """The answer that it got last."""
        self.ends: dict[int, tuple[int, int]] = {}
        """The last stable offset and the high watermark in that answer."""
        self.processes: dict[int, SimulatedProcess] = {}
        self._lanes: dict[SimulatedProcess, str] = {}
        self._clocks = {lane_of(number): _clock(chance) for number in range(APPLICATIONS)}
        self.database = self._make_database()
        self.machine = BrokerMachine(
            scheduler, self.plan, self._broker_process, self._strike, self.note, self.broken.append, self._broker_died
        )
        self.network = SimulatedNetwork(self.machine, self._message_fault, self.note)
        self._turns = {lane: self.plan.trigger(FaultPlace.TURN, lane) for lane in self._clocks}
        self._messages = {lane: self.plan.trigger(FaultPlace.MESSAGE, lane) for lane in self._clocks}
        scheduler.before_turn = self._before_turn

    def _make_database(self) -> MemoryDatabase:
        database = MemoryDatabase(self.scheduler)
        self._last_seconds = 0.0
        self._is_over = False
        """True once no fault strikes any more."""
        self._commits = self.plan.trigger(FaultPlace.COMMIT, DATABASE)
        self._calls = self.plan.trigger(FaultPlace.CALL, DATABASE)
        self._locks = {lane: self.plan.trigger(FaultPlace.LOCKED, lane) for lane in self._clocks}
        self._stores = {lane: self.plan.trigger(FaultPlace.STORE, lane) for lane in self._clocks}
        self._committed = {lane: self.plan.trigger(FaultPlace.COMMITTED, lane) for lane in self._clocks}
        database.is_lost = self._commit_fault
        database.later = lambda act: self._later(self._last_seconds, act)
        database.before_call = self._before_call
        database.before_store = lambda process: self._strike_process(process, self._stores)
        database.after_commit = lambda process: self._strike_process(process, self._committed)
        database.after_lock = self._after_lock
        return database

    def run(self) -> RunResult:
        """Work, recover, read, compare."""
        was_enabled = gc.isenabled()
        gc.disable()  # a collection, whose moment no seed decides, would drop leases that the recipe holds weakly
        try:
            ended = self._run()
        finally:
            self.machine.stop()
            if was_enabled:
                gc.enable()
        anomaly = anomaly_in(ended)
        content = repr((self.scheduler.events, sorted(self.read_bytes.items()), ended))
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return RunResult(self.seed, anomaly, digest, self.seen, tuple(self.struck))

    def _run(self) -> Ended:
        self.machine.start()
        for number in range(APPLICATIONS):
            self._start(lane_of(number))
        self._start_last(lambda reader: SimulatedReader(self, reader).watch())
        self.scheduler.run()
        self._is_over = True
        self.note(LAST, "recovers")
        self._start_last(lambda last: last.recover(self._is_recovered, RECOVERS_FOR))
        self.scheduler.run()
        self.ends.clear()
        self._start_last(lambda last: SimulatedReader(self, last).read_all())
        self.scheduler.run()
        return Ended(
            rows=list(self.database.units),
            records=[value for partition in sorted(self.records) for value in self.records[partition]],
            withdrawn=[
                value
                for partition, values in sorted(self.shown.items())
                for value in values
                if value not in self.records.get(partition, ())
            ],
            records_of={attempt: self.records_of(attempt) for attempt in self.answers},
            answers=self.answers,
            units_left=len(self.units_left),
            unstable=[f"partition {number}" for number, (stable, end) in sorted(self.ends.items()) if stable < end],
            is_read=len(self.records) == PARTITIONS,
            outcomes=self.database.outcomes,
            failures=self.scheduler.failures,
            waiting=self._waiting(),
            broken=[*self.broken, *self.database.violations],
        )

    def records_of(self, attempt: str) -> int:
        """How many records an attempt of a unit of work has."""
        return self._records[int(attempt[1:].partition(".")[0])]

    @property
    def events(self) -> list[Event]:
        """What has happened: when, in which lane, and what."""
        lanes = {str(process.number): lane for process, lane in self._lanes.items()}
        return lanes_of(self.scheduler.events, lanes)

    def note(self, lane: str, event: str) -> None:
        """Add an event of ``lane`` to the events."""
        self.scheduler.events.append((self.scheduler.now, lane, event))

    def happened(self, what: str) -> None:
        """Count ``what``."""
        self.seen[what] += 1

    def _is_recovered(self) -> bool:
        return self.machine.is_listening and all(
            entry.status is not TransactionStatus.ONGOING and not entry.is_ended
            for entry in self.machine.rooms.coordinator.table.entries.values()
        )

    def _waiting(self) -> list[str]:
        alive = [process for process in self.processes.values() if process.is_alive]
        return [thread.name for process in alive for thread in process.threads if not thread.has_ended]

    # --- processes

    def _start(self, lane: str) -> None:
        process = self._process(self._clocks[lane])
        self._lanes[process], process.is_faulty = lane, True
        self.note(lane, f"starts as {process.number}")
        process.start_thread(lambda: SimulatedApplication(self, process, lane).run(), "main")

    def _start_last(self, act: Callable[[SimulatedApplication], None]) -> None:
        process = self._process(MachineClock())
        process.start_thread(lambda: act(SimulatedApplication(self, process, LAST)), LAST)

    def _process(self, clock: MachineClock) -> SimulatedProcess:
        process = SimulatedProcess(self.scheduler, len(self.processes), self.processes, clock)
        process.sees_deaths = self._sees_deaths
        return process

    def _broker_process(self, clock: MachineClock) -> SimulatedProcess:
        return self._process(clock)

    def _broker_died(self) -> None:
        self.network.broker_died()

    def _kill(self, process: SimulatedProcess, seconds: float) -> None:
        if not process.is_alive:
            return
        lane = self._lanes[process]
        self.note(lane, "is killed")
        self.scheduler.kill(process)
        self.network.client_died(process)
        chance = self.scheduler.random
        for transaction in self.database.left_by(process):
            self._later(chance.random() * LEASE_TIMEOUT, transaction.rollback)
        self._later(seconds, lambda: self._start(lane))

    def _stall(self, process: SimulatedProcess, seconds: float) -> None:
        self.note(self._lanes[process], f"stalls for {seconds:.3f} s")
        process.stalled_until = max(process.stalled_until, self.scheduler.now + seconds)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.scheduler.call_at(self.scheduler.now + seconds, act)

    # --- faults

    def _strike(self, fault: PlannedFault | None) -> PlannedFault | None:
        if fault is not None and self._is_over:
            return None
        if fault is not None:
            self.struck.append(fault)
            self.seen[fault.kind.name] += 1
            self.note(fault.lane, f"fault: {fault}")
        return fault

    def _before_turn(self, thread: SimulatedThread) -> None:
        due = self._turns[self._lanes[thread.process]].pull()
        fault = None if due is None else self._strike(due)
        if fault is not None:
            if fault.kind is SimulatedFault.KILL:
                self._kill(thread.process, fault.seconds)
            else:
                self._stall(thread.process, fault.seconds)

    def _strike_process(self, process: SimulatedProcess, triggers: Mapping[str, Trigger]) -> None:
        """Kill or stall ``process`` before its running thread goes on from its next wait."""
        lane = self._lanes.get(process)
        fault = None if lane is None else self._strike(triggers[lane].pull())
        if fault is not None:
            if fault.kind is SimulatedFault.KILL:
                self._later(0.0, lambda: self._kill(process, fault.seconds))
            else:
                self._stall(process, fault.seconds)

    def _after_lock(self, transaction: MemoryTransaction) -> None:
        lane = self._lanes.get(transaction.process)
        fault = None if lane is None else self._strike(self._locks[lane].pull())
        if fault is not None:
            transaction.end()
            self._stall(transaction.process, fault.seconds)

    def _message_fault(self, lane: str) -> PlannedFault | None:
        return self._strike(self._messages[lane].pull()) if lane in self._messages else None

    def _commit_fault(self) -> int:
        fault = self._strike(self._commits.pull())
        if fault is None:
            return 0
        self._last_seconds = fault.seconds
        return _LOST_COMMITS[fault.kind]

    def _before_call(self) -> None:
        fault = self._strike(self._calls.pull())
        if fault is not None:
            self.database.restart(fault.seconds)


def _clock(chance: Random) -> MachineClock:
    """The clock of one machine: set wrongly, and too fast or too slow."""
    return MachineClock(chance.random() * 1000, chance.uniform(0.9, 1.1), 1_000_000 + chance.random() * 60)
