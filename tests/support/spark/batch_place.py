"""Where whole batches are written."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite import EmbeddedBroker
from dualwrite.spark.batch.write_batch import recover_job
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.workers import close_workers
from tests.support.coordinator.event_table import await_sweeps
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name, visible
from tests.support.spark.batches import json_of, open_slots, options_for, staged_rows, stored, things


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("batch") / "broker", durability="os") as started:
        yield started


def batch_place_on(engine: Engine, broker: EmbeddedBroker) -> "Iterator[BatchPlace]":
    """For a fixture: a place, and the end of what this process used there."""
    yield BatchPlace(engine, broker)
    close_workers()
    await_sweeps()


class BatchPlace:
    """A database, a topic of its own, and what is written there."""

    def __init__(self, engine: Engine, broker: EmbeddedBroker) -> None:
        self.engine = engine
        self.servers = broker.bootstrap_servers
        self.topic = fresh_name()
        create_topic(self.servers, self.topic, 3)
        things.create(engine)

    def options(self, **changed: Any) -> WriteOptions:
        url = self.engine.url.render_as_string(hide_password=False)
        given = {"topic": self.topic, "application": self.topic, **changed}
        return options_for(url, self.servers, **given)

    def recover(self) -> dict[str, Any]:
        given = self.options()
        return recover_job(
            url=given.url,
            dbtable=given.dbtable,
            topic=given.topic,
            application=given.application,
            job=given.job,
            kafka=given.kafka_config,
        )

    def seen(self) -> list[bytes]:
        return sorted(visible(self.servers, self.topic))

    def judge(self, expected: Any) -> None:
        """Both sides have ``expected``, and nothing is left anywhere else."""
        assert self.seen() == sorted(json_of(expected).elements())
        assert sorted(stored(self.engine)) == [number for number, _, _ in expected]
        assert staged_rows(self.engine) == 0
        assert open_slots(self.engine) == []
