"""An application of one slot on the bundled broker, which lives or dies between the two commits."""

import uuid
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.coordinator.dual_write import DualWrite
from tests.support.peer_clients.kafka_helpers import create_topic, quick, visible


class HasServers(Protocol):
    """A broker that runs."""

    @property
    def bootstrap_servers(self) -> str: ...


class ApplicationPlace:
    """An application of one slot, and a topic of two partitions that nobody else has."""

    def __init__(self, engine: Engine, broker: HasServers, producer: str) -> None:
        self.engine, self.broker, self.producer = engine, broker, producer
        self.options: dict[str, Any] = {}
        """Of every DualWrite."""
        self.application = f"a{uuid.uuid4().hex[:8]}"
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        create_topic(broker.bootstrap_servers, self.topic, 2)

    def dual_write(self, **options: Any) -> DualWrite:
        config = quick(self.broker.bootstrap_servers)
        options = {"pool_size": 1, "producer": self.producer, "engine": self.engine, **self.options, **options}
        return DualWrite(options.pop("engine"), config, application=self.application, **options)

    def write(self, dual_write: DualWrite, *values: str) -> None:
        with dual_write.transaction() as tx:
            for number, value in enumerate(values):
                tx.produce(self.topic, value, partition=number % 2)

    def leave(self, *values: str) -> None:
        """A process that dies between the two commits."""
        self.dying(lambda dual_write: self.write(dual_write, *values))

    def dying(self, work: Callable[[DualWrite], None], at: str = "COMMIT_KAFKA", unit: int = 1) -> None:
        """A process that does ``work`` and dies before the step ``at`` of its unit of that number."""
        met: list[str] = []

        def die(step: str) -> None:
            met.append(step)
            if met.count(at) >= unit:
                raise SystemExit

        dying = self.dual_write(on_step=die)
        with pytest.raises(SystemExit):
            work(dying)
        dying.close(timeout=0)

    def control(self) -> ControlPlane:
        return ControlPlane(quick(self.broker.bootstrap_servers))

    def visible(self, topic: str = "") -> list[bytes]:
        return sorted(visible(self.broker.bootstrap_servers, topic or self.topic))

    def delete(self, topic: str, *, anew: bool = False) -> None:
        admin = AdminClient(quick(self.broker.bootstrap_servers))
        admin.delete_topics([topic])[topic].result()
        if anew:
            create_topic(self.broker.bootstrap_servers, topic, 2)
