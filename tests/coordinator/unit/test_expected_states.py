"""A unit whose state is stored while the brokers append its records: the row is exact when the database commits."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.evidence import with_evidence
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DualWriteError, FencedError, PrepareFailedError
from dualwrite.ids import Anchor, PreparedTxnState
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_native_kafka import FakeNativeKafka
from tests.support.servers.databases import SERVERS

EARLY = ["begin", "produce", "send", "store", "prepare", "commit database", "commit"]


class EarlySite:
    """A DualWrite whose participant names its transactions early, and what happens on either side, in order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kafka = FakeNativeKafka()
        self.happened: list[str] = []
        options: Any = {"application": "a", "participant": self.kafka.participant}
        self.dual_write = DualWrite(engine, CONFIG, **options)
        self.write("first")
        self.kafka.before_effect = self.happened.append
        event.listen(engine, "before_cursor_execute", self._note_store)
        event.listen(engine, "commit", lambda connection: self.happened.append("commit database"))

    def _note_store(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "kafka_transaction_state SET prepared_txn_state" in statement.replace("`", ""):
            self.happened.append("store")

    def write(self, value: str, act: Callable[[Transaction], object] = lambda tx: None) -> None:
        with self.dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce("events", value)
            act(tx)

    def row(self) -> PreparedTxnState:
        """The state in the database."""
        with self.engine.connect() as connection:
            (row,) = connection.execute(select(table.c.prepared_txn_state, table.c.first_record)).all()
        return with_evidence(PreparedTxnState(row.prepared_txn_state), row.first_record)

    @property
    def participant(self) -> Any:
        return self.kafka.participants[-1]


@pytest.fixture(params=["sqlite", *SERVERS])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = ready_engine(str(request.getfixturevalue(f"{request.param}_url")))
    yield made
    made.dispose()


@pytest.fixture
def site(engine: Engine) -> Iterator[EarlySite]:
    made = EarlySite(engine)
    yield made
    made.dual_write.close()


def test_the_state_is_stored_between_sending_the_records_and_awaiting_them(site: EarlySite) -> None:
    site.write("one")
    assert site.happened == EARLY
    row = site.row()
    assert (row.first_record, row.is_bound) == (Anchor("events", 0, 1), True), "behind the first unit's record"
    assert stored_values(site.engine) == site.kafka.committed == ["first", "one"]


def test_a_state_that_turns_out_otherwise_is_stored_again(site: EarlySite) -> None:
    site.participant.bound = 900  # as if the topic had been made anew since
    site.write("one")
    assert site.happened == [*EARLY[:5], "store", *EARLY[5:]]
    row = site.row()
    assert (row.first_record, row.is_bound) == (Anchor("events", 0, 2), False)
    site.happened.clear()
    site.write("two")
    assert site.happened == EARLY, "the next unit finds the row as it is"
    assert stored_values(site.engine) == site.kafka.committed == ["first", "one", "two"]


def test_records_that_are_not_acknowledged_take_the_stored_state_back(site: EarlySite) -> None:
    before = site.row()

    def refuse(request: str) -> None:
        if request == "prepare":
            raise PrepareFailedError("not acknowledged")

    site.kafka.before_effect = refuse
    with pytest.raises(PrepareFailedError):
        site.write("one")
    site.kafka.before_effect = lambda request: None
    assert site.row() == before
    site.write("two")
    assert stored_values(site.engine) == site.kafka.committed == ["first", "two"]


def test_a_zombie_whose_slot_is_taken_over_stores_nothing(site: EarlySite) -> None:
    """Before it stores: the row is locked from then on, so nobody takes it over later."""
    before = site.row()

    def take_over(request: str) -> None:
        if request == "send":
            with site.engine.begin() as connection:
                connection.execute(update(table).values(fencing_token=table.c.fencing_token + 1))

    site.kafka.before_effect = take_over
    if site.engine.dialect.name == "sqlite":
        pytest.skip("the unit holds SQLite's only lock")
    with pytest.raises((LeaseLostError, FencedError)):
        site.write("one")
    assert site.row() == before
    assert stored_values(site.engine) == ["first"]
    assert site.kafka.committed == ["first"]


def test_a_unit_of_the_old_order_goes_on_as_before(site: EarlySite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.participant, "expected_state", PreparedTxnState)
    site.write("one")
    assert site.happened == ["begin", "produce", "prepare", "store", "commit database", "commit"]
    assert not site.row().is_bound


def test_an_expected_state_that_cannot_be_told_ends_the_unit(site: EarlySite, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> PreparedTxnState:
        raise DualWriteError("cannot tell")

    monkeypatch.setattr(site.participant, "expected_state", fail)
    with pytest.raises(DualWriteError, match="cannot tell"):
        site.write("one")
    assert stored_values(site.engine) == site.kafka.committed == ["first"]
    monkeypatch.undo()
    site.write("two")
    assert stored_values(site.engine) == site.kafka.committed == ["first", "two"]


def test_a_unit_that_raises_sends_nothing(site: EarlySite) -> None:
    def fail(tx: Transaction) -> None:
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        site.write("one", fail)
    assert site.happened == ["begin", "produce", "abort"]
    assert stored_values(site.engine) == site.kafka.committed == ["first"]
