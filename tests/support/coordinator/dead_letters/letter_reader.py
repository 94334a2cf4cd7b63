"""A consumer of the fake Kafka, whose records are used in units of work or become dead letters."""

from typing import Any

from sqlalchemy import Engine, insert, select

from dualwrite import DeadLetters
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.ids import TopicPartition
from tests.support.coordinator.dead_letters.fake_records import KeepingKafka, polled
from tests.support.coordinator.event_table import events
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions

P = TopicPartition("in", 0)
DLQ = "in.dlq"


class LetterReader:
    """A consumer whose offsets are in one of the two places, and its dead letters."""

    def __init__(self, dual_write: DualWrite, kafka: KeepingKafka, engine: Engine, offsets: Any) -> None:
        self.dual_write, self.kafka, self.engine, self.offsets = dual_write, kafka, engine, offsets
        self.consumer = FakeConsumer(FakeGroup())
        seek = dual_write.seek_to_stored if offsets == "stored" else dual_write.seek_to_committed
        seek(self.consumer, positions(P))
        self.tried: list[str] = []

    def letters(self, **settings: Any) -> DeadLetters:
        return DeadLetters(self.dual_write, self.consumer, DLQ, **{"offsets": self.offsets, **settings})

    def use(self, *values: str | None, raised: BaseException | None = None, **settings: Any) -> int:
        """Use records with ``values``: one that begins with "bad" raises ``raised``."""

        def function(tx: Any, message: Any) -> None:
            value = (message.value() or b"none").decode()
            self.tried.append(value)
            tx.execute(insert(events).values(value=value))
            tx.produce("out", value)
            if value.startswith("bad"):
                raise raised or ValueError(f"cannot use {value}")

        return self.letters(**settings).use(polled(self.consumer, P, *values), function)

    def seek_back(self) -> None:
        self.consumer.group.committed[P] = self.offset()
        (self.dual_write.seek_to_stored if self.offsets == "stored" else self.dual_write.seek_to_committed)(
            self.consumer
        )

    def offset(self) -> int:
        """Where the group would go on after this process."""
        if self.offsets == "stored":
            with self.engine.connect() as connection:
                return int(connection.scalars(select(table.c.next_offset)).one())
        sent = [value[1][P] for value in self.kafka.committed if isinstance(value, tuple)]
        return sent[-1] if sent else 0

    def letters_left(self) -> list[Any]:
        """The values that are committed in Kafka as dead letters or outputs."""
        return [value for value in self.kafka.committed if not isinstance(value, tuple)]


def fail(tx: Any, message: Any) -> None:
    """Can use no record."""
    raise ValueError
