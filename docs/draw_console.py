"""Takes the pictures of the console that docs/console.md shows: of a real one, in a real browser, light and dark.

``python docs/draw_console.py`` does it, in half a minute. It needs the extra ``test``, Chromium and its driver.

One application writes units of work, and another is killed by ``kill -9`` between its two commits. The pictures have
other names of the machine, the port and the file than there were.
"""

import math
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

from sqlalchemy import insert

from dualwrite import DualWrite
from dualwrite.console.app import ConsoleSettings, console_app
from tests.support.console.browser import MISSING, SCHEMES, Browser, find_browser
from tests.support.console.thread_server import served_by_thread
from tests.support.coordinator.consumed_topics import reading
from tests.support.crash.application import LEFT, RIGHT, items
from tests.support.crash.world import CrashWorld

FOLDER = Path(__file__).parent / "screenshots"
KILLED, LIVING = "orders", "billing"
"""Two applications: a process of the same one would recover what was killed."""
WIDTH = 1080
SECONDS = 20
"""How long the application writes: the plots show it."""

_NAMES = """
document.querySelectorAll("section").forEach(each => each.replaceWith(each.cloneNode(true)));  // no event reaches it
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode())
    for (const [name, shown] of Object.entries(arguments[0]))
        walk.currentNode.data = walk.currentNode.data.replaceAll(name, shown);
"""


def main() -> None:
    """Take the pictures.

    :raises SystemExit: if there is no browser.
    """
    programs = find_browser()
    if programs is None:
        raise SystemExit(MISSING)
    browser = Browser(programs)
    try:
        with tempfile.TemporaryDirectory() as directory, running_world(Path(directory)) as world:
            take_pictures(world, browser)
    finally:
        browser.close()


@contextmanager
def running_world(directory: Path) -> Iterator[CrashWorld]:
    """A broker, a database and an application that may be killed."""
    world = CrashWorld(directory, f"sqlite:///{directory}/app.db")
    world.task = replace(world.task, application=KILLED, lease_timeout=3000)
    try:
        yield world
    finally:
        world.close()


def take_pictures(world: CrashWorld, browser: Browser) -> None:
    """Write the files of FOLDER."""
    kafka = {"bootstrap.servers": world.broker.bootstrap_servers}
    names = {
        world.broker.bootstrap_servers: "kafka:9092",
        world.task.url: "sqlite:///app.db",
        socket.gethostname(): "shop-1",
    }
    with DualWrite(world.engine, kafka, application=LIVING) as dual_write:
        console = console_app(
            world.engine,
            kafka,
            anonymous=True,
            actions=True,
            dual_writes=[dual_write],
            settings=ConsoleSettings(interval=0.5),
        )
        with served_by_thread(console) as url:
            browser.look(width=WIDTH)
            browser.open(url)
            write_units(world, dual_write)
            world.kill_at("COMMIT_KAFKA", unit=2)
            browser.until("article.need", "its owner is gone")
            browser.until("#lag", "left-")
            take(browser, "console", ("header", "#needs", "#slots", "#lag"), names)
            take(browser, "units", ("#plots", "#units"), names)
            browser.click("resolve")
            browser.until("h1", "resolve: nothing was done yet")
            browser.fill("by", "Ann")
            take(browser, "plan", ("header", "main"), names)


def write_units(world: CrashWorld, dual_write: DualWrite) -> None:
    """Units of work at a rate that rises and falls; the last ones commit the offsets of a consumer, too."""
    pause, number = threading.Event(), 0
    with reading(world.broker.bootstrap_servers, "invoices") as consumer:
        for second in range(SECONDS):
            end = monotonic() + 1
            for _ in range(30 + round(20 * math.sin(second / 3))):
                if monotonic() > end:  # a busy machine
                    break
                number += 1
                with dual_write.transaction() as tx:
                    tx.execute(insert(items), {"unit": f"{number:032}", "item": 0})
                    tx.produce(RIGHT, key=b"unit")
            pause.wait(max(0, end - monotonic()))
        consumer.subscribe([RIGHT], on_assign=dual_write.seek_to_committed)
        while not consumer.consume(100, timeout=1):
            pass
        with dual_write.transaction() as tx:
            tx.send_offsets(consumer)
            tx.execute(insert(items), {"unit": "of the consumer", "item": 0})
            tx.produce(LEFT, key=b"unit")


def take(browser: Browser, name: str, parts: tuple[str, ...], names: Mapping[str, str]) -> None:
    """Write one picture of ``parts`` of the page for each colour scheme."""
    FOLDER.mkdir(exist_ok=True)
    for scheme in SCHEMES:
        browser.look(width=WIDTH, scheme=scheme)
        browser.run(_NAMES, dict(names))
        (FOLDER / f"{name}-{scheme}.webp").write_bytes(browser.screenshot(parts))


if __name__ == "__main__":
    main()
