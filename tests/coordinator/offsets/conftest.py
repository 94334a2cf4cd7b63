"""DualWrites over each database, as members of one consumer group."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.event_table import CONFIG
from tests.support.coordinator.fake_consumer import FakeGroup
from tests.support.coordinator.fake_kafka import FakeCluster

Make = Callable[..., DualWrite]


@pytest.fixture
def group() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
def make(engine: Engine) -> Iterator[Make]:
    """Makes DualWrites, each as if in a process of its own, with slots enough."""
    made: list[DualWrite] = []
    cluster = FakeCluster()

    def make(**options: Any) -> DualWrite:
        options = {"participant": cluster.participant, "pool_size": 4, **options}
        made.append(DualWrite(engine, CONFIG, application="worker", **options))
        return made[-1]

    yield make
    for dual_write in made:
        dual_write.close(timeout=0)


@pytest.fixture
def dw(make: Make) -> DualWrite:
    return make()


@pytest.fixture
def lite(make_dual_write: Make) -> DualWrite:
    """Over SQLite, with one slot, and a Kafka that can fail."""
    return make_dual_write()
