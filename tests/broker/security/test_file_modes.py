"""The data directory is for the broker's user alone: it holds users' credentials, and everybody's records."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dualwrite.cli.main import main
from tests.support.forked import ForkedBroker
from tests.support.requests import calls
from tests.support.requests.group_calls import joined_member
from tests.support.requests.raw_client import RawClient

WARNING = "other users of this machine can read"


@pytest.fixture(autouse=True)
def _no_mask() -> Iterator[None]:
    """A process whose umask hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exposed(data_dir: Path) -> list[str]:
    """What in ``data_dir`` other users may use, and itself if they may."""
    paths, found = [data_dir, *data_dir.rglob("*")], []
    assert len(paths) > 5
    for path in paths:
        with suppress(FileNotFoundError):  # a running broker renames its notes
            if mode(path) & 0o077:
                found.append(f"{path.name} {mode(path):o}")
    return found


def test_everything_that_a_broker_creates_is_its_users_own(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    config = {"group.initial.rebalance.delay.ms": "0"}
    with ForkedBroker(data_dir, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = calls.new_topic(client)
        name = calls.unique("id")
        producer = calls.new_producer(client, name)
        calls.open_transaction(client, name, producer, {(topic, 0): [b"v"]})
        calls.end(client, name, producer)
        joined_member(client, "g", topic)
        assert not exposed(data_dir)
    assert not exposed(data_dir)
    with ForkedBroker(data_dir):  # what a stop has written, and the start after it
        assert not exposed(data_dir)
    assert WARNING not in (data_dir / "broker.log").read_text()


def test_the_first_users_credentials_are_for_the_user_who_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
    data_dir = tmp_path / "data"
    assert main(["broker", "users", "set", "admin", "--data-dir", str(data_dir)]) == 0
    assert not exposed(data_dir)


def test_an_existing_directory_keeps_its_mode_and_a_readable_journal_is_named(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(0o755)
    with ForkedBroker(data_dir):
        assert mode(data_dir) == 0o755
    log = data_dir / "broker.log"
    assert WARNING not in log.read_text(), "the files themselves are private"
    for path in data_dir.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with ForkedBroker(data_dir):
        assert mode(data_dir) == 0o755
    (line,) = [line for line in log.read_text().splitlines() if WARNING in line]
    assert line.endswith(f"where the users' credentials are: run chmod -R go= {data_dir}")
    data_dir.chmod(0o700)
    log.write_text("")
    with ForkedBroker(data_dir):
        assert WARNING not in log.read_text(), "nobody else can enter the directory"
