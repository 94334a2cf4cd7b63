"""A change of memory that fails before it is in the log: the two differ, so the broker ends."""

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from dualwrite.broker.core.commands import InitProducerId
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.runtime import coordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups import group_log
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.ids import TopicPartition
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.group_worlds.mixed import classic_join
from tests.support.broker.simulated import TOPIC, Rooms, run


class TornError(Exception):
    """A bug, in these tests."""


def torn(*_: object) -> NoReturn:
    raise TornError


async def commits_an_offset(rooms: Rooms) -> None:
    await rooms.offsets.commit(CommitOffsets("g", {TopicPartition(TOPIC, 0): CommittedPosition(1)}))


async def ends_the_last_wait_for_members(rooms: Rooms) -> None:
    await rooms.groups.join(classic_join("", TOPIC), LongPolls(Stopping(), lambda: True))
    rooms.clock.pass_ms(60_000)


async def begins_a_session(rooms: Rooms) -> None:
    await rooms.coordinator.execute(InitProducerId("txn", 60_000, False, False))


@pytest.mark.parametrize("change", [commits_an_offset, ends_the_last_wait_for_members, begins_a_session])
def test_a_change_that_fails_after_memory_and_before_the_log_ends_the_broker(
    change: Callable[[Rooms], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients would get answers that a restart takes back."""
    reasons: list[BaseException] = []

    def stop(error: BaseException) -> NoReturn:
        reasons.append(error)
        raise error

    async def main() -> None:
        rooms = await Rooms(MemoryFiles(), Flusher(durable=True, on_failure=stop)).with_topic()
        monkeypatch.setattr(group_log, "encode", torn)
        monkeypatch.setattr(coordinator, "encode_fact", torn)
        with pytest.raises(TornError):
            await change(rooms)

    run(main())
    assert [type(reason) for reason in reasons] == [TornError]
