"""A broker, and a database of each kind with a table to compare."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.comparison.comparison_site import ComparisonSite
from tests.support.forked import ForkedKafkaBroker
from tests.support.servers.databases import EVERY, url_of


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, broker: KafkaBroker) -> Iterator[ComparisonSite]:
    """SQLite."""
    made = ComparisonSite(f"sqlite:///{tmp_path / 'app.db'}", broker, partitions=2)
    yield made
    made.close()


@pytest.fixture(params=EVERY)
def any_site(request: pytest.FixtureRequest, tmp_path: Path, broker: KafkaBroker) -> Iterator[ComparisonSite]:
    """Each kind of database."""
    made = ComparisonSite(url_of(request, tmp_path), broker)
    yield made
    made.close()
