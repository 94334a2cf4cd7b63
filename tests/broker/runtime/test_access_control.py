"""The authorizer at run time: what a stranger's questions cost."""

import tracemalloc
from collections.abc import Iterable

import pytest

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.runtime.access_control import AccessControl, AccessSettings
from tests.support.broker.simulated import MemoryFiles, Rooms, run
from tests.support.requests.acl_calls import acl

QUESTIONS = 1000
LONG = 30_000


def ask(access: AccessControl, name: str, principal: str = "User:eve") -> bool:
    return access.may(principal, "127.0.0.1", AclOperation.READ, ResourceType.TOPIC, name)


def controlled(rooms: Rooms) -> AccessControl:
    return AccessControl(rooms.cluster, AccessSettings(is_enabled=True), rooms.clock)


def kept_of(names: Iterable[str]) -> int:
    """The bytes that stay in memory after questions about ``names``."""

    async def main() -> int:
        rooms = Rooms(MemoryFiles())
        access = controlled(rooms)
        ask(access, "first")
        tracemalloc.start()
        for name in names:
            assert not ask(access, name)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await rooms.flusher.close()
        return kept

    return run(main())


def test_names_that_no_topic_can_have_are_not_remembered() -> None:
    assert kept_of(f"{number}-{'a' * LONG}" for number in range(QUESTIONS)) < QUESTIONS * LONG / 10


def test_names_that_topics_can_have_are_remembered_up_to_a_number() -> None:
    assert kept_of(f"{number:0>249}" for number in range(11 * QUESTIONS)) < 5 * QUESTIONS * 249


def test_refusals_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rooms = Rooms(MemoryFiles())
        access = controlled(rooms)
        for number in range(QUESTIONS):
            assert not ask(access, f"topic-{number}", "User:e\nve")
        await rooms.flusher.close()

    run(main())
    lines = [message for message in caplog.messages if "may not READ TOPIC" in message]
    assert 1 <= len(lines) < QUESTIONS / 10
    assert "\n" not in lines[0]


def test_a_remembered_decision_ends_with_the_change_of_an_acl() -> None:
    async def main() -> list[bool]:
        rooms = Rooms(MemoryFiles())
        access = controlled(rooms)
        seen = [ask(access, "t")]
        access.create([acl(AclOperation.READ, ResourceType.TOPIC, "t")])
        seen.append(ask(access, "t"))
        await rooms.flusher.close()
        return seen

    assert run(main()) == [False, True]


def test_acls_hold_from_the_start_on() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = Rooms(files)
        controlled(rooms).create([acl(AclOperation.READ, ResourceType.TOPIC, "t")])
        await rooms.flusher.close()
        again = Rooms(files)
        access = controlled(again)
        assert ask(access, "t")
        assert not ask(access, "u")
        assert access.may_somewhere("User:eve", "127.0.0.1", AclOperation.READ, ResourceType.TOPIC)
        await again.flusher.close()

    run(main())
