"""A unit whose session has objects to flush: its records are sent first, so that both sides work at the same time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DualWriteError, PrepareFailedError
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import Crash, FakeKafka
from tests.support.coordinator.searches.unit_search import MappedEvent


class Site:
    """A DualWrite on SQLite and a stand-in for Kafka, which note what happens in which order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kafka = FakeKafka()
        self.happened: list[str] = []
        self.kafka.before_effect = self.happened.append
        options: Any = {"application": "a", "participant": self.kafka.participant}
        self.dual_write = DualWrite(engine, CONFIG, **options)
        with self.dual_write.transaction() as tx:  # recovery and the first session are over
            tx.produce("events", "first")
        self.happened.clear()
        event.listen(engine, "before_cursor_execute", self._note_insert)

    def _note_insert(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO events"):
            self.happened.append("insert")

    def run(self, act: Callable[[Transaction], object]) -> None:
        with self.dual_write.transaction() as tx:
            act(tx)


@pytest.fixture
def site(sqlite_url: str) -> Iterator[Site]:
    engine = ready_engine(sqlite_url)
    made = Site(engine)
    yield made
    made.dual_write.close()
    engine.dispose()


def test_records_are_sent_before_the_session_is_flushed(site: Site) -> None:
    def act(tx: Transaction) -> None:
        tx.session.add(MappedEvent("one"))
        tx.produce("events", "one")

    site.run(act)
    assert site.happened == ["begin", "produce", "send", "insert", "prepare", "commit"]
    assert stored_values(site.engine) == ["one"]


def test_an_applications_own_session_counts_too(site: Site) -> None:
    def act(tx: Transaction) -> None:
        Session(tx.connection).add(MappedEvent("one"))
        tx.produce("events", "one")

    site.run(act)
    assert site.happened == ["begin", "produce", "send", "insert", "prepare", "commit"]


def test_nothing_is_sent_early_if_no_row_is_waiting(site: Site) -> None:
    def act(tx: Transaction) -> None:
        tx.execute(insert(events).values(value="one"))
        tx.produce("events", "one")

    site.run(act)
    assert site.happened == ["insert", "begin", "produce", "prepare", "commit"]


def test_a_unit_without_records_has_nothing_to_send(site: Site) -> None:
    site.run(lambda tx: tx.session.add(MappedEvent("one")))
    assert site.happened == ["insert"]


def test_a_flush_that_fails_aborts_what_was_sent(site: Site) -> None:
    def act(tx: Transaction) -> None:
        tx.session.add_all([MappedEvent("one"), MappedEvent("one")])
        tx.produce("events", "one")

    before = list(site.kafka.committed)
    with pytest.raises(IntegrityError):
        site.run(act)
    assert site.happened[-1] == "abort"
    assert (stored_values(site.engine), site.kafka.committed) == ([], before)


def test_records_that_a_flush_produces_are_prepared_too(site: Site) -> None:
    def act(tx: Transaction) -> None:
        session = tx.session
        event.listen(session, "before_flush", lambda *_: tx.produce("events", "of the flush"))
        session.add(MappedEvent("one"))
        tx.produce("events", "one")

    site.run(act)
    assert site.happened == ["begin", "produce", "send", "produce", "insert", "prepare", "commit"]
    assert site.kafka.committed[-2:] == ["one", "of the flush"]


@pytest.mark.parametrize("error", [PrepareFailedError("the broker is gone"), Crash("a signal")])
def test_an_error_while_records_are_sent_rolls_the_unit_back(site: Site, error: BaseException) -> None:
    def fail(request: str) -> None:
        if request == "send":
            raise error

    def act(tx: Transaction) -> None:
        tx.session.add(MappedEvent("one"))
        tx.produce("events", "one")

    before = list(site.kafka.committed)
    site.kafka.before_effect = fail
    with pytest.raises((DualWriteError, Crash)) as raised:
        site.run(act)
    assert raised.value is error
    assert (stored_values(site.engine), site.kafka.committed) == ([], before)
