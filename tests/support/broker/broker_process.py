"""``dualwrite broker`` as a process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_SECONDS, eventually

COMMAND = [sys.executable, "-m", "dualwrite", "broker"]


class RunningBroker:
    """``dualwrite broker`` with arguments of the test's own."""

    def __init__(self, scratch: Path, arguments: tuple[str, ...], prefix: tuple[str, ...]) -> None:
        self.ready_file = scratch / "ready"
        self.log = scratch / "log"
        command = [*prefix, *COMMAND, "--ready-file", str(self.ready_file), *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=subprocess.PIPE)

    @property
    def address(self) -> str:
        """What the ready file says, once it is there."""
        ready = eventually(lambda: self.ready_file.exists() or self.process.poll() is not None, bool)
        assert ready, "the broker is neither ready nor dead"
        assert self.process.poll() is None, self.log.read_text()
        return self.ready_file.read_text().splitlines()[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


def refused(*arguments: str) -> str:
    """The one line that a broker says which does not start."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def in_directory(path: Path) -> tuple[str, ...]:
    return ("--data-dir", str(path), "--listen", "127.0.0.1:0")


def memory_peak(pid: int | None) -> int:
    """The most bytes of memory that the process ever had."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this system does not tell how much memory a process has had")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
