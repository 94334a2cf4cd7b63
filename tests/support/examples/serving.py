"""A web service as a process of its own, on a socket that outlives it: requests wait while it starts."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.examples import programs

_SECONDS = 60.0  # a service that hangs fails the test; nothing is expected to take that long


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Message  # any case of a name will do


class Service:
    """``with Service([sys.executable, "-m", …, "{fd}"], environment)``: the command is told the socket's number.

    :param log: the file that gets what it says.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._command = [word.replace("{fd}", str(self._socket.fileno())) for word in command]
        self._environment = programs.environment(**environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Start the process; in a group of its own, so that its workers can be killed with it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                env=self._environment,
                pass_fds=[self._socket.fileno()],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def workers(self) -> list[int]:
        """The process ids of the children that the process has now."""
        assert self._process is not None
        pid = self._process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self) -> None:
        """SIGKILL, the workers too."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> str:
        """SIGTERM; returns what the service has said from its start to its end."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_SECONDS)
        return self._log.read_text(encoding="utf-8", errors="replace")

    def post(self, path: str, body: Any) -> Answer:
        """POST ``body`` as JSON; an answer of any status is returned. OSError: there was none."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return _answer(request)

    def get(self, path: str) -> Answer:
        """GET; an answer of any status is returned."""
        return _answer(urllib.request.Request(self.url + path))

    def __enter__(self) -> "Service":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.kill()
        self._socket.close()
        if error is not None:
            print(self._log.read_text(encoding="utf-8", errors="replace"))


def _answer(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            return Answer(response.status, json.load(response), response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, json.load(error), error.headers)


GUNICORN = ["-m", "gunicorn", "--workers", "4", "--threads", "4", "--bind", "fd://{fd}", "--worker-tmp-dir", "/dev/shm"]
