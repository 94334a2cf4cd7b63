"""Client processes: each says ``ready`` once it is connected and warm, and then prints one line of JSON for each line
that it reads.

    python -m MODULE WORKLOAD '{"bootstrap": "HOST:PORT", "topic": "t", ...}'

A module of workloads ends in :func:`serve`; :func:`started` and :func:`run` are the other end of the pipes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Result = dict[str, Any]
TaskInput = Callable[[], Result]
"""A workload that is connected and warm, and starts when it is called."""


class ObservedProcess:
    """One process, from outside.

    :param home: the directory whose packages it imports, if not the present one.
    """

    def __init__(self, module: str, workload: str, settings: Mapping[str, object], home: Path | None = None) -> None:
        self._workload = workload
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, workload, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
        )

    def await_ready(self) -> None:
        """Return once it is ready.

        :raises RuntimeError: if it fails; it has said why on stderr.
        """
        if self._line() != "ready\n":
            raise RuntimeError(f"a client of {self._workload} did not get ready")

    def say(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def result(self) -> Result:
        """What it did, with ``began`` and ``ended`` on the monotonic clock and the processor time ``cpu``, in seconds.

        :raises RuntimeError: if it failed; it has said why on stderr.
        """
        line = self._line()
        if not line:
            raise RuntimeError(f"a client of {self._workload} failed")
        result: Result = json.loads(line)
        return result

    def end(self) -> None:
        """Let it end by itself, when it has read all lines."""
        self._process.communicate()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def started(module: str, work: Sequence[tuple[str, Mapping[str, object]]]) -> Iterator[list[ObservedProcess]]:
    """A process for each workload with its settings, all of them ready; killed in the end."""
    clients = [ObservedProcess(module, workload, settings) for workload, settings in work]
    try:
        for client in clients:
            client.await_ready()
        yield clients
    finally:
        for client in clients:
            client.kill()


def run(
    module: str, workload: str, settings: Sequence[Mapping[str, object]], on_go: Callable[[], None]
) -> list[Result]:
    """The results of one process for each of ``settings``.

    :param on_go: called when all are ready, before they are let go.
    """
    with started(module, [(workload, each) for each in settings]) as clients:
        on_go()
        for client in clients:
            client.say("go")
        return [client.result() for client in clients]


def process_clock(pid: int) -> int:
    """The clock of the processor time of all threads of a process, for ``time.clock_gettime``: it has nanoseconds where
    /proc has hundredths of a second."""
    return (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it on Linux


def serve(workloads: Mapping[str, Callable[..., TaskInput]]) -> None:
    """Be such a process."""
    work = workloads[sys.argv[1]](**json.loads(sys.argv[2]))
    print("ready", flush=True)
    while sys.stdin.readline():
        began, cpu_before = time.monotonic(), time.process_time()
        result = work()
        timed = {"began": began, "ended": time.monotonic(), "cpu": time.process_time() - cpu_before, **result}
        print(json.dumps(timed), flush=True)
