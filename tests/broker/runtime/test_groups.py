"""Classic groups at run time: sessions, a restart, and the end of the broker. No thread, no socket."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from dualwrite.broker.api.groups import join_group, sync_group
from dualwrite.broker.core.group_commands import Heartbeat
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.in_process import InProcessBroker
from tests.support.broker.simulated import Rooms, run
from tests.support.requests.group_calls import join_request, sync_request

GROUP = "g"
SESSION_MS = 10_000
VERSION = 3  # later versions of JoinGroup answer first with a member id
STEPS = 200
AT_ONCE_SECONDS = 20.0


async def steps() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)


async def opened(files: MemoryFiles) -> Rooms:
    return await Rooms(files, group_settings=GroupSettings(initial_rebalance_delay_ms=0)).with_topic()


def joining(rooms: Rooms, polls: LongPolls | None = None) -> "asyncio.Task[Message]":
    context = InProcessBroker(rooms).context
    request = join_request(GROUP, session_timeout_ms=SESSION_MS)
    return asyncio.ensure_future(join_group.handle(request, VERSION, replace(context, polls=polls or context.polls)))


async def stable(rooms: Rooms) -> str:
    """A group with one member, which has its assignment; the member's id."""
    joined = joining(rooms)
    await steps()
    rooms.clock.pass_ms(1)
    answer = await joined
    request = sync_request(GROUP, answer.generation_id, answer.member_id, {answer.member_id: b"all"})
    assert (await sync_group.handle(request, VERSION, InProcessBroker(rooms).context)).error_code == ErrorCode.NONE
    assert state_of(rooms) is GroupState.STABLE
    member_id: str = answer.member_id
    return member_id


def state_of(rooms: Rooms) -> GroupState:
    group = rooms.groups.group(GROUP)
    assert group is not None
    return group.state


def test_a_member_that_never_comes_back_after_a_restart_of_the_broker_is_missed() -> None:
    """Without a session that begins with the broker it would keep its partitions for ever."""

    async def scenario() -> None:
        files = MemoryFiles()
        await stable(await opened(files))
        again = await opened(files)
        again.groups.start()
        again.clock.pass_ms(SESSION_MS - 1)
        assert state_of(again) is GroupState.STABLE
        again.clock.pass_ms(1)
        assert state_of(again) is GroupState.EMPTY

    run(scenario())


def test_a_member_that_commits_lives_on_without_a_heartbeat() -> None:
    async def scenario() -> None:
        rooms = await opened(MemoryFiles())
        member_id = await stable(rooms)
        for _ in range(3):
            rooms.clock.pass_ms(SESSION_MS - 1)
            rooms.groups.keep_alive(GROUP, member_id)
        assert state_of(rooms) is GroupState.STABLE
        rooms.clock.pass_ms(SESSION_MS)
        assert state_of(rooms) is GroupState.EMPTY

    run(scenario())


async def closes_first(rooms: Rooms) -> "asyncio.Task[Message]":
    rooms.groups.close()
    return joining(rooms)


async def closes_later(rooms: Rooms) -> "asyncio.Task[Message]":
    joined = joining(rooms)
    await steps()
    assert not joined.done()
    rooms.groups.close()
    return joined


@pytest.mark.parametrize("close", [closes_first, closes_later])
def test_no_request_waits_in_a_broker_that_stops(close: Callable[[Rooms], Awaitable["asyncio.Task[Message]"]]) -> None:
    async def scenario() -> None:
        joined = await close(await opened(MemoryFiles()))
        answer = await asyncio.wait_for(joined, AT_ONCE_SECONDS)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_broker_that_stops_changes_no_group_any_more() -> None:
    """Its logs are about to be closed."""

    async def scenario() -> None:
        rooms = await opened(MemoryFiles())
        await stable(rooms)
        rooms.groups.close()
        rooms.clock.pass_ms(10 * SESSION_MS)
        assert state_of(rooms) is GroupState.STABLE

    run(scenario())


def test_a_client_that_has_gone_before_its_request_begins_waits_for_no_other_member() -> None:
    async def scenario() -> None:
        rooms = await opened(MemoryFiles())
        joined = joining(rooms, LongPolls(Stopping(), lambda: True))
        answer = await asyncio.wait_for(joined, AT_ONCE_SECONDS)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_connection_whose_request_was_answered_waits_no_longer() -> None:
    """Otherwise the broker would never close it as idle, and each of its joins would stay in memory."""

    async def scenario() -> None:
        rooms, polls = await opened(MemoryFiles()), LongPolls(Stopping())
        joined = joining(rooms, polls)
        await steps()
        assert polls.are_waiting
        rooms.clock.pass_ms(1)
        assert (await joined).error_code == ErrorCode.NONE
        assert not polls.are_waiting

    run(scenario())


def test_an_answered_request_leaves_nothing_in_memory() -> None:
    """A member sends heartbeats for as long as it lives."""

    async def scenario() -> None:
        rooms = await opened(MemoryFiles())
        member_id = await stable(rooms)
        group = rooms.groups.group(GROUP)
        assert group is not None
        beat = Heartbeat(GROUP, member_id, None, group.generation)
        before = count_futures()
        for _ in range(STEPS):
            assert (await rooms.groups.heartbeat(beat)).error is ErrorCode.NONE
        assert count_futures() - before < STEPS / 10

    run(scenario())


def count_futures() -> int:
    gc.collect()
    return sum(isinstance(each, asyncio.Future) for each in gc.get_objects())
