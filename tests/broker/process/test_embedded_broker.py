"""EmbeddedBroker: a broker from Python, its errors, and that it leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from dualwrite.broker import embedded
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from tests.support.child import in_child
from tests.support.requests.calls import batch, is_served, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_broker_serves_inside_the_with_block_only(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "made" / "for it") as broker:
        pid = broker.pid
        assert pid is not None
        assert pid != os.getpid()
        with RawClient(broker.bootstrap_servers) as client:
            assert metadata(client).cluster_id
    assert (broker.pid, is_running(pid)) == (None, False)
    with pytest.raises(ConfigurationError, match="not running"):
        _ = broker.bootstrap_servers


def test_the_broker_stops_when_its_block_raises(tmp_path: Path) -> None:
    pids = []

    def fail() -> None:
        with EmbeddedBroker(tmp_path) as broker:
            pids.append(broker.pid)
            raise KeyError("the user's own")

    with pytest.raises(KeyError):
        fail()
    assert not is_running(pids[0])


def test_acknowledged_records_are_there_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        produce(client, topic, batch([b"v"]))
    with EmbeddedBroker(tmp_path, durability="os") as broker, RawClient(broker.bootstrap_servers) as client:
        assert read_all(client, topic) == [b"v"]


def test_starting_and_stopping_twice_is_harmless(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    broker.stop()
    broker.kill()
    assert broker.start() is broker
    pid = broker.pid
    assert broker.start().pid == pid
    broker.kill()
    broker.kill()
    broker.stop()
    assert broker.pid is None


@pytest.mark.slow
def test_a_broker_with_a_given_port_restarts_on_that_port(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = EmbeddedBroker(tmp_path, listen=address)
    for end in (broker.kill, broker.stop):
        with broker.start(), RawClient(address) as client:
            assert (broker.bootstrap_servers, bool(metadata(client).cluster_id)) == (address, True)
            end()


@pytest.mark.slow
def test_a_broker_that_died_can_be_started_again(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        broker.stop()
        with broker.start(), RawClient(broker.bootstrap_servers) as client:
            assert metadata(client).cluster_id


@pytest.mark.slow
def test_the_broker_runs_in_a_session_of_its_own(tmp_path: Path) -> None:
    """So that Ctrl-C reaches the application alone, which may still need its broker to stop cleanly."""
    with EmbeddedBroker(tmp_path) as broker:
        assert broker.pid is not None
        assert os.getsid(broker.pid) == broker.pid


def test_a_broker_that_is_killed_from_outside_can_be_stopped(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert not is_running(pid)


PARENT = """
import os, sys
from dualwrite.broker.embedded import EmbeddedBroker
broker = EmbeddedBroker(sys.argv[1]).start()
print(broker.bootstrap_servers, flush=True)
if "fork" in sys.argv:
    os.fork()
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["fork"]], ids=["alone", "with a child that lives on"])
def test_the_broker_dies_with_its_parent_and_frees_its_directory_at_once(tmp_path: Path, more: list[str]) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        with RawClient(address) as client:
            cluster_id = metadata(client).cluster_id
        parent.kill()
        with EmbeddedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
            assert metadata(client).cluster_id == cluster_id
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address.split(":"))  # type: ignore[arg-type]


def test_a_forked_child_does_not_stop_the_broker(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        assert in_child(lambda: broker.stop() is None)
        with RawClient(broker.bootstrap_servers) as client:
            assert is_served(client)


def test_the_brokers_log_is_in_the_data_directory(tmp_path: Path) -> None:
    for _ in range(2):
        with EmbeddedBroker(tmp_path):
            pass
    assert (tmp_path / "broker.log").read_text().count("listening on 127.0.0.1:") == 2


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": {"no.such.setting": "1"}}, "unknown broker setting 'no.such.setting'"),
        ({"config": {"num.partitions": "none"}}, "num.partitions=none: Not a number of type INT"),
        ({"listen": "nowhere"}, "listen address 'nowhere': expected HOST:PORT"),
        ({"durability": "maybe"}, "--durability.*maybe"),
    ],
)
def test_the_brokers_refusal_is_the_error_message(tmp_path: Path, arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^the broker did not start: .*{words}"):
        EmbeddedBroker(tmp_path, **arguments).start()  # type: ignore[arg-type]


class EarlyEndingBroker(EmbeddedBroker):
    """Looks at its process when that has ended already, as on a busy machine."""

    def _spawn(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        process = super()._spawn(command, log)
        process.wait()
        return process


def test_the_reason_is_told_although_the_process_has_ended_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did not start: unknown broker setting 'nonsense'"):
        EarlyEndingBroker(tmp_path, config={"nonsense": "1"}).start()


def test_every_setting_that_prevents_the_start_is_in_the_error(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, config={"node.id": "-4", "zookeeper.connect": "x"})
    with pytest.raises(ConfigurationError) as raised:
        broker.start()
    assert str(raised.value) == (
        "the broker did not start: unknown broker setting 'zookeeper.connect': this broker needs no ZooKeeper;"
        " remove it; broker setting node.id=-4: Value must be at least 0"
    )


@pytest.mark.slow
def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        with pytest.raises(ConfigurationError, match="is in use by another broker"):
            EmbeddedBroker(tmp_path).start()
        with RawClient(broker.bootstrap_servers) as client:
            assert metadata(client).cluster_id


@pytest.mark.slow
def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "first") as broker:
        second = EmbeddedBroker(tmp_path / "second", listen=broker.bootstrap_servers)
        with pytest.raises(ConfigurationError, match=f"cannot listen on {broker.bootstrap_servers}"):
            second.start()
        assert second.pid is None


def test_an_interrupt_during_the_start_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class NotedProcess(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            started.append(self)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", NotedProcess)
    monkeypatch.setattr(embedded, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        EmbeddedBroker(tmp_path).start()
    (process,) = started
    assert process.returncode is not None, "it has ended"


def test_a_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    with pytest.raises(KafkaUnavailableError, match="not ready within 0 s"):
        EmbeddedBroker(tmp_path, start_timeout=0).start()
    with EmbeddedBroker(tmp_path) as broker:  # the directory is free again
        assert eventually(lambda: broker.pid, bool)
