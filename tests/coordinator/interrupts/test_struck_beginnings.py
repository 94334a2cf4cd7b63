"""An exception out of a signal handler that strikes the beginning of a unit's transaction on PostgreSQL."""

import gc
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, text

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.dialects import unit_transactions
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.striking import Striker

pytestmark = pytest.mark.postgresql


class LimitError(Exception):
    """As Celery's SoftTimeLimitExceeded."""


def engine_of_a_tenant(url: str, driver: str) -> Engine:
    """An engine whose listener sets something in each transaction, as row-level security needs it."""
    ready_engine(url).dispose()
    engine = create_engine(url.replace("+psycopg:", f"+{driver}:"))
    assert engine.dialect.driver == driver

    @event.listens_for(engine, "begin")
    def set_tenant(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL app.tenant = 'acme'")

    return engine


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_limit_at_the_beginning_is_raised_and_no_unit_runs_without_listener_settings(
    postgresql_url: str, kafka: FakeKafka, make_dual_write: Callable[..., DualWrite], driver: str
) -> None:
    if driver == "psycopg2":
        pytest.importorskip("psycopg2")
    gc.collect()  # a generator that an earlier strike left would be closed, and struck, at any place
    engine = engine_of_a_tenant(postgresql_url, driver)
    dual_write = make_dual_write(engine)
    places: list[str] = []
    written: list[str] = []
    while True:
        limit = LimitError("limit")
        value = str(len(places))
        striker = Striker(len(places) + 1, limit, str(unit_transactions.__file__))
        raised: BaseException | None = None
        try:
            with striker, dual_write.transaction() as tx:
                assert tx.connection.scalar(text("SELECT current_setting('app.tenant', true)")) == "acme"
                tx.execute(insert(events).values(value=value))
                tx.produce("t", value=value)
        except LimitError as error:
            raised = error
        if not striker.where:
            break
        places.append(striker.where)
        assert raised is limit, f"the limit was swallowed at {striker.where}"
    written.append(value)
    assert len(places) > 3
    assert any("begin_with" in place or "_sent" in place for place in places)
    assert stored_values(engine) == kafka.committed == written
    dual_write.close()
    engine.dispose()
