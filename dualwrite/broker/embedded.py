"""A bundled broker as a child process of this one, for tests, demos and small applications."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from dualwrite.broker.data_dir import parse_data_dir
from dualwrite.errors import ConfigurationError, KafkaUnavailableError

_POLL_SECONDS = 0.01
_LOG_NAME = "broker.log"


class EmbeddedBroker:
    """``with EmbeddedBroker(data_dir) as broker: … broker.bootstrap_servers``.

    The broker is a process of its own, so that it does not share this process's interpreter lock, nor its crashes. It
    stops when the ``with`` block ends, or when this process dies in any way. Its log is ``broker.log`` in the data
    directory.

    :param data_dir: the directory for all data. Opening it again finds everything that was acknowledged.
    :param listen: HOST:PORT; port 0 picks a free one at every start.
    :param durability: ``fsync`` or ``os``, as for ``dualwrite broker``.
    :param config: broker settings by Kafka's names.
    :param start_timeout: seconds to wait until connections are accepted.
    :raises ConfigurationError: if ``data_dir`` is an empty text.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        listen: str = "127.0.0.1:0",
        durability: str = "fsync",
        config: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        self._data_dir = parse_data_dir(os.fspath(data_dir))
        self._listen = listen
        self._durability = durability
        self._config = dict(config or {})
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for ``bootstrap.servers``.

        :raises ConfigurationError: if the broker is not running.
        """
        if self._process is None:
            raise ConfigurationError("the embedded broker is not running; call start() or use it in a with statement")
        return self._address

    @property
    def pid(self) -> int | None:
        """The broker's process id, None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> "EmbeddedBroker":
        """Start the process and wait until it accepts connections; does nothing if it is already running.

        :raises ConfigurationError: if the broker refuses to start; the message is the broker's own last line.
        :raises KafkaUnavailableError: if it does not get ready within ``start_timeout``.
        """
        if self._process is not None:
            return self
        with tempfile.TemporaryDirectory(prefix="dualwrite-broker-") as scratch, self._open_log() as log:
            ready = Path(scratch, "ready")
            process = self._spawn(self._command(ready), log)
            try:
                self._address = self._wait_until_ready(process, ready, log)
            except BaseException:
                _end(process)
                raise
        self._process = process
        return self

    def stop(self, timeout: float = 15.0) -> None:
        """Stop the broker cleanly; after ``timeout`` seconds, kill it (acknowledged records are not lost)."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        _end(process)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would, to test what survives."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def __enter__(self) -> "EmbeddedBroker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, ready: Path) -> list[str]:
        command = [sys.executable, "-m", "dualwrite", "broker", "--data-dir", str(self._data_dir)]
        command += ["--listen", self._listen, "--durability", self._durability, "--ready-file", str(ready)]
        command.append("--embedded")
        for key, value in self._config.items():
            command += ["--config", f"{key}={value}"]
        return command

    def _spawn(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C in the terminal is for the application, which then stops the broker. This process
        # never writes to the pipe to its stdin; the pipe ends with this process.
        return subprocess.Popen(  # noqa: S603  our own module, no shell
            command, stdin=subprocess.PIPE, stderr=log, start_new_session=True
        )

    def _open_log(self) -> IO[bytes]:
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return (self._data_dir / _LOG_NAME).open("a+b")
        except OSError as error:
            raise ConfigurationError(f"data directory {self._data_dir}: {error.strerror}") from None

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]", ready: Path, log: IO[bytes]) -> str:
        began = log.seek(0, os.SEEK_END)
        deadline = time.monotonic() + self._start_timeout
        while not ready.exists():
            if process.poll() is not None:
                log.seek(began)
                lines = log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
                raise ConfigurationError(f"the broker did not start: {lines[-1].removeprefix('dualwrite: ')}")
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"the broker was not ready within {self._start_timeout:g} s")
            time.sleep(_POLL_SECONDS)
        return ready.read_text().splitlines()[0]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
