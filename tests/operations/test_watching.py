"""``dualwrite transactions list --watch``: as a process of its own, ended by Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import IO

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite
from tests.support.servers.postgresql import PostgreSQL

SECONDS = 30
"""The most that a line may take."""


class Watching:
    """``dualwrite transactions list --watch 0.05 WORDS`` as a process."""

    def __init__(self, site: OperationsSite, *words: str, stdout: int = subprocess.PIPE) -> None:
        command = [sys.executable, "-m", "dualwrite", "transactions", "list", "--watch", "0.05", *words]
        command += ["--application", site.application, "--db", site.url]
        command += ["--bootstrap-servers", site.broker.bootstrap_servers]
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
        self.errors: Queue[str] = Queue()
        self.lines: Queue[str] = Queue()
        self._readers = [_read(self.process.stderr, self.errors)]
        if self.process.stdout is not None:
            self._readers.append(self.read(self.process.stdout))

    def until(self, words: str) -> str:
        """The next line of stdout with ``words``."""
        while words not in (line := self.lines.get(timeout=SECONDS)):
            pass
        return line

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def read(self, stream: IO[str]) -> threading.Thread:
        """Take the lines of its stdout from ``stream``."""
        return _read(stream, self.lines)


def _read(stream: IO[str] | None, lines: "Queue[str]") -> threading.Thread:
    assert stream is not None

    def read() -> None:
        with suppress(OSError), stream:  # so ends a terminal
            for line in stream:
                lines.put(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


@pytest.fixture
def watching() -> Iterator[list[Watching]]:
    made: list[Watching] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.slow
def test_the_list_is_shown_again_until_ctrl_c(site: OperationsSite, watching: list[Watching]) -> None:
    watching.append(watch := Watching(site))
    watch.until("has no slot in this database")
    site.leave("one")
    assert watch.until("left behind") == "1 transaction left behind: see dualwrite transactions resolve"
    assert watch.until(f"{site.slot()} ").endswith("commit")
    watch.until("left behind")
    assert watch.lines.get(timeout=SECONDS) == "", "an empty line follows each list"
    assert watch.lines.get(timeout=SECONDS).endswith("+00:00"), "and the next one begins with the time"
    assert watch.interrupt() == 130
    assert watch.errors.empty()
    assert not any("\x1b" in line for line in watch.lines.queue)


@pytest.mark.slow
def test_json_is_one_document_a_line(site: OperationsSite, watching: list[Watching]) -> None:
    site.leave("one")
    watching.append(watch := Watching(site, "--json"))
    for _ in range(2):
        (view,) = json.loads(watch.lines.get(timeout=SECONDS))["transactions"]
        assert view["foretold"] == {"outcome": "committed", "detail": ""}
    assert watch.interrupt() == 130
    assert watch.errors.empty()


def outage_is_one_line(watch: Watching, begin: Callable[[], object], end: Callable[[], object]) -> None:
    """An outage of either side is one line on stderr, and the watch goes on after it."""
    watch.until("has no slot in this database")
    for _ in range(2):  # a second outage is another line
        begin()
        line = watch.errors.get(timeout=SECONDS)
        assert line.startswith("dualwrite: ")
        assert line.endswith("; looking again every 0.05 s")
        while not watch.lines.empty():
            watch.lines.get()
        end()
        watch.until("has no slot in this database")
        assert watch.errors.empty()
    assert watch.interrupt() == 130


@pytest.mark.slow
def test_an_outage_of_the_tables_is_one_line(site: OperationsSite, watching: list[Watching]) -> None:
    def rename(old: str, new: str) -> None:
        with site.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")

    watching.append(watch := Watching(site))
    name = "kafka_transaction_state"
    outage_is_one_line(watch, lambda: rename(name, "away"), lambda: rename("away", name))


@pytest.mark.slow
@pytest.mark.postgresql
def test_an_outage_of_the_database_server_is_one_line(
    broker: KafkaBroker, own_postgresql: PostgreSQL, watching: list[Watching]
) -> None:
    site = OperationsSite(own_postgresql.url, broker)
    watching.append(watch := Watching(site))
    outage_is_one_line(watch, own_postgresql.kill, own_postgresql.start)
    site.close()


@pytest.mark.slow
def test_an_outage_of_the_broker_is_one_line(tmp_path: Path, watching: list[Watching]) -> None:
    with ForkedKafkaBroker(tmp_path / "broker") as broker:
        site = OperationsSite(f"sqlite:///{tmp_path / 'app.db'}", broker)
        watching.append(watch := Watching(site))
        outage_is_one_line(watch, broker.stop, broker.start)
        site.close()


@pytest.mark.slow
def test_a_terminal_is_cleared_before_each_list(site: OperationsSite, watching: list[Watching]) -> None:
    controller, terminal = pty.openpty()
    watching.append(watch := Watching(site, stdout=terminal))
    os.close(terminal)
    watch.read(os.fdopen(controller))
    for _ in range(2):
        assert watch.lines.get(timeout=SECONDS).startswith("\x1b[H\x1b[2J20")
        assert watch.lines.get(timeout=SECONDS).startswith(f"application {site.application!r} has no slot")
    assert watch.interrupt() == 130


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ("0", "--watch 0: use a number of seconds above 0, up to 86400"),
        ("-1", "--watch -1: use a number of seconds above 0, up to 86400"),
        ("nan", "--watch nan: use a number of seconds above 0, up to 86400"),
        ("1e9", "--watch 1e+09: use a number of seconds above 0, up to 86400"),
        ("soon", "argument --watch: invalid float value: 'soon'; see dualwrite transactions list --help"),
    ],
)
def test_a_wrong_interval_is_one_line(site: OperationsSite, seconds: str, line: str) -> None:
    result = site.run("transactions", "list", "--watch", seconds)
    assert (result.code, result.out, result.err) == (2, "", f"dualwrite: {line}\n")


def test_a_first_look_that_fails_ends_the_command(site: OperationsSite) -> None:
    site.url = f"{site.url}-misspelled"
    result = site.run("transactions", "list", "--watch")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("dualwrite: there is no database file ")
