"""The start and the stop of a broker, in this process: no step comes before another one that it needs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from dualwrite.broker import broker as module
from dualwrite.broker import metrics
from dualwrite.broker.broker import serve, write_ready_file
from dualwrite.broker.clients.listeners import PLAINTEXT_LISTENER
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.listening import BoundListener, close_all
from dualwrite.broker.metrics.health import BrokerStage, Health
from dualwrite.broker.metrics.http import MetricsServer
from dualwrite.broker.process.stop_deadline import StopDeadline
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.compaction import Compaction
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import GroupCoordinator
from dualwrite.broker.runtime.groups.consumer import ConsumerGroupCoordinator
from dualwrite.broker.sasl_listeners import SaslListeners
from dualwrite.broker.server import Server
from dualwrite.errors import ConfigurationError, CorruptLogError

START: dict[str, Any] = {
    "finish_decided": TransactionCoordinator,
    "start of groups": GroupCoordinator,
    "start of consumer groups": ConsumerGroupCoordinator,
    "start of the server": Server,
    "measure": MetricsServer,
    "write_ready_file": module,
}
STOP: dict[str, Any] = {
    "begin": StopDeadline,
    "close of the compaction": Compaction,
    "close of the server": Server,
    "close of SASL": SaslListeners,
    "close of the metrics": MetricsServer,
    "write_ends": TransactionCoordinator,
    "close of the flusher": Flusher,
    "checkpoint": Cluster,
    "end": StopDeadline,
}
"""Each step, in order: what it is called, which begins with the name of the function, and where that is."""


class StepSeen(NamedTuple):
    """What was so when a step began."""

    stage: BrokerStage
    is_ready: bool
    chores: int
    """Those that run."""


def note_made(monkeypatch: pytest.MonkeyPatch, name: str, note: Callable[[Any], None]) -> None:
    """Call ``note`` with what the broker makes by ``name``."""
    make = getattr(module, name)

    def making(*arguments: Any) -> Any:
        made = make(*arguments)
        note(made)
        return made

    monkeypatch.setattr(module, name, making)


class Witness:
    """Notes each step as the broker takes it, and its last one of several; sends SIGTERM once the broker is ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready_file: Path) -> None:
        self.moments: dict[str, StepSeen] = {}
        self._ready_file = ready_file
        self._health: list[Health] = []
        self.chores: list[Any] = []
        note_made(monkeypatch, "Health", self._health.append)
        note_made(monkeypatch, "begin_chores", self.chores.extend)
        for step, owner in {**START, **STOP}.items():
            self._watch(monkeypatch, step, owner)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, step: str, owner: Any) -> None:
        name = step.partition(" ")[0]
        act = getattr(owner, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            self.moments.pop(step, None)
            running = sum(not chore.done() for chore in self.chores)
            self.moments[step] = StepSeen(self._health[0].stage, self._ready_file.exists(), running)
            if step == "write_ready_file":
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
                os.kill(os.getpid(), signal.SIGTERM)
            return act(*arguments, **keywords)

        monkeypatch.setattr(owner, name, watched)


def options(tmp_path: Path, **more: Any) -> BrokerOptions:
    return BrokerOptions(tmp_path / "data", config={"listeners": "PLAINTEXT://127.0.0.1:0"}, **more)


@pytest.fixture(autouse=True)
def _this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker leaves the memory, the open files and the life of this process as they are."""

    def exit_at_once(code: int) -> NoReturn:
        raise AssertionError(f"the broker has ended its process with code {code}")

    monkeypatch.setattr(os, "_exit", exit_at_once)
    monkeypatch.setattr(module.gc, "freeze", lambda: None)
    monkeypatch.setattr(module.resource, "setrlimit", lambda *_: None)


def test_each_step_of_a_start_and_a_stop_comes_after_those_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    witness = Witness(monkeypatch, ready)
    serve(options(tmp_path, ready_file=ready, metrics=("127.0.0.1", 0)))
    moments = witness.moments
    assert list(moments) == [*START, *STOP]
    assert moments["start of the server"] == (BrokerStage.RECOVERING, False, 0)
    assert moments["write_ready_file"] == (BrokerStage.SERVING, False, 0), "a reader of the file is served at once"
    assert moments["begin"][1:] == (True, len(witness.chores))
    assert {moments[step] for step in [*STOP][1:]} == {(BrokerStage.STOPPING, True, 0)}, "no chore runs any more"
    assert not ready.exists()


def test_a_start_that_fails_leaves_no_round_of_fsyncs_in_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise CorruptLogError("damaged")

    witness, bound = Witness(monkeypatch, tmp_path / "ready"), list[BoundListener]()
    note_made(monkeypatch, "bind_listeners", bound.extend)
    monkeypatch.setattr(module, "TransactionCoordinator", fail)
    with pytest.raises(CorruptLogError, match="damaged"):
        serve(options(tmp_path))
    close_all(bound)
    assert list(witness.moments) == ["close of the flusher"]


def test_a_missing_library_is_noticed_before_anything_has_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(metrics, "http")
    monkeypatch.setitem(sys.modules, "dualwrite.broker.metrics.http", None)
    with pytest.raises(ImportError):
        serve(options(tmp_path, metrics=("127.0.0.1", 0), ready_file=tmp_path / "missing" / "ready"))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("embedded", [True, False])
def test_only_an_embedded_broker_waits_for_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, embedded: bool
) -> None:
    """Which was another process's, and ends as soon as it notices that this was killed."""
    waits: list[float] = []

    def refuse(_: Path, wait_seconds: float) -> NoReturn:
        waits.append(wait_seconds)
        raise ConfigurationError("in use")

    monkeypatch.setattr(module, "exclusive", refuse)
    with pytest.raises(ConfigurationError, match="in use"):
        serve(options(tmp_path, embedded=embedded))
    assert [wait > 0 for wait in waits] == [embedded]


def test_an_embedded_broker_looks_no_more_at_its_stdin_once_its_parent_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a pipe can be read again and again: the event loop would never rest during the stop."""
    broker_end, parents_end = os.pipe()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with os.fdopen(broker_end) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            stopped = module.stop_request(loop, embedded=True)
            os.close(parents_end)
            await asyncio.wait_for(stopped.wait(), 20)
            assert not loop.remove_reader(stdin.fileno()), "there was one"

    asyncio.run(main())


# --- the ready file


def test_the_ready_file_of_an_earlier_broker_is_gone_before_a_start_takes_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready, seen = tmp_path / "ready", list[bool]()

    def fail(_: BrokerOptions) -> NoReturn:
        seen.append(ready.exists())
        raise ConfigurationError("no such address")

    ready.write_text("127.0.0.1:1\n")
    monkeypatch.setattr(module, "bind_listeners", fail)
    with pytest.raises(ConfigurationError, match="no such address"):
        serve(options(tmp_path, ready_file=ready))
    assert seen == [False]


def test_a_ready_file_that_cannot_be_written_is_noticed_before_a_start_takes_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_: BrokerOptions) -> NoReturn:
        raise AssertionError("the start goes on")

    monkeypatch.setattr(module, "bind_listeners", fail)
    monkeypatch.setattr(module, "exclusive", lambda *_: nullcontext())
    ready = tmp_path / "missing" / "ready"
    with pytest.raises(ConfigurationError, match=f"ready file {ready}: No such file or directory"):
        serve(options(tmp_path, ready_file=ready))


def test_an_empty_name_of_a_ready_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^ready file \.: Is a directory$"):
        serve(options(tmp_path, ready_file=Path("")))


def test_a_reader_never_sees_a_part_of_the_ready_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready, names = tmp_path / "ready", list[str]()
    write = Path.write_text

    def write_and_look(path: Path, text: str) -> int:
        written = write(path, text)
        names.extend(each.name for each in tmp_path.iterdir())
        return written

    monkeypatch.setattr(Path, "write_text", write_and_look)
    write_ready_file(ready, [PLAINTEXT_LISTENER])
    assert names == ["ready.tmp"]
    assert ready.read_text() == "127.0.0.1:9092\nPLAINTEXT 127.0.0.1:9092\n"
    assert [each.name for each in tmp_path.iterdir()] == ["ready"]
