"""Commit and rollback belong to the block: what ends its transaction is refused, or an error."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, select
from sqlalchemy.orm import Session

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncBlock
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.block import Block
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from tests.support.coordinator.event_table import events
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, write, write_unit


def commit_by_a_session_of_their_own(tx: Transaction) -> None:
    session = Session(tx.connection, join_transaction_mode="control_fully")
    session.execute(select(events))
    session.commit()


REFUSED = "commit() is refused inside a unit of work, and nothing was committed: "


@pytest.mark.parametrize("produces", [True, False])
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (lambda tx: tx.connection.commit(), REFUSED),
        (lambda tx: tx.connection.rollback(), "rollback() inside its block rolled this unit of work back: "),
        (lambda tx: tx.connection.get_transaction().commit(), REFUSED),
        (commit_by_a_session_of_their_own, REFUSED),
        (lambda tx: tx.connection.close(), "close() inside its block rolled this unit of work back: "),
        (
            lambda tx: tx.connection.invalidate(),
            "the connection of this unit of work was closed, lost or given another",
        ),
        (lambda tx: tx.session.rollback(), "rollback() inside its block"),
        (
            lambda tx: (tx.connection.rollback(), tx.execute(insert(events).values(value="after"))),
            "rollback() inside its block",
        ),
    ],
    ids=["commit", "rollback", "transaction", "own-session", "close", "invalidate", "session", "and-on"],
)
def test_ending_the_database_transaction_inside_the_block_fails_and_leaves_nothing(
    dual_write: DualWrite,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    ending: Callable[[Any], Any],
    said: str,
    produces: bool,
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            if produces:
                tx.produce("events", "one")
            ending(tx)

    with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback to the block's end") as raised:
        unit()
    assert str(raised.value).startswith(said)
    assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")


def test_a_swallowed_commit_is_still_an_error(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            for ending in (tx.session.commit, tx.connection.commit):
                with pytest.raises(InvalidTransactionStateError):
                    ending()
            write(tx, "two")

    with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback to the block's end"):
        unit()
    assert in_both(sqlite_engine, kafka)


def test_a_listener_that_has_begun_a_transaction_is_named(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")

    @event.listens_for(sqlite_engine, "engine_connect")
    def ask(connection: Connection) -> None:
        connection.scalar(select(1))

    with pytest.raises(ConfigurationError, match="engine_connect"):
        write_unit(dual_write, "two")
    event.remove(sqlite_engine, "engine_connect", ask)
    write_unit(dual_write, "three")
    assert in_both(sqlite_engine, kafka, "one", "three")


def test_tx_is_of_no_use_after_its_block(dual_write: DualWrite) -> None:
    block = dual_write.transaction()
    with block as tx:
        write(tx, "one")
    uses: list[Callable[[], object]] = [
        lambda: tx.connection,
        lambda: tx.session,
        lambda: tx.execute(select(events)),
        lambda: tx.produce("events", "two"),
        lambda: block.__exit__(None, None, None),
    ]
    for use in uses:
        with pytest.raises(InvalidTransactionStateError):
            use()
    with pytest.raises(InvalidTransactionStateError, match="call transaction"), block:
        pytest.fail("entered twice")


def test_tx_is_of_no_use_before_its_block(dual_write: DualWrite) -> None:
    block: Any = dual_write.transaction()
    with pytest.raises(AttributeError, match="produce: use it inside the block"):
        block.produce("events", "one")


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(DualWrite, "with"), (Block, "with"), (AsyncDualWrite, "async with"), (AsyncBlock, "async with")],
)
def test_a_dual_write_and_a_block_say_where_the_methods_of_the_transaction_are(kind: type, statement: str) -> None:
    made = kind.__new__(kind)
    for name in ("produce", "execute", "session", "store_offsets"):
        where = rf"^{name}: use it inside the block: {statement} dw.transaction\(\) as tx: tx.{name}$"
        with pytest.raises(AttributeError, match=where):
            getattr(made, name)
    with pytest.raises(AttributeError, match=f"^'{kind.__name__}' object has no attribute 'prodcue'$"):
        made.prodcue("events")
