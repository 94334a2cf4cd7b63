"""Runs failing seeds again and again, in several processes: each run of a seed must have the same hash."""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import NamedTuple

from tests.support.simulation.search import search

_PIECE = 10
"""Runs of one seed by one process in a row."""


class Replayed(NamedTuple):
    """What the runs of one seed have shown.

    :param digests: the hashes of all events and of the log, each once.
    :param anomalies: what was found, each once; empty for a run that found nothing.
    """

    seed: int
    runs: int
    digests: frozenset[str]
    anomalies: frozenset[str]

    @property
    def is_same(self) -> bool:
        """True if all runs were one and the same, and failed."""
        return len(self.digests) == len(self.anomalies) == 1 and "" not in self.anomalies


def failing_seeds(ablation: str | None, most: int, first: int, seeds: int) -> list[int]:
    """The first seeds that fail without the safeguard, at most ``most``, among ``seeds`` from ``first`` on."""
    found: list[int] = []
    for seed in range(first, first + seeds):
        if len(found) < most and search(seed, 1, ablation).anomalies:
            found.append(seed)
    return found


def replayed(seed: int, runs: int, ablation: str | None = None) -> Replayed:
    """Run ``seed`` so often, in this process."""
    digests, anomalies = set(), set()
    for _ in range(runs):
        found = search(seed, 1, ablation)
        digests.add(found.digest)
        anomalies.add(found.anomalies.get(seed, ""))
    return Replayed(seed, runs, frozenset(digests), frozenset(anomalies))


def replayed_in_processes(
    seeds: Iterable[int], runs: int, processes: int, ablation: str | None = None
) -> list[Replayed]:
    """As :func:`replayed`, in processes whose hashes of strings differ."""
    sizes = [min(_PIECE, runs - start) for start in range(0, runs, _PIECE)]
    pieces = [(seed, size) for seed in seeds for size in sizes]
    whole: dict[int, Replayed] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(replayed, *zip(*pieces, strict=True), repeat(ablation)):
            whole[part.seed] = _joined(whole.get(part.seed), part)
    return list(whole.values())


def _joined(one: Replayed | None, other: Replayed) -> Replayed:
    if one is None:
        return other
    digests, anomalies = one.digests | other.digests, one.anomalies | other.anomalies
    return Replayed(one.seed, one.runs + other.runs, digests, anomalies)
