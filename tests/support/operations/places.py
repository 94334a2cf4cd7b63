"""A database and a cluster, what dead processes leave there, and what ``dualwrite`` says of it."""

import io
import json
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest
from sqlalchemy import insert, select, update

from dualwrite.cli.main import main
from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome, kafka_transaction_state
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events, expire_leases, ready_engine, slot_rows, stored_values


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class OperationsSite:
    """A database of the test's own, a cluster, and an application name that nobody else has."""

    def __init__(self, url: str, broker: KafkaBroker) -> None:
        self.url = url
        self.broker = broker
        self.engine = ready_engine(url)
        self.application = f"a{uuid.uuid4().hex[:8]}"
        self.topic = broker.create_topic()
        self.made: list[DualWrite] = []

    def slot(self, number: int = 0) -> str:
        return f"{self.application}-{number}"

    def dual_write(self, **options: Any) -> DualWrite:
        made = DualWrite(self.engine, self.broker.client_config, application=self.application, **options)
        self.made.append(made)
        return made

    def write(self, value: str, **options: Any) -> None:
        with self.dual_write(**options).transaction() as tx:
            tx.execute(insert(events), {"value": value})
            tx.produce(self.topic, value=value)

    def leave(self, value: str, step: str = "COMMIT_KAFKA", *, silent: bool = True, **options: Any) -> None:
        """A process that does nothing any more once it has come to ``step``; its lease has run out if ``silent``."""
        dead: list[str] = []

        def observe(name: str) -> None:
            if dead or name == step:
                dead.append(name)
                raise SystemExit

        with pytest.raises(SystemExit):
            self.write(value, on_step=observe, **options)
        for made in self.made:
            manager_of(made).process.pool.heartbeat.stop(0)
            manager_of(made).process.sweeper.stop(0)
        if silent:
            expire_leases(self.engine)

    def run(self, *words: str, db: bool = True, servers: bool = True) -> CommandResult:
        """``dualwrite WORDS`` on this database and cluster, in this process."""
        places = ["--bootstrap-servers", self.broker.bootstrap_servers] * servers + ["--db", self.url] * db
        return command(*words, *places)

    def described(self, name: str | None = None) -> TransactionDescription | None:
        """What Kafka says of slot 0, or of ``name``."""
        return self.ask(lambda control: control.describe_transaction(name or self.slot()))

    def ask(self, question: Callable[[ControlPlane], Any]) -> Any:
        control = ControlPlane(self.broker.client_config)
        try:
            return question(control)
        finally:
            control.close()

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """The state table, all of it."""
        return {name: tuple(row) for name, row in slot_rows(self.engine).items()}

    def outcomes(self) -> list[tuple[str, str, str]]:
        """Name, state and outcome of every recorded one."""
        table = kafka_transaction_outcome
        columns = (table.c.transactional_id, table.c.prepared_txn_state, table.c.outcome)
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(*columns).order_by(table.c.id))]  # type: ignore[misc]

    def change_row(self, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(
                update(kafka_transaction_state)
                .where(kafka_transaction_state.c.transactional_id == self.slot())
                .values(**values)
            )

    def visible(self) -> list[str]:
        """What a read_committed consumer sees up to the last stable offset."""
        return [str(record.value, "utf-8") for record in self.broker.read(self.topic) if record.value is not None]

    def stored(self) -> list[str]:
        return stored_values(self.engine)

    def close(self) -> None:
        for made in self.made:
            made.close(timeout=0)
        self.engine.dispose()


def command(*words: str) -> CommandResult:
    """``dualwrite WORDS``, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())
