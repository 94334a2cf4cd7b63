"""The unit of work that most tests write: a row and a record with the same value."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault


def write(tx: Transaction, value: str) -> None:
    """The row and the record, inside of a unit."""
    tx.execute(insert(events).values(value=value))
    tx.produce("events", value=value)


def write_unit(dual_write: DualWrite, value: str) -> None:
    """All of a unit."""
    with dual_write.transaction() as tx:
        write(tx, value)


class Base(DeclarativeBase):
    """The user's ORM models."""


class EventModel(Base):
    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str] = mapped_column(unique=True)


def run_unit(dual_write: DualWrite, *acts: Callable[[Transaction], object]) -> None:
    """A unit of work that does ``acts`` one after the other."""
    with dual_write.transaction() as tx:
        for act in acts:
            act(tx)


def writing(value: str) -> Callable[[Transaction], None]:
    return lambda tx: write(tx, value)


def raising(error: BaseException) -> Callable[[Transaction], None]:
    def act(tx: Transaction) -> None:
        raise error

    return act


def fail_at(kafka: FakeKafka, request: str, fault: Fault = Fault.BEFORE, times: int = 1) -> None:
    left = [times]

    def fault_at(name: str) -> Fault:
        if name != request or left[0] == 0:
            return Fault.NONE
        left[0] -= 1
        return fault

    kafka.fault = fault_at


def recovered(dual_write: DualWrite) -> bool:
    """Wait until the background is done."""
    return dual_write.wait_idle(20)


def in_both(engine: Engine, kafka: FakeKafka, *values: str) -> bool:
    return stored_values(engine) == kafka.committed == list(values) and kafka.ongoing is None


def break_commit(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, after_effect: bool, error: BaseException) -> None:
    """Let the next COMMIT fail, before or after its effect."""
    plain = engine.dialect.do_commit

    def fail(connection: Any) -> None:
        monkeypatch.setattr(engine.dialect, "do_commit", plain)
        if after_effect:
            plain(connection)
        raise error

    monkeypatch.setattr(engine.dialect, "do_commit", fail)
