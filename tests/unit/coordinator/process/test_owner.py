"""The signature of an owner, and whether it is gone: decided from real processes and from what /proc may say."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.coordinator.process import owner as owners
from dualwrite.coordinator.process.owner import is_gone, new_owner
from dualwrite.coordinator.rules.slot_rules import describe_owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="needs /proc")

SIGN_AND_WAIT = "from dualwrite.coordinator.process.owner import new_owner; print(new_owner(), flush=True); input()"


@pytest.fixture
def process() -> Iterator["subprocess.Popen[str]"]:
    """Another process: its first line is its signature."""
    command = [sys.executable, "-c", SIGN_AND_WAIT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def signature(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_signature_tells_two_dual_writes_of_one_process_apart_and_fits_its_column() -> None:
    one, other = new_owner(), new_owner()
    assert one != other
    assert len(one) <= 255
    assert describe_owner(one) == describe_owner(other) == one.split()[0]
    assert re.fullmatch(rf".+:{os.getpid()}", describe_owner(one))


def test_the_own_process_is_not_gone() -> None:
    assert not is_gone(new_owner())


def test_a_process_is_gone_once_it_was_killed_even_before_anybody_has_waited_for_it(
    process: "subprocess.Popen[str]",
) -> None:
    owner = signature(process)
    assert not is_gone(owner)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(owner), "a zombie of the process table"
    process.wait()
    assert is_gone(owner)


def test_a_process_that_got_the_number_of_a_dead_one_is_another() -> None:
    host_and_pid, machine, started, token = new_owner().split(" ")
    assert is_gone(f"{host_and_pid} {machine} {int(started) - 1} {token}")


@pytest.mark.parametrize(
    "owner",
    [
        "",
        "host:1",
        "web-1:4711",
        "host:4711 - - 0011aabb",
        "host:4711 another-boot/4026531836 123 0011aabb",
        "no signature of ours at all",
    ],
)
def test_owners_on_other_machines_are_never_reported_gone(owner: str) -> None:
    assert not is_gone(owner)


def test_without_proc_no_owner_is_reported_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dead = new_owner().replace(f":{os.getpid()} ", ":99999999 ")
    assert is_gone(dead)
    monkeypatch.setattr(owners, "PROC", tmp_path)
    assert not is_gone(dead)
    assert not is_gone(new_owner())


def test_another_users_process_is_not_reported_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    owner = new_owner()
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_gone(owner)


def test_a_running_process_whose_start_cannot_be_read_is_not_reported_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with hidepid: of other processes /proc has nothing."""
    owner = new_owner()
    (tmp_path / "sys").symlink_to(owners.PROC / "sys")
    (tmp_path / "self").symlink_to(owners.PROC / "self")
    monkeypatch.setattr(owners, "PROC", tmp_path)
    assert not is_gone(owner)
