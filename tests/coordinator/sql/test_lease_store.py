"""The leases in real SQLite files and PostgreSQL: taken by one, renewed by who has them, given back, run out."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pymysql
import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, event, select, update
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotObserver, SlotRow, SlotStatus, choose
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.mysql.database import Mysql
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DatabaseNotReadyError, FencedError
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import expire_leases, ready_engine, refuse_inserts, slot_rows
from tests.support.servers.databases import SERVERS

LONG = 1000.0


@pytest.fixture
def store(engine: Engine) -> SqlDecisionStore:
    return SqlDecisionStore(engine)


@pytest.fixture
def leases(engine: Engine, store: SqlDecisionStore) -> SqlLeases:
    return SqlLeases(engine, store)


def candidates(leases: SqlLeases, owner: str, pool_size: int = 2) -> list[Candidate]:
    return list(choose("a", pool_size, leases.rows("a"), SlotObserver(owner, (), lambda _: False)))


def take(leases: SqlLeases, owner: str = "me", most: int = 1, seconds: float = LONG) -> list[Lease]:
    return leases.take(candidates(leases, owner), owner, seconds, most)


def test_a_slot_is_taken_for_as_long_as_was_asked_by_the_databases_clock(leases: SqlLeases) -> None:
    assert leases.rows("a") == []
    assert take(leases) == [Lease("a-0", 1)]
    (row,) = leases.rows("a")
    assert (row.transactional_id, row.number, row.fencing_token, row.owner) == ("a-0", 0, 1, "me")
    assert row.remaining is not None
    assert LONG - 100 < row.remaining <= LONG


def test_a_leased_slot_is_skipped(leases: SqlLeases) -> None:
    assert take(leases, "one") == [Lease("a-0", 1)]
    assert take(leases, "two") == [Lease("a-1", 1)]
    assert take(leases, "three") == []


def test_several_slots_are_leased_at_once(leases: SqlLeases) -> None:
    assert take(leases, most=5) == [Lease("a-0", 1), Lease("a-1", 1)]
    leases.give_back([Lease("a-0", 1), Lease("a-1", 1)], finished=True)
    assert take(leases, most=1) == [Lease("a-0", 2)]


def test_a_lease_that_ran_out_is_taken_and_its_owner_is_fenced(
    engine: Engine, leases: SqlLeases, store: SqlDecisionStore
) -> None:
    (zombie,) = take(leases, "zombie")
    expire_leases(engine)
    assert take(leases, "heir") == [Lease("a-0", 2)]
    with engine.connect() as connection, pytest.raises(FencedError, match="did not renew its lease in time"):
        store.store(connection, zombie, PreparedTxnState())
    assert [error.lease for error in leases.renew([zombie], "zombie", LONG)] == [zombie]
    leases.give_back([zombie], finished=True)
    leases.give_back([zombie], finished=False)
    (row,) = leases.rows("a")
    assert (row.owner, row.fencing_token) == ("heir", 2)
    assert (row.remaining or 0) > 0


def test_a_lease_that_is_renewed_before_it_is_taken_is_not_taken(engine: Engine, leases: SqlLeases) -> None:
    (lease,) = take(leases, "slow")
    expire_leases(engine)
    seen = candidates(leases, "other")
    assert seen[0].status is SlotStatus.EXPIRED
    assert leases.renew([lease], "slow", LONG) == []
    assert leases.take(seen[:1], "other", LONG, 1) == []


@pytest.mark.parametrize("status", [SlotStatus.DEAD, SlotStatus.ABANDONED])
def test_the_lease_of_a_dead_owner_need_not_have_run_out(leases: SqlLeases, status: SlotStatus) -> None:
    take(leases, "dead")
    (row,) = leases.rows("a")
    assert leases.take([Candidate(row, status)], "heir", LONG, 1) == [Lease("a-0", 2)]
    assert leases.take([Candidate(row, status)], "second heir", LONG, 1) == [], "the row is not what was seen"


def test_a_slot_that_was_given_back_is_free_and_keeps_its_token(leases: SqlLeases) -> None:
    (lease,) = take(leases)
    leases.give_back([lease], finished=True)
    (row,) = leases.rows("a")
    assert row == SlotRow("a-0", 0, 1, "", None)
    assert take(leases, "next") == [Lease("a-0", 2)]


def test_a_slot_that_was_given_back_unfinished_has_run_out(leases: SqlLeases) -> None:
    (lease,) = take(leases)
    leases.give_back([lease], finished=False)
    (row,) = leases.rows("a")
    assert row.owner == "me"
    assert row.remaining is not None
    assert row.remaining <= 0


def test_renewing_moves_the_end_and_draws_a_version_and_changes_nothing_else(engine: Engine, leases: SqlLeases) -> None:
    held = take(leases, most=2, seconds=1)
    before = slot_rows(engine)
    assert leases.renew(held, "me", LONG) == []
    after = slot_rows(engine)
    for name, row in before.items():
        moved = {key for key, value in row._mapping.items() if value != after[name]._mapping[key]}
        assert moved == {"lease_expires_at", "lease_version"}
        assert row.lease_expires_at < after[name].lease_expires_at


def test_a_lease_under_a_former_signature_is_renewed_under_the_new_one(leases: SqlLeases) -> None:
    """A process that finds that it was copied signs by another name, and keeps its other slots."""
    (lease,) = take(leases, "before")
    assert leases.renew([lease], "now", LONG, former=("long before", "before")) == []
    (row,) = leases.rows("a")
    assert (row.owner, row.fencing_token) == ("now", 1)


def test_a_row_of_the_release_before_leases_is_taken(engine: Engine, leases: SqlLeases) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO kafka_transaction_state (transactional_id, prepared_txn_state, fencing_token, owner, "
            "updated_at) VALUES ('a-0', '42:7', 7, 'host:1', '2026-01-01 00:00:00')"
        )
    assert take(leases) == [Lease("a-0", 8)]
    assert slot_rows(engine)["a-0"].prepared_txn_state == "42:7"


def test_other_applications_and_rows_that_are_no_slots_are_not_looked_at(engine: Engine, leases: SqlLeases) -> None:
    for name in ("a-1-0", "a-x", "b-0", "A-0", "a%-0"):
        leases.take([Candidate(SlotRow(name, 0), SlotStatus.FREE)], "other", LONG, 1)
    assert leases.rows("a") == []
    assert [row.transactional_id for row in leases.rows("a-1")] == ["a-1-0"]
    assert [row.transactional_id for row in leases.rows("a%")] == ["a%-0"]


def test_concurrent_takers_get_a_slot_each(leases: SqlLeases) -> None:
    def take_until_there_is_one(number: int) -> str:
        while True:
            taken = leases.take(candidates(leases, str(number), 8), str(number), LONG, 1)
            if taken:
                return taken[0].transactional_id

    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(take_until_there_is_one, range(8)))
    assert sorted(names) == [f"a-{number}" for number in range(8)]


@pytest.mark.postgresql
def test_a_locked_row_is_skipped_by_takers_and_by_the_heartbeat(postgresql_url: str) -> None:
    engine = ready_engine(postgresql_url)
    store = SqlDecisionStore(engine)
    leases = SqlLeases(engine, store)
    (held,) = take(leases, "unit")
    expire_leases(engine)
    with engine.connect() as connection:
        connection.begin()
        begin_writing(connection)
        store.store(connection, held, PreparedTxnState())
        assert take(leases, "heir") == [Lease("a-1", 1)]
        assert leases.renew([held], "unit", LONG) == []
        connection.commit()
    assert take(leases, "second heir") == [Lease("a-0", 2)]
    engine.dispose()


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("quick", ["quick", "former"])
def test_a_taker_with_an_outdated_look_hides_the_row_from_no_other_taker(
    database: str, quick: str, request: pytest.FixtureRequest
) -> None:
    engine = ready_engine(request.getfixturevalue(f"{database}_url"))
    leases = SqlLeases(engine, SqlDecisionStore(engine))
    take(leases, "former", seconds=0)
    outdated = candidates(leases, "slow", 1)
    take(leases, quick, seconds=0)
    (present,) = candidates(leases, "other", 1)
    taken: list[list[Lease]] = []

    def take_before_the_commit(_: Connection) -> None:
        if not taken:
            taken.append([])
            taken.append(leases.take([present], "other", LONG, 1))

    event.listen(engine, "commit", take_before_the_commit)
    assert leases.take(outdated, "slow", LONG, 1) == []
    assert taken == [[], [Lease("a-0", 3)]], "the row was skipped, and no process took it"
    engine.dispose()


def test_without_the_table_every_method_says_what_to_run(database_url: str) -> None:
    engine = create_engine(database_url)
    leases = SqlLeases(engine, SqlDecisionStore(engine))
    for call in (
        lambda: leases.rows("a"),
        lambda: leases.take([Candidate(SlotRow("a-0", 0), SlotStatus.FREE)], "me", LONG, 1),
        lambda: leases.renew([Lease("a-0", 1)], "me", LONG),
        lambda: leases.give_back([Lease("a-0", 1)], finished=True),
    ):
        with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
            call()
    engine.dispose()


def test_a_lease_is_over_when_its_time_is(engine: Engine, leases: SqlLeases) -> None:
    take(leases, "me", seconds=0)
    assert take(leases, "other") == [Lease("a-0", 2)]
    with engine.begin() as connection:
        connection.execute(update(table).values(owner=""))
    assert take(leases, "third") == [Lease("a-0", 3)]


@pytest.mark.parametrize("has_effect", [False, True])
def test_a_renewal_of_unknown_outcome_costs_no_unit_of_work_its_lease(
    engine: Engine, store: SqlDecisionStore, leases: SqlLeases, monkeypatch: pytest.MonkeyPatch, has_effect: bool
) -> None:
    """The row has the version from before or the one after, and this process remembers both."""
    commit = engine.dialect.do_commit

    def fail(connection: Any) -> None:
        if has_effect:
            commit(connection)
        raise DatabaseBusyError("a test")

    (lease,) = take(leases)
    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", fail)
        with pytest.raises(DatabaseBusyError):
            leases.renew([lease], "me", LONG)
    with store.transaction(commit=True) as connection:
        store.store(connection, lease, PreparedTxnState(ProducerIdentity(42, 7)))
    assert slot_rows(engine)["a-0"].prepared_txn_state == "42:7"


def test_a_row_that_is_deleted_during_a_recovery_is_no_valid_lease(store: SqlDecisionStore, leases: SqlLeases) -> None:
    (lease,) = take(leases)
    with store.locked(lease) as held:
        held.connection.execute(delete(table))
        with pytest.raises(LeaseLostError):
            held.verify()


def test_a_look_renames_the_rows_of_a_sqlite_file_whose_device_has_another_number(sqlite_engine: Engine) -> None:
    """As after another mount. Otherwise a later change of the file's path would make it look like a copy."""
    leases = SqlLeases(sqlite_engine, SqlDecisionStore(sqlite_engine))
    take(leases)
    named = slot_rows(sqlite_engine)["a-0"].database_id
    kind, _, *others = named.split(":")
    with sqlite_engine.begin() as connection:
        connection.execute(update(table).values(database_id=":".join([kind, "4711", *others])))
    assert [row.transactional_id for row in leases.rows("a")] == ["a-0"]
    assert slot_rows(sqlite_engine)["a-0"].database_id == named


def test_a_slot_whose_state_is_unreadable_is_taken_with_the_others(engine: Engine, leases: SqlLeases) -> None:
    """Its own recovery raises the error, and the recovery of the others goes on."""
    leases.give_back(take(leases, most=2), finished=True)
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.transactional_id == "a-0").values(prepared_txn_state="x"))
    assert take(leases, most=2) == [Lease("a-0", 2), Lease("a-1", 2)]


def test_a_slot_that_was_signed_over_since_the_look_is_neither_taken_nor_renewed(
    engine: Engine, leases: SqlLeases
) -> None:
    """Its fencing token is still the same: a prepared transaction was transferred with it."""
    (lease,) = take(leases, "former")
    (row,) = leases.rows("a")
    with engine.begin() as connection:
        connection.execute(update(table).values(owner="run 1"))
    assert leases.take([Candidate(row, SlotStatus.DEAD)], "heir", LONG, 1) == []
    assert leases.renew([lease], "former", LONG) == []
    assert slot_rows(engine)["a-0"].owner == "run 1"


def test_a_slot_whose_row_keeps_its_token_is_not_taken(sqlite_engine: Engine) -> None:
    """A trigger prevents the change without an error: the former owner is not fenced."""
    leases = SqlLeases(sqlite_engine, SqlDecisionStore(sqlite_engine))
    take(leases, "former")
    (row,) = leases.rows("a")
    with sqlite_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TRIGGER kept BEFORE UPDATE ON {table.name} BEGIN SELECT RAISE(IGNORE); END")
    assert leases.take([Candidate(row, SlotStatus.DEAD)], "heir", LONG, 1) == []


def test_a_slot_whose_row_the_database_refuses_is_not_taken_for_one_in_use(sqlite_engine: Engine) -> None:
    """A unit of work would wait for a free slot in vain."""
    leases = SqlLeases(sqlite_engine, SqlDecisionStore(sqlite_engine))
    refuse_inserts(sqlite_engine, table.name)
    with pytest.raises(ConfigurationError, match=f"^the database refuses a row of {table.name}: refused: look for a "):
        take(leases)


@pytest.mark.parametrize(("number", "is_locked"), [(1205, True), (3572, True), (1213, False)])
def test_a_locked_row_is_known_by_mariadbs_error_and_by_mysqls(number: int, is_locked: bool) -> None:
    """On MySQL, too, a heartbeat passes over a row that a unit of work has locked, and renews the other leases."""

    class Refusing:
        def execute(self, *_: object, **__: object) -> None:
            raise DBAPIError.instance("SELECT", None, pymysql.OperationalError(number, "refused"), pymysql.Error)

    connection: Any = Refusing()
    with nullcontext() if is_locked else pytest.raises(DBAPIError):
        assert Mysql().lock_at_once(connection, select(table.c.owner), {}) == []
