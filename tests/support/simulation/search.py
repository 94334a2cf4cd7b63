"""Runs many seeds, in one process or in several, and makes a failing run as small as it gets."""

import gc
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count, repeat
from multiprocessing import get_context

from tests.support.simulation.ablations import ABLATIONS
from tests.support.simulation.faults import PlannedFault, faults_of
from tests.support.simulation.oracle import name_of
from tests.support.simulation.sometimes import note_ends, observed
from tests.support.simulation.world import RunResult, SimulatedWorld

_CHUNK = 50
"""Seeds that a process runs before it reports."""
_COLLECTED = 10
"""Seeds between two collections of garbage. A run makes some megabytes of it."""
_CRASH = "crash"


@dataclass
class Found:
    """What a search has found.

    :param seeds: how many seeds it ran.
    :param anomalies: seed -> anomaly.
    :param seen: what happened, in how many runs.
    :param digests: of all runs, in the order of their seeds.
    """

    seeds: int = 0
    anomalies: dict[int, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: "Found") -> None:
        """Add what another process has found in later seeds."""
        self.seeds += other.seeds
        self.anomalies |= other.anomalies
        self.seen.update(other.seen)
        self.digests += other.digests

    @property
    def digest(self) -> str:
        """One hash of all runs."""
        return hashlib.blake2b("".join(self.digests).encode(), digest_size=16).hexdigest()

    @property
    def rate(self) -> float:
        """Seeds a second."""
        return self.seeds / max(self.seconds, 1e-9)


def run_seed(seed: int, faults: Iterable[PlannedFault] | None = None) -> RunResult:
    """One run. An exception out of it is an anomaly, too."""
    world = SimulatedWorld(seed, faults)
    try:
        with observed(world.seen):
            result = world.run()
        note_ends(world)
        return result
    except Exception as error:  # noqa: BLE001  whatever a broken product raises is found
        return RunResult(seed, f"{_CRASH}: {error!r}", "", world.seen, tuple(world.struck))


@contextmanager
def collected_by_hand() -> Iterator[Callable[[], None]]:
    """Collect no garbage in the ``with`` block but by the function that it gets, to be called before each seed. What
    was there before the first seed is not looked at: modules, classes, and the tests of the process."""
    was_enabled, seeds = gc.isenabled(), count()

    def collect() -> None:
        if not next(seeds) % _COLLECTED:
            gc.collect()

    gc.disable()
    gc.freeze()
    try:
        yield collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def search(first: int, seeds: int, ablation: str | None = None, *, until_found: bool = False) -> Found:
    """Run ``seeds`` seeds from ``first`` on, in this process.

    :param ablation: without this safeguard.
    :param until_found: stop at the first anomaly.
    """
    found, began = Found(), time.perf_counter()
    logger = logging.getLogger("dualwrite")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with ABLATIONS[ablation].applied() if ablation else nullcontext(), collected_by_hand() as collect:
            for seed in range(first, first + seeds):
                collect()
                result = run_seed(seed)
                found.seeds += 1
                found.seen.update(result.seen.keys())
                found.digests.append(result.digest)
                if result.anomaly:
                    found.anomalies[seed] = result.anomaly
                    if until_found:
                        break
    finally:
        logger.setLevel(level)
    found.seconds = time.perf_counter() - began
    return found


def search_in_processes(first: int, seeds: int, processes: int, ablation: str | None = None) -> Found:
    """As :func:`search`, in ``processes`` processes."""
    found, began = Found(), time.perf_counter()
    firsts = range(first, first + seeds, _CHUNK)
    sizes = [min(_CHUNK, first + seeds - start) for start in firsts]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(search, firsts, sizes, repeat(ablation)):
            found.add(part)
    found.seconds = time.perf_counter() - began
    return found


def minimised(seed: int, anomaly: str, ablation: str | None = None) -> Sequence[PlannedFault]:
    """The fewest faults, one dropped after the other, with which ``seed`` still shows an anomaly of the same name."""

    def shows(faults: Sequence[PlannedFault]) -> bool:
        return name_of(run_seed(seed, faults).anomaly) == name_of(anomaly)

    with ABLATIONS[ablation].applied() if ablation else nullcontext():
        struck = set(run_seed(seed).struck)
        faults = [fault for fault in faults_of(seed) if fault in struck]
        if not shows(faults):
            faults = faults_of(seed)
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for fault in list(faults):
                fewer = [other for other in faults if other is not fault]
                if shows(fewer):
                    faults, is_smaller = fewer, True
    return faults
