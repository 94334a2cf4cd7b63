"""Leases that are signed over, and states that are written many at a time, in each database."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, update

from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotObserver, SlotRow, SlotStatus, choose
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.lease_transfer import CHUNK, TransferredLeases
from dualwrite.coordinator.sql.tables import UNRECOVERED
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import expire_leases, slot_rows

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

LONG = 1000.0


class LeaseDatabase:
    """A database, and all that is done with leases in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = SqlDecisionStore(engine)
        self.leases = SqlLeases(engine, self.store)
        self.handed = TransferredLeases(engine)

    def take(self, number: int, owner: str = "task") -> list[Lease]:
        rows = [Candidate(SlotRow(f"a-{each}", each), SlotStatus.FREE) for each in range(number)]
        return self.leases.take(rows, owner, LONG, number)

    def take_over(self, name: str) -> Lease:
        """By somebody who saw that it had run out."""
        expire_leases(self.engine)
        (row,) = [row for row in self.leases.rows("a") if row.transactional_id == name]
        (lease,) = self.leases.take([Candidate(row, SlotStatus.EXPIRED)], "heir", LONG, 1)
        return lease

    def transfer(self, leases: Sequence[Lease], owner: str = "run 1", seconds: float = LONG) -> list[Lease]:
        handed = []
        for lease in leases:
            with self.store.transaction(commit=True) as connection:
                handed.append(self.handed.transfer(connection, lease, owner, seconds))
        return handed

    def store_all(self, decided: Sequence[tuple[Lease, PreparedTxnState]], owner: str = "driver") -> None:
        with self.store.transaction(commit=True) as connection:
            self.handed.store_all(connection, decided, owner, LONG)

    def transfer_back(self, signed: str, owner: str = "driver") -> list[str]:
        with self.store.transaction(commit=True) as connection:
            return self.handed.transfer_back(connection, signed, owner, LONG)

    def states(self) -> dict[str, PreparedTxnState]:
        """As recovery reads them."""
        found = {}
        for name, row in slot_rows(self.engine).items():
            with self.store.locked(Lease(name, row.fencing_token)) as held:
                found[name] = held.state
        return found

    def owners(self) -> dict[str, str]:
        return {name: row.owner for name, row in slot_rows(self.engine).items()}


@pytest.fixture
def place(engine: Engine) -> LeaseDatabase:
    return LeaseDatabase(engine)


def native(number: int) -> PreparedTxnState:
    return PreparedTxnState(ProducerIdentity(number, 3), first_record=Anchor("events", 0, number))


def librdkafkas(number: int) -> PreparedTxnState:
    return PreparedTxnState(ProducerIdentity(number, 3), Anchor("events", 1, number))


def statuses(place: LeaseDatabase, owner: str) -> list[SlotStatus]:
    observer = SlotObserver(owner, (), lambda _: False)
    return [observer.status(row) for row in place.leases.rows("a")]


def test_a_transferred_lease_belongs_to_the_new_owner_for_the_given_time(place: LeaseDatabase) -> None:
    (lease,) = place.take(1)
    place.transfer([lease], seconds=10)
    (row,) = place.leases.rows("a")
    assert (row.owner, row.fencing_token) == ("run 1", lease.fencing_token)
    assert 0 < (row.remaining or 0) <= 10
    assert list(choose("a", 1, place.leases.rows("a"), SlotObserver("other", (), lambda _: False))) == []


def test_a_task_does_not_renew_a_lease_that_it_has_transferred(place: LeaseDatabase) -> None:
    (lease,) = place.take(1)
    place.transfer([lease], seconds=10)
    assert place.leases.renew([lease], "task", LONG) == [], "it is not lost either"
    (row,) = place.leases.rows("a")
    assert (row.remaining or 0) <= 10


def test_a_lease_that_was_transferred_since_its_owner_was_seen_dead_is_not_taken(place: LeaseDatabase) -> None:
    """A task transfers its lease as its last deed. The fencing token stays, and the transaction is prepared."""
    (lease,) = place.take(1)
    (seen,) = place.leases.rows("a")
    place.transfer([lease])
    assert place.leases.take([Candidate(seen, SlotStatus.DEAD)], "heir", LONG, 1) == []
    assert place.owners() == {"a-0": "run 1"}


def test_a_lease_that_was_taken_over_cannot_be_transferred(place: LeaseDatabase) -> None:
    (lease,) = place.take(1)
    place.take_over("a-0")
    with pytest.raises(LeaseLostError) as raised:
        place.transfer([lease])
    assert raised.value.lease == lease
    assert place.owners() == {"a-0": "heir"}


@pytest.mark.slow_cases
@pytest.mark.parametrize("state_of", [native, librdkafkas])
def test_all_states_are_written_and_the_leases_signed(place: LeaseDatabase, state_of: Any) -> None:
    leases = place.transfer(place.take(CHUNK + 3))
    decided = [(lease, state_of(number)) for number, lease in enumerate(leases)]
    place.store_all(decided[::-1])
    stored = place.states()
    assert stored == {lease.transactional_id: state for lease, state in decided}
    assert {name: state.first_record for name, state in stored.items()} == {
        lease.transactional_id: state.first_record for lease, state in decided
    }
    assert set(place.owners().values()) == {"driver"}
    assert set(statuses(place, "driver")) == {SlotStatus.ABANDONED}, "the driver's own sweep takes them"
    assert set(statuses(place, "other")) == {SlotStatus.HELD}


def test_states_of_both_producers_are_written_at_once(place: LeaseDatabase) -> None:
    leases = place.take(2)
    place.store_all([(leases[0], native(7)), (leases[1], librdkafkas(8))])
    assert place.states() == {"a-0": native(7), "a-1": librdkafkas(8)}
    assert slot_rows(place.engine)["a-0"].anchor is None
    assert slot_rows(place.engine)["a-1"].first_record is None


def test_a_row_that_is_not_decided_is_left_as_it_is(place: LeaseDatabase) -> None:
    leases = place.take(2)
    place.store_all([(leases[0], native(7))])
    assert place.states() == {"a-0": native(7), "a-1": PreparedTxnState()}
    marks = {name: row.outcome for name, row in slot_rows(place.engine).items()}
    assert marks == {"a-0": None, "a-1": UNRECOVERED}, "recovery must ask the log about a decided one"
    assert place.owners() == {"a-0": "driver", "a-1": "task"}


def test_one_lost_lease_fails_the_whole_store(place: LeaseDatabase) -> None:
    leases = place.transfer(place.take(CHUNK + 3))
    place.take_over("a-5")
    decided = [(lease, native(number)) for number, lease in enumerate(leases)]
    with pytest.raises(LeaseLostError) as raised:
        place.store_all(decided)
    assert raised.value.lease == leases[5]
    assert set(place.states().values()) == {PreparedTxnState()}
    assert set(place.owners().values()) == {"run 1", "heir"}


def write_row(place: LeaseDatabase, name: str, **values: Any) -> None:
    """Somebody else writes the row of ``name``."""
    with place.engine.begin() as connection:
        connection.execute(update(table).where(table.c.transactional_id == name).values(**values))


ELSEWHERE = {
    "a state": {"prepared_txn_state": "9:9"},
    "an anchor": {"prepared_txn_state": "9:9", "anchor": "events:0:9"},
    "a version": {"lease_version": 17},
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_a_row_that_contradicts_the_task_is_not_transferred(place: LeaseDatabase, what: str) -> None:
    """The database has forgotten something, or a copy of the task's process has written: the token is the same."""
    (lease,) = place.take(1)
    write_row(place, "a-0", **ELSEWHERE[what])
    with pytest.raises(LeaseContradictedError) as raised:
        place.transfer([lease])
    assert raised.value.lease == lease
    assert place.owners() == {"a-0": "task"}


@pytest.mark.slow_cases("mariadb", "postgresql")
@pytest.mark.parametrize("what", ELSEWHERE)
def test_a_row_changed_after_its_transfer_fails_the_whole_store(place: LeaseDatabase, what: str) -> None:
    leases = place.transfer(place.take(CHUNK + 3))
    write_row(place, "a-5", **ELSEWHERE[what])
    before = slot_rows(place.engine)
    with pytest.raises(LeaseContradictedError) as raised:
        place.store_all([(lease, native(number)) for number, lease in enumerate(leases)])
    assert raised.value.lease == leases[5]
    assert slot_rows(place.engine) == before


def before_states_are_written(place: LeaseDatabase, act: Callable[[], None]) -> None:
    """Call ``act`` once, between the comparison of the rows and the statement that writes the states."""
    waiting = [act]

    def look(_: Any, __: Any, statement: str, *___: Any) -> None:
        if waiting and statement.startswith("UPDATE") and "first_record" in statement:
            waiting.pop()()

    event.listen(place.engine, "before_cursor_execute", look)


def test_no_process_takes_a_lease_between_its_comparison_and_its_store(place: LeaseDatabase) -> None:
    if place.store.is_file:
        pytest.skip("one transaction writes at a time")
    (lease,) = place.transfer(place.take(1))
    expire_leases(place.engine)
    (row,) = place.leases.rows("a")
    taken: list[Lease] = []
    before_states_are_written(
        place, lambda: taken.extend(place.leases.take([Candidate(row, SlotStatus.EXPIRED)], "heir", LONG, 1))
    )
    place.store_all([(lease, native(7))])
    assert (taken, place.states(), place.owners()) == ([], {"a-0": native(7)}, {"a-0": "driver"})


@pytest.mark.slow_cases
def test_rows_are_locked_in_the_order_of_their_names(place: LeaseDatabase) -> None:
    """Else two processes with several chunks could wait for each other."""
    leases = place.transfer(place.take(CHUNK + 3))
    shown: list[list[str]] = []

    def look(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith("SELECT") and " IN (" in statement:
            assert "ORDER BY" in statement, "PostgreSQL locks the rows in the order in which it finds them"
            values = parameters.values() if isinstance(parameters, dict) else parameters
            shown.append(sorted(str(value) for value in values))

    event.listen(place.engine, "before_cursor_execute", look)
    place.store_all([(lease, native(number)) for number, lease in enumerate(leases)][::-1])
    names = sorted(lease.transactional_id for lease in leases)
    assert shown == [names[:CHUNK], names[CHUNK:]]


def test_a_missing_row_fails_the_whole_store(place: LeaseDatabase) -> None:
    leases = place.transfer(place.take(2))
    with place.engine.begin() as connection:
        connection.execute(delete(table).where(table.c.transactional_id == "a-1"))
    with pytest.raises(LeaseContradictedError):
        place.store_all([(lease, native(7)) for lease in leases])
    assert place.states() == {"a-0": PreparedTxnState()}


def test_a_database_that_forgot_a_transfer_is_noticed(place: LeaseDatabase) -> None:
    (lease,) = place.take(1)
    before = slot_rows(place.engine)["a-0"]
    (handed,) = place.transfer([lease])
    write_row(place, "a-0", lease_version=before.lease_version, owner=before.owner)
    with pytest.raises(LeaseContradictedError):
        place.store_all([(handed, native(7))])


def test_a_transferred_lease_survives_pickling(place: LeaseDatabase) -> None:
    """Spark carries it from the task's process to the driver's."""
    (handed,) = pickle.loads(pickle.dumps(place.transfer(place.take(1))))
    place.store_all([(handed, native(7))])
    assert place.states() == {"a-0": native(7)}


def test_two_hundred_states_are_stored_with_a_few_statements(place: LeaseDatabase) -> None:
    leases = place.take(200)
    said: list[str] = []
    with place.store.transaction(commit=True) as connection:
        event.listen(place.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
        place.handed.store_all(connection, [(lease, native(1)) for lease in leases], "driver", LONG)
    assert len([each for each in said if each.startswith("UPDATE")]) == 2
    assert len(said) <= 5, "and a setting of MariaDB's"


def test_a_transfer_back_returns_the_leases_of_one_owner_only(place: LeaseDatabase) -> None:
    leases = place.take(CHUNK + 3)
    place.transfer(leases[1:], "run 1")
    place.transfer(leases[:1], "run 10")
    assert place.transfer_back("run 1") == sorted(lease.transactional_id for lease in leases[1:])
    owners = place.owners()
    assert owners.pop("a-0") == "run 10"
    assert set(owners.values()) == {"driver"}
    assert place.transfer_back("run 1") == []
    tokens = {row.fencing_token for row in slot_rows(place.engine).values()}
    assert tokens == {1}, "who sweeps them raises it"


def test_a_lease_that_is_taken_over_during_a_transfer_back_stays_with_its_new_owner(place: LeaseDatabase) -> None:
    if place.engine.dialect.name == "sqlite":
        pytest.skip("one transaction writes at a time")
    place.transfer(place.take(1), "run 1")
    heirs: list[Lease] = []
    is_begun: list[bool] = []

    def take_over_first(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE") and not is_begun:
            is_begun.append(True)
            heirs.append(place.take_over("a-0"))

    event.listen(place.engine, "before_cursor_execute", take_over_first)
    place.transfer_back("run 1")
    assert len(heirs) == 1
    assert place.owners() == {"a-0": "heir"}


def test_a_transferred_lease_knows_whether_kafka_has_committed_the_state_in_its_row(place: LeaseDatabase) -> None:
    lease, other = place.take(2)
    for each in (lease, other):
        with place.store.transaction(commit=True) as connection:
            place.store.store(connection, each, native(1))
        each.memory.committed()
    other.memory.completed()
    transferred = place.transfer([lease, other])
    assert [each.memory.uncompleted for each in transferred] == [native(1), None]


def test_a_rolled_back_transfer_and_store_leave_no_trace(place: LeaseDatabase) -> None:
    leases = place.take(2)
    with place.store.transaction(commit=False) as connection:
        place.handed.transfer(connection, leases[1], "run 1", LONG)
        place.handed.store_all(connection, [(leases[0], native(1))], "driver", LONG)
    assert set(place.states().values()) == {PreparedTxnState()}
    assert set(place.owners().values()) == {"task"}
