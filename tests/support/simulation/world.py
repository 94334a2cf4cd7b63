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
from unittest.mock import patch

from dualwrite.broker.core import transaction_rules
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots import pool
from tests.support.simulation.application import LEASE_TIMEOUT, SimulatedApplication
from tests.support.simulation.cluster import ClusterOfRun, of_all
from tests.support.simulation.conditions import conditions_of
from tests.support.simulation.database.memory_database import MemoryDatabase, MemoryTransaction
from tests.support.simulation.faults import (
    APPLICATIONS,
    BROKER,
    DATABASE,
    OTHER_BROKER,
    FaultPlace,
    FaultPlan,
    PlannedFault,
    SimulatedFault,
    Trigger,
    faults_of,
    has_two_clusters,
    lane_of,
)
from tests.support.simulation.oracle import Ended, anomaly_in
from tests.support.simulation.reader import SimulatedReader
from tests.support.simulation.scheduler import MachineClock, Scheduler, SimulatedProcess, SimulatedThread
from tests.support.simulation.shared.opening import share_openings
from tests.support.simulation.shared.settings import settings_read_once
from tests.support.simulation.timeline import Event, lanes_of

UNITS = 8
LOOK_INTERVAL = 0.6
"""Seconds between two looks for a free slot. The product looks three times as often, which took a seventh of a run."""
RECOVERS_FOR = 60.0
"""Seconds within which the last process must have recovered everything."""
CLUSTERS = ((BROKER, "last"), (OTHER_BROKER, "last-b"))
"""Of each cluster: the name of its broker, and of the process that recovers what is left in it."""
_MOVES = 0.2
"""The part of the starts after a kill with the address of the other cluster."""
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
        self.conditions = conditions_of(seed)
        self._records = [chance.randint(1, 3) for _ in range(UNITS)]
        self.units_left = [f"u{number}" for number in range(UNITS)]
        self.answers: dict[str, str] = {}
        """What the caller of each attempt was told."""
        self.seen: Counter[str] = Counter()
        """What has happened, for sometimes-properties."""
        self.struck: list[PlannedFault] = []
        self.broken: list[str] = []
        """What must never happen, and has happened."""
        self.cluster_of: dict[str, ClusterOfRun] = {}
        """The cluster that the process of each attempt used."""
        self.processes: dict[int, SimulatedProcess] = {}
        self._lanes: dict[SimulatedProcess, str] = {}
        self._cluster_of_process: dict[SimulatedProcess, ClusterOfRun] = {}
        self._clocks = {lane_of(number): _clock(chance) for number in range(APPLICATIONS)}
        self.database = self._make_database()
        lanes = CLUSTERS if has_two_clusters(seed) else CLUSTERS[:1]
        self.clusters = [ClusterOfRun(self, *names, is_alone=len(lanes) == 1) for names in lanes]
        self._moves = Random(f"moves of {seed}")
        self._turns = {lane: self.plan.trigger(FaultPlace.TURN, lane) for lane in self._clocks}
        self._messages = {lane: self.plan.trigger(FaultPlace.MESSAGE, lane) for lane in self._clocks}
        scheduler.before_turn = self._before_turn

    def _make_database(self) -> MemoryDatabase:
        database = MemoryDatabase(self.scheduler)
        self._last_seconds = 0.0
        self._is_over = False
        """True once no fault strikes any more."""
        self._commits = self.plan.trigger(FaultPlace.COMMIT, DATABASE)
        self._forgets = self.plan.trigger(FaultPlace.COMMITTED, DATABASE)
        self._calls = self.plan.trigger(FaultPlace.CALL, DATABASE)
        self._locks = {lane: self.plan.trigger(FaultPlace.LOCKED, lane) for lane in self._clocks}
        self._stores = {lane: self.plan.trigger(FaultPlace.STORE, lane) for lane in self._clocks}
        self._committed = {lane: self.plan.trigger(FaultPlace.COMMITTED, lane) for lane in self._clocks}
        database.is_lost = self._commit_fault
        database.later = lambda act: self._later(self._last_seconds, act)
        database.before_call = self._before_call
        database.happened = self.happened
        database.forgets_after = self._forgets_after
        database.before_store = lambda process: self._strike_process(process, self._stores)
        database.after_commit = lambda process: self._strike_process(process, self._committed)
        database.after_lock = self._after_lock
        return database

    def run(self) -> RunResult:
        """Work, recover, read, compare."""
        was_enabled = gc.isenabled()
        gc.disable()  # a collection, whose moment no seed decides, would drop leases that the recipe holds weakly
        try:
            with (
                settings_read_once(),
                patch.object(pool, "LOOK_INTERVAL", LOOK_INTERVAL),
                patch.object(transaction_rules, "MAX_PRODUCER_EPOCH", self.conditions.last_epoch),
            ):
                ended = self._run()
        finally:
            for cluster in self.clusters:
                cluster.machine.stop()
            if was_enabled:
                gc.enable()
        anomaly = anomaly_in(ended)
        read = [answer for cluster in self.clusters for answer in sorted(cluster.read_bytes.items())]
        content = repr((self.scheduler.events, read, ended))
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return RunResult(self.seed, anomaly, digest, self.seen, tuple(self.struck))

    def _run(self) -> Ended:
        for cluster in self.clusters:
            cluster.machine.start()
        for number in range(APPLICATIONS):
            self._start(lane_of(number), self.clusters[number % len(self.clusters)])
        self._for_each_cluster(lambda reader: SimulatedReader(self, reader).watch())
        self._is_over = True
        for cluster in self.clusters:
            self.note(cluster.last, "recovers")
        self._for_each_cluster(lambda last: last.recover(last.cluster.is_recovered, RECOVERS_FOR))
        for cluster in self.clusters:
            cluster.ends.clear()
        self._for_each_cluster(lambda last: SimulatedReader(self, last).read_all())
        on_record, expected = self._outcomes()
        return Ended(
            rows=list(self.database.units),
            records=[value for value in of_all(self.clusters, ClusterOfRun.values) if not self._is_known(value)],
            withdrawn=of_all(self.clusters, ClusterOfRun.withdrawn),
            records_of={attempt: self.records_of(attempt) + self.conditions.has_offsets for attempt in self.answers},
            answers={unit: answer for unit, answer in self.answers.items() if unit not in self.database.forgotten},
            units_left=len(self.units_left),
            unstable=of_all(self.clusters, ClusterOfRun.unstable),
            is_read=all(cluster.is_read for cluster in self.clusters),
            outcomes=list((on_record - expected).elements()),
            unrecorded=[name for name, _ in (expected - on_record).elements()],
            failures=self.scheduler.failures,
            waiting=self._waiting(),
            broken=[*self.broken, *self.database.violations, *of_all(self.clusters, self._strays)],
        )

    def _strays(self, cluster: ClusterOfRun) -> list[str]:
        """What readers of ``cluster`` have got of processes that use another, as anomalies."""
        values = [value for value in cluster.values() if self.cluster_of[value.partition("/")[0]] is not cluster]
        return [f"aborted read: readers of {cluster.lane} get {value} of another cluster" for value in values]

    def _outcomes(self) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """The outcomes on record, and those that must be: a hazard for each unit whose records are not in the cluster
        that uses its slot now (docs/outcomes.md). What a database that forgets makes of them is not counted."""
        if self.database.forgotten:
            return Counter(), Counter()
        hazard = Outcome.HEURISTIC_HAZARD.value
        return Counter(self.database.outcomes), Counter((name, hazard) for name in self.database.left_elsewhere)

    def _is_known(self, value: str) -> bool:
        """True for a record of a unit that the database has forgotten; unless its process has gone on in the same slot,
        and nothing is on record. A process that has ended since can notice nothing."""
        unit, database = value.partition("/")[0], self.database
        lease = database.forgotten.get(unit)
        if lease is None:
            return False
        return unit not in database.replaced or lease.transactional_id in dict(database.outcomes)

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

    def _waiting(self) -> list[str]:
        alive = [process for process in self.processes.values() if process.is_alive]
        return [thread.name for process in alive for thread in process.threads if not thread.has_ended]

    # --- processes

    def _start(self, lane: str, cluster: ClusterOfRun) -> None:
        process = self.new_process(self._clocks[lane])
        self._lanes[process], process.is_faulty = lane, True
        where = "" if cluster.is_alone else f" with {cluster.lane}"
        self.note(lane, f"starts as {process.number}{where}")
        self._cluster_of_process[process] = cluster
        process.start_thread(lambda: SimulatedApplication(self, process, lane, cluster).run(), "main")

    def _start_again(self, lane: str, cluster: ClusterOfRun) -> None:
        """Start ``lane`` after a kill; at times with the address of the other cluster."""
        if self._moves.random() < _MOVES:
            cluster = next((other for other in self.clusters if other is not cluster), cluster)
        self._start(lane, cluster)

    def _for_each_cluster(self, act: Callable[[SimulatedApplication], None]) -> None:
        """Let a process beside the applications act on each cluster, and run until it and all others have ended."""
        for cluster in self.clusters:
            self._start_last(act, cluster)
        self.scheduler.run()

    def _start_last(self, act: Callable[[SimulatedApplication], None], cluster: ClusterOfRun) -> None:
        process = self.new_process(MachineClock())
        process.start_thread(lambda: act(SimulatedApplication(self, process, cluster.last, cluster)), cluster.last)

    def new_process(self, clock: MachineClock) -> SimulatedProcess:
        """A process with ``clock``."""
        process = SimulatedProcess(self.scheduler, len(self.processes), self.processes, clock)
        process.sees_deaths = self._sees_deaths
        return process

    def _kill(self, process: SimulatedProcess, seconds: float) -> None:
        if not process.is_alive:
            return
        lane = self._lanes[process]
        self.note(lane, "is killed")
        self.scheduler.kill(process)
        cluster = self._cluster_of_process[process]
        cluster.network.client_died(process)
        chance = self.scheduler.random
        for transaction in self.database.left_by(process):
            self._later(chance.random() * LEASE_TIMEOUT, transaction.rollback)
        self._later(seconds, lambda: self._start_again(lane, cluster))

    def _stall(self, process: SimulatedProcess, seconds: float) -> None:
        self.note(self._lanes[process], f"stalls for {seconds:.3f} s")
        process.stalled_until = max(process.stalled_until, self.scheduler.now + seconds)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.scheduler.call_at(self.scheduler.now + seconds, act)

    # --- faults

    def strike(self, fault: PlannedFault | None) -> PlannedFault | None:
        """Note ``fault``, which is due; return it if it strikes."""
        if fault is not None and self._is_over:
            return None
        if fault is not None:
            self.struck.append(fault)
            self.seen[fault.kind.name] += 1
            self.note(fault.lane, f"fault: {fault}")
        return fault

    def _before_turn(self, thread: SimulatedThread) -> None:
        due = self._turns[self._lanes[thread.process]].pull()
        fault = None if due is None else self.strike(due)
        if fault is not None:
            if fault.kind is SimulatedFault.KILL:
                self._kill(thread.process, fault.seconds)
            else:
                self._stall(thread.process, fault.seconds)

    def _strike_process(self, process: SimulatedProcess, triggers: Mapping[str, Trigger]) -> None:
        """Kill or stall ``process`` before its running thread goes on from its next wait."""
        lane = self._lanes.get(process)
        fault = None if lane is None else self.strike(triggers[lane].pull())
        if fault is not None:
            if fault.kind is SimulatedFault.KILL:
                self._later(0.0, lambda: self._kill(process, fault.seconds))
            else:
                self._stall(process, fault.seconds)

    def _after_lock(self, transaction: MemoryTransaction) -> None:
        lane = self._lanes.get(transaction.process)
        fault = None if lane is None else self.strike(self._locks[lane].pull())
        if fault is not None:
            transaction.end()
            self._stall(transaction.process, fault.seconds)

    def message_fault(self, lane: str) -> PlannedFault | None:
        """What strikes the message that ``lane`` sends now."""
        return self.strike(self._messages[lane].pull()) if lane in self._messages else None

    def _commit_fault(self) -> int:
        fault = self.strike(self._commits.pull())
        if fault is None:
            return 0
        self._last_seconds = fault.seconds
        return _LOST_COMMITS[fault.kind]

    def _forgets_after(self) -> float | None:
        fault = self.strike(self._forgets.pull())
        return None if fault is None else fault.seconds

    def _before_call(self) -> None:
        fault = self.strike(self._calls.pull())
        if fault is not None:
            self.database.restart(fault.seconds)


def _clock(chance: Random) -> MachineClock:
    """The clock of one machine: set wrongly, and too fast or too slow."""
    return MachineClock(chance.random() * 1000, chance.uniform(0.9, 1.1), 1_000_000 + chance.random() * 60)
