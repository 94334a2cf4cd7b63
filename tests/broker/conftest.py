"""A real broker, as a process of its own, for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.forked import ForkedBroker
from tests.support.requests.raw_client import RawClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A fresh broker for one test, which may kill it and start it again."""
    with ForkedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module, which use topics and transactional ids of their own and never kill it."""
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(shared_broker: EmbeddedBroker) -> Iterator[RawClient]:
    """A connection to the shared broker."""
    with RawClient(shared_broker.bootstrap_servers) as connected:
        yield connected
