"""What docs/recipe.md says of a process that is killed is what happens: at each of its moments the library is killed,
on a real SQLite file, and recovers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from drawing.crash_moments import FORMER, OWN, Moment, decisive, moments
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.machine import TRANSITIONS, Step, UnitState
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.coordinator.slots import pool
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import Crash, FakeKafka
from tests.support.coordinator.searches.unit_search import NoBackground, NoHeartbeat

MOMENTS = moments()


@pytest.fixture
def engine(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(slots, "Background", NoBackground)
    monkeypatch.setattr(pool, "LeaseRenewal", NoHeartbeat)
    engine = ready_engine(sqlite_url)
    yield engine
    engine.dispose()


class KilledProcess:
    """A process that dies at ``moment``; nothing that it does later has any effect."""

    def __init__(self, engine: Engine, kafka: FakeKafka, moment: Moment) -> None:
        self.kafka, self.moment = kafka, moment
        self.is_armed = self.is_dead = False
        kafka.before_effect = self.request
        self.dual_write = started(engine, kafka, on_step=self.step)

    def step(self, name: str) -> None:
        self.die_if(self.moment.step is not None and name == self.moment.step.name)

    def request(self, name: str) -> None:
        self.die_if(name == "produce" and self.moment.state is UnitState.PRODUCING)

    def die_if(self, is_the_moment: bool) -> None:
        self.is_dead = self.is_dead or (self.is_armed and is_the_moment)
        if self.is_dead:
            raise Crash(self.moment.state.value)

    def write(self, value: str) -> None:
        with self.dual_write.transaction() as tx:
            self.die_if(self.moment.state is UnitState.RUNNING)
            tx.execute(insert(events).values(value=value))
            tx.produce("events", value)


def started(engine: Engine, kafka: FakeKafka, **options: Any) -> DualWrite:
    participant: Any = kafka.participant
    return DualWrite(engine, CONFIG, application="orders", participant=participant, pool_size=1, **options)


def named_by_the_row(engine: Engine) -> tuple[str, str]:
    """The transaction: FakeKafka has one epoch for a session, and an anchor for each transaction."""
    row = kafka_transaction_state.c
    with engine.connect() as connection:
        state, anchor = connection.execute(select(row.prepared_txn_state, row.anchor)).one()
    return state, anchor


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.state.name)
def test_a_process_that_is_killed_leaves_what_the_recipe_says_and_recovery_does_what_it_says(
    engine: Engine, moment: Moment
) -> None:
    kafka = FakeKafka()
    process = KilledProcess(engine, kafka, moment)
    process.write("former")
    former = named_by_the_row(engine)
    process.is_armed = True
    if moment.step is None:
        process.write("own")
    else:
        with pytest.raises(Crash):
            process.write("own")

    assert (kafka.ongoing is not None) is (moment.sides.ongoing is not None)
    assert (named_by_the_row(engine) == former) is (moment.sides.stored == FORMER)
    assert ("own" in stored_values(engine)) is moment.has_rows

    before = (len(kafka.committed), len(kafka.aborted))
    expire_leases(engine)
    kafka.before_effect = lambda request: None
    with started(engine, kafka) as successor:
        successor.recover()
    ended = {
        (0, 0): RecoveryDecision.NOTHING,
        (1, 0): RecoveryDecision.COMMIT,
        (0, 1): RecoveryDecision.ABORT,
    }[len(kafka.committed) - before[0], len(kafka.aborted) - before[1]]
    assert ended is moment.decision
    assert ("own" in stored_values(engine)) is moment.has_rows
    assert ("own" in kafka.committed) is moment.has_records
    assert moment.has_rows is moment.has_records


def test_the_moments_are_all_states_on_the_way_of_a_unit_in_which_nothing_fails() -> None:
    ways = [UnitState.NEW, *(moment.state for moment in MOMENTS)]
    assert all(after in TRANSITIONS[before].values() for before, after in pairwise(ways))
    assert ways[-1] is UnitState.SUCCEEDED
    assert [moment.step for moment in MOMENTS].count(Step.RUN) == 2


def test_the_decision_is_the_commit_of_the_database() -> None:
    assert decisive(MOMENTS).step is Step.COMMIT_DATABASE
    assert [moment.decision for moment in MOMENTS].count(RecoveryDecision.COMMIT) == 1
    assert {moment.sides.stored for moment in MOMENTS} == {FORMER, OWN}


def test_moments_without_a_decision_are_refused() -> None:
    with pytest.raises(ValueError, match="no moment is the decision"):
        decisive(MOMENTS[:-2])
    with pytest.raises(ValueError, match="no moment is the decision"):
        decisive(MOMENTS[::-1])
