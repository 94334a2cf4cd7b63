"""Two looks at a row at the same moment: each locks it for that moment, and neither takes the other for an owner."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.operations.rows import locked_rows
from dualwrite.operations.terminating import terminate
from dualwrite.testing.kafka import KafkaBroker
from tests.support.operations.places import OperationsSite


@pytest.fixture
def server(postgresql_url: str, broker: KafkaBroker) -> Iterator[OperationsSite]:
    """A process has died between the two commits."""
    made = OperationsSite(postgresql_url, broker)
    made.leave("one")
    yield made
    made.close()


def beside_a_look(monkeypatch: pytest.MonkeyPatch, site: OperationsSite, owner: Any, name: str, times: int) -> None:
    """The first ``times`` calls of the method happen while another process looks at the row."""
    original, calls = getattr(owner, name), []

    def called(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) > times:
            return original(*arguments, **options)
        with site.engine.begin() as looking:
            looking.execute(select(table).where(table.c.transactional_id == site.slot()).with_for_update())
            return original(*arguments, **options)

    monkeypatch.setattr(owner, name, called)


def test_a_row_that_another_look_locks_for_a_moment_is_not_locked(
    server: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_a_look(monkeypatch, server, type(database_of(server.engine.dialect)), "lock_at_once", 2)
    assert locked_rows(server.engine, [server.slot()]) == set()


def test_a_row_that_stays_locked_is_locked(server: OperationsSite) -> None:
    with server.engine.begin() as owner:
        owner.execute(select(table).with_for_update())
        assert locked_rows(server.engine, [server.slot()]) == {server.slot()}


def test_terminate_takes_a_slot_that_another_look_locks_for_a_moment(
    server: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_a_look(monkeypatch, server, SqlLeases, "take", 2)
    terminate(server.engine, server.broker.client_config, server.slot(), by="Ann")
    assert [outcome for _, _, outcome in server.outcomes()] == ["heuristic abort"]
