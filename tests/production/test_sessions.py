"""Sessions and connections that are the application's own: what of them is in a unit of work, and what is not."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from dualwrite import DatabaseUnavailableError, DualWrite
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.user_errors import UserError

Make = Callable[..., DualWrite]


class ProductionBase(DeclarativeBase):
    metadata = events.metadata


class ProductionEvent(ProductionBase):
    __table__ = events


@pytest.fixture
def dualwrite_engine(postgresql_url: str) -> Iterator[Engine]:
    engine = ready_engine(postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def kafka_broker(broker: KafkaBroker) -> KafkaBroker:
    return broker


def records(broker: KafkaBroker, topic: str) -> list[str]:
    return [str(record.value, "utf-8") for record in broker.read(topic) if record.value is not None]


@pytest.mark.postgresql
def test_a_scoped_sessions_writes_are_outside_the_unit_and_tx_sessions_are_inside(
    dualwrite: DualWrite, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    """As Flask-SQLAlchemy's db.session, which is one."""
    topic = broker.create_topic()
    registry: scoped_session[Session] = scoped_session(sessionmaker(dualwrite_engine))

    def write(fails: bool) -> None:
        with dualwrite.transaction() as tx:
            registry.add(ProductionEvent(value=f"outside, fails: {fails}"))
            registry.commit()
            tx.session.add(ProductionEvent(value=f"inside, fails: {fails}"))
            tx.produce(topic, value=f"fails: {fails}")
            if fails:
                raise UserError

    with pytest.raises(UserError):
        write(fails=True)
    write(fails=False)
    registry.remove()
    assert sorted(stored_values(dualwrite_engine)) == [
        *("inside, fails: False", "outside, fails: False", "outside, fails: True")
    ]
    assert records(broker, topic) == ["fails: False"]


@pytest.mark.postgresql
@pytest.mark.parametrize("pings", [True, False])
def test_pool_pre_ping_saves_a_unit_from_a_connection_closed_by_the_server(
    postgresql_url: str, dualwrite_engine: Engine, dualwrite_factory: Make, broker: KafkaBroker, pings: bool
) -> None:
    topic = broker.create_topic()
    engine = create_engine(postgresql_url, pool_pre_ping=pings)
    dual_write = dualwrite_factory(engine=engine)

    def write(value: str) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce(topic, value=value)

    write("one")
    with dualwrite_engine.connect() as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(text(f"{others} AND pid <> pg_backend_pid()"))
    expected = ["one", "two"]
    if pings:
        write("two")
    else:
        with pytest.raises(DatabaseUnavailableError):
            write("two")
        expected = ["one"]
    assert stored_values(dualwrite_engine) == records(broker, topic) == expected
    dual_write.close()
    engine.dispose()
