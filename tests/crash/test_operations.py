"""The operator's commands as processes of their own, on what a kill -9 left, and beside an application that lives."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator.event_table import slot_rows
from tests.support.crash.world import CrashWorld

pytestmark = pytest.mark.crash

SLOT = "crash-0"


def long_leased(tmp_path: Path, url: str) -> CrashWorld:
    """A world in which no lease runs out between two looks at it."""
    made = CrashWorld(tmp_path, url)
    made.task = replace(made.task, lease_timeout=3000)
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CrashWorld]:
    made = long_leased(tmp_path, f"sqlite:///{tmp_path}/items.db")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgresql, pytest.mark.slow])])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashWorld]:
    url = f"sqlite:///{tmp_path}/items.db"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql_url"))
    made = long_leased(tmp_path, url)
    yield made
    made.close()


def dualwrite(world: CrashWorld, *words: str) -> "subprocess.CompletedProcess[str]":
    """``dualwrite WORDS`` on the world's database and broker."""
    places = ("--db", world.task.url, "--bootstrap-servers", world.broker.bootstrap_servers)
    command = [sys.executable, "-m", "dualwrite", *words, *places]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def view(world: CrashWorld) -> Any:
    said = dualwrite(world, "transactions", "describe", SLOT, "--json")
    assert (said.returncode, said.stderr) == (0, "")
    seen = json.loads(said.stdout)
    del seen["database"]["lease_seconds_left"]
    return seen


@pytest.mark.slow
def test_a_killed_applications_transaction_is_found_and_ended_as_decided(any_world: CrashWorld) -> None:
    any_world.kill_at("COMMIT_KAFKA", unit=2)
    found = view(any_world)
    assert (found["situation"], found["verdict"]) == ("left_behind", "commit")
    assert found["database"]["standing"] == "dead", "this machine knows that the process is gone"
    examined = dualwrite(any_world, "doctor", "--application", "crash")
    assert (examined.returncode, examined.stderr) == (0, "")
    assert f"warning  transactions: {SLOT} left open by dead processes" in examined.stdout
    planned = dualwrite(any_world, "transactions", "resolve", "--application", "crash")
    assert planned.returncode == 0
    assert view(any_world) == found, "a dry run changes nothing"
    done = dualwrite(any_world, "transactions", "resolve", "--application", "crash", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SLOT}: committed\n", "")
    assert any_world.judge() == []


@pytest.mark.slow
def test_recover_is_a_start_without_an_application(world: CrashWorld) -> None:
    world.kill_at("COMMIT_DATABASE", unit=2)
    done = dualwrite(world, "recover", "--application", "crash")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{SLOT}: aborted\n1 slot checked; 1 transaction ended\n"
    assert world.judge() == []


@pytest.mark.slow
def test_a_transaction_terminated_against_its_decision_is_lost_and_reported(world: CrashWorld) -> None:
    world.kill_at("COMMIT_KAFKA", unit=2)
    done = dualwrite(world, "transactions", "terminate", SLOT, "--yes")
    assert (done.returncode, done.stderr) == (1, "")
    world.recover()
    lost = [line for line in world.judge() if line.startswith("lost write")]
    (named,) = [line for line in world.judge() if line not in lost]
    assert lost
    assert named.startswith(f"heuristic abort: {SLOT} ")
    examined = dualwrite(world, "doctor")
    assert "failure  outcomes: 1 heuristic outcome" in examined.stdout


@pytest.mark.slow
def test_an_application_that_is_alive_is_neither_robbed_nor_disturbed(world: CrashWorld) -> None:
    with world.running(replace(world.task, units=3, pause_step="COMMIT_KAFKA", pause_unit=2)) as worker:
        worker.until("paused")
        before = slot_rows(world.engine)[SLOT].fencing_token
        assert view(world)["situation"] == "at_work"
        for action in ("resolve", "terminate"):
            said = dualwrite(world, "transactions", action, SLOT, "--yes")
            assert said.returncode in (1, 2)
            assert "has it, and may be alive" in said.stdout + said.stderr
        assert dualwrite(world, "recover", "--application", "crash").returncode == 0
        assert slot_rows(world.engine)[SLOT].fencing_token == before
    assert world.judge() == []
    assert len(world.told.ok) >= 1
