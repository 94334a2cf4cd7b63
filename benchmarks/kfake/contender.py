"""A broker in memory as a contender: franz-go's kfake, which keeps nothing on a disk. It is built by Go."""

import shutil
import subprocess
from pathlib import Path

KFAKE = "kfake"
_SOURCE = Path(__file__).parent


class Kfake:
    """kfake in a process of its own. A stop loses all it has."""

    name = KFAKE

    def __init__(self, directory: Path) -> None:
        self._program = directory / KFAKE / KFAKE
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        """HOST:PORT while it runs."""

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "kfake is not running"
        return self._process.pid

    def start(self) -> None:
        """Build it if that was not done, and start it."""
        if not self._program.exists():
            self._program.parent.mkdir()
            build = ["go", "build", "-buildvcs=false", "-o", str(self._program), "."]
            subprocess.run(build, cwd=_SOURCE, check=True)
        self._process = subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()
        if not self.bootstrap:
            exit_code = self._process.wait()
            self.kill()
            raise RuntimeError(f"kfake ended as it started, with exit code {exit_code}")

    def stop(self) -> None:
        """As :meth:`kill`: it has nothing to keep."""
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def why_no_kfake() -> str | None:
    """What is missing for kfake beside the bundled broker; None if nothing is."""
    if shutil.which("go") is None:
        return "there is no go on the PATH"
    # Here go.mod is read, which says the version that is needed.
    found = subprocess.run(["go", "version"], cwd=_SOURCE, capture_output=True, text=True, check=False)
    return None if found.returncode == 0 else found.stderr.strip()
