"""What an operator reads about one transaction: its owner, what a plan would do, and what a termination means."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from sqlalchemy import create_engine

from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import SlotRow, SlotStatus
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.ids import PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.operations.groups import grouped_records
from dualwrite.operations.resolving import Intention
from dualwrite.operations.views import KafkaView, RowView, TransactionView
from dualwrite.operations.wording import (
    described,
    foretold,
    is_to_end,
    owner,
    plan_line,
    recorded,
    recovery,
    termination_meaning,
)

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
OURS, OTHER = ProducerIdentity(7, 3), ProducerIdentity(7, 4)


def row(status: SlotStatus = SlotStatus.DEAD, state: PreparedTxnState | None = None) -> RowView:
    known = PreparedTxnState(OURS) if state is None else state
    name = "" if status is SlotStatus.FREE else "host:1 - - x"
    return RowView(SlotRow("a-0", 0, 1, name, 5.0), status, known, NOW)


def view(known: RowView | None = None, state: str = "Ongoing", producer: ProducerIdentity = OURS) -> TransactionView:
    partitions = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
    return TransactionView("a-0", known, KafkaView(state, producer, NOW, 60_000, partitions))


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (SlotStatus.FREE, "free"),
        (SlotStatus.HELD, ", 5 s"),
        (SlotStatus.DEAD, ", dead"),
        (SlotStatus.EXPIRED, ", silent"),
        (SlotStatus.FOREIGN, ", dead"),
    ],
)
def test_an_owner_is_named_with_the_state_of_its_lease(status: SlotStatus, ending: str) -> None:
    assert owner(row(status)).endswith(ending)


def test_a_plan_names_the_action_the_identity_and_the_database_s_decision() -> None:
    commit, abort = view(row()), view(row(state=PreparedTxnState()))
    assert plan_line(Intention(commit, "")) == "a-0: would commit 7:3, in 2 partitions: the database has committed it"
    assert plan_line(Intention(abort, "")) == "a-0: would abort 7:3, in 2 partitions: the database has not committed it"
    assert (is_to_end(Intention(commit, "")), is_to_end(Intention(abort, ""))) == (True, True)


def test_a_plan_with_an_obstacle_or_with_nothing_open_does_nothing() -> None:
    assert plan_line(Intention(view(row()), "no")) == "a-0: not touched: no"
    assert not is_to_end(Intention(view(row()), "no"))
    assert plan_line(Intention(view(row(), "CompleteCommit"), "")) == "a-0: nothing is open"


def test_a_plan_that_would_find_a_heuristic_outcome_says_so() -> None:
    hazard = replace(view(row()), forecast=Forecast(Outcome.HEURISTIC_HAZARD, "nobody knows"))
    assert plan_line(Intention(hazard, "")) == "a-0: would find a heuristic hazard: nobody knows"
    assert recovery(hazard) == "heuristic hazard"
    assert foretold(replace(hazard, forecast=Forecast(None, "look again"))) == "unclear: look again"


def test_the_meaning_of_a_termination_follows_from_the_decision() -> None:
    engine = create_engine("sqlite://")
    assert termination_meaning(view(row()), engine).startswith("THE DATABASE HAS COMMITTED IT: ")
    assert termination_meaning(view(row(), producer=OTHER), engine).startswith(
        "The database does not ask for its commit"
    )
    assert termination_meaning(view(None), engine).startswith("No row of this database names it")
    assert termination_meaning(view(replace(row(), is_new=True)), engine).startswith("No unit of work of this database")
    assert termination_meaning(view(row()), None).startswith("Its database's decision is unknown")
    assert described(view(row())) == "7:3, in 2 partitions"


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([11], "11"),
        ([11, 12, 13], "11 to 13"),
        ([*range(11, 20), *range(21, 44), 60], "11 to 19, 21 to 43, 60"),
        (list(range(1, 61, 2)), ", ".join(map(str, range(1, 41, 2))) + " and 10 more"),
    ],
)
def test_outcomes_of_one_cause_are_shown_with_all_their_numbers(numbers: list[int], shown: str) -> None:
    """A range with a gap would acknowledge what another cause has left there."""
    found = [HeuristicOutcome(n, "a-0", "7:3", Outcome.HEURISTIC_COMMIT, "why", NOW, None, None) for n in numbers]
    (group,) = grouped_records(found)
    assert recorded(group).startswith(f"heuristic commit {shown}, found ")
