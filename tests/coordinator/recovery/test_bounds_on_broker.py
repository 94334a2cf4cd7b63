"""Rows that say only behind which place a transaction's first record is, on the bundled broker: recovery finds how the
transaction ended as it does from an exact place."""

import pytest
from sqlalchemy import Engine

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import ProducerIdentity
from tests.support.coordinator.broker_application import ApplicationPlace
from tests.support.coordinator.event_table import slot_rows


@pytest.fixture
def place(sqlite_engine: Engine, broker: EmbeddedBroker) -> ApplicationPlace:
    return ApplicationPlace(sqlite_engine, broker, "native")


def first_record(place: ApplicationPlace) -> str:
    """The column of the slot's row, without the identity."""
    column: str = slot_rows(place.engine)[f"{place.application}-0"].first_record
    return column.split(":", 2)[2]


def is_bound(place: ApplicationPlace) -> bool:
    topic, _, _ = first_record(place).split(":")
    return topic.endswith("+")


def terminate(place: ApplicationPlace) -> None:
    """KIP-939's forceTerminateTransaction."""
    control = place.control()
    control.init_producer_id(f"{place.application}-0", two_phase_commit=True, keep_prepared_txn=False)
    control.close()


def two_units(place: ApplicationPlace) -> None:
    def work(dual_write: DualWrite) -> None:
        place.write(dual_write, "one")
        place.write(dual_write, "two")

    place.dying(work, unit=2)


def test_only_a_later_unit_of_a_producer_has_a_bound(place: ApplicationPlace) -> None:
    with place.dual_write() as dual_write:
        place.write(dual_write, "one")
        assert not is_bound(place)
        place.write(dual_write, "two")
        assert is_bound(place)
        assert first_record(place).endswith(":0:1"), "behind the first record; between them is its marker"
    assert place.visible() == [b"one", b"two"]


def test_a_decided_transaction_is_committed_by_the_next_process(place: ApplicationPlace) -> None:
    two_units(place)
    assert is_bound(place)
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {f"{place.application}-0": Outcome.COMMITTED}
        assert dual_write.outcomes() == []
    assert place.visible() == [b"one", b"two"]


def test_a_transaction_that_was_aborted_by_force_is_found(place: ApplicationPlace) -> None:
    two_units(place)
    terminate(place)
    other = ApplicationPlace(place.engine, place.broker, "native")
    other.topic = place.topic
    with other.dual_write() as writing:
        other.write(writing, "between")  # behind the transaction, as any number of records may be
    with place.dual_write() as dual_write:
        dual_write.recover()
        (found,) = dual_write.outcomes()
        assert (found.outcome, found.state.split(":")[2:]) == (Outcome.HEURISTIC_ABORT, [place.topic, "0", "1"])
        dual_write.recover()
        assert len(dual_write.outcomes()) == 1
    assert place.visible() == [b"between", b"one"]


def test_a_committed_transaction_is_no_outcome_after_any_number_of_starts(place: ApplicationPlace) -> None:
    with place.dual_write() as dual_write:
        for value in ("one", "two"):
            place.write(dual_write, value)
    for _ in range(2):
        with place.dual_write() as dual_write:
            dual_write.recover()
            assert dual_write.outcomes() == []
    assert place.visible() == [b"one", b"two"]


def test_a_topic_that_was_made_anew_gets_the_exact_place(place: ApplicationPlace) -> None:
    """Its offsets begin again, before the bound."""
    with place.dual_write() as dual_write:
        for value in ("one", "two", "three"):
            place.write(dual_write, value)
        assert is_bound(place)
        place.delete(place.topic, anew=True)
        place.write(dual_write, "four")
        assert not is_bound(place)
        assert first_record(place).endswith(":0:0")
        assert dual_write.outcomes() == []
    with place.dual_write() as dual_write:
        dual_write.recover()
        assert dual_write.outcomes() == []
    assert place.visible() == [b"four"]


def test_a_cluster_that_has_lost_the_transaction_is_found(place: ApplicationPlace) -> None:
    """As one that was restored from an older copy: the row's transaction is not in the log."""
    with place.dual_write() as dual_write:
        for value in ("one", "two"):
            place.write(dual_write, value)
    row = slot_rows(place.engine)[f"{place.application}-0"]
    producer = ProducerIdentity(*map(int, row.prepared_txn_state.split(":")))
    never = ProducerIdentity(producer.producer_id, producer.epoch - 100 if producer.epoch > 100 else 30_000)
    place_of_it = row.first_record.split(":", 2)[2]
    with place.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE kafka_transaction_state SET prepared_txn_state = ?, first_record = ? WHERE transactional_id = ?",
            (str(never), f"{never}:{place_of_it}", row.transactional_id),
        )
    with place.dual_write() as dual_write:
        dual_write.recover()
        (found,) = dual_write.outcomes()
    assert found.outcome is Outcome.HEURISTIC_HAZARD
