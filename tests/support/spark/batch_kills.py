"""A broker, a database, and drivers of batches that are killed or suspended."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from dualwrite.spark.workers import close_workers
from tests.support.coordinator.event_table import await_sweeps
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker, Piped
from tests.support.peer_clients.kafka_helpers import create_topic
from tests.support.spark.batch_process import BatchProcessPlan, running, said
from tests.support.spark.batches import (
    TOPIC,
    both_or_neither,
    open_slots,
    options_for,
    rows,
    staged_rows,
    things,
    write,
)
from tests.support.waiting import eventually

ROWS = 30
"""Of a batch."""
_BUSY_SESSIONS = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
)


class BatchKillWorld:
    """A broker and a database, and batches that are written there by processes that end early."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.broker = ForkedBroker(directory / "broker", listen=f"127.0.0.1:{free_port()}")
        self.broker.start()
        create_topic(self.broker.bootstrap_servers, TOPIC, 3)
        things.create(engine)
        self.batches = 0

    @property
    def told(self) -> BatchProcessPlan:
        url = self.engine.url.render_as_string(hide_password=False)
        begin = self.batches * ROWS
        return BatchProcessPlan(url, self.broker.bootstrap_servers, {}, self.batches, begin, begin + ROWS)

    def kill_at(self, step: str, **options: Any) -> None:
        """A driver dies right before ``step``."""
        with running(replace(self.told, pause=step, options=options)) as process:
            assert said(process) == "paused"
            process.kill()
            assert process.wait(60) < 0

    def suspend(self, process: Piped) -> None:
        """Suspend a driver while it has no transaction open in the database: others would wait for it."""

        def is_alone() -> bool:
            process.send_signal(signal.SIGSTOP)
            if self._is_free():
                return True
            process.send_signal(signal.SIGCONT)
            return False

        assert eventually(is_alone)

    def _is_free(self) -> bool:
        """True if nobody holds a lock in the database."""
        with self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                return connection.scalar(_BUSY_SESSIONS) == 0
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError:
                return False
            return True

    def write(self, **options: Any) -> None:
        """The batch, as the next start of the query writes it."""
        told = self.told
        size = ROWS // told.partitions
        parts = [
            rows(told.begin + size * number, told.begin + size * (number + 1)) for number in range(told.partitions)
        ]
        write(options_for(told.url, told.servers, **options), parts, told.batch_id)

    def judge(self) -> int:
        """How many rows are there, on both sides alike, with nothing left elsewhere."""
        assert staged_rows(self.engine) == 0
        number = both_or_neither(self.engine, self.broker.bootstrap_servers, rows(0, (self.batches + 1) * ROWS))
        assert open_slots(self.engine) == []
        return number

    def close(self) -> None:
        close_workers()
        await_sweeps()
        self.broker.stop()
