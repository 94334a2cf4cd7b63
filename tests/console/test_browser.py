"""The console in a real browser: live, by click, by keyboard, without JavaScript, and with its policy in force."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from sqlalchemy import insert

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome
from tests.support.console.browser import Browser
from tests.support.console.other_site import other_site
from tests.support.console.served import ConsoleProcess, console_of
from tests.support.crash.world import CrashWorld
from tests.support.operations.histories import NOW
from tests.support.operations.places import OperationsSite

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CrashWorld]:
    made = CrashWorld(tmp_path, f"sqlite:///{tmp_path}/items.db")
    made.task = replace(made.task, lease_timeout=3000)
    yield made
    made.close()


@pytest.fixture
def console(site: OperationsSite) -> Iterator[ConsoleProcess]:
    with console_of(site, "--actions") as running:
        yield running


def state_in_kafka(site: OperationsSite) -> str:
    described = site.described()
    assert described is not None
    return described.state


@pytest.mark.crash
def test_an_open_page_turns_red_at_a_kill_and_green_after_the_button_was_clicked(
    world: CrashWorld, console_of_world: ConsoleProcess, browser: Browser
) -> None:
    browser.open(console_of_world.url)
    browser.until(".sentence.green", "0 in doubt, no open transaction")
    browser.run("window.isTheSamePage = true")
    world.kill_at("COMMIT_KAFKA", unit=2)
    browser.until(".sentence.red", "1 in doubt")
    assert "its owner is gone" in browser.until("article.need", "crash-0")
    assert browser.run("return window.isTheSamePage") is True
    browser.click("resolve")
    browser.until("h1", "resolve: nothing was done yet")
    assert "crash-0: would commit " in browser.text("ul.lines")
    assert "dualwrite transactions resolve crash-0 " in browser.text("pre.command")
    browser.fill("by", "Ann")
    browser.click("resolve")
    browser.until("h1", "resolve by Ann")
    assert browser.text("ul.lines") == "crash-0: committed"
    browser.click("back to the console")
    browser.until(".sentence.green", "0 in doubt, no open transaction")
    assert world.judge() == []


def test_the_keyboard_alone_reaches_and_carries_out_each_action(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    site.leave("one")
    browser.open(console.url)
    browser.until("article.need", site.slot())
    browser.until("#lag", site.slot())
    reached = list(browser.focused_in_turn())
    assert reached == ["resolve …", "terminate …", "slots", "what waits behind open transactions"]
    browser.open(console.url)
    browser.tab_to("terminate")
    browser.press(Keys.ENTER)
    browser.until("h1", "terminate: nothing was done yet")
    assert "THE DATABASE HAS COMMITTED IT" in browser.text("main")
    controls = browser.focused_in_turn()
    assert [next(controls) for _ in range(3)] == ["your name", "terminate", "do nothing"]
    browser.press(Keys.ENTER)
    browser.until("article.need", site.slot())
    assert state_in_kafka(site) == "Ongoing"
    browser.tab_to("resolve")
    browser.press(Keys.ENTER)
    browser.until("h1", "resolve: nothing was done yet")
    browser.tab_to("your name")
    browser.press("Ann", Keys.ENTER)
    browser.until("h1", "resolve by Ann")
    browser.tab_to("back to the console")
    browser.press(Keys.ENTER)
    browser.until(".sentence.green", "0 in doubt")
    assert site.visible() == site.stored() == ["one"]


def test_the_focus_stays_at_its_button_when_a_card_comes_before_it(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    site.leave("one")
    browser.open(console.url)
    browser.until("article.need", site.slot())
    browser.tab_to("terminate")
    assert browser.focused_target() == site.slot()
    outcome = {"prepared_txn_state": "9:9", "outcome": Outcome.HEURISTIC_ABORT.value, "detail": "of a test"}
    with site.engine.begin() as connection:
        connection.execute(
            insert(kafka_transaction_outcome).values(transactional_id=site.slot(9), found_at=NOW, **outcome)
        )
    browser.until("article.need", site.slot(9))
    assert browser.focused_target() == site.slot()
    browser.press(Keys.ENTER)
    browser.until("ul.lines", f"{site.slot()}: would ABORT")


def test_without_javascript_the_page_says_that_it_is_not_live_and_the_actions_work(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    site.leave("one")
    console.page()
    browser.look(scripts=False)
    browser.open(console.url)
    browser.until(".sentence.red", "1 in doubt")
    assert "does not update itself" in browser.text("noscript")
    assert "its owner is gone" in browser.text("article.need")
    browser.click("resolve")
    browser.until("h1", "resolve: nothing was done yet")
    browser.fill("by", "Ann")
    browser.press(Keys.ENTER)
    browser.until("ul.lines", f"{site.slot()}: committed")
    browser.click("back to the console")
    browser.until(".sentence.green", "0 in doubt")
    browser.look()
    browser.open(console.url)
    assert browser.text("noscript") == ""


VIOLATIONS = """
const site = arguments[0], broken = new Set();
document.addEventListener("securitypolicyviolation", event => broken.add(event.effectiveDirective));
const add = (tag, fields) => document.body.append(Object.assign(document.createElement(tag), fields));
add("script", {textContent: "window.wasRun = 'inline'"});
add("script", {src: site + "script.js"});
add("img", {src: site + "picture.png"});
add("iframe", {src: site + "frame"});
const box = document.createElement("div");
box.innerHTML = `<p style="color: red" onclick="window.wasRun = 'handler'">x</p><style>p { color: red }</style>`;
document.body.append(box);
box.firstChild.click();
fetch(site + "data").catch(() => {});
window.brokenRules = broken;
"""


def test_the_policy_stops_what_a_page_was_made_to_load_or_to_run(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    rules = {"script-src-elem", "script-src-attr", "style-src-attr", "style-src-elem", "img-src", "frame-src"}
    with other_site({"/script.js": "window.wasRun = 'other site'"}) as other:
        browser.open(console.url)
        browser.until(".sentence.green", "0 in doubt")
        assert browser.complaints() == []
        browser.run(VIOLATIONS, other.url)
        browser.wait(
            lambda: set(browser.run("return [...window.brokenRules]")) == rules | {"connect-src"}, "not all were broken"
        )
        assert browser.run("return window.wasRun") is None
        assert other.asked == []
    assert len(browser.complaints()) >= len(rules)


def test_a_page_of_another_site_can_neither_act_nor_read_nor_frame(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    site.leave("one")
    browser.open(console.url)
    browser.until("article.need", site.slot())
    token = browser.run("return document.querySelector('[name=csrf_token]').value")
    fields = {"csrf_token": token, "verb": "terminate", "target": site.slot()}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    with other_site() as other:
        other.pages["/form"] = f'<form method="post" action="{console.url}plan">{inputs}<button>win a prize</button>'
        other.pages["/frame"] = f'<iframe src="{console.url}"></iframe>'
        browser.open(other.url + "form")
        browser.click("win a prize")
        browser.until("ul.lines", "the form came from another site")
        browser.open(other.url + "frame")
        browser.wait(lambda: "frame-ancestors" in " ".join(browser.complaints()), "the page was framed")
        read = "const done = arguments[1]; fetch(arguments[0]).then(a => a.text()).then(done, e => done(e.name))"
        assert browser.driver.execute_async_script(read, console.url) == "TypeError"
        browser.complaints()
    assert state_in_kafka(site) == "Ongoing"


def test_a_form_of_an_earlier_console_is_refused(
    site: OperationsSite, console: ConsoleProcess, browser: Browser
) -> None:
    site.leave("one")
    browser.open(console.url)
    browser.until("article.need", site.slot())
    browser.run("document.querySelector('.terminate').form.csrf_token.value = 'of an earlier console'")
    browser.click("terminate")
    browser.until("ul.lines", "the form is not of this console: load the page again")
    assert "403" in " ".join(browser.complaints())
    assert state_in_kafka(site) == "Ongoing"
