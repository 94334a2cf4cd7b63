"""The broker dies at any operation of its disk, by a kill or a power cut, and comes back to what it had told.

A failing seed is repeated by ``simulate(seed, durable)`` of ``crash_simulation``, as the message says.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker.core.commands import MarkersWritten
from dualwrite.broker.runtime import cluster
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.broker.runtime.journaling import FlushedJournal
from dualwrite.records.batch import build_batch
from dualwrite.records.header import peek_header, place_batch
from tests.support.broker.crash_simulation import simulate

SEEDS = 120
SEEDS_OF_A_BROKEN_BROKER = 500

EVERYTHING = {
    "killed",
    "kept",
    "retried",
    "finished a decided transaction",
    "open at the end",
    "outlived its work",
    "NONE",
    "PRODUCER_FENCED",
    "CONCURRENT_TRANSACTIONS",
}


@pytest.fixture(autouse=True)
def small_blocks_of_producer_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PRODUCER_ID_BLOCK", 1)


@pytest.mark.slow_cases
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_acknowledged_state_survives_every_crash(durable: bool) -> None:
    histories = [simulate(seed, durable) for seed in range(SEEDS)]

    # Without fsyncs nothing waits between a transaction's decision and its end, so that no other task can run in
    # between.
    expected = EVERYTHING if durable else EVERYTHING - {"CONCURRENT_TRANSACTIONS"}
    assert set().union(*(history.events for history in histories)) >= expected
    units = [unit for history in histories for unit in history.units]
    assert sum(unit.answered is not None for unit in units) > SEEDS
    assert sum(len(unit.acknowledged) for unit in units) > 10 * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["power-cut", "kill"])
def test_acknowledged_state_survives_very_many_crashes(durable: bool) -> None:
    for seed in range(SEEDS, 10 * SEEDS):
        simulate(seed, durable)


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["fsync", "os"])
def test_acknowledged_state_survives_every_error_of_the_disk(durable: bool) -> None:
    """A full disk, an exceeded quota, or a failed write or fsync: with fsync, the unsynced bytes may be lost."""
    histories = [simulate(seed, durable, failing=True) for seed in range(SEEDS)]
    events = set().union(*(history.events for history in histories))
    assert events >= {"killed", "could not start", "kept", "finished a decided transaction", "outlived its work"}
    assert sum(len(unit.acknowledged) for history in histories for unit in history.units) > 10 * SEEDS


def test_a_seed_decides_everything() -> None:
    one, other = simulate(5), simulate(5)
    assert [(unit.producer, unit.acknowledged, unit.answered) for unit in one.units] == [
        (unit.producer, unit.acknowledged, unit.answered) for unit in other.units
    ]
    assert one.identities == other.identities


# --- negative controls: a broker that is broken on purpose


async def no_barrier(self: Flusher) -> None:
    await asyncio.sleep(0)


async def complete_before_markers_are_durable(self: Any, effect: Any) -> None:
    for name in effect.partitions:
        self._cluster.partition(name).append_marker(effect.marker, effect.producer, 0)
    self._decide(MarkersWritten(effect.transactional_id))
    await self._flusher.barrier()


async def markers_before_the_decision_is_durable(self: Any, command: Any) -> Any:
    while True:
        decision = self._decide(command)
        for effect in decision.effects:
            await self._write_markers(effect)
        await self._flusher.barrier()
        if decision.reply is not None:
            return decision.reply


async def reply_before_anything_is_durable(self: Any, command: Any) -> Any:
    while True:
        decision = self._decide(command)
        for effect in decision.effects:
            await self._write_markers(effect)
        if decision.reply is not None:
            return decision.reply


async def markers_for_one_partition_only(self: Any, effect: Any) -> None:
    for name in sorted(effect.partitions)[:1]:
        self._cluster.partition(name).append_marker(effect.marker, effect.producer, 0)
    await self._flusher.barrier()
    self._decide(MarkersWritten(effect.transactional_id))


async def finish_nothing(self: Any) -> int:
    return 0


def skip_nothing(self: Any, before: int) -> None:
    return None


def append_without_flushing(self: Any, records: Any) -> None:
    self._journal.append(records)


def append_own_without_flushing(self: Any, records: Any) -> int:
    with self.partition._flusher.critical():
        batch, state = bytearray(build_batch(records)), self.partition.state
        place_batch(batch, state.end_offset, 0)
        self.partition.log.append(batch)
        state.apply(peek_header(batch), None)
    return -1


ANOMALY = "lost write|lost transaction|torn transaction|hanging transaction|was answered, and|was told epoch|was ended"
HANGS = "refused .*INVALID_PRODUCER_EPOCH"
"""The next transaction cannot write where the last one is still open."""
BROKEN: list[tuple[type, str, Callable[..., Any], str]] = [
    (Flusher, "barrier", no_barrier, ANOMALY),
    (TransactionCoordinator, "_write_markers", complete_before_markers_are_durable, ANOMALY),
    (TransactionCoordinator, "_write_markers", markers_for_one_partition_only, f"{ANOMALY}|{HANGS}"),
    (TransactionCoordinator, "execute", markers_before_the_decision_is_durable, ANOMALY),
    (TransactionCoordinator, "execute", reply_before_anything_is_durable, ANOMALY),
    (TransactionCoordinator, "finish_decided", finish_nothing, "a decided transaction was left unfinished"),
    (Cluster, "skip_producer_ids", skip_nothing, "a producer id would be given out twice"),
    (FlushedJournal, "append", append_without_flushing, f"{ANOMALY}|given out twice"),
    (InternalTopic, "append", append_own_without_flushing, f"{ANOMALY}|given out twice"),
]


RARE = {skip_nothing}
"""What it takes hundreds of seeds to see."""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("owner", "name", "broken", "finding"),
    [pytest.param(*case, id=case[2].__name__, marks=[pytest.mark.slow] if case[2] in RARE else []) for case in BROKEN],
)
def test_the_simulation_finds_a_broken_broker(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., Any], finding: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match=rf"^simulate\(seed=\d+, durable=True, failing=False\): .*({finding})"):
        list(map(simulate, range(SEEDS_OF_A_BROKEN_BROKER)))
