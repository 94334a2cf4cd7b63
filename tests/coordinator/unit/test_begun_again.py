"""A heartbeat that comes between a unit's snapshot and its lock of the state row costs a second beginning, and the user
sees nothing of it; and one that comes later changes nothing in the row that the unit has locked."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.unit.beginning import ATTEMPTS
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DatabaseBusyError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import write

pytestmark = pytest.mark.slow_cases("psycopg2")

SNAPSHOTS = ["REPEATABLE READ", "SERIALIZABLE"]


class Begun:
    """Counts the transactions that begin on ``engine``. To the first ``late`` of them the row of the state table is
    written by ``rival``, when the snapshot is taken and the row is not locked yet.

    :param values: what is written there, beside the time.
    """

    def __init__(self, engine: Engine, rival: Engine, late: int, **values: Any) -> None:
        self.engine = engine
        self.count = 0
        self._rival = rival
        self._late = late
        self._values = values

    def __enter__(self) -> "Begun":
        event.listen(self.engine, "begin", self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self.engine, "begin", self._begin)

    def _begin(self, connection: Connection) -> None:
        self.count += 1
        if self.count > self._late:
            return
        connection.execute(select(table.c.owner)).all()
        with self._rival.begin() as rival:
            at = datetime(2000 + self.count, 1, 1, tzinfo=timezone.utc)  # MariaDB's row is newer only if it differs
            rival.execute(update(table).values(updated_at=at, **self._values))


class SnapshotDatabase(NamedTuple):
    """A database whose engine's transactions read snapshots, and a DualWrite over the fake Kafka.

    :param seen: another engine on it, at READ COMMITTED.
    :param on_step: each is called with the name of each step.
    """

    engine: Engine
    seen: Engine
    kafka: FakeKafka
    dual_write: DualWrite
    on_step: list[Callable[[str], None]]

    def begun(self, late: int, **values: Any) -> Begun:
        return Begun(self.engine, self.seen, late, **values)


@pytest.fixture(
    params=[
        pytest.param(("psycopg", SNAPSHOTS[0]), marks=pytest.mark.postgresql),
        pytest.param(("psycopg", SNAPSHOTS[1]), marks=pytest.mark.postgresql),
        pytest.param(("psycopg2", SNAPSHOTS[0]), marks=pytest.mark.postgresql),
        pytest.param(("pymysql", SNAPSHOTS[0]), marks=pytest.mark.mariadb),
    ],
    ids="-".join,
)
def database(request: pytest.FixtureRequest, kafka: FakeKafka) -> Iterator[SnapshotDatabase]:
    driver, level = request.param
    name = "mariadb" if driver == "pymysql" else "postgresql"
    url = make_url(request.getfixturevalue(f"{name}_url"))
    options: dict[str, Any] = {"isolation_level": level}
    if name == "mariadb":
        options["connect_args"] = {"init_command": "SET innodb_snapshot_isolation = ON"}
    seen = ready_engine(url.render_as_string(hide_password=False), isolation_level="READ COMMITTED")
    engine = create_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}"), **options)
    on_step: list[Callable[[str], None]] = []

    def observe(step: str) -> None:
        for each in on_step:
            each(step)

    with DualWrite(
        engine, CONFIG, application="orders", participant=kafka.participant, pool_size=1, on_step=observe
    ) as dual_write:
        dual_write.recover()
        yield SnapshotDatabase(engine, seen, kafka, dual_write, on_step)
    engine.dispose()
    seen.dispose()


def write_unit(database: SnapshotDatabase, value: str) -> None:
    with database.dual_write.transaction() as tx:
        write(tx, value)


def test_a_unit_begins_again_if_the_heartbeat_writes_its_row_before_the_lock(database: SnapshotDatabase) -> None:
    with database.begun(late=ATTEMPTS - 1) as begun:
        write_unit(database, "one")
    assert begun.count == ATTEMPTS
    write_unit(database, "two")
    assert stored_values(database.seen) == database.kafka.committed == ["one", "two"]
    assert (database.dual_write.counters.rolled_back, database.dual_write.outcomes()) == (0, [])
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_the_users_listeners_see_each_beginning_as_one_of_its_own(database: SnapshotDatabase) -> None:
    seen: list[str] = []
    event.listen(database.engine, "begin", lambda _: seen.append("begin"))
    event.listen(database.engine, "rollback", lambda _: seen.append("rollback"))
    event.listen(database.engine, "commit", lambda _: seen.append("commit"))
    with database.begun(late=1):
        write_unit(database, "one")
    assert seen == ["begin", "rollback", "begin", "commit"]


@pytest.mark.slow_cases
def test_a_unit_is_not_begun_again_for_ever(database: SnapshotDatabase) -> None:
    with database.begun(late=1000) as begun, pytest.raises(DatabaseBusyError) as raised:
        write_unit(database, "one")
    assert begun.count == ATTEMPTS
    assert isinstance(raised.value.__cause__, DBAPIError)
    meaning = database_of(database.engine.dialect).meaning_of(raised.value.__cause__)
    assert (meaning, raised.value.retriable) == (ErrorMeaning.CONFLICT, True), "retries= runs it again"
    write_unit(database, "two")
    assert stored_values(database.seen) == database.kafka.committed == ["two"]
    assert (database.dual_write.counters.rolled_back, database.dual_write.outcomes()) == (1, [])


def test_a_slot_that_is_taken_over_before_the_row_is_locked_is_lost(database: SnapshotDatabase) -> None:
    with (
        database.begun(late=1, fencing_token=table.c.fencing_token + 1) as begun,
        pytest.raises(LeaseLostError),
    ):
        write_unit(database, "one")
    assert begun.count >= 2
    assert stored_values(database.seen) == database.kafka.committed == []


@pytest.mark.slow_cases
def test_another_error_of_the_beginning_is_raised_at_once(
    database: SnapshotDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = OperationalError("SELECT", {}, Exception("server closed the connection unexpectedly"))

    def fail(*_: object, **__: object) -> None:
        raise lost

    monkeypatch.setattr("dualwrite.coordinator.unit.beginning.begin_unit", fail)
    with database.begun(late=0) as begun, pytest.raises(OperationalError) as raised:
        write_unit(database, "one")
    assert (raised.value, begun.count) == (lost, 1)
    assert database.dual_write.outcomes() == [], "nobody can have committed what the user has not begun"


@pytest.mark.slow_cases
def test_a_heartbeat_at_any_step_of_a_unit_does_not_fail_it(database: SnapshotDatabase) -> None:
    """The library's own heartbeat, before each step and in the middle of the block."""
    beats: list[str] = []

    def beat(step: str) -> None:
        if not step.startswith("RECOVER"):
            manager_of(database.dual_write).process.pool.beat()
            beats.append(step)

    database.on_step.append(beat)
    for number in range(5):
        with database.dual_write.transaction() as tx:
            tx.execute(select(events)).all()
            beat("in the block")
            write(tx, str(number))
            beat("in the block")
    assert stored_values(database.seen) == database.kafka.committed == [str(number) for number in range(5)]
    assert {"BEGIN_DATABASE", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"} < set(beats)


@pytest.mark.slow_cases
@pytest.mark.parametrize("level", SNAPSHOTS)
def test_a_unit_of_a_task_begins_again(server_place: AsyncPlace, level: str) -> None:
    if server_place.driver == "aiomysql" and level == "SERIALIZABLE":
        pytest.skip("reading locks there, and takes no snapshot")
    options: dict[str, Any] = {"isolation_level": level}
    if server_place.driver == "aiomysql":
        options["connect_args"] = {"init_command": "SET innodb_snapshot_isolation = ON"}

    async def write_in_task(tx: AsyncTransaction, value: str) -> None:
        await tx.execute(insert(events).values(value=value))
        await tx.produce("events", value=value)

    async def main() -> tuple[int, int]:
        async with server_place.engine(**options) as engine, server_place.dual_write(engine) as dual_write:
            await dual_write.recover()
            async with dual_write.transaction() as tx:
                await write_in_task(tx, "one")
            with Begun(engine.sync_engine, server_place.seen, late=2) as begun:
                async with dual_write.transaction() as tx:
                    await write_in_task(tx, "two")
            return begun.count, dual_write.counters.rolled_back

    assert run(main()) == (3, 0)
    assert server_place.in_both("one", "two")


@pytest.mark.postgresql
@pytest.mark.parametrize("renews", [False, True])
def test_an_isolation_level_set_in_the_block_fails_if_a_heartbeat_comes_between(
    make_dual_write: Callable[..., DualWrite], postgresql_url: str, kafka: FakeKafka, renews: bool
) -> None:
    """As docs/databases.md says: the row is not locked at the beginning then."""
    engine = ready_engine(postgresql_url)
    runs: list[int] = []

    def unit(tx: Transaction) -> None:
        runs.append(1)
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        tx.execute(select(events)).all()
        if renews and len(runs) == 1:
            manager_of(dual_write).process.pool.beat()
        write(tx, "one")

    with make_dual_write(engine) as dual_write:
        dual_write.transactional(retries=1)(unit)()
    assert len(runs) == 1 + renews
    assert stored_values(engine) == kafka.committed == ["one"]
    engine.dispose()
