"""From a transactional outbox to dual writes, while both run: no message is lost, doubled or overtaken.

Before: an order is a row in ``orders`` and one in ``outbox``; a relay polls it, produces, deletes: late, at least once.

1. Stop the relay and run :func:`relay` in its place. What it takes out of the outbox it brings into the topic in the
   same unit of work.
2. Deploy :func:`place_order` in place of :func:`place_order_by_outbox`, one instance after the other. It locks the
   customer's row, and then forwards what the outbox still has for the customer, so that a key's messages stay in order.
3. When no old instance is left and the outbox is empty, drop the table, :func:`forward` and :func:`relay`.

Run it: it makes its files in the directory that is its argument, by default ``outbox-example``.
"""

import sys
import threading
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    insert,
    select,
    update,
)

from dualwrite import DualWrite, DualWriteError, EmbeddedBroker, Transaction
from dualwrite.schema import upgrade_engine

TOPIC = "orders"

metadata = MetaData()
customers = Table(
    "customers",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("placed", Integer, nullable=False, default=0),
)
orders = Table(
    "orders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("customer", String(80), nullable=False),
    Column("item", String(80), nullable=False),
)
outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("key", String(80), nullable=False),
    Column("payload", Text, nullable=False),
)


def store_order(connection: Connection | Transaction, customer: str, item: str) -> None:
    """The order's rows. The UPDATE locks the customer's row until the commit, which puts the orders in order."""
    connection.execute(update(customers).where(customers.c.name == customer).values(placed=customers.c.placed + 1))
    connection.execute(insert(orders).values(customer=customer, item=item))


def place_order_by_outbox(connection: Connection, customer: str, item: str) -> None:
    """As it was: the message waits in the database until a poller comes by."""
    store_order(connection, customer, item)
    connection.execute(insert(outbox).values(topic=TOPIC, key=customer, payload=item))


def place_order(dw: DualWrite, customer: str, item: str) -> None:
    """As it will be; the line with ``forward`` goes in step 3."""
    with dw.transaction() as tx:
        store_order(tx, customer, item)
        forward(tx, key=customer)  # behind the lock: an old instance that had it has committed its message
        tx.produce(TOPIC, key=customer, value=item)


def forward(tx: Transaction, *, key: str | None = None, limit: int = 500) -> int:
    """Move up to ``limit`` messages, or all of ``key``, from the outbox to their topics; how many.

    By id and not "up to the highest id": a lower one may become visible later, when its transaction commits.
    """
    waiting = select(outbox).order_by(outbox.c.id).with_for_update()
    rows = tx.execute(waiting.limit(limit) if key is None else waiting.where(outbox.c.key == key)).all()
    for row in rows:
        tx.produce(row.topic, key=row.key, value=row.payload)
    tx.execute(delete(outbox).where(outbox.c.id.in_([row.id for row in rows])))
    return len(rows)


def relay(dw: DualWrite, stopping: threading.Event, pause: float = 0.5) -> None:
    """Forward what old instances still put into the outbox, until ``stopping`` is set and nothing is left.

    Goes on after a ``retriable`` error, for example while Kafka is down. A message that the broker refuses for good
    ends it: then mend or delete the row that the error names.
    """
    while True:
        is_last = stopping.is_set()
        moved = 0
        try:
            with dw.transaction() as tx:
                moved = forward(tx)
        except DualWriteError as error:
            if is_last or not error.retriable:
                raise
        if moved:
            continue
        if is_last:
            return
        stopping.wait(pause)


def main(directory: Path) -> None:
    """Go through the three steps."""
    directory.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{directory / 'shop.db'}")
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(customers), [{"name": "ada"}, {"name": "bob"}])
        place_order_by_outbox(connection, "ada", "tea")
        place_order_by_outbox(connection, "bob", "coffee")
    upgrade_engine(engine)
    with (
        EmbeddedBroker(directory / "broker") as broker,
        DualWrite(engine, {"bootstrap.servers": broker.bootstrap_servers}, application="shop") as dw,
    ):
        place_order(dw, "ada", "cake")  # her tea goes first
        with engine.begin() as connection:  # an old instance is still running
            place_order_by_outbox(connection, "bob", "milk")
        stopping = threading.Event()
        stopping.set()
        relay(dw, stopping)
    outbox.drop(engine)
    engine.dispose()
    print("the outbox is empty and gone")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outbox-example"))
