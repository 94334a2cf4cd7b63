"""Two bundled brokers, which are emptied after each test: a move has all topics of a cluster."""

from collections.abc import Iterator

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.move_site import MoveSite


@pytest.fixture(scope="package")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    source, target = (tmp_path_factory.mktemp(side) for side in ("source", "target"))
    with ForkedKafkaBroker(source) as first, ForkedKafkaBroker(target) as second:
        yield first, second


@pytest.fixture
def site(brokers: tuple[KafkaBroker, KafkaBroker]) -> Iterator[MoveSite]:
    yield MoveSite(*brokers)
    for broker in brokers:
        broker.reset()
