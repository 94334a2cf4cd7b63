"""A restored copy is one finding for all slots together: in the list, in recovery's output, in the doctor's."""

import shutil
from collections.abc import Callable

import pytest
from sqlalchemy import delete

from dualwrite.coordinator.rules.recovery_decision import DETAILS, UNCLAIMED, Outcome
from dualwrite.coordinator.sql.tables import UNRECOVERED, kafka_transaction_state
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.event_table import expire_leases
from tests.support.operations.histories import STATUSES, Case, epochs_later, insert_row, lived
from tests.support.operations.places import OperationsSite

SLOTS = 5


def database_restored(site: OperationsSite) -> None:
    """Each slot has run one unit of work before the copy was made, and one after."""
    for number in range(SLOTS):
        site.write(f"before {number}")
    site.engine.dispose()
    file = str(site.engine.url.database)
    shutil.copy(file, f"{file}.copy")
    for number, dual_write in enumerate(site.made):
        with dual_write.transaction() as tx:
            tx.produce(site.topic, value=f"after {number}")
    for dual_write in site.made:
        dual_write.close()
    site.engine.dispose()
    shutil.copy(f"{file}.copy", file)
    expire_leases(site.engine)


def cluster_restored(site: OperationsSite) -> None:
    """Every row stores a later epoch than the cluster's."""
    for number in range(SLOTS):
        (state,) = lived(site, site.slot(number), "c", "native", 0)
        later = PreparedTxnState(epochs_later(state.producer, 5))
        insert_row(site, site.slot(number), Case("committed", "later", later, STATUSES["free"]))


def rows_made_anew(site: OperationsSite) -> None:
    """The state table was emptied, and its rows were inserted again."""
    for number in range(SLOTS):
        lived(site, site.slot(number), "o", "native", 0)
        columns = {**STATUSES["expired"], "outcome": UNRECOVERED}
        insert_row(site, site.slot(number), Case("open", "nothing", PreparedTxnState(), columns))


@pytest.mark.parametrize(
    ("restored", "outcome", "detail"),
    [
        (database_restored, Outcome.HEURISTIC_COMMIT, DETAILS[Outcome.HEURISTIC_COMMIT]),
        (cluster_restored, Outcome.HEURISTIC_HAZARD, DETAILS[Outcome.HEURISTIC_HAZARD]),
        (rows_made_anew, Outcome.HEURISTIC_HAZARD, UNCLAIMED),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_restored_copy_is_one_finding(
    site: OperationsSite, restored: Callable[[OperationsSite], None], outcome: Outcome, detail: str
) -> None:
    restored(site)
    slots = f"5 slots ({site.slot(0)}, {site.slot(1)}, {site.slot(2)} and 2 more)"
    words = ("transactions", "list", "--application", site.application)
    foretold = site.run(*words)
    assert foretold.code == 1
    about = [line for line in foretold.out.splitlines()[SLOTS + 1 :] if outcome.value in line]
    assert about == [f"recovery would find a {outcome.value} in {slots}: {detail}"]
    assert [line.split("  ")[-1].strip() for line in foretold.out.splitlines()[1 : SLOTS + 1]] == [outcome.value] * 5
    warned = [line for line in site.run("doctor", "--application", site.application).out.splitlines() if slots in line]
    assert len(warned) == 1
    assert warned[0].startswith(f"failure  transactions: recovery would find a {outcome.value} in {slots}: ")
    assert "make sure that these are the right database and the right cluster" in warned[0]

    done = site.run("recover", "--application", site.application)
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{slots}: {outcome.value}",
        "5 slots checked; 0 transactions ended; 5 heuristic outcomes: see dualwrite transactions list",
    ]
    listed = site.run(*words)
    assert listed.code == 1
    (recorded,) = [line for line in listed.out.splitlines() if line.startswith(outcome.value)]
    assert f" ago: 5 units of work in {slots}: {detail}" in recorded
    assert recorded.startswith(f"{outcome.value} 1 to 5, found ")
    (outcomes,) = [
        line for line in site.run("doctor").out.splitlines() if line.startswith("failure  outcomes: 5 heuristic")
    ]
    assert f"the two sides differ: {outcome.value} in {slots}" in outcomes


def test_aborts_by_force_are_a_finding_for_each_slot(site: OperationsSite) -> None:
    for number in range(2):
        (state,) = lived(site, site.slot(number), "f", "native", 0)
        insert_row(site, site.slot(number), Case("aborted by force", "it", state, STATUSES["expired"]))
    listed = site.run("transactions", "list", "--application", site.application).out.splitlines()
    for number in range(2):
        start = f"recovery would find a heuristic abort in {site.slot(number)}: "
        assert len([line for line in listed if line.startswith(start)]) == 1
    done = site.run("recover", "--application", site.application).out.splitlines()
    assert done[:2] == [f"{site.slot(0)}: heuristic abort", f"{site.slot(1)}: heuristic abort"]


def test_an_undeclared_copy_names_the_number_of_its_slots(site: OperationsSite) -> None:
    for number in range(SLOTS):
        columns = {**STATUSES["expired"], "database_id": "sqlite:1:2"}
        insert_row(site, site.slot(number), Case("unknown", "nothing", PreparedTxnState(), columns))
    said = (
        f"the state rows of 5 slots ({site.slot(0)}, {site.slot(1)}, {site.slot(2)} and 2 more) were written by the "
        "database sqlite:1:2, and this is "
    )
    assert f"nothing is recovered here: {said}" in site.run("transactions", "list").out
    assert site.run("recover", "--application", site.application).err.startswith(f"dualwrite: {said}")
    assert f"failure  identity: {said}" in site.run("doctor").out
    with site.engine.begin() as connection:
        others = kafka_transaction_state.c.transactional_id != site.slot()
        connection.execute(delete(kafka_transaction_state).where(others))
    assert f"the state row of {site.slot()!r} was written by" in site.run("transactions", "list").out


def test_recovery_takes_no_slot_of_an_undeclared_copy_and_the_plan_says_so(site: OperationsSite) -> None:
    """Neither where nothing is open, nor where a heuristic outcome waits to be found."""
    for number, history in enumerate("cf"):
        (state,) = lived(site, site.slot(number), history, "native", 0)
        columns = {**STATUSES["expired"], "database_id": "sqlite:1:2"}
        insert_row(site, site.slot(number), Case(history, "transaction 0", state, columns))
    listed = site.run("transactions", "list", "--application", site.application).out.splitlines()
    assert [line.split("  ")[-1].strip() for line in listed[1:3]] == ["none: a copy"] * 2
    assert "recovery           none: the state rows of" in site.run("transactions", "describe", site.slot(1)).out
    slots = [site.slot(0), site.slot(1)]
    for words, code in (([], 0), (["--yes"], 1)):
        result = site.run("transactions", "resolve", *slots, *words)
        assert result.code == code
        for slot, line in zip(slots, result.out.splitlines(), strict=False):
            assert line.startswith(f"{slot}: not touched: the state rows of 2 slots (")
    assert site.outcomes() == []


def test_a_copy_terminates_no_transaction_of_its_original(site: OperationsSite) -> None:
    site.leave("one")
    site.change_row(database_id="sqlite:1:2")
    before = site.rows(), site.described()
    for words in ([], ["--yes"]):
        result = site.run("transactions", "terminate", site.slot(), *words)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"dualwrite: the state row of {site.slot()!r} was written by the database ")
    assert (site.rows(), site.described(), site.outcomes()) == (*before, [])
