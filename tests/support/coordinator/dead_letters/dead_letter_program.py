"""A worker with dead letters, as a process that kills itself at one place: ``URL SERVERS OFFSETS PLACE``.

PLACE is "between" for the moment between the last failed unit of work and the dead letter's, the name of a step of the
dead letter's unit, or "" for none. It ends when it has used three records or put them aside.
"""

import logging
import os
import signal
import sys
from typing import Any

from sqlalchemy import create_engine, insert

from dualwrite import DeadLetters, DualWrite
from tests.support.coordinator.consumed_topics import reading
from tests.support.coordinator.event_table import events


class DyingWorker(logging.Handler):
    """Sees each failed attempt in the log, and each step."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._writes_letter = False

    def emit(self, record: logging.LogRecord) -> None:
        self._writes_letter = "attempt 2 of 2" in record.getMessage()
        if self._writes_letter and self._place == "between":
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, name: str) -> None:
        if self._writes_letter and name == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


def function(tx: Any, message: Any) -> None:
    """Use a record; one of them is poison."""
    value = message.value().decode()
    tx.execute(insert(events).values(value=value))
    tx.produce("out", value)
    if value == "1":
        raise ValueError("poison")


def main(url: str, servers: str, offsets: Any, place: str) -> None:
    """Work until the third record is done."""
    worker = DyingWorker(place)
    logging.getLogger("dualwrite").addHandler(worker)
    kafka = {"bootstrap.servers": servers}
    with (
        DualWrite(create_engine(url), kafka, application="worker", on_step=worker.step) as dual_write,
        reading(servers, **{"session.timeout.ms": 1000, "heartbeat.interval.ms": 200}) as consumer,
    ):
        dual_write.recover()
        seek = dual_write.seek_to_stored if offsets == "stored" else dual_write.seek_to_committed
        consumer.subscribe(["in"], on_assign=seek)
        letters = DeadLetters(dual_write, consumer, "in.dlq", offsets=offsets, attempts=2)
        last = -1
        while last < 2:
            batch = [message for message in consumer.consume(10, 0.2) if message.error() is None]
            letters.use(batch, function)
            last = max([last, *(message.offset() for message in batch)])


if __name__ == "__main__":
    main(*sys.argv[1:])
