"""Faults other than deaths: a process that stops for longer than its lease, cut connections, full disks."""

import resource

from dualwrite.coordinator.process.owner import is_gone
from tests.matrix.cells import Victim
from tests.matrix.live import LiveApplication
from tests.matrix.places import CutBroker
from tests.matrix.strikes import LATEST_UNIT, Strike
from tests.support.coordinator.event_table import expire_leases, slot_rows
from tests.support.crash.byte_cutter import ByteCutter, Flowing
from tests.support.servers.postgresql import status
from tests.support.waiting import eventually

LEASE_SECONDS = 1.5
"""Of workers: the others look for dead ones three times in it."""
_SMALL_STEPS = 96
"""Cuts go forward by single bytes up to here, which is more than a request that commits has, and further by more."""
_ROOM = 4000
"""At most so many bytes can be written until a disk is full."""
_FULL_UNITS = 60
"""Units of each thread of an application whose broker's disk becomes full long before they are through."""


def kill_worker(strike: Strike) -> None:
    """SIGKILL of processes beside another that goes on and recovers their slots."""
    place = strike.place
    common = {"lease_timeout": LEASE_SECONDS}
    survivor = strike.start(**common, pause_step="", units=2 * LATEST_UNIT, lingers=True)
    with survivor:
        for _ in range(strike.times):
            with strike.start(**common) as worker:
                has_come = worker.comes_to("paused")
                worker.kill()
                strike.struck.count(has_come, int(has_come))
                strike.struck.note(worker)
        if not survivor.comes_to("idle"):
            strike.struck.problems.append("the surviving process has ended")
        left = eventually(lambda: dead_slots(strike), lambda dead: not dead)
        if left:
            strike.struck.problems.append(f"not recovered by the surviving process: {left}")
        survivor.let_end()
        strike.struck.note(survivor)
    place.engine.dispose()


def dead_slots(strike: Strike) -> list[str]:
    """The slots whose owner is dead."""
    rows = slot_rows(strike.place.engine)
    return [name for name, row in rows.items() if row.owner and is_gone(row.owner)]


def stop_worker(strike: Strike) -> None:
    """SIGSTOP of a process until others have taken what is its; then it goes on."""
    place, recovers = strike.place, strike.cell.step.startswith("RECOVER")
    for _ in range(strike.times):
        if recovers:
            strike.leave_something_to_recover()
        unit = {} if recovers else {"pause_unit": strike.chance.randint(1, 2)}
        with strike.start(threads=1, units=3, **unit) as zombie:
            has_come = zombie.comes_to("paused")
            if has_come:
                zombie.stop()
                expire_leases(place.engine)
                held = {name: row.fencing_token for name, row in slot_rows(place.engine).items() if row.owner}
                with strike.start(threads=1, units=2, pause_step="") as other:
                    code = other.let_end()
                after = slot_rows(place.engine)
                if code != 0:
                    strike.struck.problems.append(f"the process beside the stopped one ended with {code}")
                taken = [name for name, token in held.items() if after[name].fencing_token != token]
                has_come = recovers or bool(taken)
                zombie.wake()
            zombie.let_end()
            strike.struck.count(has_come)
            strike.struck.note(zombie)
    strike.recover()


def cut_connection(strike: Strike) -> None:
    """Cut the connection to the broker or to the database at a byte after the step has begun, in either direction. One
    application has many cuts: it pauses at the step of each of its units."""
    place, cell = strike.place, strike.cell
    broker = place.broker
    cutter: ByteCutter | None
    if cell.victim is Victim.DATABASE:
        cutter = place.database_cutter
    else:
        cutter = broker.cutter if isinstance(broker, CutBroker) else None
    assert cutter is not None
    with strike.start(threads=1, pause_unit=1, units=strike.times) as application:
        armed: tuple[Flowing, int] | None = None
        while True:
            has_come = application.comes_to("paused")
            if armed is not None:
                cutter.disarm()
                _count_cut(strike, *armed, has_struck=cutter.struck.is_set())
            if not has_come:
                break
            way = strike.chance.choice(list(Flowing))
            armed = way, place.next_cuts.get((cell.victim.value, cell.step, way.value), 0)
            cutter.arm(*armed)
            application.go_on()
        application.let_end()
        strike.struck.note(application)
    strike.recover()


def _count_cut(strike: Strike, way: Flowing, after: int, *, has_struck: bool) -> None:
    """All bytes were tried if there was no byte to be cut before."""
    strike.struck.count(has_struck)
    strike.struck.cuts += [f"{way.value} {after}"] * has_struck
    place_of_cut = (strike.cell.victim.value, strike.cell.step, way.value)
    strike.place.next_cuts[place_of_cut] = _next_cut(after) if has_struck else 0


def _next_cut(after: int) -> int:
    return after + 1 + max(0, after - _SMALL_STEPS) // 8


def fill_brokers_disk(strike: Strike) -> None:
    """No file of the broker may grow any more, until it has ended by that; it starts on a disk with room."""
    broker = strike.place.broker
    for _ in range(strike.times):
        with strike.start(units=_FULL_UNITS) as application:
            has_come = application.comes_to("paused")
            if has_come:
                pid, logs = broker.pid, broker.data_dir.glob("*/*.log")  # type: ignore[attr-defined]
                most = max(path.stat().st_size for path in logs) + strike.chance.randint(0, _ROOM)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
                application.process.stdin.close()
                has_come = _ends_before(pid, application)
                broker.kill()
                broker.start()
            application.kill()
            strike.struck.count(has_come)
            strike.struck.note(application)
    strike.recover()


def _ends_before(broker: int, application: LiveApplication) -> bool:
    """Wait until the broker with this process id ends by itself, or the application ends. True if the broker has."""
    eventually(lambda: status(broker) in ("", "Z") or application.process.poll() is not None)
    return status(broker) in ("", "Z")


def fill_sqlites_disk(strike: Strike) -> None:
    """No file of the application may grow any more for some units, and then they may again."""
    place = strike.place
    for _ in range(strike.times):
        with strike.start(units=3 * LATEST_UNIT) as application:
            has_come = application.comes_to("paused")
            if has_come:
                files = place.directory.glob("items.db*")
                most = max(path.stat().st_size for path in files) + strike.chance.randint(0, _ROOM)
                has_come = _fill(application, most)
            application.let_end()
            strike.struck.count(has_come)
            strike.struck.note(application)
    strike.recover()


def _fill(application: LiveApplication, most: int) -> bool:
    """Limit files to ``most`` bytes until a unit has failed by that; False if none has."""
    before = len(application.troubles)
    pid = application.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    while not _is_full(application.troubles[before:]):
        application.go_on()
        if not application.comes_to("paused"):
            return _is_full(application.troubles[before:])
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    return True


def _is_full(troubles: list[str]) -> bool:
    return any("disk" in trouble for trouble in troubles)
