"""The broker dies at any operation of its disk while a topic is deleted and made anew, by a kill or a power cut."""

import asyncio
import random
from pathlib import Path

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.topic_directories import TopicDirectories
from dualwrite.testing.files import MemoryFiles
from tests.broker.simulated import TOPIC, Killed, Rooms, StoppableFiles, append, end_other_tasks, never, read_log, run

MOST_OPERATIONS = 60
"""More than the history takes, so that some of the runs come to its end."""


Told = list[str]
"""What the clients were told before the end."""


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
            assert [[entry.value for entry in read_log(each)] for each in rooms.partitions()] == [[b"third"]] * 2

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


def _simulate_all(durable: bool) -> set[tuple[str, ...]]:
    return {tuple(simulate(seed, stop_at, durable)) for stop_at in range(MOST_OPERATIONS) for seed in range(4)}
