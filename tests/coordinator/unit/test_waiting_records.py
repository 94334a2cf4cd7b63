"""The record of a unit whose block ended its transaction past the library waits until the database takes it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.greenlets import greenlet_spawn
from dualwrite.coordinator.rules.lease_memory import Unmatched
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.dialects.unit_transactions import TransactionEndedError
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DatabaseBusyError, KafkaUnavailableError
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.user_errors import UserError

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

Make = Callable[..., DualWrite]
STATE = "4711:1:events:0:0"
OUTCOMES = "kafka_transaction_outcome"


def commit_past_sqlalchemy(tx: Transaction) -> None:
    cursor = tx.connection.connection.cursor()
    cursor.execute("COMMIT")
    cursor.close()


def rename(engine: Engine, name: str, other: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {other}")


@contextmanager
def refusing(engine: Engine) -> Iterator[None]:
    """The database has no table for what is to be put on record."""
    rename(engine, OUTCOMES, "away")
    yield
    rename(engine, "away", OUTCOMES)


@contextmanager
def unreachable(engine: Engine) -> Iterator[None]:
    """No connection can be made; those that are idle in the pool are gone."""

    def refuse(*_: object) -> None:
        raise OperationalError("connect", {}, Exception("the server is away"))

    event.listen(engine, "do_connect", refuse)
    engine.dispose()
    yield
    event.remove(engine, "do_connect", refuse)


TROUBLES = {"refusing": refusing, "unreachable": unreachable}


def end_in(dual_write: DualWrite, trouble: Any) -> None:
    """A unit of work whose block commits past the library, and after which the database is in ``trouble``."""
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="one"))
        tx.produce("events", value="one")
        commit_past_sqlalchemy(tx)
        trouble.__enter__()
        raise UserError


def on_record(dual_write: DualWrite) -> list[tuple[str, str, bool]]:
    return [
        (outcome.transactional_id, outcome.state, outcome.outcome.is_heuristic) for outcome in dual_write.outcomes()
    ]


@pytest.mark.parametrize("name", TROUBLES)
def test_the_heartbeat_records_an_outcome_that_the_database_refused_at_first(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = TROUBLES[name](engine)
    with pytest.raises(UserError):
        end_in(dual_write, trouble)
    assert f"the state {STATE} is not on record yet" in caplog.text
    assert dual_write.counters.heuristic == 0
    trouble.__exit__(None, None, None)
    assert on_record(dual_write) == []
    manager_of(dual_write).process.pool.beat()
    assert on_record(dual_write) == [("orders-0", STATE, True)]
    assert dual_write.counters.heuristic == 1
    manager_of(dual_write).process.pool.beat()
    assert len(on_record(dual_write)) == 1
    assert (stored_values(engine), kafka.committed, kafka.ongoing) == (["one"], [], None)


def test_the_next_unit_records_an_outcome_that_the_database_refused_at_first(
    make_dual_write: Make, engine: Engine
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = refusing(engine)
    with pytest.raises(UserError):
        end_in(dual_write, trouble)
    trouble.__exit__(None, None, None)
    with dual_write.transaction() as tx:
        tx.produce("events", value="two")
    assert on_record(dual_write) == [("orders-0", STATE, True)]


def test_close_records_an_outcome_that_the_database_refused_at_first(make_dual_write: Make, engine: Engine) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = refusing(engine)
    with pytest.raises(UserError):
        end_in(dual_write, trouble)
    trouble.__exit__(None, None, None)
    dual_write.close()
    assert on_record(make_dual_write(engine)) == [("orders-0", STATE, True)]


def lost_records(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The statements that close() has logged."""
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    return [each.partition("Insert it by hand: ")[2] for each in said if "closed before the database accepted" in each]


@pytest.mark.parametrize("name", TROUBLES)
def test_close_logs_an_unrecorded_outcome_and_the_statement_to_insert_it(
    make_dual_write: Make, engine: Engine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = TROUBLES[name](engine)
    with pytest.raises(UserError):
        end_in(dual_write, trouble)
    assert lost_records(caplog) == []
    dual_write.close()
    (statement,) = lost_records(caplog)
    trouble.__exit__(None, None, None)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    (by_hand,) = make_dual_write(engine).outcomes()
    assert (by_hand.transactional_id, by_hand.state, by_hand.acknowledged_at) == ("orders-0", STATE, None)
    assert by_hand.outcome.value in caplog.text
    assert by_hand.detail in caplog.text


def test_close_tries_each_record_once(
    make_dual_write: Make, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the database refuses for good does not stand in the way of the others."""
    dual_write = make_dual_write(engine, lease_timeout=3600)
    waiting, note, tried = (
        manager_of(dual_write).process.pool.unmatched,
        manager_of(dual_write).store.note_unmatched,
        [],
    )

    def note_or_refuse(name: str, units: Any, row: Any) -> None:
        tried.append(name)
        if name == "orders-1":
            raise DatabaseBusyError("locked")
        note(name, units, row)

    monkeypatch.setattr(manager_of(dual_write).store, "note_unmatched", note_or_refuse)
    for number in (1, 2, 3):
        waiting.keep(f"orders-{number}", Unmatched(PreparedTxnState(STATE), Outcome.HEURISTIC_ABORT, "lost"))
    dual_write.close()
    assert tried == ["orders-1", "orders-2", "orders-3"]
    assert [each for each, _, _ in on_record(make_dual_write(engine))] == ["orders-2", "orders-3"]
    (statement,) = lost_records(caplog)
    assert "'orders-1'" in statement


def test_a_second_close_tries_again(make_dual_write: Make, engine: Engine) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = refusing(engine)
    with pytest.raises(UserError), dual_write:  # and the close at its end hides nothing
        end_in(dual_write, trouble)
    trouble.__exit__(None, None, None)
    dual_write.close()
    dual_write.close()
    assert on_record(make_dual_write(engine)) == [("orders-0", STATE, True)]


def test_the_error_promises_no_record_that_the_database_has_refused(make_dual_write: Make, engine: Engine) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = refusing(engine)

    def run(before_end: Callable[[], None]) -> None:
        with dual_write.transaction() as tx:
            tx.produce("events", value="one")
            commit_past_sqlalchemy(tx)
            before_end()

    with pytest.raises(TransactionEndedError, match="this process keeps it") as refused:
        run(trouble.__enter__)
    assert "outcomes()" not in str(refused.value)
    trouble.__exit__(None, None, None)
    with pytest.raises(TransactionEndedError, match=r"dw\.outcomes\(\) show this unit"):
        run(lambda: None)


def test_a_unit_whose_record_waits_is_not_run_again(make_dual_write: Make, engine: Engine) -> None:
    """Its error is retriable, and its rows are there."""
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    trouble = refusing(engine)
    runs: list[int] = []

    def unit(tx: Transaction) -> None:
        runs.append(1)
        tx.execute(insert(events).values(value=f"row {len(runs)}"))
        commit_past_sqlalchemy(tx)
        trouble.__enter__()
        raise KafkaUnavailableError("retriable")

    with pytest.raises(KafkaUnavailableError):
        dual_write.transactional(retries=3)(unit)()
    trouble.__exit__(None, None, None)
    manager_of(dual_write).process.pool.beat()
    assert (len(runs), stored_values(engine)) == (1, ["row 1"])
    assert len(on_record(dual_write)) == 1


def test_a_limit_that_strikes_the_record_does_not_lose_it(
    make_dual_write: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write = make_dual_write(engine, lease_timeout=3600)
    dual_write.recover()
    patched = monkeypatch.context()

    @contextmanager
    def struck() -> Iterator[None]:
        def strike(*_: object) -> None:
            raise KeyboardInterrupt

        with patched as patch:
            patch.setattr(manager_of(dual_write).store, "note_outcome", strike)
            yield

    trouble = struck()
    with pytest.raises(KeyboardInterrupt):
        end_in(dual_write, trouble)
    trouble.__exit__(None, None, None)
    assert on_record(dual_write) == [("orders-0", STATE, True)], "the end of the unit has tried again"


def test_a_record_of_a_task_waits_too(place: AsyncPlace) -> None:
    async def commit(tx: AsyncTransaction) -> None:
        driver: Any = (await tx.connection.get_raw_connection()).driver_connection
        if place.driver == "aiomysql":
            async with driver.cursor() as cursor:
                await cursor.execute("COMMIT")
        else:
            await driver.execute("COMMIT")

    async def main() -> list[tuple[str, Outcome]]:
        async with place.dual_write(lease_timeout=3600) as dual_write:
            await dual_write.recover()
            trouble = refusing(place.seen)

            async def unit() -> None:
                async with dual_write.transaction() as tx:
                    await tx.execute(insert(events).values(value="one"))
                    await tx.produce("events", value="one")
                    await commit(tx)
                    trouble.__enter__()
                    raise UserError

            with pytest.raises(UserError):
                await unit()
            trouble.__exit__(None, None, None)
            assert await dual_write.outcomes() == []
            manager = manager_of(dual_write)
            await greenlet_spawn(manager.in_thread, manager.process.pool.beat)
            return [(each.state, each.outcome) for each in await dual_write.outcomes()]

    found = run(main())
    assert [state for state, _ in found] == [STATE]
    assert found[0][1].is_heuristic
