"""A place to load into, for the tests that run ``dualwrite load`` as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.forked import ForkedBroker
from tests.support.loader.load_place import LoadPlace


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), durability="os") as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[LoadPlace]:
    made = LoadPlace(tmp_path, broker)
    yield made
    made.engine.dispose()
