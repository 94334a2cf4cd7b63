"""The broker dies at any operation of its disk while a topic is deleted and made anew, by a kill or a power cut."""

import asyncio
import random
from pathlib import Path

import pytest

from dualwrite.broker.core.cluster import CreateTopic, TopicDecision
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.topic_directories import TopicDirectories
from dualwrite.errors import CorruptLogError
from dualwrite.testing.files import MemoryFiles
from tests.support.breaking.broker import CARRY_OUT
from tests.support.broker.simulated import (
    TOPIC,
    Killed,
    Rooms,
    StoppableFiles,
    append,
    end_other_tasks,
    never,
    read_log,
    run,
)

MOST_OPERATIONS = 60
"""More than the history takes, so that some of the runs come to its end."""


Told = list[str]
"""The answers that clients got before the end."""


async def live(files: StoppableFiles, durable: bool, rng: random.Random, told: Told) -> None:
    rooms = Rooms(files, Flusher(durable, on_failure=never), rng=rng)
    await make(rooms, 2, b"old")
    told.append("made")
    await rooms.cluster.delete_topic(TOPIC)
    told.append("deleted")
    await make(rooms, 1, b"new")
    told.append("made anew")


async def make(rooms: Rooms, partitions: int, value: bytes) -> None:
    fact = rooms.cluster.create_topic(CreateTopic(TOPIC, partitions)).fact
    assert fact is not None
    for index in range(partitions):
        append(rooms.partition(index), value)
    await rooms.flusher.barrier()


def simulate(seed: int, stop_at: int, durable: bool) -> Told:
    """One life that ends before the ``stop_at``-th operation of the disk, and what is found after it."""
    rng, told, files = random.Random(seed), list[str](), MemoryFiles()

    async def first_life() -> None:
        stoppable = StoppableFiles(files, rng, stop_at)
        life = asyncio.ensure_future(live(stoppable, durable, rng, told))
        end = asyncio.ensure_future(stoppable.stopped.wait())
        await asyncio.wait({life, end}, return_when=asyncio.FIRST_COMPLETED)
        await end_other_tasks()
        if not life.cancelled() and not isinstance(life.exception(), Killed):
            life.result()

    async def second_life() -> None:
        found = files.power_cut(rng) if durable else files
        rooms = Rooms(found, Flusher(durable, on_failure=never), rng=random.Random(-seed))
        check(rooms, told)
        if rooms.cluster.topic(TOPIC) is None:
            await make(rooms, 2, b"third")
            assert [[entry.value for entry in read_log(partition)] for partition in rooms.partitions()] == [
                [b"third"]
            ] * 2

    run(first_life(), seed)
    run(second_life(), seed)
    return told


def check(rooms: Rooms, told: Told) -> None:
    topic = rooms.cluster.topic(TOPIC)
    if topic is None:
        assert "made anew" not in told
        return
    values = [[entry.value for entry in read_log(partition)] for partition in rooms.partitions()]
    if topic.partitions == 2:
        assert "deleted" not in told
        assert values == [[b"old"], [b"old"]] or "made" not in told
    else:
        assert values == [[b"new"]] or (values == [[]] and "made anew" not in told)


@pytest.mark.slow_cases
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_a_deleted_topic_is_whole_or_gone_whenever_the_broker_dies(durable: bool) -> None:
    histories = _simulate_all(durable)
    assert histories == {(), ("made",), ("made", "deleted"), ("made", "deleted", "made anew")}


@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_files_that_stay_after_the_deletion_would_be_noticed(monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    def keep(self: TopicDirectories, paths: list[Path]) -> None:
        return None

    monkeypatch.setattr(TopicDirectories, "remove", keep)
    monkeypatch.setattr(TopicDirectories, "clear", keep)
    with pytest.raises(AssertionError):
        _simulate_all(durable)


# --- a fact implies its directories


async def grow(files: StoppableFiles, durable: bool, rng: random.Random, told: Told) -> None:
    """A first start, a topic, and more partitions for it; nothing waits for the disk before the end."""
    rooms = Rooms(files, Flusher(durable, on_failure=never), rng=rng)
    await make(rooms, 2, b"old")
    told.append("made")
    assert rooms.cluster.add_partitions(TOPIC, 4, None, False).fact is not None
    await rooms.flusher.barrier()
    told.append("grown")


def grow_all(monkeypatch: pytest.MonkeyPatch, durable: bool) -> set[tuple[str, ...]]:
    """Let the broker die at every operation of its disk; the second life opens what is left, or raises."""

    def check_growth(rooms: Rooms, told: Told) -> None:
        topic = rooms.cluster.topic(TOPIC)
        found = topic.partitions if topic is not None else 0
        assert found in {0: (0, 2), 1: (2, 4), 2: (4,)}[len(told)]

    monkeypatch.setitem(globals(), "live", grow)
    monkeypatch.setitem(globals(), "check", check_growth)
    return _simulate_all(durable)


@pytest.mark.slow_cases
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_no_crash_leaves_a_topic_without_its_directories(monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    assert grow_all(monkeypatch, durable) == {(), ("made",), ("made", "grown")}


@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_directories_made_after_the_fact_would_be_noticed(monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    carry_out = CARRY_OUT.original

    def fact_first(self: Cluster, decision: TopicDecision, present: int, validate_only: bool) -> TopicDecision:
        if decision.fact is not None:
            self.record(decision.fact)
        with monkeypatch.context() as patch:
            patch.setattr(self, "record", lambda *facts: None)
            return carry_out(self, decision, present, validate_only)

    CARRY_OUT.broken_by(monkeypatch, fact_first)
    with pytest.raises(CorruptLogError, match=r"/data/t-\d is missing"):
        grow_all(monkeypatch, durable)


def _simulate_all(durable: bool) -> set[tuple[str, ...]]:
    return {tuple(simulate(seed, stop_at, durable)) for stop_at in range(MOST_OPERATIONS) for seed in range(4)}
