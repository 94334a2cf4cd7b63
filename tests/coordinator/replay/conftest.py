"""A Kafka that aborts what times out, and processes with ``replay``."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.event_table import CONFIG
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.coordinator.replays import Make


@pytest.fixture
def kafka() -> ResumingKafka:
    return ResumingKafka()


@pytest.fixture
def make(engine: Engine, kafka: ResumingKafka) -> Iterator[Make]:
    """Makes processes of one application, as far as the database and Kafka can tell."""
    made: list[DualWrite] = []

    def process(**options: Any) -> DualWrite:
        options = {"pool_size": 1, "participant": kafka.participant, "replay": True, **options}
        made.append(DualWrite(engine, CONFIG, application="a", two_phase="resume", **options))
        return made[-1]

    yield process
    for dual_write in made:
        dual_write.close(timeout=0)
