"""What the console does when more browsers come than it serves: it refuses them, and serves the others."""

import asyncio
import socket
from collections import Counter
from time import monotonic

import pytest

from dualwrite.cli.console import MOST_CONNECTIONS
from dualwrite.console.app import MOST_STREAMS, Console, console_app
from tests.support.console.asgi import LiveReader, requested
from tests.support.console.served import SECONDS, ConsoleProcess, console_of
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


def connected(console: ConsoleProcess) -> socket.socket:
    """A connection that asks for nothing."""
    host, port = console.url[len("http://") :].rstrip("/").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


@pytest.mark.slow
def test_256_connections_are_served_and_no_more(site: OperationsSite) -> None:
    with console_of(site) as console:
        idle = [connected(console) for _ in range(MOST_CONNECTIONS - 1)]
        assert console.get(FILE).status == 200
        idle.append(connected(console))
        assert console.get(FILE).status == 503
        for connection in idle:
            connection.close()
        limit = monotonic() + SECONDS
        while console.get(FILE).status == 503:
            assert monotonic() < limit
