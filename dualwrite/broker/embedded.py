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
from weakref import WeakSet

from dualwrite.broker.clients.listeners import LISTENERS
from dualwrite.broker.process.data_dir import PRIVATE_DIRECTORY, parse_data_dir, private
from dualwrite.broker.settings.properties import write_properties
from dualwrite.errors import ConfigurationError, KafkaUnavailableError

_POLL_SECONDS = 0.01
_LOG_NAME = "broker.log"
_PROBLEM = "dualwrite: "
"""The beginning of a line about what prevents the start."""
_ANY_PORT = "127.0.0.1:0"
_PIPES: WeakSet[IO[bytes]] = WeakSet()
"""The brokers' stdins. A forked process closes them, or a broker would outlive the process that it belongs to."""


class EmbeddedBroker:
    """``with EmbeddedBroker(data_dir) as broker: … broker.bootstrap_servers``.

    The broker runs in its own process, so it shares neither the interpreter lock nor the crashes of this process. It
    stops when the ``with`` block ends, or when this process dies in any way, even if a forked child lives on. Its log
    is ``broker.log`` in the data directory.

    :param data_dir: the directory for all data. A later broker on it has everything that was acknowledged.
    :param listen: HOST:PORT of one PLAINTEXT listener; port 0 picks a free one at every start. The default is
        127.0.0.1:0, unless ``config`` has ``listeners``.
    :param durability: ``fsync`` or ``os``, as for ``dualwrite broker``.
    :param config: broker settings by Kafka's names. They are on no command line, so they may hold passwords.
    :param start_timeout: seconds to wait until the broker accepts connections.
    :param allow_anonymous: allow listeners that other machines reach and that authenticate no client.
    :raises ConfigurationError: if ``data_dir`` is empty.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        listen: str | None = None,
        durability: str = "fsync",
        config: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
        allow_anonymous: bool = False,
    ) -> None:
        self.data_dir = parse_data_dir(os.fspath(data_dir))
        """The directory of its data."""
        self._allow_anonymous = allow_anonymous
        self._durability = durability
        self._config = dict(config or {})
        self._listen = _ANY_PORT if listen is None and LISTENERS not in self._config else listen
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: dict[str, str] = {}

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener, for ``bootstrap.servers``.

        :raises ConfigurationError: if the broker is not running.
        """
        return next(iter(self.listeners.values()))

    @property
    def listeners(self) -> Mapping[str, str]:
        """HOST:PORT of each listener, by its name in upper case.

        :raises ConfigurationError: if the broker is not running.
        """
        if self._process is None:
            raise ConfigurationError("the embedded broker is not running; call start() or use it in a with statement")
        return self._addresses

    @property
    def pid(self) -> int | None:
        """The broker's process id, None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> "EmbeddedBroker":
        """Start the process and wait until it accepts connections. Does nothing if it is already running.

        :raises ConfigurationError: if the broker refuses to start. The message has every reason that its log
            gives.
        :raises KafkaUnavailableError: if it does not get ready within ``start_timeout``.
        """
        if self._process is not None:
            return self
        with tempfile.TemporaryDirectory(prefix="dualwrite-broker-") as scratch, self._open_log() as log:
            ready = Path(scratch, "ready")
            settings = Path(scratch, "settings.properties")  # the directory is readable for this user alone
            settings.write_text(write_properties(self._config), encoding="utf-8")
            began = log.seek(0, os.SEEK_END)
            process = self._spawn(self._command(ready, settings), log)
            try:
                self._addresses = self._wait_until_ready(process, ready, log, began)
            except BaseException:
                _end(process)
                raise
        self._process = process
        return self

    def stop(self, timeout: float = 15.0) -> None:
        """Stop the broker cleanly. After ``timeout`` seconds, kill it; acknowledged records are not lost."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        _end(process)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, to test a crash."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def __enter__(self) -> "EmbeddedBroker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, ready: Path, settings: Path) -> list[str]:
        command = [sys.executable, "-m", "dualwrite", "broker", "--data-dir", str(self.data_dir)]
        command += ["--durability", self._durability, "--ready-file", str(ready), "--config-file", str(settings)]
        command.append("--embedded")
        if self._listen is not None:
            command += ["--listen", self._listen]
        if self._allow_anonymous:
            command.append("--allow-anonymous")
        return command

    def _spawn(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        # The broker has its own session: Ctrl-C in the terminal is for the application, which then stops the broker.
        # This process never writes to the broker's stdin, a pipe that ends with this process.
        process = subprocess.Popen(  # noqa: S603  our own module, no shell
            command, stdin=subprocess.PIPE, stderr=log, start_new_session=True
        )
        assert process.stdin is not None
        _PIPES.add(process.stdin)
        return process

    def _open_log(self) -> IO[bytes]:
        try:
            self.data_dir.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            return open(self.data_dir / _LOG_NAME, "a+b", opener=private)
        except OSError as error:
            raise ConfigurationError(f"data directory {self.data_dir}: {error.strerror}") from None

    def _wait_until_ready(
        self, process: "subprocess.Popen[bytes]", ready: Path, log: IO[bytes], began: int
    ) -> dict[str, str]:
        """The addresses of the broker.

        :param began: where in ``log`` its own lines begin.
        """
        deadline = time.monotonic() + self._start_timeout
        while not ready.exists():
            if process.poll() is not None:
                log.seek(began)
                lines = log.read().decode(errors="replace").strip().splitlines() or ["its log is empty"]
                problems = [line.removeprefix(_PROBLEM) for line in lines if line.startswith(_PROBLEM)] or lines[-1:]
                raise ConfigurationError(f"the broker did not start: {'; '.join(problems)}")
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"the broker was not ready within {self._start_timeout:g} s")
            time.sleep(_POLL_SECONDS)
        _, *lines = ready.read_text().splitlines()
        return {name: address for name, _, address in (line.partition(" ") for line in lines)}


def _close_inherited_pipes() -> None:
    for pipe in _PIPES:
        pipe.close()


os.register_at_fork(after_in_child=_close_inherited_pipes)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
