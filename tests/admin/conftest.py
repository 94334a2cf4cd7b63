"""One broker for the tests of the daily work, each of which has topics and groups of its own."""

from collections.abc import Iterator

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.admin.admin_site import AdminSite
from tests.support.forked import ForkedKafkaBroker


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def site(broker: KafkaBroker) -> Iterator[AdminSite]:
    made = AdminSite(broker.bootstrap_servers)
    yield made
    made.close()
