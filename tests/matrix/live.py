"""An application that a cell strikes: it pauses where the cell says, and goes on, is killed or stopped there."""

import os
import signal
import threading
from types import TracebackType

from tests.support.crash.application import Task
from tests.support.crash.oracle import CallerReports
from tests.support.crash.world import RunningApplication

PATIENCE_SECONDS = 180.0
"""After which an application that neither pauses nor ends is killed, and counted as hung."""


class LiveApplication(RunningApplication):
    """One process of the application, which runs from the beginning of the ``with`` block and not after its end.

    :param told: gets what its callers are told.
    """

    def __init__(self, task: Task, told: CallerReports) -> None:
        super().__init__(task.start(), told)
        self.has_hung = False
        self.troubles: list[str] = []
        """The errors of the units that failed."""
        self._watch = threading.Timer(PATIENCE_SECONDS, self._give_up)
        self._watch.daemon = True
        self._watch.start()

    def comes_to(self, word: str) -> bool:
        """Read on until it says ``word``; False if it ends before."""
        for said in self.process.stdout:
            self._take(said)
            if said.strip() == word:
                return True
        return False

    def _take(self, said: str) -> None:
        super()._take(said)
        word, _, rest = said.strip().partition(" ")
        if word == "no" and " " in rest:
            self.troubles.append(rest.partition(" ")[2])

    def go_on(self) -> None:
        """Let it go on from where it has paused, up to its next pause."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; what it had said before counts."""
        self.process.kill()
        self._read_rest()

    def let_end(self) -> int:
        """Let it go on without another pause; its exit code, once it has ended."""
        self.process.stdin.close()
        return self._read_rest()

    def _read_rest(self) -> int:
        for said in self.process.stdout:
            self._take(said)
        code = self.process.wait()
        self._watch.cancel()
        return code

    def _give_up(self) -> None:
        self.has_hung = True
        self.process.kill()

    def __enter__(self) -> "LiveApplication":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self.process.kill()
        self.process.__exit__(kind, error, trace)
