"""A Celery worker as a process of its own, over a broker of files."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from celery import Task
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps

from tests.support.examples import programs
from tests.support.waiting import PATIENCE_SECONDS, eventually

FOLDER = "CELERY_FOLDER"
"""The environment variable with the directory of the broker."""


class WholeFilesChannel(filesystem.Channel):
    """Its files appear whole. A reader of kombu's own takes a file away that its writer has just made empty."""

    def _put(self, queue: str, payload: Mapping[str, Any], **_: Any) -> None:
        name = f"{time.monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"  # readers take the first name first
        path = Path(self.data_folder_out, name)
        unseen = path.with_suffix(".unseen")
        unseen.write_bytes(str_to_bytes(dumps(payload)))
        unseen.rename(path)


class WholeFiles(filesystem.Transport):
    """kombu's transport ``filesystem``, with :class:`WholeFilesChannel`."""

    Channel = WholeFilesChannel


BROKER_URL = "wholefiles://"
TRANSPORT_ALIASES["wholefiles"] = f"{__name__}:WholeFiles"


def broker_options(folder: str) -> dict[str, Any]:
    """The transport's options over ``folder``."""
    queue = f"{folder}/queue"
    return {"data_folder_in": queue, "data_folder_out": queue, "control_folder": folder, "polling_interval": 0.05}


class CeleryWorker:
    """``with CeleryWorker(app, environment, folder) as worker:`` a worker with two processes.

    :param app: the module of the application.
    :param folder: a directory for the broker and the log.
    """

    def __init__(self, app: str, environment: Mapping[str, str], folder: Path) -> None:
        (folder / "queue").mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._log = folder / "worker.log"
        self._environment = programs.environment(**environment, **{FOLDER: str(folder)})
        self._command = [sys.executable, "-m", "celery", "--app", app, "worker"]
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, task: Task, arguments: Sequence[Any], **options: Any) -> None:
        """Queue a task."""
        with Connection(BROKER_URL, transport_options=broker_options(str(self._folder))) as connection:
            task.apply_async(arguments, connection=connection, **options)

    def log(self) -> str:
        """What the worker has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the worker has said ``text`` so often."""
        assert eventually(lambda: self.log().count(text) >= count), f"{text}: {self.log()}"

    def stop(self) -> int:
        """A warm shutdown: tasks that run are finished; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> "CeleryWorker":
        options = ["--concurrency", "2", "--loglevel", "INFO", "--without-mingle", "--without-gossip"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *options],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if error is not None:
            print(self.log())
