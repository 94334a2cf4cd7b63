"""Searches every model within so many minutes: each size has its share, and what it does not need is the others'."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import get_context
from typing import NamedTuple

from tests.support.exhaustive.models import MODELS
from tests.support.exhaustive.results import ModelResult, searched

MOST_STATES = 1_500_000
"""States that a search keeps; two or three gigabytes."""


class SearchJob(NamedTuple):
    """One size of a model."""

    name: str
    size: int


def jobs_of(names: Sequence[str]) -> list[SearchJob]:
    """The jobs of these models: every model's first size, then the second, and so on."""
    sizes = range(max(len(MODELS[name]) for name in names))
    return [SearchJob(name, size) for size in sizes for name in names if size < len(MODELS[name])]


def run_job(job: SearchJob, seconds: float, most_states: int) -> ModelResult:
    """Search one size of a model."""
    return searched(MODELS[job.name][job.size](), seconds, most_states)


def search_all(
    jobs: Sequence[SearchJob], minutes: float, processes: int, most_states: int = MOST_STATES
) -> Iterator[tuple[SearchJob, ModelResult]]:
    """Search ``jobs``, ``processes`` at a time; gives each result once it is there."""
    until = time.monotonic() + 60 * minutes
    waiting = list(jobs)
    if processes == 1:
        while waiting:
            seconds = (until - time.monotonic()) / len(waiting)
            job = waiting.pop(0)
            yield job, run_job(job, seconds, most_states)
        return
    running: dict[Future[ModelResult], SearchJob] = {}
    with ThreadPoolExecutor(processes) as pool:
        while waiting or running:
            while waiting and len(running) < processes:
                left = max(until - time.monotonic(), 1.0)
                share = left * processes / max(len(waiting) + len(running), processes)
                job = waiting.pop(0)
                running[pool.submit(_in_a_process, job, share, most_states)] = job
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def _in_a_process(job: SearchJob, seconds: float, most_states: int) -> ModelResult:
    """In a process of its own, with which its memory ends."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run_job, job, seconds, most_states).result()
