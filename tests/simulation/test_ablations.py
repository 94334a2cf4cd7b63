"""Without a safeguard some seed finds an anomaly, and says which; the cheapest of the table are here."""

import re

import pytest

from dualwrite.broker.runtime.flusher import Flusher
from tests.support.simulation.ablation_table import AblationRow, markdown_of
from tests.support.simulation.ablations import ABLATIONS
from tests.support.simulation.faults import FaultPlace, PlannedFault, SimulatedFault
from tests.support.simulation.oracle import name_of
from tests.support.simulation.search import Found, minimised, run_seed, search
from tests.support.simulation.world import SimulatedWorld

ENOUGH_SEEDS = {
    "no-anchor": 45,
    "no-fencing-token": 10,
    "no-row-lock": 40,
    "state-with-the-commit": 20,
    "lease-as-lock": 10,
    "token-not-read-again": 15,
    "plain-init-before-recovery": 20,
    "plain-init-of-a-session": 10,
    "commit-of-any-open-transaction": 10,
    "guess-after-commit-error": 20,
    "producer-used-again": 15,
    "commit-failure-forgotten": 70,
    "records-not-acknowledged": 10,
    "keep-prepared-wrong-identity": 10,
    "epoch-not-bumped": 40,
    "epochs-begin-again": 5,
    "compaction-without-fsync": 20,
    "no-fsync-before-answer": 10,
    "disk-error-ignored": 60,
    "markers-in-one-partition": 10,
    "lost-join-not-repeated": 35,
    "offsets-at-once": 10,
    "late-offsets-taken": 20,
    "decided-not-finished": 40,
    "lost-marker-not-repeated": 15,
    "no-sequence-check": 50,
    "lso-past-open-transaction": 20,
    "row-of-another-cluster-believed": 40,
    "log-of-another-cluster-believed": 55,
    "state-not-compared": 60,
    "database-forgets": 20,
}
"""For each safeguard as many seeds as notice that it is missing, and some more."""
FROM = {
    "plain-init-of-a-session": 650,
    "token-not-read-again": 325,
    "late-offsets-taken": 210,
    "producer-used-again": 135,
    "compaction-without-fsync": 105,
    "lost-marker-not-repeated": 90,
}
"""The first of these seeds for safeguards whose loss is rare; 0 for the others."""
ALSO = {
    "row-of-another-cluster-believed": {"false alarm"},
    "state-with-the-commit": {"crash"},
    "epochs-begin-again": {"crash"},
}
"""What their first anomaly may also be: an outcome on record that should not be; a COMMIT that must wait for a lock; a
broker that ends, as its table of transactions refuses an earlier epoch."""
POWER_CUT = PlannedFault(SimulatedFault.BROKER_POWER, FaultPlace.DISK, "broker", 1, 6.0)


@pytest.mark.parametrize("name", ENOUGH_SEEDS)
def test_the_simulation_notices_that_a_safeguard_is_missing(name: str) -> None:
    found = search(FROM.get(name, 0), ENOUGH_SEEDS[name], name, until_found=True)
    assert {name_of(anomaly) for anomaly in found.anomalies.values()} <= {
        "lost write",
        "aborted read",
        "torn transaction",
        "duplicate write",
        "dirty read",
        "stuck",
        *ALSO.get(name, ()),
    }
    assert len(found.anomalies) == 1


def test_a_kill_before_the_state_is_stored_needs_the_anchor_in_the_older_protocol() -> None:
    """The row names the session's last transaction, and the open one has the same producer and epoch."""
    faults = [PlannedFault(SimulatedFault.KILL, FaultPlace.STORE, "app-0", 2, 1.0)]
    world = SimulatedWorld(2, faults)
    assert (world.is_older, world.pool_size) == (True, 1)
    assert world.run().anomaly == ""
    with ABLATIONS["no-anchor"].applied():
        assert name_of(run_seed(2, faults).anomaly) == "aborted read"


def test_what_is_decided_for_one_cluster_is_left_to_the_processes_of_that_cluster() -> None:
    """A process commits in the database and is killed. The other one has the second cluster, where nothing is open."""
    faults = [PlannedFault(SimulatedFault.KILL, FaultPlace.COMMITTED, "app-0", 1, 5.0)]
    result = run_seed(51, faults)
    assert (result.anomaly, len(result.struck)) == ("", 1)
    assert result.seen["two clusters"] == 1
    assert result.seen["a slot was left to its cluster"] > 0
    with ABLATIONS["row-of-another-cluster-believed"].applied():
        assert name_of(run_seed(51, faults).anomaly) == "lost write"


def test_a_decision_that_the_database_forgot_is_on_record_before_its_process_goes_on() -> None:
    faults = [PlannedFault(SimulatedFault.DATABASE_FORGETS, FaultPlace.COMMITTED, "database", 3, 0.02)]
    result = run_seed(62, faults)
    assert (result.anomaly, len(result.struck)) == ("", 1)
    assert result.seen["a forgotten COMMIT is on record"] == 1
    with ABLATIONS["state-not-compared"].applied():
        assert name_of(run_seed(62, faults).anomaly) == "aborted read"


def test_a_decision_in_a_row_whose_first_recovery_the_database_forgot_is_kept() -> None:
    faults = [
        PlannedFault(SimulatedFault.DATABASE_FORGETS, FaultPlace.COMMITTED, "database", 1, 0.02),
        PlannedFault(SimulatedFault.KILL, FaultPlace.COMMITTED, "app-0", 1, 5.0),
    ]
    result = run_seed(101, faults)
    assert (result.anomaly, len(result.struck)) == ("", 2)
    with ABLATIONS["row-stays-new"].applied():
        assert name_of(run_seed(101, faults).anomaly) == "lost write"


def test_a_process_whose_lease_was_forgotten_leaves_the_row_of_the_next_owner_alone() -> None:
    """It took the slot of a dead process, loses the lock, and sleeps. A new process takes the slot, and is killed when
    it has decided a unit of work."""
    faults = [
        PlannedFault(SimulatedFault.DATABASE_FORGETS, FaultPlace.COMMITTED, "database", 1, 3.3),
        PlannedFault(SimulatedFault.LOCK_LOST, FaultPlace.LOCKED, "app-1", 1, 7.2),
        PlannedFault(SimulatedFault.KILL, FaultPlace.COMMITTED, "app-0", 1, 0.6),
        PlannedFault(SimulatedFault.KILL, FaultPlace.COMMITTED, "app-0", 2, 4.0),
    ]
    result = run_seed(70, faults)
    assert (result.anomaly, len(result.struck)) == ("", 4)
    with ABLATIONS["tokens-one-by-one"].applied():
        assert name_of(run_seed(70, faults).anomaly) == "lost write"


def test_a_commit_in_doubt_that_another_process_completed_and_the_database_forgot_is_on_record() -> None:
    result = run_seed(32_050_391)
    assert result.anomaly == ""
    assert result.seen["a forgotten COMMIT is on record"] == 1
    with ABLATIONS["doubt-not-looked-up"].applied():
        assert name_of(run_seed(32_050_391).anomaly) == "aborted read"


@pytest.mark.parametrize(
    ("first", "second", "seed", "fault", "anomaly"),
    [
        # The power fails when one of two markers is on disk, and the decision is not. The row decides it once more.
        ("markers-before-decision", "plain-init-before-recovery", 3, POWER_CUT._replace(at=49), "torn transaction"),
        # The next decision is on disk, and a marker of the last one is not. A Produce between them waits for both.
        ("next-decision-before-markers", "produce-without-fsync", 1, POWER_CUT._replace(at=62), "lost write"),
    ],
)
def test_what_is_guarded_twice_is_noticed_with_both_safeguards_taken_away(
    first: str, second: str, seed: int, fault: PlannedFault, anomaly: str
) -> None:
    for name in (first, second):
        with ABLATIONS[name].applied():
            assert run_seed(seed, [fault]).anomaly == ""
    with ABLATIONS[first].applied(), ABLATIONS[second].applied():
        assert name_of(run_seed(seed, [fault]).anomaly) == anomaly


def test_after_an_ablation_the_product_is_whole_again() -> None:
    barrier = Flusher.barrier
    with ABLATIONS["no-fsync-before-answer"].applied():
        assert Flusher.barrier is not barrier
    assert Flusher.barrier is barrier


def test_a_failing_run_is_made_smaller_and_still_fails_in_the_same_way() -> None:
    name = "keep-prepared-wrong-identity"
    ((seed, anomaly),) = search(0, ENOUGH_SEEDS[name], name, until_found=True).anomalies.items()
    faults = minimised(seed, anomaly, name)
    with ABLATIONS[name].applied():
        whole, small = run_seed(seed), run_seed(seed, faults)
    assert len(faults) < len(whole.struck)
    assert name_of(small.anomaly) == name_of(whole.anomaly) == name_of(anomaly)
    assert run_seed(seed, faults).anomaly == ""


def test_the_table_has_a_line_for_each_safeguard_and_says_which_none_notices() -> None:
    noticed = Found(seeds=2000, anomalies={7: "lost write: u1.0", 9: "stuck: partition 0", 11: "lost write: u2.0"})
    rows = [
        AblationRow(ABLATIONS["no-row-lock"], noticed),
        AblationRow(ABLATIONS["no-anchor"], Found(seeds=2000)),
    ]
    lines = markdown_of(rows).splitlines()
    assert lines[2].endswith("| `no-row-lock` | 1.5 | 2,000 | lost write, stuck | 7 |")
    assert lines[3].endswith("| `no-anchor` | 0 | 2,000 | none | |")


def test_every_ablation_says_what_it_takes_away() -> None:
    for name, ablation in ABLATIONS.items():
        assert re.fullmatch(r"[a-z-]+", name)
        assert ablation.replacements
        assert ablation.safeguard
