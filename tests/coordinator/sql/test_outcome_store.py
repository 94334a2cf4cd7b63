"""Heuristic outcomes on record, in each kind of database: written by recovery, listed, acknowledged."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import Unmatched
from dualwrite.coordinator.rules.recovery_decision import DETAILS, Outcome
from dualwrite.coordinator.sql.outcome_store import acknowledge, outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import DatabaseNotReadyError, InputError
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from tests.support.coordinator.event_table import TakingStore
from tests.support.coordinator.fake_kafka import FakeKafka

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

ID = "orders-0"
PRODUCER = ProducerIdentity(42, 7)
PLACE = Anchor.of(TopicPartition("events", 3), 99)
NATIVE = PreparedTxnState(PRODUCER, first_record=PLACE)
LIBRDKAFKAS = PreparedTxnState(PRODUCER, PLACE)
NOWHERE = PreparedTxnState(PRODUCER)


@pytest.fixture
def store(engine: Engine) -> TakingStore:
    return TakingStore(engine)


def stored(engine: Engine, store: TakingStore, state: PreparedTxnState, name: str = ID) -> Lease:
    lease = store.take_over(name, "me")
    with engine.begin() as connection:
        store.store(connection, lease, state)
    lease.memory.committed()
    return lease


def state_in(store: TakingStore, lease: Lease) -> PreparedTxnState:
    with store.locked(lease) as held:
        return held.state


@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS, NOWHERE], ids=["native", "librdkafka", "nowhere"])
def test_the_row_says_where_to_look_for_its_state(engine: Engine, store: TakingStore, state: PreparedTxnState) -> None:
    found = state_in(store, stored(engine, store, state))
    assert (found, found.anchor, found.first_record) == (state, state.anchor, state.first_record)


def test_the_longest_state_fits(engine: Engine, store: TakingStore) -> None:
    place = Anchor.of(TopicPartition("t" * 249, 2**31 - 1), 2**63 - 1)
    state = PreparedTxnState(ProducerIdentity(2**63 - 1, 32767), first_record=place)
    lease = stored(engine, store, state)
    assert state_in(store, lease).first_record == place
    store.record(lease, Outcome.HEURISTIC_HAZARD)
    assert outcomes(engine)[0].state == f"{state.producer}:{place}"


def test_the_first_record_of_an_older_state_is_ignored(engine: Engine, store: TakingStore) -> None:
    """A former release, which does not know the column, has written a later state."""
    lease = stored(engine, store, NATIVE)
    with engine.begin() as connection:
        connection.execute(update(table).values(prepared_txn_state="42:9"))
    found = state_in(store, Lease(ID, lease.fencing_token))
    assert (found, found.first_record) == (PreparedTxnState(ProducerIdentity(42, 9)), None)


@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS], ids=["native", "librdkafka"])
def test_an_outcome_takes_the_state_out_of_the_row(
    engine: Engine, store: TakingStore, state: PreparedTxnState, caplog: pytest.LogCaptureFixture
) -> None:
    lease = stored(engine, store, state)
    with caplog.at_level(logging.ERROR, "dualwrite"):
        store.record(lease, Outcome.HEURISTIC_ABORT)
    assert state_in(store, lease) == PreparedTxnState()
    (found,) = outcomes(engine)
    assert (found.transactional_id, found.state, found.outcome) == (ID, "42:7:events:3:99", Outcome.HEURISTIC_ABORT)
    assert found.detail == DETAILS[Outcome.HEURISTIC_ABORT]
    assert (found.acknowledged_at, found.acknowledged_by) == (None, None)
    assert abs(found.found_at - datetime.now(timezone.utc)) < timedelta(minutes=5)
    (line,) = caplog.messages
    assert line.startswith(f"{ID}: heuristic abort of the unit of work with the state 42:7")
    assert (caplog.records[0].outcome, caplog.records[0].state) == ("heuristic abort", str(state))
    texts = caplog.records[0].args
    assert texts is not None
    assert {type(each) for each in texts} == {str}, "logging swallows a time limit that strikes while it formats"


def test_a_later_unit_of_work_overwrites_no_outcome(engine: Engine, store: TakingStore) -> None:
    lease = stored(engine, store, NATIVE)
    store.record(lease, Outcome.HEURISTIC_HAZARD)
    later = PreparedTxnState(ProducerIdentity(42, 9), first_record=PLACE)
    with engine.begin() as connection:
        store.store(connection, lease, later)
    store.record(lease, Outcome.HEURISTIC_COMMIT)
    assert [(outcome.state, outcome.outcome) for outcome in outcomes(engine)] == [
        ("42:7:events:3:99", Outcome.HEURISTIC_HAZARD),
        ("42:9:events:3:99", Outcome.HEURISTIC_COMMIT),
    ]


@pytest.mark.slow_cases("mariadb", "postgresql")
@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS, NOWHERE], ids=["native", "librdkafka", "nowhere"])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_an_identity_that_a_cluster_gives_again_is_another_units(
    engine: Engine, store: TakingStore, state: PreparedTxnState, acknowledged: bool
) -> None:
    """A cluster that begins anew counts from the beginning, and may be lost once more."""
    store.record(stored(engine, store, state), Outcome.HEURISTIC_HAZARD)
    if acknowledged:
        acknowledge(engine, outcomes(engine)[0], by="Ada")
    lease = stored(engine, store, state)
    store.record(lease, Outcome.HEURISTIC_HAZARD)
    assert state_in(store, lease) == PreparedTxnState()
    assert len(outcomes(engine)) == 2 - acknowledged


@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS], ids=["native", "librdkafka"])
def test_an_outcome_is_recorded_once_until_it_is_acknowledged(
    engine: Engine, store: TakingStore, state: PreparedTxnState
) -> None:
    """A unit of work that two find out, each from what it knows."""
    lease = store.take_over(ID, "me")
    store.mark_recovered(lease, state)
    store.note_unmatched(ID, [Unmatched(state, Outcome.HEURISTIC_HAZARD, "another detail")], None)
    store.mark_recovered(lease, state)
    (first,) = outcomes(engine)
    store.note_outcome(ID, state, Outcome.HEURISTIC_ABORT, "something else is known of it")
    store.note_outcome("orders-1", state, Outcome.HEURISTIC_HAZARD, "another slot")
    elsewhere = PreparedTxnState(f"42:7:{Anchor.of(TopicPartition('events', 3), 100)}")
    store.note_outcome(ID, elsewhere, Outcome.HEURISTIC_HAZARD, "another place")
    assert len(outcomes(engine)) == 4
    acknowledge(engine, first, by="Ada")
    store.note_outcome(ID, state, Outcome.HEURISTIC_HAZARD, "again")
    assert len(outcomes(engine)) == 4
    assert len(outcomes(engine, acknowledged=True)) == 5


@pytest.mark.parametrize("state", [NOWHERE, PreparedTxnState()], ids=["nowhere", "empty"])
def test_a_state_that_may_name_several_units_is_put_on_record_each_time(
    engine: Engine, store: TakingStore, state: PreparedTxnState
) -> None:
    for _ in range(2):
        store.note_outcome(ID, state, Outcome.HEURISTIC_HAZARD, "lost")
    assert len(outcomes(engine)) == 2


def test_a_process_whose_slot_was_taken_over_records_no_outcome(engine: Engine, store: TakingStore) -> None:
    lease = stored(engine, store, NATIVE)
    successor = store.take_over(ID, "another")
    with pytest.raises(LeaseLostError):
        store.record(lease, Outcome.HEURISTIC_ABORT)
    assert outcomes(engine) == []
    assert state_in(store, successor) == NATIVE


def test_each_application_sees_its_own_outcomes(engine: Engine, store: TakingStore) -> None:
    for name in ("orders-0", "orders-12", "orders-1-0", "others-0"):
        store.record(stored(engine, store, NATIVE, name), Outcome.HEURISTIC_ABORT)
    assert [outcome.transactional_id for outcome in outcomes(engine, "orders")] == ["orders-0", "orders-12"]
    assert len(outcomes(engine)) == 4


def test_an_acknowledged_outcome_stays_on_record(engine: Engine, store: TakingStore) -> None:
    for name in ("orders-0", "orders-1"):
        store.record(stored(engine, store, NATIVE, name), Outcome.HEURISTIC_ABORT)
    first, second = outcomes(engine)
    done = acknowledge(engine, first, by="Ada")
    assert (done.id, done.acknowledged_by) == (first.id, "Ada")
    assert done.acknowledged_at is not None
    assert done.acknowledged_at >= done.found_at.replace(microsecond=0)
    assert outcomes(engine) == [second]
    assert outcomes(engine, acknowledged=True) == [done, second]


def test_the_first_acknowledgement_counts(engine: Engine, store: TakingStore) -> None:
    store.record(stored(engine, store, NATIVE), Outcome.HEURISTIC_ABORT)
    (found,) = outcomes(engine)
    done = acknowledge(engine, found.id, by="Ada")
    assert acknowledge(engine, found, by="Bob") == done


@pytest.mark.slow_cases("mariadb", "postgresql")
@pytest.mark.parametrize("by", ["", "  ", "x" * 256, None, 7, "A\x00", "A\nda", "\ud800"])
def test_an_acknowledgement_needs_a_name(engine: Engine, store: TakingStore, by: Any) -> None:
    store.record(stored(engine, store, NATIVE), Outcome.HEURISTIC_ABORT)
    (found,) = outcomes(engine)
    with pytest.raises(InputError, match="say who"):
        acknowledge(engine, found, by=by)
    assert outcomes(engine) == [found]


def test_an_outcome_that_is_not_there_cannot_be_acknowledged(engine: Engine) -> None:
    for number in (7, -1, 2**63, True, "7"):
        with pytest.raises(InputError, match=f"no heuristic outcome {number!r}"):
            acknowledge(engine, number, by="Ada")  # type: ignore[arg-type]


def test_without_the_tables_the_message_says_what_to_run(database_url: str) -> None:
    engine = create_engine(database_url)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        outcomes(engine)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        acknowledge(engine, 1, by="Ada")
    engine.dispose()


# Through a DualWrite, on a Kafka that somebody meddles with


def test_a_unit_that_was_aborted_by_force_is_found_once_and_its_slot_goes_on(
    make_dual_write: Callable[..., DualWrite], kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    dual_write = make_dual_write()
    kafka.before_effect = lambda request: kafka.init_producer_id(False) and None if request == "commit" else None
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
    kafka.before_effect = lambda request: None
    with dual_write.transaction() as tx:
        tx.produce("events", "two")
    assert (kafka.aborted, kafka.committed) == (["one"], ["two"])
    (found,) = dual_write.outcomes()
    assert found.outcome is Outcome.HEURISTIC_ABORT
    assert dual_write.counters.heuristic == 1
    dual_write.close()
    again = make_dual_write()
    assert again.recover() == {"orders-0": Outcome.NOTHING}
    assert again.outcomes() == [found]
    assert again.acknowledge(found, by="Ada").acknowledged_by == "Ada"
    assert again.outcomes() == []
    assert [outcome.id for outcome in again.outcomes(acknowledged=True)] == [found.id]


def test_a_database_that_was_restored_is_found_by_what_kafka_has_committed_since(
    make_dual_write: Callable[..., DualWrite], kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    dual_write = make_dual_write()
    rows = []
    for value in ("one", "two"):
        with dual_write.transaction() as tx:
            tx.produce("events", value)
        with sqlite_engine.connect() as connection:
            rows.append(dict(connection.execute(select(table)).mappings().one()))
    dual_write.close()
    with sqlite_engine.begin() as connection:
        given_back = {"owner": "", "lease_expires_at": None}
        connection.execute(update(table).values({**rows[0], **given_back}))
    restored = make_dual_write()
    assert restored.recover() == {"orders-0": Outcome.HEURISTIC_COMMIT}
    assert [outcome.outcome for outcome in restored.outcomes()] == [Outcome.HEURISTIC_COMMIT]


def test_a_cluster_that_was_restored_is_found_by_what_it_lacks(
    make_dual_write: Callable[..., DualWrite], kafka: FakeKafka
) -> None:
    dual_write = make_dual_write()
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
    dual_write.close()
    kafka.next_offset = 0
    kafka.ended.clear()
    restored = make_dual_write()
    assert restored.recover() == {"orders-0": Outcome.HEURISTIC_HAZARD}
    assert restored.recover() == {}
    assert restored.counters.heuristic == 1


def test_a_record_that_fails_is_not_lost(
    make_dual_write: Callable[..., DualWrite], kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    dual_write = make_dual_write()
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
    dual_write.close()
    kafka.next_offset = 0
    with sqlite_engine.begin() as connection:
        connection.execute(text("ALTER TABLE kafka_transaction_outcome RENAME TO elsewhere"))
    restored = make_dual_write()
    with pytest.raises(DatabaseNotReadyError):
        restored.recover()
    with sqlite_engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO kafka_transaction_outcome"))
    assert restored.recover() == {"orders-0": Outcome.HEURISTIC_HAZARD}
    assert len(restored.outcomes()) == 1


@pytest.mark.parametrize(
    ("state", "shown"), [(LIBRDKAFKAS, "42:7:events:3:99"), (NOWHERE, "42:7"), (PreparedTxnState(), "")]
)
def test_an_outcome_of_any_unit_of_work_can_be_put_on_record(
    engine: Engine, store: TakingStore, state: PreparedTxnState, shown: str
) -> None:
    lease = stored(engine, store, NATIVE)
    store.note_outcome(ID, state, Outcome.HEURISTIC_COMMIT, "its rows are missing")
    (found,) = outcomes(engine)
    assert (found.transactional_id, found.state, found.detail) == (ID, shown, "its rows are missing")
    assert state_in(store, lease) == NATIVE, "the state row is not touched"
