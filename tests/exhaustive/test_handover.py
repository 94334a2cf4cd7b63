"""Two owners of one slot: the search finds nothing, and finds each rule that is broken on purpose."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from dualwrite.broker.core.commands import Decision, Reply
from dualwrite.coordinator.rules import lease as lease_rules
from dualwrite.coordinator.rules import machine as machine_module
from dualwrite.coordinator.rules import recovery_decision
from dualwrite.coordinator.rules.machine import TRANSITIONS, Event, UnitState
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.wire.error_codes import ErrorCode
from tests.support.breaking.broker import IDENTITY_ERROR, KEEP_PREPARED
from tests.support.exhaustive.handover import handover
from tests.support.exhaustive.states import BrokenPropertyError, explore

DEPTH = 18


def test_whatever_fails_both_sides_are_equal_after_a_recovery_by_any_process() -> None:
    model = handover(units=1, starts=2)
    found = explore(model, depth=DEPTH)
    assert [name for name in (*model.sometimes, *model.events) if not found.seen[name]] == []
    assert found.states > 10_000


@pytest.mark.slow
def test_whatever_fails_both_sides_are_equal_further_on_too() -> None:
    found = explore(handover(units=1, starts=2), depth=DEPTH + 4)
    assert found.states > 25_000


def broken_recipe(state: UnitState, event: Event, to: UnitState) -> Mapping[UnitState, Mapping[Event, UnitState]]:
    return MappingProxyType({**TRANSITIONS, state: {**TRANSITIONS[state], event: to}})


@pytest.mark.parametrize(
    ("state", "event", "to"),
    [
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.COMMITTING_KAFKA),
        (UnitState.READING_DECISION, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.READING_DECISION, Event.FAILED, UnitState.LEAVING_ABORT),
        (UnitState.PREPARING_KAFKA, Event.DONE, UnitState.COMMITTING_KAFKA),
    ],
)
def test_the_search_finds_a_broken_recipe(
    monkeypatch: pytest.MonkeyPatch, state: UnitState, event: Event, to: UnitState
) -> None:
    monkeypatch.setattr(machine_module, "TRANSITIONS", broken_recipe(state, event, to))
    assert_finds("readers get|nothing that was decided|what a caller was told")


@pytest.mark.parametrize("always", [RecoveryDecision.COMMIT, RecoveryDecision.ABORT])
def test_the_search_finds_a_recovery_that_does_not_ask_the_row(
    monkeypatch: pytest.MonkeyPatch, always: RecoveryDecision
) -> None:
    monkeypatch.setattr(
        recovery_decision, "verdict", lambda _, ongoing: RecoveryDecision.NOTHING if ongoing is None else always
    )
    assert_finds("both sides equal|both sides are equal|readers get|nothing that was decided")


def test_the_search_finds_a_zombie_that_is_not_fenced_by_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_rules, "require_row", lambda *_: None)
    assert_finds("only the owner of the row's fencing token")


def keeping_bumps_nothing(entry: Any, timeout_ms: int, at: Any) -> Decision:
    return Decision(Reply(producer=entry.client, ongoing=entry.producer), (entry,))


def test_the_search_finds_a_broker_that_fences_no_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    KEEP_PREPARED.broken_by(monkeypatch, keeping_bumps_nothing)
    IDENTITY_ERROR.broken_by(monkeypatch, lambda entry, producer: ErrorCode.NONE)
    assert_finds("")


def assert_finds(what: str) -> None:
    with pytest.raises(BrokenPropertyError, match=rf"(?s)handover: .*({what}).*the shortest history, of \d+ steps"):
        explore(handover(units=1, starts=2))
