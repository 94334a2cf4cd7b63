"""A broker and a database with the state tables, for the tests of the command line and of the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests, which use applications of their own."""
    with ForkedKafkaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, broker: KafkaBroker) -> Iterator[OperationsSite]:
    """SQLite."""
    made = OperationsSite(f"sqlite:///{tmp_path / 'app.db'}", broker)
    yield made
    made.close()
