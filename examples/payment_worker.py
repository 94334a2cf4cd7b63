"""A worker that reads payments from a topic, books each in a table, and writes a receipt to a topic.

    dualwrite db upgrade --db sqlite:///payments.db
    DATABASE_URL=sqlite:///payments.db KAFKA=127.0.0.1:9092 python examples/payment_worker.py

A payment is JSON with ``number`` and ``cents``. Each is booked once, through any crash and any rebalance: how far the
input has been read goes into the same Kafka transaction as the receipts, where the group's tools show it.
invoice_worker.py keeps its offsets in the database.
"""

import json
import logging
import os
import signal
import threading

from confluent_kafka import Consumer, KafkaException, Message
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert

from dualwrite import DualWrite, DualWriteError, RebalancedError

INPUT, OUTPUT = "payments", "receipts"

metadata = MetaData()
bookings = Table(
    "bookings",
    metadata,
    Column("payment", String(40), primary_key=True),
    Column("cents", Integer, nullable=False),
)


class PaymentWorker:
    """Reads, and writes both sides, until :meth:`stop`."""

    def __init__(self, engine: Engine, kafka: dict[str, str]) -> None:
        self._dual_write = DualWrite(engine, kafka, application="payments")
        reading = {
            # The next owner of a partition waits for the unit of work that is decided and not yet complete in Kafka.
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
        }
        self._consumer = Consumer({**kafka, "group.id": "payments", **reading})
        self._stopping = threading.Event()
        self._has_failed = False

    def run(self) -> None:
        """Work until :meth:`stop`; the records of a batch that failed are read again."""
        self._dual_write.recover()
        self._consumer.subscribe([INPUT], on_assign=self._dual_write.seek_to_committed)
        while not self._stopping.is_set():
            try:
                self._use_next_batch()
            except DualWriteError as error:
                if not error.retriable and not isinstance(error, RebalancedError):
                    raise
                logging.warning("nothing was written, once more: %s", error)
                self._has_failed = True
                self._stopping.wait(1)  # a server that is down refuses at once
        self._consumer.close()
        self._dual_write.close()

    def _use_next_batch(self) -> None:
        if self._has_failed:
            self._dual_write.seek_to_committed(self._consumer)  # this may fail, too
            self._has_failed = False
        batch = [message for message in self._consumer.consume(num_messages=100, timeout=0.5) if _is_sound(message)]
        if batch:
            self.book(batch)

    def stop(self) -> None:
        """Let :meth:`run` return after the batch in hand; may be called by a signal handler or another thread."""
        self._stopping.set()

    def book(self, batch: list[Message]) -> None:
        """One unit of work: the bookings and receipts of ``batch``, and how far the input has been read."""
        with self._dual_write.transaction() as tx:
            tx.send_offsets(self._consumer)
            for message in batch:
                payment = json.loads(message.value())
                tx.execute(insert(bookings).values(payment=payment["number"], cents=payment["cents"]))
                tx.produce(OUTPUT, key=payment["number"], value=json.dumps({**payment, "received": True}))


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
    worker = PaymentWorker(engine, {"bootstrap.servers": os.environ["KAFKA"]})
    signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
