"""Runs the loader repeatedly, and kills it with SIGKILL: before chosen steps of a unit of work, and at random times."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from dualwrite.demo.victim import FIRST_STEP, VictimTask
from dualwrite.errors import DualWriteError

_LONGEST_RANDOM_DELAY = 0.01
"""The longest random delay in seconds. A unit of work takes about as long, so a kill may come at any step."""

_UNITS_FOR_EACH_KILL = 5
"""Units of work for each kill: more than a kill and a restart take."""


class Window(Enum):
    """The step before which the loader stops and is killed, and the action that recovery must then take."""

    BEFORE_PREPARE = ("PREPARE_KAFKA", "before prepare", "neither side has the batch: recovery must abort it")
    BEFORE_DECISION = (
        "COMMIT_DATABASE",
        "between prepare and DB commit",
        "Kafka is prepared, the database has not decided: recovery must abort it",
    )
    AFTER_DECISION = (
        "COMMIT_KAFKA",
        "between DB commit and Kafka commit",
        "the database has decided, Kafka has not heard: recovery must commit it",
    )

    def __init__(self, step: str, where: str, consequence: str) -> None:
        self.step = step
        self.where = where
        self.consequence = consequence


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill in the ``unit``-th unit of work of a run: in ``window``, or at a random time if there is none."""

    window: Window | None
    unit: int
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Death:
    """The result of a kill: the number of rows loaded before it, and the last step that the loader reported."""

    kill: Kill
    rows: int
    last_step: str

    def describe(self) -> str:
        """One line to print."""
        if self.kill.window is None:
            return f"at a random moment; the last step that had begun was {self.last_step or 'none'}"
        return f"{self.kill.window.where}: {self.kill.window.consequence}"


def plan(kills: int, units: int, chance: random.Random) -> list[Kill]:
    """``kills`` kills for a load of ``units`` units of work: one in each window, the others at random times.

    The order is random. In a short load the windows come first: a random kill may come too late, but a window must not.

    :param kills: at least the number of windows.
    """
    windows: list[Window | None] = [*Window]
    anywhere: list[Window | None] = [None] * (kills - len(Window))
    if units >= _UNITS_FOR_EACH_KILL * kills:
        windows += anywhere
    chance.shuffle(windows)
    windows += anywhere[: kills - len(windows)]
    widest = max(1, units // (2 * kills))  # keep half of the load for the time between a plan and its kill
    return [Kill(window, chance.randint(1, widest), chance.uniform(0, _LONGEST_RANDOM_DELAY)) for window in windows]


def run_to_death(task: VictimTask, kill: Kill, on_rows: Callable[[int], None]) -> Death | None:
    """Run the loader until it is killed as ``kill`` plans; None if the loader ended before that.

    :raises DualWriteError: if the loader failed by itself.
    """
    window = kill.window
    task = replace(task, pause_step=window.step if window else "", pause_unit=kill.unit)
    heard = _Heard(on_rows)
    with _running(task) as process:
        assert process.stdout is not None
        for line in process.stdout:
            heard.take(line)
            if heard.is_paused:
                process.kill()
            elif window is None and heard.units == kill.unit:
                time.sleep(kill.delay)
                process.kill()
                break
        for line in process.stdout:  # the lines that it printed before it died
            heard.take(line)
        if process.wait() == -signal.SIGKILL:
            return Death(kill, heard.rows, heard.last_step)
        _check_exit(process)
    return None


class _Heard:
    """The loader's reports so far."""

    def __init__(self, on_rows: Callable[[int], None]) -> None:
        self.rows = 0
        self.units = 0
        self.last_step = ""
        self.is_paused = False
        self._on_rows = on_rows

    def take(self, line: str) -> None:
        """Take one line of the loader's output."""
        word, _, rest = line.strip().partition(" ")
        if word == "rows":
            self.rows = int(rest)
            self._on_rows(self.rows)
        elif word == "step":
            self.last_step = rest
            self.units += rest == FIRST_STEP
        elif word == "paused":
            self.is_paused = True


def run_to_end(task: VictimTask, on_rows: Callable[[int], None]) -> None:
    """Run the loader undisturbed.

    :raises DualWriteError: if it failed.
    """
    run_to_death(task, Kill(None, unit=-1), on_rows)


def _running(task: VictimTask) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603  our own module, no shell
        task.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _check_exit(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    complaint = process.stderr.read().strip()
    if process.wait() != 0:
        raise DualWriteError(f"the loader failed by itself: {complaint or 'without a message'}")
