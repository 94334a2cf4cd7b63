"""A broker and a database with the state tables, the console in front of both, and a browser in front of that."""

import os
from collections.abc import Iterator

import pytest

from tests.support.console.browser import MISSING, Browser, find_browser
from tests.support.console.served import ConsoleProcess
from tests.support.crash.world import CrashWorld
from tests.support.operations.fixtures import broker, site

__all__ = ["broker", "site"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a file."""
    programs = find_browser()
    if programs is None:
        if "browser" in os.environ.get("DUALWRITE_REQUIRE", "").split():
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    started = Browser(programs)
    yield started
    started.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """A browser as it is started. When a test has succeeded, its pages have left no error and no warning in the log."""
    chromium.fresh()
    yield chromium
    complaints = chromium.complaints()
    chromium.fresh()
    assert complaints == []


@pytest.fixture
def console_of_world(world: CrashWorld) -> Iterator[ConsoleProcess]:
    """The console in front of a world in which processes are killed; the test's module has that."""
    places = ["--db", world.task.url, "--bootstrap-servers", world.broker.bootstrap_servers]
    made = ConsoleProcess(*places, "--application", "crash", "--actions")
    yield made
    made.end()
