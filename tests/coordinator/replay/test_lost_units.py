"""What of a slot's kept records is lost, and is replayed once: no other unit's, of any slot, session or cluster."""

import pytest
from sqlalchemy import Engine, delete, insert, update

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_record, kafka_transaction_state
from dualwrite.errors import FencedError
from dualwrite.ids import ProducerIdentity
from tests.support.coordinator.event_table import expire_leases, stored_values
from tests.support.coordinator.fake_kafka import PRODUCER_ID
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.coordinator.replays import Make, die_after_the_decision, kept, on_record, refusing, write

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def put_on_record(make: Make, kafka: ResumingKafka, engine: Engine, value: str) -> None:
    """The unit of a dead process is lost, and recovery without replay puts it on record."""
    die_after_the_decision(make, kafka, engine, value)
    with make(replay=False) as without:
        without.recover()


def forget_the_cluster(engine: Engine) -> None:
    """The rows name nothing of the former cluster, and nothing of its units is kept."""
    with engine.begin() as connection:
        connection.execute(delete(kafka_transaction_record))
        connection.execute(update(kafka_transaction_state).values(prepared_txn_state="", anchor=None))


def test_the_epoch_of_a_lost_unit_does_not_make_a_new_clusters_unit_lost(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """Its first record tells the two apart. What is kept was committed, and a replay would double it."""
    put_on_record(make, kafka, engine, "lost")
    kafka.forget()
    kafka.next_offset = 5
    dual_write = make()
    forget_the_cluster(engine)
    write(dual_write, "new")
    dual_write.close()
    later = make(replay=False)
    write(later, "later")
    later.close()
    (lost,) = outcomes(engine)
    (new,) = kept(engine)
    assert f"{new.prepared_txn_state}:events:0:0" == lost.state
    make().recover()
    assert kafka.committed == ["new", "later"]


def test_a_replay_acknowledges_the_loss_in_the_new_cluster_and_not_an_older_one_of_the_same_identity(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """An operator who reads that the replayed unit is lost may produce its records once more."""
    for value in ("old", "new"):
        with engine.begin() as connection:
            connection.execute(delete(kafka_transaction_record))
        put_on_record(make, kafka, engine, value)
        kafka.forget()
        with engine.begin() as connection:
            connection.execute(update(kafka_transaction_state).values(prepared_txn_state="", anchor=None))
    (old, new) = outcomes(engine)
    assert old.state == new.state
    make().recover()
    assert kafka.committed == ["new"]
    assert on_record(engine) == [("heuristic abort", None), ("heuristic abort", "replay")]


def test_lost_units_are_replayed_in_their_order_when_an_epoch_gets_another_digit(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    kafka.current = ProducerIdentity(PRODUCER_ID, 8)
    die_after_the_decision(make, kafka, engine, "one")
    kafka.before_effect = refusing(kafka, "one")
    die_after_the_decision(make, kafka, engine, "two")
    states = [row.prepared_txn_state for row in kept(engine)]
    assert states == sorted(states, reverse=True)
    kafka.before_effect = lambda request: None
    make().recover()
    assert kafka.committed == ["one", "two"]


def test_a_new_clusters_unit_is_not_mistaken_for_a_lost_unit_of_the_same_identity(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """What was lost with the old cluster is not acknowledged, and in the new one producer ids have begun anew."""
    put_on_record(make, kafka, engine, "lost")
    (lost,) = outcomes(engine)
    kafka.forget()
    dual_write = make()
    forget_the_cluster(engine)
    write(dual_write, "new")
    assert [f"{row.prepared_txn_state}:{row.first_record}" for row in kept(engine)] == [lost.state]
    dual_write.close()
    make().recover()
    assert kafka.committed == ["new"]


def test_an_acknowledged_outcome_is_not_replayed(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    without = make(replay=False)
    without.recover()
    (outcome,) = without.outcomes()
    without.acknowledge(outcome, by="operator")
    without.close()
    requests: list[str] = []
    kafka.before_effect = requests.append
    make().recover()
    assert kafka.committed == []
    assert "produce" not in requests


def test_a_unit_of_which_kafka_may_have_lost_the_commit_is_not_replayed(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """Consumers may have its records."""
    die_after_the_decision(make, kafka, engine, "lost")
    kafka.next_offset = 0
    dual_write = make()
    assert dual_write.recover() == {"a-0": Outcome.HEURISTIC_HAZARD}
    dual_write.close()
    make().recover()
    assert kafka.committed == []
    assert on_record(engine) == [("heuristic hazard", None)]


def test_an_outcome_found_without_replay_is_replayed_later(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    put_on_record(make, kafka, engine, "lost")
    assert make().recover() == {"a-0": Outcome.REPLAYED}
    assert kafka.committed == ["lost"]


def test_records_of_an_earlier_unit_are_not_taken_for_a_later_ones(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """The later one was run without replay: nothing of it is kept, and what is kept has been committed."""
    first = make()
    write(first, "first")
    first.close()
    dead = make(replay=False, on_step=lambda step: kafka.time_out() if step == "COMMIT_KAFKA" else None)
    write(dead, "second")
    dead.close(timeout=0)
    expire_leases(engine)
    make().recover()
    assert kafka.committed == ["first"]
    assert on_record(engine) == [("heuristic abort", None)]


def test_a_replay_is_of_the_records_of_its_slot_alone(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    (row,) = kept(engine)
    other = {**row._mapping, "transactional_id": "a-1", "record_value": b"of another slot"}
    with engine.begin() as connection:
        connection.execute(insert(kafka_transaction_record).values(other))
    make().recover()
    assert kafka.committed == ["lost"]
    assert [row.record_value for row in kept(engine)] == [b"lost", b"of another slot"]


def test_a_unit_that_another_process_has_lost_in_a_slot_is_replayed_by_the_one_that_had_it_before(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """It has found nothing kept there, and that is so no longer."""
    first = make()
    first.recover()
    expire_leases(engine)
    die_after_the_decision(make, kafka, engine, "lost")
    with pytest.raises(FencedError):
        write(first, "late")
    write(first, "later")
    assert kafka.committed == stored_values(engine) == ["lost", "later"]
    assert [row.record_value for row in kept(engine)] == [b"later"]


def test_an_interrupt_after_the_decision_of_a_replay_reaches_the_caller(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    strikes = ["COMMIT_KAFKA"]

    def observe(step: str) -> None:
        if step in strikes:
            strikes.clear()
            raise SystemExit

    survivor = make(on_step=observe)
    with pytest.raises(SystemExit):
        write(survivor, "later")
    write(survivor, "later")
    assert kafka.committed == stored_values(engine) == ["lost", "later"]
