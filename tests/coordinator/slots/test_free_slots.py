"""Leases that use what an earlier look at the rows has found: how many rows they read, and when a look is outdated."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, event

from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import CopiedDatabaseError
from tests.support.coordinator.event_table import ready_engine, slot_rows
from tests.support.coordinator.memory_leases import MemoryLeases

SIZE = 64
TIMEOUT = 600.0
"""Long: a lock that a busy machine holds for some seconds is no error."""


@pytest.fixture
def leases() -> MemoryLeases:
    return MemoryLeases()


def registry(leases: Any, owner: str = "me", **options: Any) -> LeaseRegistry:
    return LeaseRegistry(THIS_PROCESS, leases, "a", owner, TIMEOUT, **options)


def lease(made: LeaseRegistry, count: int = 1, size: int = SIZE) -> list[Lease]:
    """So many leases one after another; they are held as long as the caller has them."""
    taken = [made.lease_one(size, lambda _: None) for _ in range(count)]
    return [each for each in taken if each is not None]


def names(taken: list[Lease]) -> list[str]:
    return [each.transactional_id for each in taken]


def test_leasing_n_slots_reads_about_n_rows(leases: MemoryLeases) -> None:
    held = lease(registry(leases), SIZE)
    assert names(held) == [f"a-{number}" for number in range(SIZE)]
    assert leases.rows_read < SIZE
    assert leases.looks <= 8  # at 0, 1, 2, 4, … rows


def test_slots_that_others_have_left_are_leased_after_one_look(leases: MemoryLeases) -> None:
    former = registry(leases, "former")
    former.give_back(lease(former, SIZE), finished=True)
    leases.looks = leases.rows_read = 0
    assert len(lease(registry(leases), SIZE)) == SIZE
    assert (leases.looks, leases.rows_read) == (1, SIZE)


def test_processes_that_lease_in_turns_get_different_slots_and_read_few_rows(leases: MemoryLeases) -> None:
    one, other = registry(leases, "one"), registry(leases, "other")
    held = [each for _ in range(SIZE // 2) for made in (one, other) for each in lease(made)]
    assert len(set(names(held))) == SIZE
    assert lease(one) == lease(other) == []
    assert leases.rows_read <= 5 * SIZE


def test_a_slot_that_was_taken_since_the_look_is_passed_over(leases: MemoryLeases) -> None:
    one, other = registry(leases, "one"), registry(leases, "other")
    former = registry(leases, "former")
    former.give_back(lease(former, 4), finished=True)
    held = lease(one)
    held += lease(other, 2)
    looks = leases.looks
    held += lease(one)
    assert names(held) == ["a-0", "a-1", "a-2", "a-3"]
    assert leases.looks == looks


def test_a_slot_that_is_free_again_since_the_look_is_found_by_another(leases: MemoryLeases) -> None:
    one, other = registry(leases, "one"), registry(leases, "other")
    held, theirs = lease(one, 2, size=3), lease(other, 1, size=3)
    assert lease(one, 1, size=3) == []
    other.give_back(theirs, finished=True)
    held += lease(one, 1, size=3)
    assert names(held) == ["a-0", "a-1", "a-2"]


def with_a_look_left(leases: MemoryLeases, **options: Any) -> tuple[LeaseRegistry, list[Lease]]:
    """A registry whose last look found more slots than it has leased since."""
    former = registry(leases, "former")
    former.give_back(lease(former, 8), finished=True)
    made = registry(leases, **options)
    held = lease(made, 2)
    leases.looks = 0
    return made, held


def test_a_look_in_another_database_is_not_used(leases: MemoryLeases) -> None:
    made, held = with_a_look_left(leases)
    held += lease(made)
    assert leases.looks == 0
    leases.is_moved = True
    held += lease(made)
    assert leases.looks == 1


def test_a_look_for_another_cluster_is_not_used(leases: MemoryLeases) -> None:
    clusters = [ClusterIdentity("one")]
    made, held = with_a_look_left(leases, cluster=lambda: clusters[-1])
    clusters.append(ClusterIdentity("other"))
    held += lease(made)
    assert leases.looks == 1


def test_a_look_under_another_signature_is_not_used(leases: MemoryLeases) -> None:
    made, held = with_a_look_left(leases)
    made.renew_signature()
    held += lease(made)
    assert leases.looks == 1


# In databases.


def in_sql(engine: Engine, owner: str) -> LeaseRegistry:
    return registry(SqlLeases(engine, SqlDecisionStore(engine)), owner)


def test_a_database_is_asked_for_all_rows_a_few_times_for_many_slots(engine: Engine) -> None:
    read = 0

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal read
        read += " LIKE " in statement and table.name in statement

    event.listen(engine, "after_cursor_execute", count)
    held = lease(in_sql(engine, "me"), SIZE)
    assert set(slot_rows(engine)) == set(names(held))
    assert 0 < read <= 8


@pytest.mark.slow_cases("mariadb", "sqlite")
def test_threads_of_several_processes_that_lease_at_once_never_get_the_same_slot(engine: Engine) -> None:
    made = [in_sql(engine, f"process {number}") for number in range(4)]
    with ThreadPoolExecutor(8) as threads:
        taken = [each for found in threads.map(lambda number: lease(made[number % 4], 8), range(8)) for each in found]
    assert len(set(names(taken))) == len(taken) == SIZE
    owners = {name: row.owner for name, row in slot_rows(engine).items()}
    for each in made:
        assert {lease.transactional_id for lease in each.held} == {
            name for name, owner in owners.items() if owner == each.owner
        }


def test_a_database_that_was_replaced_by_its_copy_is_noticed_before_the_next_lease(tmp_path: Path) -> None:
    file = tmp_path / "db"
    ready_engine(f"sqlite:///{file}").dispose()
    engine = create_engine(f"sqlite:///{file}", poolclass=NullPool)
    former = in_sql(engine, "former")
    former.give_back(lease(former, 8), finished=True)
    made = in_sql(engine, "me")
    held = lease(made, 2)
    shutil.copy(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    with pytest.raises(CopiedDatabaseError):
        lease(made)
    assert names(held) == ["a-0", "a-1"]


def test_a_lost_lease_that_is_forgotten_late_leaves_the_next_lease_of_its_slot_alone(leases: MemoryLeases) -> None:
    """A heartbeat finds the first lost while another thread has leased the slot again."""
    own, other = registry(leases), registry(leases, "other")
    (first,) = lease(own)
    own.give_back([first], finished=True)
    (others,) = lease(other)
    other.give_back([others], finished=True)
    (second,) = lease(own)
    assert second.transactional_id == first.transactional_id
    own.forget([first])
    assert own.held == [second]


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_lease_that_is_not_noted_yet_is_not_thought_abandoned(
    leases: MemoryLeases, monkeypatch: pytest.MonkeyPatch, is_swept: bool
) -> None:
    """The sweeper looks while another thread has a lease in the database, and no answer yet: a unit of work, or an
    operator's sweep of slots that were given back."""
    made, take = registry(leases), leases.take
    former = registry(leases, "former")
    former.give_back(lease(former), finished=True)
    looks: list[Future[Any]] = []

    def slow_take(*arguments: Any, **options: Any) -> list[Lease]:
        taken = take(*arguments, **options)
        looks.append(threads.submit(made.slots_to_recover))
        wait(looks, 0.2)  # it has the time to look
        return taken

    monkeypatch.setattr(leases, "take", slow_take)
    with ThreadPoolExecutor(1) as threads:
        held = made.take(made.slots_to_recover(free_too=True)) if is_swept else lease(made)
        assert looks[0].result() == []
    assert names(held) == ["a-0"]
