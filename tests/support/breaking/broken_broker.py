"""A broker that is broken on purpose, in one place at a time: what a crash simulation must notice.

The broken functions stand in for methods of the coordinator, and use its private parts as those do.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from dualwrite.broker.core.commands import MarkersWritten
from dualwrite.broker.core.offsets import CommitOffsets
from dualwrite.broker.core.transaction_recovery import lacks_marker
from dualwrite.broker.core.transaction_rules import markers_of
from dualwrite.broker.log.replacement import Replacement
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import build_batch
from dualwrite.records.header import peek_header, place_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.breaking.breakable import Breakable
from tests.support.breaking.broker import (
    APPEND_TO_JOURNAL,
    APPEND_TO_TOPIC,
    BARRIER,
    BUMPED,
    COMMIT_OFFSETS,
    EXECUTE,
    FINISH_DECIDED,
    FINISH_REPLACEMENT,
    JOIN_WITH_OFFSETS,
    SKIP_PRODUCER_IDS,
    WRITE_MARKERS,
)

_commit_offsets, _join_with_offsets = COMMIT_OFFSETS.original, JOIN_WITH_OFFSETS.original
_bumped, _finish_replacement = BUMPED.original, FINISH_REPLACEMENT.original


async def no_barrier(self: Flusher) -> None:
    await asyncio.sleep(0)


def committed_at_once(self: GroupOffsets, command: CommitOffsets, producer: Any = None) -> Any:
    """In place of COMMIT_OFFSETS."""
    return _commit_offsets(self, command)


async def joined_in_any_case(*arguments: Any) -> ErrorCode:
    """In place of JOIN_WITH_OFFSETS."""
    await _join_with_offsets(*arguments)
    return ErrorCode.NONE


def going_on_after_an_error(self: Any, kind: Any, error: BaseException | None, trace: Any) -> bool:
    """In place of AFTER_CRITICAL."""
    return isinstance(error, OSError)


def finished_without_a_sync(self: Replacement) -> None:
    """In place of FINISH_REPLACEMENT."""
    with patch.object(self.segment, "sync", lambda: None):
        _finish_replacement(self)


def beginning_again(client: ProducerIdentity, moment: Any) -> ProducerIdentity:
    """In place of BUMPED: after the last epoch the first one follows, of the same producer id."""
    following = _bumped(client, moment)
    return following if following.producer_id == client.producer_id or not client else client._replace(epoch=0)


async def finish_before_markers_are_durable(self: Any) -> int:
    unfinished = list(self.table.unfinished())
    for entry in unfinished:
        self._append_markers(markers_of(entry), partial(lacks_marker, entry))
        self._decide(MarkersWritten(entry.transactional_id))
    await self._flusher.barrier()
    return len(unfinished)


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


ANOMALY = (
    "lost write|lost transaction|another transaction|torn transaction|hanging transaction"
    "|was answered, and|was told epoch|was ended"
)
HANGS = "refused .*INVALID_PRODUCER_EPOCH"
"""The next transaction cannot write where the last one is still open."""
BROKEN: list[tuple[Breakable, Callable[..., Any], str]] = [
    (BARRIER, no_barrier, ANOMALY),
    (WRITE_MARKERS, complete_before_markers_are_durable, ANOMALY),
    (WRITE_MARKERS, markers_for_one_partition_only, f"{ANOMALY}|{HANGS}"),
    (EXECUTE, markers_before_the_decision_is_durable, ANOMALY),
    (EXECUTE, reply_before_anything_is_durable, ANOMALY),
    (FINISH_DECIDED, finish_nothing, f"{ANOMALY}|a decided transaction was left unfinished"),
    (SKIP_PRODUCER_IDS, skip_nothing, "a producer id would be given out twice"),
    (APPEND_TO_JOURNAL, append_without_flushing, f"{ANOMALY}|given out twice"),
    (APPEND_TO_TOPIC, append_own_without_flushing, f"{ANOMALY}|given out twice"),
]


RARE = {skip_nothing}
"""What it takes hundreds of seeds to see."""
