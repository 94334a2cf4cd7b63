"""What the console does when more browsers come than it serves: it refuses them, and serves the others."""

import asyncio
from collections import Counter

import pytest

from dualwrite.console.app import MOST_STREAMS, Console, console_app
from tests.support.console.asgi import LiveReader, requested
from tests.support.operations.places import OperationsSite

FILE = "static/icon.svg"


@pytest.fixture
def console(site: OperationsSite) -> Console:
    return console_app(site.engine, site.broker.client_config, application=site.application, anonymous=True)


def test_of_many_pages_at_once_the_first_64_are_live(console: Console) -> None:
    async def run() -> None:
        pages = [LiveReader(console) for _ in range(MOST_STREAMS + 20)]
        statuses = [await page.begun() for page in pages]
        assert Counter(statuses) == {200: MOST_STREAMS, 503: 20}
        assert pages[statuses.index(503)].text == "too many pages are open\n"
        await pages[statuses.index(200)].leave()
        assert await LiveReader(console).begun() == 200
        assert await LiveReader(console).begun() == 503

    assert MOST_STREAMS == 64
    asyncio.run(run())


def test_pages_that_are_gone_before_their_first_event_are_not_counted(console: Console) -> None:
    async def run() -> None:
        for _ in range(MOST_STREAMS + 1):
            await LiveReader(console).leave()
        late = LiveReader(console)
        assert await late.begun() == 200
        await late.shows("event: sentence")
        await late.leave()
        assert console.watch.subscribers == 0

    asyncio.run(run())


def test_the_page_itself_is_served_however_many_pages_are_live(console: Console) -> None:
    async def run() -> None:
        pages = [LiveReader(console) for _ in range(MOST_STREAMS)]
        assert {await page.begun() for page in pages} == {200}
        assert await LiveReader(console, "/").begun() == 200

    asyncio.run(run())
    assert requested(console, "/" + FILE).status == 200
