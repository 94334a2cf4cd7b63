"""What a task does when it arrives, so that its rows arrive sooner."""

import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.spark import task_socket
from dualwrite.spark.batch.task_input import TaskInput
from dualwrite.spark.partitions.writers import PartitionWriter
from dualwrite.spark.task_socket import SentToTask, acknowledge_at_once
from tests.support.spark.expected_rows import options

needs_linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the option is Linux's")


class Sent(SentToTask):
    def __init__(self) -> None:
        self.what = 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors whose kernel was told to acknowledge."""
    descriptors: list[int] = []
    acknowledge = task_socket.acknowledge

    def noting(descriptor: int, option: int) -> None:
        acknowledge(descriptor, option)
        descriptors.append(descriptor)

    monkeypatch.setattr(task_socket, "acknowledge", noting)
    return descriptors


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client


@needs_linux
def test_in_a_worker_the_arrival_acknowledges_what_connections_have_received(
    told: list[int], connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    assert pickle.loads(pickle.dumps(Sent())).what == 1
    assert connection.fileno() in told
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
    connection.sendall(b"the socket still belongs to its object")


@needs_linux
def test_a_partition_writer_acknowledges_although_it_is_loaded_in_a_way_of_its_own(
    told: list[int], connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    nothing: Any = None
    assert pickle.loads(pickle.dumps(PartitionWriter(options(), nothing, (), nothing, None))).options == options()
    assert connection.fileno() in told


def test_elsewhere_nothing_is_done(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET", raising=False)
    assert pickle.loads(pickle.dumps(Sent())).what == 1
    assert told == []


def test_another_system_is_left_alone(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    acknowledge_at_once()
    assert told == []


@pytest.mark.parametrize("kind", [TaskInput, PartitionWriter])
def test_what_tasks_get_hurries_its_rows(kind: Any) -> None:
    assert issubclass(kind, SentToTask)
    assert kind.__setstate__ is SentToTask.__setstate__, "slots would bring another"
