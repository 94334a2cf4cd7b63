"""The looks: shared by all pages, each by itself, bounded for a slow reader, and ended with the server."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from dualwrite.console import watching
from dualwrite.console.watching import LookAnswer, Part, Watch, in_thread, reason_of
from dualwrite.errors import KafkaUnavailableError
from tests.support.console.asgi import SECONDS


def texts(known: Mapping[str, LookAnswer]) -> Mapping[str, str]:
    """The sections of a page that shows each part's value, or its error."""
    return {name: str(answer.reason or answer.value) for name, answer in known.items()}


class Counting:
    """A look that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


async def until(watch: Watch, name: str, text: str) -> Mapping[str, str]:
    async with aclosing(watch.subscribe()) as news:
        async for sections in news:
            if sections.get(name) == text:
                return sections
    raise AssertionError(f"{name} never became {text}")


def test_all_open_pages_share_one_look() -> None:
    look = Counting()
    watch = Watch([Part("a", look, 3600.0)], texts)

    async def run() -> None:
        pages = [watch.first_sections(30.0, "a") for _ in range(20)]
        assert await asyncio.gather(*pages) == [{"a": "1"}] * 20

    asyncio.run(run())
    assert look.calls == 1
    assert watch.subscribers == 0


def test_a_look_that_hangs_holds_up_no_other() -> None:
    free = threading.Event()
    watch = Watch([Part("hangs", free.wait, 0.0), Part("works", Counting(), 0.001)], texts)

    async def run() -> None:
        sections = await until(watch, "works", "3")
        assert sections["hangs"] == "None"
        free.set()
        await until(watch, "hangs", "True")

    asyncio.run(run())


def test_a_hanging_look_is_not_begun_again() -> None:
    free, calls = threading.Event(), Counting()

    def hang() -> None:
        calls()
        free.wait()

    watch = Watch([Part("hangs", hang, 0.0), Part("works", Counting(), 0.001)], texts)

    async def run() -> None:
        await until(watch, "works", "5")
        assert calls.calls == 1
        free.set()

    asyncio.run(run())


def test_an_error_is_shown_and_the_last_value_is_kept() -> None:
    def look() -> str:
        if part.succeeded is not None:
            raise KafkaUnavailableError("no broker\nanswers")
        return "value"

    part = Part("a", look, 0.001)
    watch = Watch([part], texts)

    async def run() -> None:
        await until(watch, "a", "value")
        await until(watch, "a", "no broker answers")

    asyncio.run(run())
    answer = part.answer(part.succeeded or 0.0)
    assert (answer.value, answer.reason, answer.age) == ("value", "no broker answers", 0.0)


def test_a_slow_reader_gets_the_newest_sections_and_misses_those_in_between() -> None:
    watch = Watch([Part("a", Counting(), 0.001)], texts)

    async def run() -> None:
        async with aclosing(watch.subscribe()) as slow:
            first = await anext(slow)
            newest = await until(watch, "a", "20")
            following = await anext(slow)
            assert first != newest
            assert int(following["a"]) >= 20

    asyncio.run(run())


def test_a_change_while_a_reader_is_slow_is_not_missed() -> None:
    watch = Watch([Part("a", Counting(), 0.001), Part("b", Counting(), 3600.0)], texts)

    async def run() -> None:
        async with aclosing(watch.subscribe()) as slow:
            await anext(slow)
            await until(watch, "a", "3")
            watch.parts[0].due = float("inf")
            assert int((await anext(slow))["a"]) >= 3

    asyncio.run(run())


def test_without_a_page_the_looks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LINGER", 0.0)
    monkeypatch.setattr(watching, "TICK", 0.001)
    watch = Watch([Part("a", Counting(), 0.001)], texts)

    async def run() -> None:
        await until(watch, "a", "2")
        assert watch.is_looking
        while watch.is_looking:
            await asyncio.sleep(0)
        await until(watch, "a", "4")

    asyncio.run(run())


def test_closing_ends_every_open_page() -> None:
    watch = Watch([Part("a", Counting(), 3600.0)], texts)

    async def page() -> int:
        async with aclosing(watch.subscribe()) as news:
            return len([sections async for sections in news])

    async def run() -> None:
        pages = [asyncio.create_task(page()) for _ in range(3)]
        await until(watch, "a", "1")
        watch.close()
        assert all(count >= 1 for count in await asyncio.gather(*pages))
        assert await watch.first_sections(1.0, "a") == watch.sections

    asyncio.run(run())


def test_a_page_that_cannot_be_made_ends_and_does_not_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    """A browser then asks again; a page that stands still would be green for ever."""
    fails = [False]

    def render(known: Mapping[str, LookAnswer]) -> Mapping[str, str]:
        if fails[0]:
            raise ZeroDivisionError("a bug")
        return texts(known)

    watch = Watch([Part("a", Counting(), 0.001)], render)

    async def run() -> None:
        async with aclosing(watch.subscribe()) as news:
            await anext(news)
            fails[0] = True
            assert [sections async for sections in news] == []
        assert not watch.is_looking
        fails[0] = False
        await until(watch, "a", "20")

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    (record,) = (each for each in caplog.records if each.name == "dualwrite.console")
    assert record.getMessage() == "the page cannot be made"
    assert record.exc_info is not None


def test_a_first_page_is_not_kept_waiting_by_a_side_that_hangs() -> None:
    free = threading.Event()
    watch = Watch([Part("hangs", free.wait, 1.0)], texts)
    assert asyncio.run(watch.first_sections(0.0, ["hangs"])) == {"hangs": "None"}
    free.set()


def test_a_first_page_waits_for_the_named_parts_only() -> None:
    free = threading.Event()
    watch = Watch([Part("hangs", free.wait, 1.0), Part("a", Counting(), 3600.0)], texts)
    assert asyncio.run(watch.first_sections(30.0, ["a"])) == {"hangs": "None", "a": "1"}
    free.set()


def test_a_look_that_takes_long_rests_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def look() -> str:
        now[0] += 50.0
        return "slow"

    monkeypatch.setattr(watching, "monotonic", lambda: now[0])
    part = Part("a", look, 1.0)
    asyncio.run(until(Watch([part], texts), "a", "slow"))
    assert part.due == 200.0


def test_the_looks_begin_anew_in_another_event_loop() -> None:
    """The first one stands still, with a look that has begun there."""
    free, look = threading.Event(), Counting()
    watch = Watch([Part("hangs", lambda: look() > 1 or free.wait(), 3600.0)], texts)
    stopped = asyncio.new_event_loop()
    assert stopped.run_until_complete(watch.first_sections(0.0, ["hangs"])) == {"hangs": "None"}
    asyncio.run(asyncio.wait_for(until(watch, "hangs", "True"), 30))
    free.set()
    for task in asyncio.all_tasks(stopped):
        task.cancel()
        with suppress(asyncio.CancelledError):
            stopped.run_until_complete(task)
    stopped.close()


def test_a_part_looks_at_once_when_something_was_changed() -> None:
    watch = Watch([Part("a", Counting(), 3600.0)], texts)

    async def run() -> None:
        await until(watch, "a", "1")
        watch.look_again("a")
        await until(watch, "a", "2")

    asyncio.run(run())


def test_a_thread_s_value_and_its_error_reach_the_task() -> None:
    def fail() -> None:
        raise ValueError("x")

    assert asyncio.run(in_thread(lambda: 7, "t")) == 7
    with pytest.raises(ValueError, match="x"):
        asyncio.run(in_thread(fail, "t"))


def test_a_thread_that_ends_after_its_loop_is_no_error() -> None:
    free, ended = threading.Event(), threading.Event()

    def look() -> None:
        free.wait()
        ended.set()

    async def run() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(in_thread(look, "t"), 0.001)

    asyncio.run(run())
    free.set()
    assert ended.wait(30)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaUnavailableError("a\n b"), "a b"),
        (OperationalError("SELECT secret", {}, Exception("no such table: t\nmore")), "no such table: t"),
    ],
)
def test_a_known_error_is_told_in_a_line(error: Exception, text: str) -> None:
    assert reason_of(error) == text


def test_an_unforeseen_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert reason_of(ZeroDivisionError("secret")) == "ZeroDivisionError: see the log"
    records: list[Any] = caplog.records
    assert "secret" in str(records[0].exc_info[1])
