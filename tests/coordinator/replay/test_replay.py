"""The records of a unit of work, kept beside its state and produced again: as they were, once, and nobody else's."""

import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.replay.recording import kept_record
from dualwrite.coordinator.replay.replay import LostUnit
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.outcome_store import acknowledge, outcomes
from dualwrite.errors import FencedError, KafkaRefusedError, KafkaUnavailableError
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, stored_values
from tests.support.coordinator.fake_kafka import Fault
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.coordinator.replays import Make, die_after_the_decision, kept, on_record, refusing, write
from tests.support.servers.databases import SERVERS

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

SLOTS = 6
PATIENCE = 20.0


on_servers = pytest.mark.parametrize(
    "database_url",
    SERVERS,
    indirect=True,
)
"""Databases with more than one writer."""


class ManyIds:
    """Kafka with a transactional id for each slot."""

    def __init__(self) -> None:
        self._ids: dict[str, ResumingKafka] = {}

    def participant(self, config: Mapping[str, Any]) -> KafkaParticipant:
        return self._ids.setdefault(config["transactional.id"], ResumingKafka()).participant()


def test_the_records_are_kept_with_the_state_and_replaced_by_the_next_units(engine: Engine, make: Make) -> None:
    dual_write = make()
    with dual_write.transaction() as tx:
        for number in range(3):
            tx.produce("events", f"v{number}", key=b"\x00k", headers={"h": b"\xff", "n": None}, timestamp=7 + number)
    assert [(row.number, row.record_value, row.record_timestamp) for row in kept(engine)] == [
        (0, b"v0", 7),
        (1, b"v1", 8),
        (2, b"v2", 9),
    ]
    assert {(row.topic, row.partition, row.record_key) for row in kept(engine)} == {("events", 0, b"\x00k")}
    assert {tuple(kept_record(row).headers) for row in kept(engine)} == {(("h", b"\xff"), ("n", None))}
    write(dual_write, "next")
    assert [(row.number, row.record_value, row.headers) for row in kept(engine)] == [(0, b"next", None)]


def test_records_that_another_process_has_kept_in_a_slot_are_replaced(engine: Engine, make: Make) -> None:
    first, second = make(), make()
    first.recover()  # nothing is kept yet
    expire_leases(engine)
    write(second, "second")
    second.close()
    with pytest.raises(FencedError):
        write(first, "lost lease")
    write(first, "first")
    assert [row.record_value for row in kept(engine)] == [b"first"]


def test_a_child_that_is_forked_in_the_middle_of_a_replay_ends_none(engine: Engine, make: Make) -> None:
    dual_write = make()
    assert manager_of(dual_write).replayer is not None
    manager_of(dual_write).replayer.store.replayed["a-0"] = LostUnit(1, 0, 0)  # as the parent has it
    write(dual_write, "one")
    assert stored_values(engine) == ["one"]


def test_a_unit_that_is_rolled_back_keeps_nothing(engine: Engine, make: Make) -> None:
    dual_write = make()
    write(dual_write, "one")

    def produce_and_raise() -> None:
        with dual_write.transaction() as tx:
            tx.produce("events", "never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        produce_and_raise()
    assert [row.record_value for row in kept(engine)] == [b"one"]


def test_without_replay_no_record_is_kept(engine: Engine, make: Make) -> None:
    write(make(replay=False), "one")
    assert kept(engine) == []


def test_a_timed_out_unit_is_replayed_before_its_slot_is_used(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "lost", timestamp=5)
    assert kafka.committed == []
    survivor = make()
    write(survivor, "later")
    assert kafka.committed == ["lost", "later"]
    assert stored_values(engine) == ["lost", "later"]
    assert on_record(engine) == [("heuristic abort", "replay")]
    assert (survivor.counters.heuristic, survivor.counters.replayed, survivor.counters.committed) == (1, 1, 1)


def test_the_sweep_replays_in_unused_slots(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    survivor = make()
    found, errors = manager_of(survivor).process.sweeper.attempt(free_too=False)
    assert (found, errors) == ({"a-0": Outcome.REPLAYED}, [])
    assert kafka.committed == ["lost"]
    assert survivor.recover()["a-0"] is Outcome.NOTHING
    assert kafka.open_participants() <= 2  # the dead process's, and the survivor's one


def test_a_sweep_that_cannot_replay_leaves_the_slot_to_the_next_sweep(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    survivor = make()
    kafka.fault = lambda request: Fault.BEFORE if request == "produce" else Fault.NONE
    found, errors = manager_of(survivor).process.sweeper.attempt(free_too=False)
    assert found == {}
    assert [type(error) for error in errors] == [KafkaUnavailableError]
    kafka.fault = lambda request: Fault.NONE
    found, errors = manager_of(survivor).process.sweeper.attempt(free_too=False)
    assert (found, errors, kafka.committed) == ({"a-0": Outcome.REPLAYED}, [], ["lost"])


def test_a_unit_that_timed_out_under_a_living_process_is_replayed_by_it(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """Its caller has been told that the unit of work succeeded, and it did."""
    kafka.before_effect = lambda request: kafka.time_out() if request == "commit" and not kafka.timed_out else None
    living = make()
    write(living, "lost")
    living.recover()
    assert kafka.committed == stored_values(engine) == ["lost"]
    assert kafka.timed_out == 1
    assert living.counters.finished_later == 1


def test_a_replay_that_times_out_is_replayed(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    kafka.before_effect = lambda request: kafka.time_out() if request == "commit" and kafka.timed_out < 3 else None
    survivor = make()
    survivor.recover()
    assert kafka.committed == ["lost"]
    assert on_record(engine) == [("heuristic abort", "replay")] * 3


def test_a_database_that_fails_in_the_replay_leaves_it_to_be_done(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    broken = [True]

    def observe(step: str) -> None:
        if step == "STORE_STATE" and broken:
            raise KafkaUnavailableError("not now")

    survivor = make(on_step=observe)
    with pytest.raises(KafkaUnavailableError, match="not now"):
        write(survivor, "later")
    assert kafka.committed == []
    broken.clear()
    write(survivor, "later")
    assert kafka.committed == stored_values(engine) == ["lost", "later"]


def test_with_replay_too_a_process_that_was_replaced_begins_nothing_in_kafka(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    replaced, survivor = make(), make()
    write(replaced, "one")
    expire_leases(engine)
    write(survivor, "two")
    requests: list[str] = []
    kafka.before_effect = requests.append
    with pytest.raises(FencedError):
        write(replaced, "late")
    assert requests == []
    assert kafka.committed == stored_values(engine) == ["one", "two"]


def test_a_permanently_refused_replay_is_logged_and_the_slot_continues(
    engine: Engine, make: Make, kafka: ResumingKafka, caplog: pytest.LogCaptureFixture
) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    survivor = make()

    kafka.before_effect = refusing(kafka, "lost")
    with caplog.at_level(logging.ERROR, "dualwrite"):
        write(survivor, "later")
    assert any("1 records cannot be produced again: a topic that is gone" in line for line in caplog.messages)
    assert kafka.committed == ["later"]
    assert on_record(engine) == [("heuristic abort", None)]


def test_a_refused_replay_that_kafka_cannot_abort_is_the_error_of_its_recovery(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """Otherwise the recovery would replay again and again, as long as no abort succeeds."""
    die_after_the_decision(make, kafka, engine, "lost")
    survivor, fails = make(), ["abort"]
    kafka.before_effect = refusing(kafka, "lost")

    def fault(request: str) -> Fault:
        if request in fails:
            fails.remove(request)
            return Fault.BEFORE
        return Fault.NONE

    kafka.fault = fault
    with pytest.raises(KafkaRefusedError, match="a topic that is gone"):
        write(survivor, "later")
    write(survivor, "later")
    assert kafka.committed == ["later"]


def test_refused_records_are_kept_beside_later_ones_until_kafka_accepts_them(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    die_after_the_decision(make, kafka, engine, "lost")
    survivor = make()
    kafka.before_effect = refusing(kafka, "lost")
    write(survivor, "second")
    write(survivor, "third")
    assert [(row.number, row.record_value) for row in kept(engine)] == [(0, b"lost"), (1, b"third")]
    survivor.close()
    kafka.before_effect = lambda request: None  # the topic is there again
    mended = make()
    mended.recover()
    assert kafka.committed == ["second", "third", "lost"]
    assert on_record(engine) == [("heuristic abort", "replay")]
    write(mended, "fourth")
    assert [(row.number, row.record_value) for row in kept(engine)] == [(0, b"fourth")]


@pytest.mark.parametrize("is_refused", [True, False])
def test_several_lost_units_are_replayed_unless_refused(
    engine: Engine, make: Make, kafka: ResumingKafka, is_refused: bool
) -> None:
    die_after_the_decision(make, kafka, engine, "one")
    kafka.before_effect = refusing(kafka, "one")
    die_after_the_decision(make, kafka, engine, "two")
    assert [row.record_value for row in kept(engine)] == [b"one", b"two"]
    if not is_refused:
        kafka.before_effect = lambda request: None
    survivor = make()
    write(survivor, "three")
    assert kafka.committed == (["two", "three"] if is_refused else ["one", "two", "three"])
    assert on_record(engine) == [("heuristic abort", None if is_refused else "replay"), ("heuristic abort", "replay")]
    assert [row.record_value for row in kept(engine)] == ([b"one"] if is_refused else []) + [b"three"]
    assert survivor.counters.replayed == 2 - is_refused


def test_replayed_records_are_deleted_and_refused_ones_kept(engine: Engine, make: Make, kafka: ResumingKafka) -> None:
    die_after_the_decision(make, kafka, engine, "one")
    kafka.before_effect = refusing(kafka, "one")
    die_after_the_decision(make, kafka, engine, "two")
    kafka.before_effect = refusing(kafka, "two")
    make().recover()
    assert kafka.committed == ["one"]
    assert [row.record_value for row in kept(engine)] == [b"two", b"one"]


def test_a_replay_that_times_out_again_does_not_affect_other_replays(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    die_after_the_decision(make, kafka, engine, "one")
    kafka.before_effect = refusing(kafka, "one")
    die_after_the_decision(make, kafka, engine, "two")
    kafka.before_effect = lambda request: kafka.time_out() if request == "commit" and kafka.timed_out < 4 else None
    make().recover()
    assert sorted(kafka.committed) == ["one", "two"]
    assert {by for _, by in on_record(engine)} == {"replay"}


@on_servers
def test_an_outcome_acknowledged_during_its_replay_is_not_replayed(
    engine: Engine, make: Make, kafka: ResumingKafka
) -> None:
    """They may have produced its records by hand."""
    die_after_the_decision(make, kafka, engine, "lost")

    def observe(step: str) -> None:
        for outcome in outcomes(engine) if step == "PREPARE_KAFKA" else []:
            acknowledge(engine, outcome, by="Ada")

    survivor = make(on_step=observe)
    write(survivor, "later")
    assert kafka.committed == ["later"]
    assert on_record(engine) == [("heuristic abort", "Ada")]
    assert survivor.counters.replayed == 0


@on_servers
def test_the_first_units_of_many_slots_do_not_wait_for_each_other(engine: Engine) -> None:
    """In InnoDB a DELETE that finds nothing locks the gap in which the others insert."""
    cluster, errors = ManyIds(), []
    together = threading.Barrier(SLOTS)
    options: Any = {"application": "a", "two_phase": "resume", "replay": True, "pool_size": SLOTS}

    def unit(value: str) -> None:
        try:
            with dual_write.transaction() as tx:
                tx.execute(insert(events).values(value=value))
                together.wait(PATIENCE)
                tx.produce("events", value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
            errors.append(error)

    with DualWrite(engine, CONFIG, participant=cluster.participant, **options) as dual_write:
        threads = [threading.Thread(target=unit, args=(f"v{number}",)) for number in range(SLOTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(kept(engine)) == len(stored_values(engine)) == SLOTS
