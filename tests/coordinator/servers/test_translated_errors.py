"""Errors that a ``handle_error`` listener of the application's has replaced by its own: the library knows them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.engine import ExceptionContext

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.errors import DatabaseNotReadyError
from tests.support.coordinator.event_table import ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import write_unit
from tests.support.servers.databases import EVERY, SERVERS

Make = Callable[..., DualWrite]


class TranslatedError(Exception):
    """The application's own."""


def translating(url: str) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "handle_error")
    def translate(context: ExceptionContext) -> None:
        raise TranslatedError(str(context.original_exception)) from context.sqlalchemy_exception

    return engine


@pytest.mark.parametrize("name", SERVERS)
def test_a_slot_whose_row_is_locked_is_passed_over(
    make_dual_write: Make, kafka: FakeKafka, request: pytest.FixtureRequest, name: str
) -> None:
    """On MariaDB an error says that it is locked."""
    url = str(request.getfixturevalue(f"{name}_url"))
    ready_engine(url).dispose()
    engine = translating(url)
    row = select(kafka_transaction_state).where(kafka_transaction_state.c.transactional_id == "orders-0")
    first = make_dual_write(engine, pool_size=2)
    write_unit(first, "one")
    first.close()
    with engine.connect() as rival:
        assert len(rival.execute(row.with_for_update()).all()) == 1
        second = make_dual_write(engine, pool_size=2)
        write_unit(second, "two")
    second.close()
    assert stored_values(engine) == ["one", "two"]
    engine.dispose()


@pytest.mark.parametrize("kind", EVERY)
def test_tables_that_are_missing_are_named(
    make_dual_write: Make, request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}" if kind == "sqlite" else str(request.getfixturevalue(f"{kind}_url"))
    engine = translating(url)
    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        write_unit(dual_write, "one")
    dual_write.close()
    engine.dispose()
