"""The state and the COMMIT in one message, by psycopg: what the database refuses is in neither side."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, text, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.lease import LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.sql.dialects.postgresql import pipelining
from dualwrite.coordinator.sql.dialects.unit_transactions import TransactionEndedError
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.errors import DatabaseBusyError
from tests.support.coordinator.async_dual_writes import AsyncPlace, async_url, run
from tests.support.coordinator.async_dual_writes import write_unit as write_unit_in_loop
from tests.support.coordinator.event_table import expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, run_unit, write_unit, writing
from tests.support.servers.round_trip_proxy import TurnsProxy

pytestmark = pytest.mark.postgresql

Make = Callable[..., DualWrite]


class Meddler:
    """Acts once, right before a unit's COMMIT, when the unit has prepared Kafka and stored nothing yet."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None

    def observe(self, step: str) -> None:
        if step == "COMMIT_DATABASE" and self.act is not None:
            act, self.act = self.act, None
            act()


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = ready_engine(postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def meddler() -> Meddler:
    return Meddler()


@pytest.fixture
def dual_write(make_dual_write: Make, engine: Engine, meddler: Meddler) -> DualWrite:
    """It has used its slot: the first unit of a slot reads the row, and stores its state apart."""
    dual_write = make_dual_write(engine, on_step=meddler.observe)
    write_unit(dual_write, "first")
    return dual_write


@pytest.fixture
def takes_over(make_dual_write: Make, engine: Engine) -> Callable[[], None]:
    def take_over() -> None:
        expire_leases(engine)
        make_dual_write(engine).recover()

    return take_over


def test_a_zombie_that_commits_is_refused_and_is_in_neither(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka, meddler: Meddler, takes_over: Callable[[], None]
) -> None:
    meddler.act = takes_over
    with pytest.raises(LeaseLostError) as raised:
        write_unit(dual_write, "zombie")
    assert raised.value.retriable
    assert in_both(engine, kafka, "first")


def test_a_zombie_is_in_the_database_alone_if_an_update_without_a_row_does_not_fail(
    dual_write: DualWrite,
    engine: Engine,
    kafka: FakeKafka,
    meddler: Meddler,
    takes_over: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above without its safeguard."""
    monkeypatch.setattr(pipelining, "failing_without_a_row", lambda update: update)
    meddler.act = takes_over
    write_unit(dual_write, "zombie")
    assert (stored_values(engine), kafka.committed) == (["first", "zombie"], ["first"])


def test_a_unit_whose_row_is_gone_is_in_neither(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka, meddler: Meddler
) -> None:
    def empty_the_table() -> None:
        with engine.begin() as connection:
            connection.execute(delete(kafka_transaction_state))

    meddler.act = empty_the_table
    with pytest.raises(LeaseContradictedError, match="gone"):
        write_unit(dual_write, "second")
    assert in_both(engine, kafka, "first")


def test_a_unit_that_finds_its_row_locked_for_too_long_is_in_neither(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka, meddler: Meddler
) -> None:
    holder = engine.connect()

    def lock_the_row() -> None:
        holder.execute(update(kafka_transaction_state).values(owner="holder"))

    meddler.act = lock_the_row
    with pytest.raises(DatabaseBusyError):
        run_unit(dual_write, lambda tx: tx.execute(text("SET LOCAL lock_timeout = 100")), writing("second"))
    holder.rollback()
    holder.close()
    assert in_both(engine, kafka, "first")
    write_unit(dual_write, "third")
    assert in_both(engine, kafka, "first", "third")


def test_a_unit_that_a_deferred_constraint_refuses_at_its_commit_is_in_neither(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (id int PRIMARY KEY)"))
        connection.execute(
            text("CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"),
        )
    insert_orphan = text("INSERT INTO children VALUES (1)")
    with pytest.raises(IntegrityError, match="children"):
        run_unit(dual_write, lambda tx: tx.execute(insert_orphan), writing("second"))
    assert in_both(engine, kafka, "first")
    write_unit(dual_write, "third")
    assert in_both(engine, kafka, "first", "third")


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"])
def test_a_unit_whose_block_ended_its_transaction_is_aborted_in_kafka(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka, statement: str
) -> None:
    def end(tx: Any) -> None:
        tx.connection.connection.driver_connection.execute(statement)

    with pytest.raises(TransactionEndedError):
        run_unit(dual_write, writing("second"), end)
    assert kafka.committed == ["first"]
    assert kafka.aborted == ["second"]
    assert stored_values(engine) == (["first"] if statement == "ROLLBACK" else ["first", "second"])
    assert len(dual_write.outcomes()) == 1


@pytest.mark.parametrize("name", ["before_cursor_execute", "commit"])
def test_a_listener_sees_the_update_and_the_commit(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, name: str
) -> None:
    seen: list[Any] = []
    event.listen(engine, name, lambda connection, *rest: seen.append(rest[1] if rest else "COMMIT"))
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "first")
    seen.clear()
    write_unit(dual_write, "second")
    expected = "COMMIT" if name == "commit" else "UPDATE public.kafka_transaction_state"
    assert [str(statement) for statement in seen if str(statement).startswith(expected)], seen
    assert in_both(engine, kafka, "first", "second")


def test_units_of_a_class_of_cursors_without_pipelines_are_in_both(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    from psycopg import ClientCursor

    engine = ready_engine(postgresql_url, connect_args={"cursor_factory": ClientCursor})
    dual_write = make_dual_write(engine)
    for value in ("first", "second"):
        write_unit(dual_write, value)
    assert in_both(engine, kafka, "first", "second")
    engine.dispose()


def test_a_unit_under_asyncio_sends_its_state_with_the_commit(postgresql_url: str) -> None:
    proxy = TurnsProxy(postgresql_url)
    place = AsyncPlace(
        "psycopg", async_url(proxy.url.render_as_string(hide_password=False), "psycopg"), ready_engine(postgresql_url)
    )

    async def main() -> None:
        async with place.dual_write(lease_timeout=3600) as dual_write:
            for number in range(10):
                await write_unit_in_loop(dual_write, f"warm up {number}")
            before = proxy.turns
            for number in range(10):
                await write_unit_in_loop(dual_write, f"unit {number}")
            assert proxy.turns - before == 30, "BEGIN, INSERT, and the state with the COMMIT"

    run(main())
    place.seen.dispose()
    proxy.close()


def test_a_zombie_under_asyncio_is_refused_and_is_in_neither(
    engine: Engine, make_dual_write: Make, postgresql_url: str, meddler: Meddler
) -> None:
    place = AsyncPlace("psycopg", async_url(postgresql_url, "psycopg"), engine)

    def take_over() -> None:
        expire_leases(place.seen)
        make_dual_write(place.seen, participant=place.kafka.participant).recover()

    async def main() -> None:
        async with place.dual_write(on_step=meddler.observe) as dual_write:
            await write_unit_in_loop(dual_write, "first")
            meddler.act = take_over
            with pytest.raises(LeaseLostError):
                await write_unit_in_loop(dual_write, "zombie")

    run(main())
    assert place.in_both("first")


def test_a_rollback_to_the_savepoint_keeps_what_the_block_has_written(
    dual_write: DualWrite, engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses the first attempt; the second, apart from the COMMIT, is not refused."""
    monkeypatch.setattr(pipelining, "failing_without_a_row", lambda update: "SELECT 1 / 0")
    write_unit(dual_write, "second")
    assert in_both(engine, kafka, "first", "second")
