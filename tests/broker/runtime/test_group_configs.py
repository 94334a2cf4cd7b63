"""Settings of single groups at run time: what a power cut leaves, and when a session ends by them."""

import logging
import random

import pytest

from dualwrite.broker.core.consumer_groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.broker.settings.group_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.group_worlds.consumer import GROUP, join
from tests.support.broker.group_worlds.mixed import CLASSIC_SESSION_MS, classic_join
from tests.support.broker.simulated import TOPIC, Rooms, run

OWN_MS, BROKERS_MS = 60_000, 45_000
OWN = {SESSION_TIMEOUT: str(OWN_MS)}


async def opened(files: MemoryFiles) -> Rooms:
    return await Rooms(files).with_topic(4)


async def configure(rooms: Rooms, configs: dict[str, str], group: str = GROUP) -> None:
    """Change the group's settings, and wait as a request does."""
    rooms.cluster.configure_group(group, configs)
    await rooms.flusher.barrier()


async def ask(rooms: Rooms, command: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    return await rooms.consumer_groups.heartbeat(command, lambda _: True)


def beat(member_id: str, epoch: int) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(GROUP, member_id, epoch, "client", "/host")


def members(rooms: Rooms) -> set[str]:
    group = rooms.consumer_groups.group(GROUP)
    return set() if group is None else set(group.subscriptions)


# --- on disk


def test_an_acknowledged_change_survives_every_power_cut() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        for configs in (OWN, {**OWN, HEARTBEAT_INTERVAL: "6000"}, {HEARTBEAT_INTERVAL: "7000"}, {}, OWN):
            await configure(rooms, configs)
            await configure(rooms, configs, "other")
            for seed in range(8):
                again = (await opened(files.power_cut(random.Random(seed)))).cluster
                assert again.group_configs(GROUP) == again.group_configs("other") == configs
                assert again.state.group_configs.keys() == ({GROUP, "other"} if configs else set())

    run(main())


def test_a_change_that_is_not_acknowledged_is_there_or_not_and_no_other() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await configure(rooms, OWN)
        rooms.cluster.configure_group(GROUP, {HEARTBEAT_INTERVAL: "6000"})
        found = []
        for seed in range(40):
            cluster = (await opened(files.power_cut(random.Random(seed)))).cluster
            found.append(dict(cluster.group_configs(GROUP)))
        assert all(configs in (OWN, {HEARTBEAT_INTERVAL: "6000"}) for configs in found)
        assert OWN in found, "some power cut takes what nobody waited for"

    run(main())


def test_a_deletion_of_nothing_writes_nothing() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        before = rooms.cluster.journal_end_offset
        await configure(rooms, {})
        assert rooms.cluster.journal_end_offset == before
        await configure(rooms, OWN)
        await configure(rooms, {})
        assert rooms.cluster.journal_end_offset == before + 2

    run(main())


def test_the_settings_of_a_later_release_are_kept_and_of_no_effect() -> None:
    async def main() -> None:
        files, configs = MemoryFiles(), {"consumer.of.a.later.release": "x", **OWN}
        await configure(await opened(files), configs)
        rooms = await opened(files.power_cut(random.Random(1)))
        assert rooms.cluster.group_configs(GROUP) == configs
        assert rooms.consumer_groups.settings_of(GROUP).session_timeout_ms == OWN_MS

    run(main())


# --- in effect


@pytest.mark.parametrize("configs", [{}, OWN], ids=["the broker's", "its own"])
def test_a_session_ends_after_the_timeout_of_the_group(configs: dict[str, str]) -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await configure(rooms, configs)
        await ask(rooms, join("m1", TOPIC))
        timeout_ms = OWN_MS if configs else BROKERS_MS
        rooms.clock.pass_ms(timeout_ms - 1)
        assert members(rooms) == {"m1"}
        rooms.clock.pass_ms(1)
        assert members(rooms) == set()

    run(main())


@pytest.mark.parametrize(
    ("before", "after"), [({}, OWN), (OWN, {}), (OWN, {SESSION_TIMEOUT: "50000"})], ids=["set", "deleted", "changed"]
)
def test_a_change_counts_from_the_next_heartbeat_of_each_member_on(
    before: dict[str, str], after: dict[str, str]
) -> None:
    first_ms, second_ms = (int(configs.get(SESSION_TIMEOUT, BROKERS_MS)) for configs in (before, after))

    async def main(*, beats: bool) -> None:
        rooms = await opened(MemoryFiles())
        await configure(rooms, before)
        await ask(rooms, join("m1", TOPIC))
        await configure(rooms, after)
        if beats:
            await ask(rooms, beat("m1", 2))
        timeout_ms = second_ms if beats else first_ms
        rooms.clock.pass_ms(timeout_ms - 1)
        assert members(rooms) == {"m1"}
        rooms.clock.pass_ms(1)
        assert members(rooms) == set()

    run(main(beats=True))
    run(main(beats=False))


def test_a_start_waits_for_each_member_as_long_as_its_group_says() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = await opened(files)
        await ask(rooms, join("m1", TOPIC))
        await configure(rooms, OWN)
        again = await opened(files.power_cut(random.Random(1)))
        again.consumer_groups.start()
        again.clock.pass_ms(OWN_MS - 1)
        assert members(again) == {"m1"}
        again.clock.pass_ms(1)
        assert members(again) == set()

    run(main())


def test_a_member_of_the_classic_protocol_keeps_the_session_that_it_asked_for() -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await configure(rooms, OWN)
        await ask(rooms, join("m1", TOPIC))
        classic = (await rooms.groups.join(classic_join("", TOPIC), LongPolls(Stopping()))).member_id
        assert CLASSIC_SESSION_MS < BROKERS_MS
        rooms.clock.pass_ms(CLASSIC_SESSION_MS)
        assert members(rooms) == {"m1"}, f"{classic} has sent no heartbeat"

    run(main())


def test_a_start_warns_of_settings_that_the_brokers_limits_exclude(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rooms = await opened(MemoryFiles())
        await configure(rooms, {SESSION_TIMEOUT: "70000"})
        await configure(rooms, OWN, "other")
        with caplog.at_level(logging.WARNING):
            rooms.consumer_groups.start()

    run(main())
    assert caplog.messages == [
        f"group {GROUP!r}: its {SESSION_TIMEOUT}=70000 is outside of the broker's limits, 45000 to 60000; 60000 applies"
    ]
