"""A worker that reads orders, stores a shipment for each, and puts orders aside that it cannot use.

    dualwrite db upgrade --db sqlite:///shipments.db
    DATABASE_URL=sqlite:///shipments.db KAFKA=127.0.0.1:9092 python examples/dead_letter_worker.py

An order in the topic ``orders-to-ship`` is JSON with ``number``, ``address`` and ``kilograms``. An order that is no
JSON, lacks a field or weighs nothing is a poison record: each unit of work that uses it fails. After three attempts it
goes to the topic ``orders-to-ship.dlq``, in one unit of work with the consumer's offset, and the worker goes on behind
it. Create that topic first. invoice_worker.py is the same worker without dead letters: such an order would stop it.
"""

import json
import logging
import os
import signal
import threading

from confluent_kafka import Consumer, KafkaException, Message
from sqlalchemy import CheckConstraint, Column, Engine, Integer, MetaData, String, Table, create_engine, insert

from dualwrite import DeadLetters, DualWrite, DualWriteError, RebalancedError, Transaction

INPUT, OUTPUT, DEAD_LETTERS = "orders-to-ship", "shipments", "orders-to-ship.dlq"

metadata = MetaData()
shipments = Table(
    "shipments",
    metadata,
    Column("order_number", String(40), primary_key=True),
    Column("address", String(200), nullable=False),
    Column("kilograms", Integer, CheckConstraint("kilograms > 0"), nullable=False),
)


class ShipmentWorker:
    """Reads, and writes both sides, until :meth:`stop`."""

    def __init__(self, engine: Engine, kafka: dict[str, str]) -> None:
        self._dual_write = DualWrite(engine, kafka, application="shipments")
        reading = {"isolation.level": "read_committed", "enable.auto.commit": "false", "session.timeout.ms": "6000"}
        self._consumer = Consumer({**kafka, "group.id": "shipments", **reading})
        self._letters = DeadLetters(self._dual_write, self._consumer, DEAD_LETTERS, offsets="stored")
        self._stopping = threading.Event()
        self._has_failed = False

    def run(self) -> None:
        """Work until :meth:`stop`; the records of a unit that failed for a reason that passes are read again."""
        self._dual_write.recover()
        self._consumer.subscribe([INPUT], on_assign=self._dual_write.seek_to_stored)
        while not self._stopping.is_set():
            try:
                self._use_next_batch()
            except DualWriteError as error:
                if not error.retriable and not isinstance(error, RebalancedError):
                    raise
                logging.warning("once more: %s", error)
                self._has_failed = True
                self._stopping.wait(1)  # a server that is down refuses at once
        self._consumer.close()
        self._dual_write.close()

    def _use_next_batch(self) -> None:
        if self._has_failed:
            self._dual_write.seek_to_stored(self._consumer)  # this may fail, too
            self._has_failed = False
        batch = [message for message in self._consumer.consume(num_messages=100, timeout=0.5) if _is_sound(message)]
        self._letters.use(batch, ship)

    def stop(self) -> None:
        """Let :meth:`run` return after the batch in hand; may be called by a signal handler or another thread."""
        self._stopping.set()


def ship(tx: Transaction, message: Message) -> None:
    """The shipment of one order, in the table and in the topic."""
    order = json.loads(message.value() or b"")
    shipment = {
        "order_number": order["number"],
        "address": order["address"],
        "kilograms": order["kilograms"],
    }
    tx.execute(insert(shipments).values(shipment))
    tx.produce(OUTPUT, key=order["number"], value=json.dumps(shipment))


def _is_sound(message: Message) -> bool:
    """True if it is a record; False for an error that librdkafka gets over by itself."""
    error = message.error()
    if error is not None:
        if error.fatal():
            raise KafkaException(error)
        logging.warning("%s", error)
    return error is None


def main() -> None:
    """Work until SIGTERM."""
    if not {"DATABASE_URL", "KAFKA"} <= os.environ.keys():
        raise SystemExit("set DATABASE_URL and KAFKA: the first lines of this file show how")
    engine = create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)
    worker = ShipmentWorker(engine, {"bootstrap.servers": os.environ["KAFKA"]})
    signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
