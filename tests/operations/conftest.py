"""A broker and a database with the state tables, and the command run on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.operations.fixtures import broker, site
from tests.support.operations.places import OperationsSite
from tests.support.servers.databases import EVERY, url_of

__all__ = ["broker", "site"]


@pytest.fixture(params=EVERY)
def any_place(request: pytest.FixtureRequest, tmp_path: Path, broker: KafkaBroker) -> Iterator[OperationsSite]:
    """Each kind of database."""
    made = OperationsSite(url_of(request, tmp_path), broker)
    yield made
    made.close()
