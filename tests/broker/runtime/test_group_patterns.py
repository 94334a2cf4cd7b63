"""The topics that a member of a consumer group finds by a pattern, and the rights of its client."""

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.consumer_groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply
from dualwrite.broker.core.group_commands import Heartbeat
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, join
from tests.support.broker.group_worlds.mixed import classic_join
from tests.support.broker.simulated import TOPIC, Rooms, run

SECRET = "secret"


async def ask(rooms: Rooms, command: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    """The answer to a client that may see every topic but one."""
    reply = await rooms.consumer_groups.heartbeat(command, lambda name: name != SECRET)
    assert reply.error is ErrorCode.NONE
    return reply


async def joined(rooms: Rooms, member_id: str = "") -> tuple[str, int]:
    """The id and the generation of a member of the classic protocol, which reads one topic by its name."""
    reply = await rooms.groups.join(classic_join(member_id, TOPIC), LongPolls(Stopping()))
    assert reply.error is ErrorCode.NONE
    return reply.member_id, reply.generation


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize("joins_again", [False, True], ids=["Heartbeat", "JoinGroup"])
def test_no_request_of_the_classic_protocol_shows_a_topic_to_a_member_that_may_not_see_it(
    joins_again: bool, is_restarted: bool
) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await Rooms(files).with_topic(4)
        await ask(rooms, join("m1", pattern=".*"))
        member_id, generation = await joined(rooms)
        rooms.cluster.create_topic(CreateTopic(SECRET))
        await rooms.flusher.barrier()
        if is_restarted:
            rooms = Rooms(files)
            rooms.consumer_groups.start()
        if joins_again:
            await joined(rooms, member_id)
        else:
            await rooms.groups.heartbeat(Heartbeat(GROUP, member_id, None, generation))
        group = rooms.consumer_groups.group(GROUP)
        assert group is not None
        await ask(rooms, ConsumerHeartbeat(GROUP, "m1", group.current("m1").epoch, "client", "/host"))
        secret = rooms.cluster.state.topics[SECRET].topic_id
        held = {partition.topic_id for member in ("m1", member_id) for partition in group.target(member)}
        assert held
        assert secret not in held

    run(main())


def test_a_member_finds_a_topic_although_one_of_the_classic_protocol_was_faster() -> None:
    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic(4)
        await ask(rooms, join("m1", pattern=".*"))
        member_id, generation = await joined(rooms)
        rooms.cluster.create_topic(CreateTopic("new"))
        await rooms.groups.heartbeat(Heartbeat(GROUP, member_id, None, generation))
        group = rooms.consumer_groups.group(GROUP)
        assert group is not None
        await ask(rooms, ConsumerHeartbeat(GROUP, "m1", group.current("m1").epoch, "client", "/host"))
        group = rooms.consumer_groups.group(GROUP)
        assert group is not None
        assert rooms.cluster.state.topics["new"].topic_id in {partition.topic_id for partition in group.target("m1")}

    run(main())
