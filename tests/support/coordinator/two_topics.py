"""An application whose units of work write to two topics."""

import uuid

from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.broker_application import HasServers, Place
from tests.support.coordinator.event_table import slot_rows
from tests.support.peer_clients.kafka_helpers import create_topic


class TwoTopics(Place):
    """A unit of work writes to ``topic`` and to ``other``."""

    def __init__(self, engine: Engine, broker: HasServers, producer: str) -> None:
        super().__init__(engine, broker, producer)
        self.other = f"o{uuid.uuid4().hex[:8]}"
        create_topic(broker.bootstrap_servers, self.other, 2)

    def write(self, dual_write: DualWrite, *values: str) -> None:
        with dual_write.transaction() as tx:
            for value in values:
                tx.produce(self.topic, value, partition=0)
                tx.produce(self.other, value, partition=0)

    @property
    def slot(self) -> str:
        return f"{self.application}-0"

    def first(self) -> str:
        """The topic of the stored state's anchor, or first record."""
        row = slot_rows(self.engine)[self.slot]
        return self.topic if self.topic in f"{row.anchor} {row.first_record}" else self.other

    def doomed(self, which: str) -> list[str]:
        first = self.first()
        (second,) = {self.topic, self.other} - {first}
        return {"the first": [first], "the second": [second], "both": [first, second]}[which]


def write_into(place: TwoTopics, tx: object) -> None:
    for topic in (place.topic, place.other):
        tx.produce(topic, "next", partition=0)  # type: ignore[attr-defined]
