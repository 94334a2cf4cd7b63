"""The README's example, whole: one unit of work that commits, one that fails, and what a consumer sees afterwards.

Run it twice: the second run finds the first one's orders. It keeps its files in the directory that is its argument, by
default ``orders-example``.
"""

import sys
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, insert, select

from dualwrite import DualWrite, EmbeddedBroker
from dualwrite.schema import upgrade_engine

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(80)))


def visible_records(bootstrap_servers: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Key and value of every record of ``topic`` that a read_committed consumer sees."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "orders-example",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def main(directory: Path) -> None:
    """Place two orders, one of which fails, and show both sides."""
    directory.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{directory / 'orders.db'}")
    orders.create(engine, checkfirst=True)
    upgrade_engine(engine)

    with (
        EmbeddedBroker(directory / "broker") as broker,
        DualWrite(engine, {"bootstrap.servers": broker.bootstrap_servers}, application="orders") as dw,
    ):
        with dw.transaction() as tx:
            tx.execute(insert(orders).values(item="tea"))
            tx.produce("orders", key=b"tea", value=b"one cup")
        try:
            with dw.transaction() as tx:
                tx.execute(insert(orders).values(item="coffee"))
                tx.produce("orders", key=b"coffee", value=b"one cup")
                raise RuntimeError("no coffee today")
        except RuntimeError as error:
            print(f"rolled back on both sides: {error}")

        with engine.connect() as connection:
            print(f"rows in the table: {connection.scalar(select(func.count()).select_from(orders))}")
        print(f"records in the topic: {len(visible_records(broker.bootstrap_servers, 'orders'))}")
    engine.dispose()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "orders-example"))
