"""The application's time limits for statements (statement_timeout, max_statement_time), and the library's own."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.dialects import postgresql

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DatabaseBusyError
from tests.support.coordinator.event_table import ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, run_unit, write_unit, writing
from tests.support.servers.databases import SERVERS

Make = Callable[..., DualWrite]

on_each = pytest.mark.parametrize("name", SERVERS)

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "postgresql": {"options": "-c statement_timeout=40s"},
    "mariadb": {"init_command": "SET max_statement_time = 40"},
}
SHOWN = {"postgresql": "SHOW statement_timeout", "mariadb": "SELECT @@max_statement_time"}
SECOND = {"postgresql": "SET LOCAL statement_timeout = '1s'", "mariadb": "SET max_statement_time = 1"}


@pytest.fixture
def engine(request: pytest.FixtureRequest, name: str) -> Any:
    url = str(request.getfixturevalue(f"{name}_url"))
    ready_engine(url).dispose()
    engine = create_engine(url, connect_args=dict(OPTIONS[name]))
    yield engine
    engine.dispose()


@on_each
def test_the_librarys_own_transactions_wait_for_a_lock_as_long_as_they_say(
    make_dual_write: Make, engine: Engine, name: str
) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    shown = text(SHOWN[name])
    with engine.connect() as connection:
        before = connection.scalar(shown)
    with manager_of(dual_write).store.transaction(commit=False) as connection:
        assert float(connection.scalar(shown)) == 0
    with engine.connect() as connection:
        assert connection.scalar(shown) == before


class VersionedServer:
    """A connection to a PostgreSQL server of ``version``, which notes the settings that it is to have."""

    def __init__(self, *version: int) -> None:
        self.dialect = postgresql.dialect()
        self.dialect.server_version_info = version
        self.settings: set[object] = set()

    def execute(self, statement: Any) -> None:
        self.settings |= set(statement.compile(dialect=self.dialect).params.values())


def test_the_limit_of_a_whole_transaction_is_turned_off_from_postgresql_17_on() -> None:
    """An older server refuses a setting that it does not know."""
    seen = {}
    for version in (16, 17):
        server: Any = VersionedServer(version, 1)
        with Postgresql().own_transaction(server, 3.0):
            seen[version] = server.settings
    assert seen[17] - seen[16] == {"transaction_timeout"}


@on_each
def test_a_row_that_is_locked_for_longer_is_a_database_that_is_busy(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, name: str
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)  # no heartbeat comes in between
    write_unit(dual_write, "one")
    with engine.connect() as rival:

        def lock(tx: Transaction) -> None:
            rival.execute(select(kafka_transaction_state).with_for_update()).all()
            tx.execute(text(SECOND[name]))

        with pytest.raises(DatabaseBusyError, match="has ended a statement on 'kafka_transaction_state'") as raised:
            run_unit(dual_write, writing("two"), lock)
    assert raised.value.retriable
    assert in_both(engine, kafka, "one")
    engine.dispose()
    write_unit(dual_write, "three")
    assert in_both(engine, kafka, "one", "three")
