"""Consumer groups at run time: what is on disk before an answer is sent, timers after a start, and damaged records."""

import asyncio
import random
from pathlib import Path
from typing import NoReturn

import pytest

from dualwrite.broker.core.consumer_groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup, ConsumerGroupState, PartitionConflictError
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, join
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


def group_of(rooms: Rooms) -> ConsumerGroup:
    group = rooms.consumer_groups.group(GROUP)
    assert group is not None
    return group
