"""The real coordinator, from DualWrite to recovery, on a real SQLite file and a Kafka that fails.

Units of work run; every step, every request to Kafka and every COMMIT may fail before or after its effect or kill the
process. Then a fresh process recovers, and the oracle compares both sides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine, create_engine, delete, event

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.slots import pool
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome, kafka_transaction_state
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine
from tests.support.coordinator.searches.unit_search import NoBackground, NoHeartbeat, UnitSearchWorld, check, run_unit
from tests.support.exhaustive.histories import Chooser, HistoryModel, Scenario


@contextmanager
def search_engine(url: str) -> Iterator[Engine]:
    """A database that need not outlive the machine."""
    ready_engine(url).dispose()
    engine = create_engine(url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    plain = engine.dialect.do_commit
    try:
        yield engine
    finally:
        engine.dialect.do_commit = plain  # type: ignore[method-assign]
        engine.dispose()


@contextmanager
def in_foreground() -> Iterator[None]:
    """What threads of the background do, the next use does."""
    with patch.object(slots, "Background", NoBackground), patch.object(pool, "LeaseRenewal", NoHeartbeat):
        yield


@contextmanager
def search_database() -> Iterator[Engine]:
    """A database of a search's own, whose histories run in the foreground."""
    with TemporaryDirectory() as place, in_foreground(), search_engine(f"sqlite:///{Path(place) / 'app.db'}") as engine:
        yield engine


def start(world: UnitSearchWorld) -> DualWrite:
    world.dead = world.committing = False
    expire_leases(world.engine)
    options: Any = {"application": "a", "pool_size": 1, "participant": world.kafka.participant}
    options["completion"] = world.completion
    return DualWrite(world.engine, CONFIG, on_step=world.observe, **options)


def driver_scenario(
    engine: Engine, values: tuple[str, ...], completion: str = "await", *, in_session: bool = False
) -> Scenario:
    """Units of work with ``values``, whose faults a chooser chooses; gives how each ended."""
    plain = engine.dialect.do_commit

    def scenario(chooser: Chooser) -> list[str]:
        with engine.begin() as connection:
            connection.execute(delete(events))
            connection.execute(delete(kafka_transaction_state))
            connection.execute(delete(kafka_transaction_outcome))
        world = UnitSearchWorld(engine, completion)
        engine.dialect.do_commit = partial(world.commit, plain)  # type: ignore[method-assign]
        try:
            return _live_and_recover(world, chooser, values, in_session=in_session)
        finally:
            engine.dialect.do_commit = plain  # type: ignore[method-assign]

    return scenario


def _live_and_recover(
    world: UnitSearchWorld, chooser: Chooser, values: tuple[str, ...], *, in_session: bool
) -> list[str]:
    world.chooser = chooser
    ends: dict[str, str] = {}
    dual_write = start(world)
    for value in values:
        ends[value] = run_unit(dual_write, value, in_session=in_session)
        if world.dead:
            dual_write = start(world)
    world.chooser = None
    world.committing = False
    dual_write.close()
    assert world.kafka.open_participants() == 0 or "killed" in ends.values(), "a participant is never closed"
    survivor = start(world)
    survivor.recover()
    check(world, ends)
    ends["last"] = run_unit(survivor, "last")
    assert ends.pop("last") == "succeeded"
    survivor.close()
    check(world, {**ends, "last": "succeeded"})
    return list(ends.values())


def driver_model(values: tuple[str, ...] = ("one", "two"), completion: str = "await") -> HistoryModel:
    """The model; it makes a database of its own."""

    @contextmanager
    def opened() -> Iterator[Scenario]:
        with search_database() as engine:
            yield driver_scenario(engine, values, completion)

    return HistoryModel(
        name="coordinator",
        about=f"the whole coordinator on SQLite, {len(values)} units of work, completion={completion!r}",
        opened=opened,
        asserted=(
            "both sides are equal after recovery",
            "what each caller was told is true",
            "no heuristic outcome is on record",
            "no transaction and no participant is left open",
        ),
        events=("succeeded", "rolled back", "killed"),  # in doubt takes two faults
    )
