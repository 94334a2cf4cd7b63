"""A DualWrite over the fake Kafka."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.event_table import CONFIG, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = ready_engine(f"sqlite:///{tmp_path / 'app.db'}")
    yield engine
    engine.dispose()


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


@pytest.fixture
def make(engine: Engine, kafka: FakeKafka) -> Iterator[Callable[..., DualWrite]]:
    made: list[DualWrite] = []

    def dual_write(application: str = "orders", **options: Any) -> DualWrite:
        options = {"participant": kafka.participant, "pool_size": 1, **options}
        made.append(DualWrite(engine, CONFIG, application=application, **options))
        return made[-1]

    yield dual_write
    for each in made:
        each.close(timeout=0)
