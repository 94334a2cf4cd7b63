"""Consumer groups at run time: what is on disk before an answer is sent, timers after a start, and damaged records."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from dualwrite.broker.core.consumer_groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply, RemoveMembers
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup, ConsumerGroupState, PartitionConflictError
from dualwrite.broker.core.consumer_protocol import write_assignment
from dualwrite.broker.core.group_commands import Heartbeat, JoinReply, SyncGroup
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, REBALANCE_MS, join
from tests.support.broker.group_worlds.mixed import EAGER, classic_join
from tests.support.broker.simulated import DATA_DIR, TOPIC, Rooms, run

JOURNAL = Path(DATA_DIR, "__consumer_offsets-0")
SESSION_S = 45


async def opened(files: MemoryFiles) -> Rooms:
    return await Rooms(files).with_topic(4)


async def ask(rooms: Rooms, command: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    return await rooms.consumer_groups.heartbeat(command, lambda _: True)


def beat(member_id: str, epoch: int, *owned: TopicIdPartition) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(GROUP, member_id, epoch, "client", "/host", owned=frozenset(owned))


def durable(group: ConsumerGroup | None) -> ConsumerGroup | None:
    """The part of ``group`` that is in the records."""
    if group is None:
        return None
    kept = group.copy()
    kept.matches, kept.topics_version = {}, -1
    return kept


async def history(rooms: Rooms, *, ends_at: int = 99) -> None:
    """Two members share the topic, and one leaves: the first so many heartbeats of it."""
    everything = frozenset((await ask(rooms, join("m1", TOPIC))).assigned or ())
    half = frozenset(sorted(everything)[:2])
    steps = [
        join("m2", TOPIC),
        beat("m1", 2, *everything),
        beat("m1", 2, *half),
        beat("m2", 3),
        beat("m2", -1),
        beat("m1", 3, *half),
    ]
    for command in steps[:ends_at]:
        assert (await ask(rooms, command)).error is ErrorCode.NONE


@pytest.mark.parametrize("ends_at", range(7))
def test_an_answered_heartbeat_survives_every_power_cut(ends_at: int) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await history(rooms, ends_at=ends_at)
        for seed in range(8):
            found = await opened(files.power_cut(random.Random(seed)))
            assert durable(found.consumer_groups.group(GROUP)) == durable(rooms.consumer_groups.group(GROUP))

    run(main())


def test_an_acknowledged_removal_of_a_member_survives_every_power_cut() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await history(rooms, ends_at=4)
        assert await rooms.consumer_groups.remove(RemoveMembers(GROUP, (("m2", None),))) == (ErrorCode.NONE,)
        for seed in range(8):
            group = (await opened(files.power_cut(random.Random(seed)))).consumer_groups.group(GROUP)
            assert group is not None
            assert set(group.subscriptions) == {"m1"}

    run(main())


def test_a_power_cut_takes_all_of_an_unanswered_heartbeat_or_nothing() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await history(rooms, ends_at=0)
        before = durable(rooms.consumer_groups.group(GROUP))
        joining = asyncio.ensure_future(ask(rooms, join("m2", TOPIC)))
        await asyncio.sleep(0)
        assert not joining.done()
        after = durable(rooms.consumer_groups.group(GROUP))
        cuts = [await opened(files.power_cut(random.Random(seed))) for seed in range(40)]
        found = [durable(cut.consumer_groups.group(GROUP)) for cut in cuts]
        assert all(group in (before, after) for group in found)
        assert before in found
        assert after in found
        await joining

    run(main())


def test_a_start_gives_every_member_its_whole_session() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await ask(rooms, join("m1", TOPIC))
        rooms.clock.pass_ms((SESSION_S - 1) * 1000)
        again = await opened(files)
        again.consumer_groups.start()
        again.clock.pass_ms((SESSION_S - 1) * 1000)
        assert group_of(again).state is ConsumerGroupState.STABLE
        again.clock.pass_ms(1000)
        assert group_of(again).state is ConsumerGroupState.EMPTY

    run(main())


def test_a_start_waits_for_partitions_that_a_member_has_to_give_up() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        everything = (await ask(rooms, join("m1", TOPIC, rebalance_timeout_ms=5000))).assigned or frozenset()
        await ask(rooms, join("m2", TOPIC))
        await ask(rooms, beat("m1", 2, *everything))
        again = await opened(files)
        again.consumer_groups.start()
        again.clock.pass_ms(4999)
        assert group_of(again).subscriptions.keys() == {"m1", "m2"}
        again.clock.pass_ms(1)
        assert group_of(again).subscriptions.keys() == {"m2"}

    run(main())


def test_a_start_knows_which_topics_the_members_read_by_a_pattern() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await ask(rooms, join("m1", pattern=f"{TOPIC}.?"))
        again = await opened(files)
        again.consumer_groups.start()
        error, errors = await again.offsets.delete(GROUP, (TopicPartition(TOPIC, 0),))
        assert (error, set(errors.values())) == (ErrorCode.NONE, {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
        reply = await again.consumer_groups.heartbeat(beat("m1", 2), lambda name: name != TOPIC)
        assert reply.assigned == frozenset(), "the client has lost its right meanwhile"

    run(main())


def test_a_closed_coordinator_answers_that_it_is_none_and_has_no_timers() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await ask(rooms, join("m1", TOPIC))
        rooms.consumer_groups.close()
        assert (await ask(rooms, beat("m1", 2))).error is ErrorCode.NOT_COORDINATOR
        rooms.clock.pass_ms(2 * SESSION_S * 1000)
        assert group_of(rooms).subscriptions.keys() == {"m1"}

    run(main())


def test_a_heartbeat_that_no_record_could_hold_changes_nothing() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        names = [f"{number:0>30000}" for number in range(LARGEST_GROUP_BYTES // 30_000 + 1)]
        assert (await ask(rooms, join("m1", *names))).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert rooms.consumer_groups.group(GROUP) is None

    run(main())


def test_a_partition_of_two_members_ends_the_process() -> None:
    async def main() -> None:
        ended: list[BaseException] = []

        def end(error: BaseException) -> NoReturn:
            ended.append(error)
            raise error

        rooms = await Rooms(MemoryFiles(), Flusher(durable=True, on_failure=end)).with_topic(4)
        everything = (await ask(rooms, join("m1", TOPIC))).assigned or frozenset()
        group_of(rooms).apply(MemberAssigned(GROUP, "m2", 2, 1, MemberState.STABLE, dict.fromkeys(everything, 1)))
        with pytest.raises(PartitionConflictError):
            await ask(rooms, join("m1", TOPIC, topics=(TOPIC, "another")))
        assert len(ended) == 1

    run(main())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"\x00\x03\x00\x01g", b"\x00\x00", "no complete unsigned varint"),
        (b"\x00\x03\x00\x01g", b"\x00\x01\x00\x00\x00\x02\x00", "later release"),
        (b"\x00\x08\x00\x01g\x00\x01m", b"\x00\x00" + bytes(8) + b"\x7f\x01\x01\x00", "not a valid MemberState"),
    ],
)
def test_a_start_refuses_records_that_it_cannot_read(key: bytes, value: bytes, message: str) -> None:
    async def main() -> None:
        files = MemoryFiles()
        await opened(files)
        journal = Journal.open(files, JOURNAL, lambda _: None)
        journal.append([Record(key, value, 0)])
        journal.log.sync()
        with pytest.raises(CorruptLogError, match=message):
            await opened(files)

    run(main())


# --- groups that change their protocol


def sync_of(member_id: str, generation: int, *, assigns: bool = False) -> SyncGroup:
    """A SyncGroup; with ``assigns`` of a leader that gives itself everything."""
    everything = write_assignment(0, [TopicPartition(TOPIC, number) for number in range(4)])
    assignments = ((member_id, everything),) if assigns else ()
    return SyncGroup(GROUP, member_id, None, generation, assignments, "consumer", EAGER)


async def with_classic_member(rooms: Rooms) -> str:
    """The id of the member of a stable classic group of the topic."""
    joining = asyncio.ensure_future(rooms.groups.join(classic_join("", TOPIC), LongPolls(Stopping())))
    await asyncio.sleep(0)
    rooms.clock.pass_ms(3000)
    reply = await joining
    await rooms.groups.sync(sync_of(reply.member_id, reply.generation, assigns=True), LongPolls(Stopping()))
    return reply.member_id


async def joined(rooms: Rooms, member_id: str = "") -> JoinReply:
    return await rooms.groups.join(classic_join(member_id, TOPIC), LongPolls(Stopping()))


async def alive(rooms: Rooms, member_id: str, generation: int) -> ErrorCode:
    return (await rooms.groups.heartbeat(Heartbeat(GROUP, member_id, None, generation))).error


def test_an_upgrade_sends_back_what_waits_in_the_classic_group_and_stops_its_timers() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        joining = asyncio.ensure_future(joined(rooms))
        await asyncio.sleep(0)
        assert (await ask(rooms, join("m1", TOPIC))).error is ErrorCode.NONE
        reply = await joining
        assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert group_of(rooms).subscriptions.keys() == {"m1", reply.member_id}
        assert rooms.groups.groups() == []
        rooms.clock.pass_ms(9_000)
        assert await alive(rooms, reply.member_id, 0) is ErrorCode.REBALANCE_IN_PROGRESS
        rooms.clock.pass_ms(9_999)
        assert group_of(rooms).subscriptions.keys() == {"m1", reply.member_id}
        rooms.clock.pass_ms(1)
        assert group_of(rooms).subscriptions.keys() == {"m1"}, "its session is that of its own protocol"

    run(main())


def test_an_upgrade_sends_back_a_member_that_waits_for_its_assignment() -> None:
    """No leader of its generation will ever send that assignment."""

    async def main() -> None:
        rooms = await opened(MemoryFiles())
        joining = [asyncio.ensure_future(joined(rooms)) for _ in range(2)]
        await asyncio.sleep(0)
        rooms.clock.pass_ms(6000)
        replies = [await each for each in joining]
        (follower,) = [reply for reply in replies if reply.member_id != reply.leader]
        asking = sync_of(follower.member_id, follower.generation)
        waiting = asyncio.ensure_future(rooms.groups.sync(asking, LongPolls(Stopping())))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert (await ask(rooms, join("m1", TOPIC))).error is ErrorCode.NONE
        assert (await asyncio.wait_for(waiting, 20)).error is ErrorCode.REBALANCE_IN_PROGRESS

    run(main())


def test_a_classic_member_of_a_consumer_group_that_never_joins_again_is_missed_though_it_is_alive() -> None:
    """Otherwise it would keep its partitions from the others for ever."""

    async def main() -> None:
        rooms = await opened(MemoryFiles())
        member_id = await with_classic_member(rooms)
        epoch = (await ask(rooms, join("m1", TOPIC))).epoch
        for _ in range(REBALANCE_MS // 1000):
            await ask(rooms, beat("m1", epoch))
            assert await alive(rooms, member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
            rooms.clock.pass_ms(1_000)
        assert group_of(rooms).subscriptions.keys() == {"m1"}

    run(main())


def test_a_mixed_group_survives_every_power_cut() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        member_id = await with_classic_member(rooms)
        before = rooms.groups.group(GROUP)
        asking = asyncio.ensure_future(ask(rooms, join("m1", TOPIC)))
        await asyncio.sleep(0)
        cuts = [await opened(files.power_cut(random.Random(seed))) for seed in range(40)]
        await asking
        mixed = durable(rooms.consumer_groups.group(GROUP))
        assert {cut.groups.group(GROUP) is None for cut in cuts} == {True, False}
        for cut in cuts:
            classic = cut.groups.group(GROUP)
            assert (classic is None) != (cut.consumer_groups.group(GROUP) is None)
            assert classic is None or before is None or classic.members.keys() == before.members.keys()
            assert classic is not None or durable(cut.consumer_groups.group(GROUP)) == mixed
        found = await opened(files.power_cut(random.Random(1)))
        found.consumer_groups.start()
        assert await alive(found, member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        found.clock.pass_ms(10_000)
        assert group_of(found).subscriptions.keys() == {"m1"}, "the session of the classic member is its own"

    run(main())


def test_a_downgraded_group_goes_on_after_a_restart_and_waits_for_its_members() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        member_id = await with_classic_member(rooms)
        await ask(rooms, join("m1", TOPIC))
        reply = await joined(rooms, member_id)
        await ask(rooms, beat("m1", -1))
        assert rooms.consumer_groups.groups() == []
        silent = await opened(files.power_cut(random.Random(1)))
        again = await opened(files)
        again.groups.start()
        again.consumer_groups.start()
        assert await alive(again, member_id, reply.generation) is ErrorCode.REBALANCE_IN_PROGRESS
        later = await joined(again, member_id)
        assert (later.error, later.generation, later.leader) == (ErrorCode.NONE, reply.generation + 1, member_id)
        lonely = await opened(files)
        lonely.groups.start()
        lonely.clock.pass_ms(60_000)
        empty = lonely.groups.group(GROUP)
        assert empty is not None
        assert empty.state is GroupState.EMPTY
        silent.groups.start()
        for _ in range(REBALANCE_MS // 1000):
            assert await alive(silent, member_id, reply.generation) is ErrorCode.REBALANCE_IN_PROGRESS
            silent.clock.pass_ms(1_000)
        assert await alive(silent, member_id, reply.generation) is ErrorCode.UNKNOWN_MEMBER_ID, "it never joined"

    run(main())


def test_a_classic_client_finds_an_empty_consumer_group_and_a_wrong_request_leaves_it_there() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await ask(rooms, join("m1", TOPIC))
        await ask(rooms, beat("m1", -1))
        wrong = replace(classic_join("", TOPIC), session_timeout_ms=1)
        assert (await rooms.groups.join(wrong, LongPolls(Stopping()))).error is ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await joined(rooms, "m9")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert await alive(rooms, "m1", 2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert group_of(rooms).state is ConsumerGroupState.EMPTY
        await with_classic_member(rooms)
        assert rooms.consumer_groups.groups() == []

    run(main())


def test_a_classic_client_that_says_more_than_a_record_could_hold_joins_no_consumer_group() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await ask(rooms, join("m1", TOPIC))
        names = (f"{number:0>30000}" for number in range(LARGEST_GROUP_BYTES // 30_000 + 1))
        reply = await rooms.groups.join(classic_join("", *names), LongPolls(Stopping()))
        assert reply.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert group_of(rooms).subscriptions.keys() == {"m1"}

    run(main())


def test_too_many_members_to_remove_at_once_are_refused() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        members = tuple((f"{number:0>32000}", None) for number in range(200))
        for member_id, _ in members:
            await ask(rooms, join(member_id))
        removed = await rooms.consumer_groups.remove(RemoveMembers(GROUP, members))
        assert removed == (ErrorCode.UNKNOWN_SERVER_ERROR,) * 200
        assert len(group_of(rooms).subscriptions) == 200

    run(main())


def test_a_static_member_that_has_left_for_a_while_has_its_whole_session_after_a_restart() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        first = await ask(rooms, join("m1", TOPIC, instance_id="i", rebalance_timeout_ms=5_000))
        await ask(rooms, join("m2", TOPIC))
        await ask(rooms, beat("m1", 2, *(first.assigned or ())))
        await ask(rooms, replace(beat("m1", -2), instance_id="i"))
        again = await opened(files)
        again.consumer_groups.start()
        again.clock.pass_ms((SESSION_S - 1) * 1000)
        assert "m1" in group_of(again).subscriptions

    run(main())


def group_of(rooms: Rooms) -> ConsumerGroup:
    group = rooms.consumer_groups.group(GROUP)
    assert group is not None
    return group
