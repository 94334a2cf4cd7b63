"""The same cases on every client: one broker for all of them, and the clients by name."""

import gc
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkedBroker
from tests.support.peer_clients.aio import Aio
from tests.support.peer_clients.client import PeerAdministrator, PeerClient, PeerSender, Receiver
from tests.support.peer_clients.confluent import Confluent
from tests.support.peer_clients.go_module import GO_MODULE, what_is_missing
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets
from tests.support.peer_clients.kafkapython import KafkaPython
from tests.support.requests.calls import unique

CLIENTS: dict[str, Any] = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aio}
_BY_PACE = [name if name == "confluent-kafka" else pytest.param(name, marks=pytest.mark.slow) for name in CLIENTS]
"""The client that most applications have runs in make test, and the others in make slow."""

SETTINGS = {
    "message.max.bytes": "8000000", "group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "50"
}  # fmt: skip

Make = Callable[..., Any]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): what a client must be able to do for this case")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of clients that cannot do what they need."""
    out = [item for item in items if not is_able(item)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def is_able(item: pytest.Item) -> bool:
    """Whether the client of ``item`` can do what it needs; true of a test that has none."""
    if not isinstance(item, pytest.Function) or "any_client" not in item.fixturenames:
        return True
    item.add_marker(leaves_sockets)
    needed = {ability for marker in item.iter_markers("needs") for ability in marker.args}
    return needed <= CLIENTS[item.callspec.params["any_client"]].can


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for all cases, which use topics, groups and transactional ids of their own."""
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=SETTINGS) as running:
        yield running.bootstrap_servers


@pytest.fixture(scope="session", params=_BY_PACE)
def any_client(request: pytest.FixtureRequest) -> Iterator[PeerClient]:
    """Each client in turn."""
    client = CLIENTS[request.param]()
    yield client
    if isinstance(client, Aio):
        client.close()


@pytest.fixture
def client(any_client: PeerClient) -> Iterator[PeerClient]:
    """Each client that can do what the case needs."""
    yield any_client
    if any_client.name == "kafka-python":
        gc.collect()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Closes what a case has opened."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def producer(client: PeerClient, servers: str, closing: ExitStack) -> Callable[..., PeerSender]:
    """Makes producers."""

    def make(**settings: Any) -> PeerSender:
        made = client.producer(servers, **settings)
        closing.callback(made.close)
        return made

    return make


@pytest.fixture
def consumer(client: PeerClient, servers: str, closing: ExitStack) -> Callable[..., Receiver]:
    """Makes consumers."""

    def make(**settings: Any) -> Receiver:
        made = client.consumer(servers, **settings)
        closing.callback(made.close)
        return made

    return make


@pytest.fixture(scope="session")
def admin(any_client: PeerClient, servers: str) -> Iterator[PeerAdministrator]:
    """An admin client of each kind, for all cases."""
    made = any_client.admin(servers)
    yield made
    made.close()


@pytest.fixture
def topic(admin: PeerAdministrator) -> str:
    """A topic of one partition, of this case's own."""
    name = unique("topic")
    admin.create_topic(name)
    return name


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in Go, built."""
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(missing)
    binary = tmp_path_factory.mktemp("go") / "login"
    built = subprocess.run(
        ["go", "build", "-buildvcs=false", "-o", str(binary), "./login"], cwd=GO_MODULE, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return binary
