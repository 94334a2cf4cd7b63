"""Every action of the console on what a real kill -9 left; and the kill of the console itself in the middle of one."""

import html
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dualwrite.coordinator.sql.outcome_store import outcomes
from tests.support.console.served import ConsoleProcess, confirm, form_of
from tests.support.crash.world import CrashWorld

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SLOT = "crash-0"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashWorld]:
    url = f"sqlite:///{tmp_path}/items.db"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql_url"))
    made = CrashWorld(tmp_path, url)
    made.task = replace(made.task, lease_timeout=3000)
    yield made
    made.close()


@pytest.fixture
def console(console_of_world: ConsoleProcess) -> ConsoleProcess:
    return console_of_world


def decided(console: ConsoleProcess, verdict: str) -> str:
    """What needs a person, once the verdict is clear. It is not while a look began before the kill and ended after."""
    return console.until("needs", lambda text: f"<dd>{verdict}</dd>" in text)


def test_a_live_page_turns_red_at_a_kill_and_resolving_makes_both_sides_alike(
    world: CrashWorld, console: ConsoleProcess
) -> None:
    assert "sentence green" in console.page()
    world.kill_at("COMMIT_KAFKA", unit=2)
    assert "1 in doubt" in console.until("sentence", lambda text: "sentence red" in text)
    needs = decided(console, "commit")
    assert ", dead</dd>" in needs, "this machine knows that the process is gone"
    planned = console.post("plan", form_of(needs, "resolve"))
    assert f"{SLOT}: would commit " in planned.body
    assert f"{SLOT}: committed" in confirm(console, planned, "Ann").body
    assert "sentence green" in console.until("sentence", lambda text: "sentence green" in text)
    assert world.judge() == []


def test_an_undecided_unit_is_rolled_back_on_both_sides(world: CrashWorld, console: ConsoleProcess) -> None:
    world.kill_at("COMMIT_DATABASE", unit=2)
    needs = decided(console, "abort")
    assert f"{SLOT}: aborted" in confirm(console, console.post("plan", form_of(needs, "resolve")), "Ann").body
    assert world.judge() == []


def test_terminating_against_the_decision_is_warned_of_recorded_and_acknowledged_by_name(
    world: CrashWorld, console: ConsoleProcess
) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    needs = decided(console, "commit")
    planned = console.post("plan", form_of(needs, "terminate"))
    assert "THE DATABASE HAS COMMITTED IT" in html.unescape(planned.body)
    confirm(console, planned, "Ann")
    needs = console.until("needs", lambda text: "heuristic abort" in text)
    confirm(console, console.post("plan", form_of(needs, "acknowledge")), "Bob")
    assert [(each.transactional_id, each.acknowledged_by) for each in outcomes(world.engine, acknowledged=True)] == [
        (SLOT, "Bob")
    ]
    assert "sentence green" in console.until("sentence", lambda text: "sentence green" in text)


def test_a_console_that_is_killed_after_a_plan_has_done_nothing(world: CrashWorld, console: ConsoleProcess) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    needs = decided(console, "commit")
    planned = console.post("plan", form_of(needs, "terminate"))
    assert "would ABORT" in planned.body
    console.end()
    assert outcomes(world.engine, acknowledged=True) == []
    world.recover()
    assert world.judge() == []
