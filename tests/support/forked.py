"""Processes of tests at the price of a fork: most of what a start of one takes is the import of its libraries.

Each is forked from a process that has imported them and has done nothing else: it has one thread and no connection. The
standard library starts that one, and ends it with this process.

So a forked broker has the environment that this process had at the first fork, and is not this process's child. A test
that needs the environment of now, or waits for a child, starts an EmbeddedBroker.
"""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import connection, reduction
from types import TracebackType
from typing import IO, Any

from dualwrite import EmbeddedBroker
from dualwrite.testing.kafka import KafkaBroker

IMPORTED = [
    "tests.support.crash.async_application",
    "tests.support.spark.batch_process",
    "dualwrite.broker.broker",
    "dualwrite.cli.broker",
    "aiosqlite",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "asyncpg",
    "psycopg",
    "pymysql",
    "uvloop",
]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(IMPORTED)

_ONE_AT_A_TIME = threading.Lock()
"""multiprocessing reads how a process has ended from a pipe, once, and a start of another one does that as well."""


class Forked:
    """``module.main(argument)`` in a process of its own, with the face of a subprocess.Popen.

    :param streams: descriptors of this process that become those of its stdin, stdout and stderr (0, 1 and 2).
    """

    def __init__(self, module: str, argument: Any, streams: Mapping[int, int]) -> None:
        with _ONE_AT_A_TIME:
            self._process = _CONTEXT.Process(target=_run, args=(module, argument, _Streams(streams)), daemon=True)
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _ONE_AT_A_TIME:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        with _ONE_AT_A_TIME:
            if self._process.exitcode is None:
                with suppress(ProcessLookupError):  # it has ended since, and the process that forked it has seen that
                    os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Forked):
    """With pipes for text to its stdin and from its stdout."""

    def __init__(self, module: str, argument: Any) -> None:
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        self.stdin, self.stdout = os.fdopen(to_stdin, "w"), os.fdopen(from_stdout)
        super().__init__(module, argument, {0: stdin, 1: stdout, 2: 2})
        os.close(stdin)
        os.close(stdout)

    def __enter__(self) -> "Piped":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.stdin.close()
        self.wait()


class ForkedBroker(EmbeddedBroker):
    """An EmbeddedBroker that is forked."""

    def _spawn(self, command: list[str], log: IO[bytes]) -> "BrokerProcess":
        return BrokerProcess(command, log)


class ForkedKafkaBroker(ForkedBroker, KafkaBroker):
    """A KafkaBroker that is forked."""


class BrokerProcess(Forked):
    """``dualwrite broker``; as long as ``stdin`` is open, its stdin does not end.

    :param module: whose ``main`` runs it; one with an argument of its own gets a pair, with the command line first.
    """

    def __init__(self, command: list[str], log: IO[bytes], module: str = __name__, argument: Any = None) -> None:
        stdin, to_stdin = os.pipe()
        self.stdin = os.fdopen(to_stdin, "wb")
        arguments = command[command.index("dualwrite") + 1 :]
        given = arguments if argument is None else (arguments, argument)
        super().__init__(module, given, {0: stdin, 2: log.fileno()})
        os.close(stdin)


def main(arguments: list[str]) -> None:
    """The broker's, in the process that was forked for it."""
    from dualwrite.cli.main import main

    os.setsid()
    sys.exit(main(arguments))


class _Streams:
    """Descriptors, by what they become where this is unpickled."""

    def __init__(self, descriptors: Mapping[int, int]) -> None:
        self.descriptors = descriptors

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, ({number: reduction.DupFd(each) for number, each in self.descriptors.items()},)


def _received(given: Mapping[int, Any]) -> _Streams:
    return _Streams({number: each.detach() for number, each in given.items()})


def _run(module: str, argument: Any, streams: _Streams) -> None:
    for number, descriptor in streams.descriptors.items():
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has given it another
    importlib.import_module(module).main(argument)
