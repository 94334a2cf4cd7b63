"""Exhaustive search of the real coordinator where a prepared transaction may time out: at any request, beside whatever
fails or dies. With replay both sides are equal in the end; without, every difference is on record.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, event, select

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.slots import pool
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.sql.tables import (
    kafka_transaction_outcome,
    kafka_transaction_record,
    kafka_transaction_state,
)
from tests.support.breaking.coordinator import REPLAYS, replay_that_stores_no_state
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import Crash, Fault
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.coordinator.unit_search import NoBackground, NoHeartbeat, UnitSearchWorld, check, run_unit
from tests.support.state_search import Chooser, every_run

TABLES = (events, kafka_transaction_state, kafka_transaction_outcome, kafka_transaction_record)


class ReplayWorld(UnitSearchWorld):
    """As World, and the open transaction may time out before any request."""

    kafka: ResumingKafka

    def __init__(self, engine: Engine, *, replay: bool, deaths_only: bool) -> None:
        super().__init__(engine, "await")
        self.deaths_only = deaths_only
        self.kafka = ResumingKafka()
        self.kafka.before_effect = lambda request: self.before(request)
        self.kafka.fault = lambda request: self.fault()
        self.replay = replay

    def before(self, request: str) -> None:
        self.check_alive()
        if self.chooser is not None and self.kafka.ongoing is not None and self.chooser.choose(2):
            self.kafka.time_out()

    def fault(self) -> Fault:
        return Fault.NONE if self.deaths_only else super().fault()

    def observe(self, step: str) -> None:
        if not self.deaths_only:
            super().observe(step)
            return
        self.check_alive()
        if self.chooser is not None and self.chooser.choose(2):
            self.dead = True
            raise Crash(step)

    def start(self) -> DualWrite:
        self.dead = self.committing = False
        expire_leases(self.engine)
        options: Any = {
            "application": "a",
            "pool_size": 1,
            "acquire_timeout": 0.1,
            "participant": self.kafka.participant,
        }
        return DualWrite(self.engine, CONFIG, on_step=self.observe, two_phase="resume", replay=self.replay, **options)


@pytest.fixture
def engine(sqlite_url: str, tmp_path: Path) -> Iterator[Engine]:
    ready_engine(sqlite_url).dispose()
    engine = create_engine(sqlite_url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "Background", NoBackground)
    monkeypatch.setattr(pool, "LeaseRenewal", NoHeartbeat)


def on_record(engine: Engine) -> list[tuple[str, bool]]:
    """The outcomes that were found, and whether somebody has seen to them."""
    table = kafka_transaction_outcome
    with engine.connect() as connection:
        return [(row.outcome, row.acknowledged_at is not None) for row in connection.execute(select(table))]


def check_differences(world: ReplayWorld) -> None:
    """Each unit of work is whole on both sides, or in the database alone and on record."""
    rows, records = Counter(stored_values(world.engine) * 2), Counter(world.kafka.committed)
    assert not records - rows, f"aborted read: {records - rows}"
    lost = rows - records
    assert set(lost.values()) <= {2}, f"torn: {lost}"
    assert on_record(world.engine) == [("heuristic abort", False)] * len(lost), f"lost {lost}"


def search(
    engine: Engine, values: tuple[str, ...], faults: int, *, replay: bool, deaths_only: bool = False
) -> Counter[str]:
    """Every combination of faults; how often units of work ended in which way, and how often one timed out.

    :param deaths_only: processes die between their steps, and nothing else fails but timeouts.
    """
    seen: Counter[str] = Counter()
    plain = engine.dialect.do_commit

    def scenario(chooser: Chooser) -> None:
        with engine.begin() as connection:
            for table in TABLES:
                connection.execute(delete(table))
        world = ReplayWorld(engine, replay=replay, deaths_only=deaths_only)
        engine.dialect.do_commit = lambda connection: world.commit(plain, connection)  # type: ignore[method-assign]
        world.chooser = chooser
        ends: dict[str, str] = {}
        dual_write = world.start()
        for value in values:
            ends[value] = run_unit(dual_write, value)
            if world.dead:
                dual_write = world.start()
        started = [dual_write]
        for _ in range(2):  # the first one may fail as well; then the faults are over
            started.append(world.start())
            try:
                started[-1].recover()
            except BaseException as error:  # noqa: BLE001 - whatever the faults came to
                assert world.chooser is not None, "recovery fails without a fault"
                seen[type(error).__name__] += 1
            world.chooser = None
        if replay:
            check(world, ends)
            assert all(acknowledged for _, acknowledged in on_record(engine))
        else:
            check_differences(world)
        seen.update(ends[value] for value in values)
        seen["timed out"] += world.kafka.timed_out
        seen["on record"] += len(on_record(engine))
        for process in started:
            process.close(0)

    try:
        every_run(scenario, faults)
    finally:
        engine.dialect.do_commit = plain  # type: ignore[method-assign]
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_any_fault_in_one_unit_of_work(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one",), faults=1, replay=replay)
    assert min(seen["succeeded"], seen["rolled back"], seen["killed"], seen["timed out"], seen["on record"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_any_fault_in_two_units_of_work(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one", "two"), faults=1, replay=replay)
    assert min(seen["timed out"], seen["on record"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_two_timeouts_or_deaths(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one",), faults=2, replay=replay, deaths_only=True)
    assert min(seen["timed out"], seen["on record"]) > 2


def test_the_search_notices_a_replay_whose_state_is_not_stored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that is committed before the database knows of it comes twice if its process dies in between."""

    REPLAYS.broken_by(monkeypatch, replay_that_stores_no_state)
    with pytest.raises(AssertionError, match="torn"):
        search(engine, ("one",), faults=2, replay=True, deaths_only=True)
