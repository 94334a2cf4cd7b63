"""Objects that a delivery callback changes or adds, after the session was flushed for the end of the block: the records
are acknowledged as Kafka is prepared, and the rows must be in the transaction that decides."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from tests.support.coordinator.aio.async_dual_writes import run
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both, write, write_unit
from tests.support.peer_clients.kafka_helpers import create_topic, visible

Report = Callable[[Any, Any], None]


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap_servers, name, 1)
    return name


@pytest.fixture(params=["native", "librdkafka"])
def dual_write(request: pytest.FixtureRequest, sqlite_engine: Engine, broker: EmbeddedBroker) -> Iterator[DualWrite]:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    producer: Literal["native", "librdkafka"] = request.param
    application = f"orders-{uuid.uuid4().hex[:8]}"
    with DualWrite(sqlite_engine, config, application=application, producer=producer, pool_size=1) as made:
        yield made


def changing(session: Session, order: EventModel) -> Report:
    """Changes ``order``, which the end of the block has flushed, and adds another object."""

    def report(error: Any, message: Any) -> None:
        order.value = f"{order.value}, the record is at {message.offset()}"
        session.add(EventModel(value="the record was acknowledged"))

    return report


def produce(
    dual_write: DualWrite, topic: str, session_of: Callable[[Any], Session], report: Callable[..., Report]
) -> None:
    with dual_write.transaction() as tx:
        session, order = session_of(tx), EventModel(value="one")
        session.add(order)
        tx.produce(topic, value="one", on_delivery=report(session, order))


@pytest.mark.parametrize(
    "session_of", [lambda tx: tx.session, lambda tx: Session(tx.connection)], ids=["the unit's", "its own"]
)
def test_what_a_delivery_callback_does_with_objects_is_committed_with_the_record(
    dual_write: DualWrite, sqlite_engine: Engine, broker: EmbeddedBroker, topic: str, session_of: Any
) -> None:
    produce(dual_write, topic, session_of, changing)
    assert stored_values(sqlite_engine) == ["one, the record is at 0", "the record was acknowledged"]
    assert visible(broker.bootstrap_servers, topic) == [b"one"]


def test_an_object_of_a_delivery_callback_that_cannot_be_written_leaves_the_unit_on_neither_side(
    dual_write: DualWrite, sqlite_engine: Engine, broker: EmbeddedBroker, topic: str
) -> None:
    def adding_again(session: Session, _: EventModel) -> Report:
        return lambda error, message: session.add(EventModel(value="one"))

    with pytest.raises(IntegrityError):
        produce(dual_write, topic, lambda tx: tx.session, adding_again)
    assert dual_write.wait_idle(20)
    assert (stored_values(sqlite_engine), visible(broker.bootstrap_servers, topic)) == ([], [])
    assert dual_write.counters.rolled_back == 1


def test_what_a_delivery_callback_does_with_objects_is_committed_under_asyncio(
    sqlite_engine: Engine, broker: EmbeddedBroker, topic: str
) -> None:
    async def main() -> None:
        engine = create_async_engine(sqlite_engine.url.set(drivername="sqlite+aiosqlite"))
        config = {"bootstrap.servers": broker.bootstrap_servers}
        dual_write = AsyncDualWrite(engine, config, application=f"a{topic}", pool_size=1)
        async with dual_write, dual_write.transaction() as tx:
            session, order = tx.session, EventModel(value="one")
            session.add(order)
            await tx.produce(topic, value="one", on_delivery=changing(session.sync_session, order))
        await engine.dispose()

    run(main())
    assert stored_values(sqlite_engine) == ["one, the record is at 0", "the record was acknowledged"]
    assert visible(broker.bootstrap_servers, topic) == [b"one"]


@pytest.mark.slow_cases("mariadb")
def test_an_object_that_cannot_be_written_before_the_state_is_stored_leaves_nothing_to_record(
    make_dual_write: Callable[..., DualWrite], engine: Engine, kafka: FakeKafka
) -> None:
    """The session's flush has rolled the transaction back, and the database must be asked about it before that."""
    sessions: list[Session] = []

    def on_step(step: str) -> None:
        if step == "STORE_STATE" and sessions:
            sessions.pop().add(EventModel(value="one"))

    dual_write = make_dual_write(engine, on_step=on_step)

    def write_again() -> None:
        with dual_write.transaction() as tx:
            sessions.append(tx.session)
            write(tx, "one")

    with pytest.raises(IntegrityError):
        write_again()
    assert in_both(engine, kafka)
    assert dual_write.outcomes() == []
    write_unit(dual_write, "two")
    assert in_both(engine, kafka, "two")
