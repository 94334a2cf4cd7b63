"""How the console looks in a real browser: on a phone, light and dark, and to assistive technology."""

from collections.abc import Iterator

import pytest

from dualwrite.console.app import console_app
from tests.support.console.accessibility import violations
from tests.support.console.browser import PHONES, SCHEMES, Browser
from tests.support.console.served import ConsoleProcess, console_of
from tests.support.console.thread_server import served_by_thread
from tests.support.operations.places import OperationsSite

pytestmark = pytest.mark.slow

LONG_NAME = "orders-of-the-northern-warehouse.and-its-branches_in-all-other-places"


@pytest.fixture
def console(site: OperationsSite) -> Iterator[ConsoleProcess]:
    """Of an application with a name that no phone shows in one line."""
    site.application = LONG_NAME
    with console_of(site, "--actions") as running:
        yield running


def visited(site: OperationsSite, console: ConsoleProcess, browser: Browser) -> Iterator[str]:
    """Go to each page of the console, with a heuristic outcome on the way; yield what it is."""
    browser.open(console.url)
    browser.until(".sentence.green", "0 in doubt")
    yield "green"
    site.leave("one")
    browser.until("article.need", "its owner is gone")
    browser.until("#lag", f"{site.topic}-0")
    browser.until("#doctor", "checks")
    yield "red"
    browser.click("terminate")
    browser.until("h1", "terminate: nothing was done yet")
    yield "plan with a warning"
    browser.fill("by", "Ann")
    browser.click("terminate")
    browser.until("h1", "terminate by Ann")
    yield "result"
    browser.click("back to the console")
    browser.until(".sentence.red", "1 heuristic abort")
    assert "Ann terminated it in Kafka" in browser.until("article.need", "heuristic abort")
    yield "outcome"
    browser.click("acknowledge")
    browser.until("h1", "acknowledge: nothing was done yet")
    yield "plan"


def test_no_page_scrolls_sideways_on_a_phone(site: OperationsSite, console: ConsoleProcess, browser: Browser) -> None:
    wide: list[str] = []
    for page in visited(site, console, browser):
        for width in PHONES:
            browser.look(width=width)
            if browser.content_width() > width:
                wide.append(f"{page} at {width}: {browser.content_width()}")
        browser.look()
    assert wide == []


def test_every_page_is_accessible_light_and_dark(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    found: list[str] = []
    backgrounds: set[str] = set()
    for page in visited(site, console, browser):
        for scheme in SCHEMES:
            browser.look(scheme=scheme)
            found += [f"{page}, {scheme}: {violation}" for violation in violations(browser)]
            backgrounds.add(str(browser.run("return getComputedStyle(document.body).backgroundColor")))
    assert found == []
    assert len(backgrounds) == 2, "the page follows the scheme"


def test_plots_and_timelines_are_accessible_and_fit_a_phone(site: OperationsSite, browser: Browser) -> None:
    dual_write = site.dual_write()
    console = console_app(site.engine, site.broker.client_config, anonymous=True, dual_writes=[dual_write])
    with dual_write.transaction() as tx:
        tx.produce(site.topic, value="one")
    with served_by_thread(console) as url:
        browser.open(url)
        browser.until("#units", "complete in Kafka")
        browser.until("#plots", "per second")
        for scheme in SCHEMES:
            browser.look(scheme=scheme)
            assert list(violations(browser)) == []
        for width in PHONES:
            browser.look(width=width)
            assert browser.content_width() <= width
        assert browser.run("return document.querySelectorAll('#plots svg').length") == 3
        browser.open("about:blank")
    site.engine.dispose()


SPOILED = """
const header = document.querySelector("header");
header.innerHTML += '<button></button><img src="static/icon.svg">';
header.style.minWidth = "2000px";
header.querySelector("h1").style.color = "#cccccc";
document.documentElement.lang = document.title = "";
"""


def test_a_page_that_is_spoiled_is_reported(console: ConsoleProcess, browser: Browser) -> None:
    """The negative control: without it the checks above might look at nothing."""
    browser.open(console.url)
    browser.until(".sentence.green", "0 in doubt")
    assert list(violations(browser)) == []
    browser.run(SPOILED)
    reported = {violation.partition(":")[0] for violation in violations(browser)}
    assert reported >= {"button-name", "color-contrast", "image-alt", "document-title", "html-has-lang"}
    browser.look(width=PHONES[0])
    assert browser.content_width() > PHONES[0]
