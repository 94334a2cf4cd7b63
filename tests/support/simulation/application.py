"""One process of the application: the objects that DualWrite makes for it, on simulated ports.

Pool, leases, heartbeat, sweeper, background, UnitDriver and recovery are the real ones, and so are the native producer
with its engine and the control plane.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.inspector import Inspector
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.producer.base_producer import ProducerRuntime
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.coordinator.concurrency.waiting import TaskThread
from dualwrite.coordinator.kafka.control_plane_recovery import by_control_plane
from dualwrite.coordinator.kafka.known_cluster import KnownCluster
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.recovery.prepared_predecessor import PreparedPredecessor
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.coordinator.slots.usage import PoolSettings
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.steps.observers import no_observer
from dualwrite.errors import DualWriteError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.broker.simulated import TOPIC
from tests.support.simulation.broker.broker_machine import HOST, PARTITIONS, PORT
from tests.support.simulation.client_driver import LinkedDriver, SimulatedConnection
from tests.support.simulation.database.memory_store import MemoryStore
from tests.support.simulation.database.memory_unit import MemoryUnit
from tests.support.simulation.database.slot_leases import MemorySlotLeases
from tests.support.simulation.older_producer import OlderProducer
from tests.support.simulation.scheduler import SimulatedProcess
from tests.support.user_errors import UserError

if TYPE_CHECKING:
    from tests.support.simulation.cluster import ClusterOfRun
    from tests.support.simulation.world import SimulatedWorld

ControlT = TypeVar("ControlT", bound=ControlPlane)
NAME = "a"
LEASE_TIMEOUT = 3.0
WORKERS = 2
ATTEMPTS = 2
"""How often a caller runs a unit of work that was rolled back."""
_PATIENCE = 30.0
"""Seconds that a unit of work waits for a slot."""
_USER_ERRORS = 0.08
"""The part of the units of work whose own code raises."""
CONFIG: Mapping[str, Any] = {
    "bootstrap.servers": f"{HOST}:{PORT}",
    "transactional.id": NAME,
    "socket.timeout.ms": 1500,
    "socket.connection.setup.timeout.ms": 1000,
    "delivery.timeout.ms": 3000,
}


class SimulatedApplication:
    """The objects of one process.

    :param lane: the application's name, over all of its processes.
    :param cluster: the cluster that it uses.
    """

    def __init__(self, world: "SimulatedWorld", process: SimulatedProcess, lane: str, cluster: "ClusterOfRun") -> None:
        self.world = world
        self.process = process
        self.cluster = cluster
        self.store = MemoryStore(world.database, process)
        self._connect = partial(cluster.network.connect, process, lane)
        inspector = partial(self._control, Inspector)
        self._known = KnownCluster(CONFIG, with_log_directory=False, make_inspector=inspector, runtime=process)
        settings = PoolSettings(NAME, world.pool_size, _PATIENCE, LEASE_TIMEOUT)
        leases, counters = MemorySlotLeases(self.store), Counters(process.lock())
        identity = ClusterIdentity if cluster.is_alone else self._known
        registry = LeaseRegistry(process, leases, NAME, process.new_owner(), LEASE_TIMEOUT, identity)
        recoverers = partial(
            by_control_plane, CONFIG, self._require_cluster, make_control=self.control, runtime=process
        )
        self.sweeper = Sweeper(process, registry, self.store, recoverers, counters, no_observer)
        self.pool = Pool(process, settings, self.store, registry, self.sweeper, self.participant, counters, no_observer)

    def control(self, config: Mapping[str, Any], timeout: float = 5.0) -> ControlPlane:
        """The control plane of this process."""
        return self._control(ControlPlane, config, timeout)

    def _control(self, kind: type[ControlT], config: Mapping[str, Any], timeout: float = 5.0) -> ControlT:
        connect: Any = partial(SimulatedConnection, process=self.process, connect=self._connect)
        return kind(config, timeout=timeout, clock=self.process.monotonic, sleep=self.process.sleep, connect=connect)

    def _require_cluster(self) -> None:
        """As DualWrite does before each recovery, where there is more than one cluster."""
        if not self.cluster.is_alone:
            self._known.require_same()

    def participant(self, transactional_id: str) -> KafkaParticipant:
        """The producer of ``transactional_id`` in this process: the native one, or one of the older protocol."""
        self._require_cluster()
        config = {**CONFIG, "transactional.id": transactional_id}
        if self.world.is_older:
            endpoint, settings = Endpoint(HOST, PORT), ClientSettings.from_config(config)
            connect = partial(SimulatedConnection, endpoint, settings, process=self.process, connect=self._connect)
            return OlderProducer(transactional_id, self.control(config), connect, self.process)
        return NativeProducer(config, make_producer=self._producer, make_control=self.control, runtime=self.process)

    def _producer(self, config: Mapping[str, Any]) -> TwoPhaseProducer:
        process = self.process
        make_driver = partial(LinkedDriver, process=process, connect=self._connect)
        runtime = ProducerRuntime(process.monotonic, process.wall_ns, process.scheduler.random.randrange)
        return TwoPhaseProducer(config, make_driver=make_driver, runtime=runtime)

    def run(self) -> None:
        """The process, from its start to its end."""
        workers = [TaskThread(self.process, self._work, f"worker-{number}") for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            while not worker.join(1.0):
                pass
        self.pool.close(5.0)

    def _work(self) -> None:
        units = self.world.units_left
        while units:
            unit = units.pop()
            for attempt in range(ATTEMPTS):
                if not self._run_unit(f"{unit}.{attempt}"):
                    break

    def _run_unit(self, unit: str) -> bool:
        """Run ``unit`` as DualWrite does; True if its caller may run it again."""
        world = self.world
        world.answers[unit] = "killed"
        world.cluster_of[unit] = self.cluster
        user, driver, may_repeat = object(), None, False
        try:
            slot = self.pool.acquire(user)
            slot.collect_commit(wait=False)
            slot.recover()
            driver = self._driver(slot)
            driver.begin()
            if driver.machine.result is None:
                driver.finish(self._block(driver, unit))
        except (DualWriteError, OSError) as error:
            world.happened(type(error).__name__)
            may_repeat = True
        finally:
            if driver is not None:
                driver.release()
            self.pool.release(user)
        result = None if driver is None else driver.machine.result
        answer = "never began" if result is None else result.name
        world.answers[unit] = answer
        world.happened(answer)
        self.process.scheduler.note(f"{unit}: {answer}")
        if driver is None or result is not Result.ROLLED_BACK:
            return may_repeat and driver is None
        return not isinstance(driver.machine.error, UserError)

    def _driver(self, slot: Any) -> UnitDriver:
        database, number = MemoryUnit(self.store, slot.lease), self.process.number
        return UnitDriver(self.store, database, slot, no_observer, lambda: number, sends_commit=self.world.sends_commit)

    def _block(self, driver: UnitDriver, unit: str) -> Exception | None:
        """The user's code; its exception."""
        chance = self.process.scheduler.random
        try:
            connection: Any = driver.connection
            connection.insert(unit)
            offsets_first = self.world.conditions.has_offsets and chance.random() < 0.5
            if offsets_first:
                self._send_offset(driver, unit)
            for number in range(self.world.records_of(unit)):
                partition = chance.randrange(PARTITIONS)
                driver.produce(OutgoingRecord(TOPIC, f"{unit}/{number}", partition=partition))
            if self.world.conditions.has_offsets and not offsets_first:
                self._send_offset(driver, unit)
            if chance.random() < _USER_ERRORS:
                raise UserError
        except (DualWriteError, OSError, UserError) as error:
            return error
        return None

    def _send_offset(self, driver: UnitDriver, unit: str) -> None:
        """Commit, for the unit's own group, an offset that tells its attempts apart."""
        group, _, attempt = unit.partition(".")
        driver.send_offsets([CommittedOffset(TOPIC, 0, int(attempt) + 1, -1, "")], group)

    def recover(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Recover everything; for the last process. Gives up after ``seconds``. It aborts what no row names any more,
        as an operator does with ``dualwrite terminate``."""
        until = self.process.monotonic() + seconds
        self.process.sleep(2 * LEASE_TIMEOUT)
        while self.process.monotonic() < until:
            _, errors = self.sweeper.attempt()
            if self.cluster.machine.is_listening:
                self._terminate_unnamed()
            if not errors and is_done():
                break
            self.process.sleep(1.0)
        self.pool.close(5.0)

    def _terminate_unnamed(self) -> None:
        database, control = self.world.database, self.control(CONFIG)
        for name in sorted(database.forgotten_rows - database.rows.keys()):
            PreparedPredecessor(control, name).end(RecoveryDecision.ABORT)
        control.close()
