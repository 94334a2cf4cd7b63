"""The lock of a data directory: one process at a time, and the checks that only the lock makes final."""

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualwrite.broker.process import data_lock
from dualwrite.broker.process.data_dir import FORMAT_FILE, FORMAT_VERSION
from dualwrite.broker.process.data_lock import exclusive
from dualwrite.errors import ConfigurationError
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Sets what happens while a process waits for the lock."""

    def use(act: Callable[[], object]) -> None:
        monkeypatch.setattr(data_lock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: act()))

    return use


def test_a_process_that_waits_gets_the_lock_when_the_other_one_ends(
    tmp_path: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    with ExitStack() as other:
        other.enter_context(exclusive(tmp_path, 0))
        meanwhile(other.close)
        with (
            exclusive(tmp_path, PATIENCE_SECONDS),
            pytest.raises(ConfigurationError, match="is in use by another broker"),
            exclusive(tmp_path, 0),
        ):
            pytest.fail("two have the lock")


def test_a_later_release_that_has_used_the_directory_meanwhile_is_noticed(
    tmp_path: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    """It had the lock, and has changed the format since the first look."""
    with ExitStack() as other:
        other.enter_context(exclusive(tmp_path, 0))

        def end() -> None:
            (tmp_path / FORMAT_FILE).write_text(f"{FORMAT_VERSION + 1}\n")
            other.close()

        meanwhile(end)
        with (
            pytest.raises(ConfigurationError, match="was written by a later release of dualwrite"),
            exclusive(tmp_path, PATIENCE_SECONDS),
        ):
            pytest.fail("the directory is used")


def test_a_file_system_without_locks_is_not_taken_for_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ConfigurationError, match=f"^data directory {tmp_path}: No locks available$"),
        exclusive(tmp_path, PATIENCE_SECONDS),
    ):
        pytest.fail("the directory is used")
