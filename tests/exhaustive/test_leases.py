"""The lease of one slot: the search finds nothing, and finds each rule that is broken on purpose."""

from typing import Any

import pytest

from dualwrite.coordinator.rules.lease_memory import LeaseMemory, RowFinding, RowSeen
from dualwrite.coordinator.rules.slot_rules import SlotObserver, SlotStatus
from tests.support.exhaustive.leases import FALSE_ALARM, LEASED, NOT_NAMED, UNDER_OTHERS, UNNOTICED, leases
from tests.support.exhaustive.states import BrokenPropertyError, explore


@pytest.mark.parametrize(("failovers", "copies"), [(0, 0), (1, 1)])
def test_no_history_of_a_lease_breaks_a_rule(failovers: int, copies: int) -> None:
    model = leases(1, 3, failovers, copies)
    found = explore(model, depth=5)
    assert [name for name in (*model.sometimes, *model.events) if not found.seen[name]] == []


_finding = LeaseMemory.finding


def by_the_token_alone(
    self: LeaseMemory, row: RowSeen | None, fencing_token: int, since: int | None = None
) -> RowFinding | None:
    assert row is not None
    if row.fencing_token == fencing_token:
        return None
    return RowFinding.TAKEN_OVER if row.fencing_token > fencing_token else RowFinding.ROLLED_BACK


def without_the_token(
    self: LeaseMemory, row: RowSeen | None, fencing_token: int, since: int | None = None
) -> RowFinding | None:
    return None


def without_what_is_pending(
    self: LeaseMemory, row: RowSeen | None, fencing_token: int, since: int | None = None
) -> RowFinding | None:
    pending, self.pending = self.pending, None
    found = _finding(self, row, fencing_token, since)
    self.pending = pending
    return found


@pytest.mark.parametrize(
    ("name", "broken", "property_name"),
    [
        ("finding", by_the_token_alone, UNNOTICED),
        ("finding", without_the_token, UNDER_OTHERS),
        ("finding", without_what_is_pending, FALSE_ALARM),
        ("unmatched", lambda self, finding, row: [], NOT_NAMED),
        ("renews", lambda self, now, version: None, FALSE_ALARM),
    ],
)
def test_the_search_finds_a_memory_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, property_name: str
) -> None:
    monkeypatch.setattr(LeaseMemory, name, broken)
    failovers = int(property_name in (UNNOTICED, NOT_NAMED))
    assert_finds(property_name, failovers)


def test_the_search_finds_a_lease_that_is_taken_from_a_living_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotObserver, "status", lambda self, row: SlotStatus.EXPIRED)
    assert_finds(LEASED, 0)


def assert_finds(property_name: str, failovers: int) -> None:
    with pytest.raises(BrokenPropertyError, match=f"leases: {property_name}"):
        explore(leases(1, 2, failovers, 0), depth=9)
