"""Units of work whose records are kept for a replay, and processes that die between the two commits."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome, kafka_transaction_record
from dualwrite.errors import KafkaRefusedError
from tests.support.coordinator.event_table import events, expire_leases
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka

Make = Callable[..., DualWrite]


def write(dual_write: DualWrite, value: str, **more: Any) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value, **more)


def die_after_the_decision(make: Make, kafka: ResumingKafka, engine: Engine, value: str, **more: Any) -> None:
    """A process that dies between the two commits; its transaction times out, and its lease runs out."""

    dead: list[str] = []

    def observe(step: str) -> None:
        if dead or step == "COMMIT_KAFKA":
            dead.append(step)
            raise SystemExit

    with pytest.raises(SystemExit):
        write(make(on_step=observe), value, **more)
    kafka.time_out()
    expire_leases(engine)


def kept(engine: Engine) -> list[Any]:
    table = kafka_transaction_record
    with engine.connect() as connection:
        return list(connection.execute(select(table).order_by(table.c.transactional_id, table.c.number)))


def on_record(engine: Engine) -> list[tuple[str, str | None]]:
    table = kafka_transaction_outcome
    with engine.connect() as connection:
        return [(row.outcome, row.acknowledged_by) for row in connection.execute(select(table).order_by(table.c.id))]


def refusing(kafka: ResumingKafka, value: str) -> Callable[[str], None]:
    """Kafka takes no transaction with ``value`` in it."""

    def refuse(request: str) -> None:
        if request == "prepare" and value in (kafka.ongoing.values if kafka.ongoing else []):
            raise KafkaRefusedError("a topic that is gone", 3, "UNKNOWN_TOPIC_OR_PARTITION")

    return refuse
