"""The real coordinator where a prepared transaction may time out: at any request, beside whatever fails or dies. With
replay both sides are equal in the end; without, every difference is on record.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Engine, delete, select

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import (
    kafka_transaction_outcome,
    kafka_transaction_record,
    kafka_transaction_state,
)
from dualwrite.operations.phrases import counted
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, stored_values
from tests.support.coordinator.fake_kafka import Crash, Fault
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.coordinator.searches.driver_search import search_database
from tests.support.coordinator.searches.unit_search import UnitSearchWorld, check, run_unit
from tests.support.exhaustive.histories import Chooser, HistoryModel, Scenario

TIMED_OUT = "a prepared transaction timed out"
ON_RECORD = "a unit that had timed out was produced again, and is on record"
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


def replay_scenario(engine: Engine, values: tuple[str, ...], *, replay: bool, deaths_only: bool = False) -> Scenario:
    """Units of work with ``values``; gives how they ended, and whether one timed out.

    :param deaths_only: processes die between their steps, and nothing else fails but timeouts.
    """
    plain = engine.dialect.do_commit

    def scenario(chooser: Chooser) -> list[str]:
        with engine.begin() as connection:
            for table in TABLES:
                connection.execute(delete(table))
        world = ReplayWorld(engine, replay=replay, deaths_only=deaths_only)
        engine.dialect.do_commit = partial(world.commit, plain)  # type: ignore[method-assign]
        try:
            return _live_and_recover(world, chooser, values)
        finally:
            engine.dialect.do_commit = plain  # type: ignore[method-assign]

    return scenario


def _live_and_recover(world: ReplayWorld, chooser: Chooser, values: tuple[str, ...]) -> list[str]:
    world.chooser = chooser
    ends: dict[str, str] = {}
    seen: list[str] = []
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
            seen.append(type(error).__name__)
        world.chooser = None
    if world.replay:
        check(world, ends)
        assert all(acknowledged for _, acknowledged in on_record(world.engine))
    else:
        check_differences(world)
    seen += ends.values()
    seen += [TIMED_OUT] * bool(world.kafka.timed_out) + [ON_RECORD] * bool(on_record(world.engine))
    for process in started:
        process.close(0)
    return seen


def replay_model(values: tuple[str, ...] = ("one",)) -> HistoryModel:
    """The model with replay; it makes a database of its own."""

    @contextmanager
    def opened() -> Iterator[Scenario]:
        with search_database() as engine:
            yield replay_scenario(engine, values, replay=True)

    return HistoryModel(
        name="replay",
        about="the same with transactions that time out, replay=True, "
        + counted(len(values), "unit of work", "units of work"),
        opened=opened,
        asserted=(
            "both sides are equal after recovery and replay",
            "what each caller was told is true",
            "each unit that timed out is on record, and acknowledged",
        ),
        events=("succeeded", "rolled back", "killed", TIMED_OUT, ON_RECORD),
    )
