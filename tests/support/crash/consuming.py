"""A worker that reads a topic, and writes a row and a record for each of its records, until SIGTERM.

It says on stdout what a test has to know: ``assigned N``, ``ok`` after a unit of work, ``undone`` after one that was
not, and ``paused`` where it was asked to stop: then it stops itself, as a machine that is suspended, until SIGCONT.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Consumer
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from dualwrite import DualWrite, DualWriteError, RebalancedError
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from dualwrite.coordinator.unit.transaction import Transaction

used = Table("used", MetaData(), Column("number", Integer, primary_key=True), Column("value", String(40)))
"""Without a constraint: a record that is used twice is there twice."""


@dataclass(frozen=True)
class Reading:
    """How the worker is to run."""

    url: str
    bootstrap_servers: str
    source: str
    target: str
    variant: str
    """"send" or "store"."""
    producer: str = "native"
    pause_step: str = ""
    """Where its second unit of work stops: OFFSETS, before they are sent or stored, or a step of the recipe."""
    protocol: str = "classic"
    """group.protocol. With "consumer" the broker has the session's timeout."""

    def command(self) -> list[str]:
        """The command line for it."""
        return [sys.executable, "-m", "tests.support.crash.consuming", json.dumps(asdict(self))]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class ReadingWorker:
    """One life of it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._done = 0
        self._stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda _signal, _frame: self._stopping.set())
        kafka = {**CONNECT_AT_ONCE, "bootstrap.servers": reading.bootstrap_servers}
        session = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200} if reading.protocol == "classic" else {}
        self._consumer: Any = Consumer(
            {
                **kafka,
                "group.id": reading.source,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "group.protocol": reading.protocol,
                **session,
                "fetch.wait.max.ms": 50,
            }
        )
        self._dual_write = DualWrite(
            create_engine(reading.url),
            kafka,
            application=reading.source,
            producer=reading.producer,  # type: ignore[arg-type]
            lease_timeout=1.5,
            pool_size=4,
            on_step=self._at,
        )
        self._go_back: Callable[..., None] = (
            self._dual_write.seek_to_stored if reading.variant == "store" else self._dual_write.seek_to_committed
        )

    def run(self) -> None:
        self._dual_write.recover()
        self._consumer.subscribe([self._reading.source], on_assign=self._assigned)
        while not self._stopping.is_set():
            messages = [message for message in self._consumer.consume(3, timeout=0.1) if message.error() is None]
            if messages:
                try:
                    self._use(messages)
                    say("ok")
                    self._done += 1
                except DualWriteError as error:
                    if not error.retriable and not isinstance(error, RebalancedError):
                        raise
                    say(f"undone {error}")
                    self._go_back(self._consumer)
        self._consumer.close()
        self._dual_write.close()

    def _use(self, messages: list[Any]) -> None:
        with self._dual_write.transaction() as tx:
            for message in messages:
                value = message.value().decode()
                tx.execute(insert(used).values(value=value))
                tx.produce(self._reading.target, value)
            self._at("OFFSETS")
            self._commit_offsets(tx)

    def _commit_offsets(self, tx: Transaction) -> None:
        (tx.store_offsets if self._reading.variant == "store" else tx.send_offsets)(self._consumer)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        say(f"assigned {len(partitions)}")  # before it may have to wait for the one that had them
        self._go_back(consumer, partitions)

    def _at(self, step: str) -> None:
        if step == self._reading.pause_step and self._done == 1:
            self._done = 2
            say("paused")
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    ReadingWorker(Reading(**json.loads(sys.argv[1]))).run()
