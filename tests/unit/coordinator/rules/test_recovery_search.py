"""A state that one producer wrote never commits a transaction of the other's, or of its own, that it is not of.

Searched exhaustively: every order of units of work, deaths, lost answers, late requests and starts of either kind.
"""

import pytest

from dualwrite.coordinator.rules import recovery_decision
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.ids import PreparedTxnState
from tests.support.broker.transactions import MAX
from tests.support.coordinator.searches.recovery_search import Kind, RecoverySearchWorld, Rules, recovery
from tests.support.exhaustive.states import explore


def search(epoch: int, rules: Rules) -> set[RecoverySearchWorld]:
    """Every world there can be; an AssertionError where the wrong transaction is committed, aborted or written to."""
    model = recovery(epoch, rules)
    found = explore(model)
    assert found.is_complete
    assert [name for name in model.events if not found.seen[name]] == [], "nothing passes for want of events"
    return set(found.origins)


MORE = pytest.param(Rules(most_late=2), id="more-late", marks=pytest.mark.slow)


@pytest.mark.slow_cases
@pytest.mark.parametrize("rules", [pytest.param(Rules(), id="late"), MORE])
@pytest.mark.parametrize("epoch", [5, MAX - 5, MAX - 4, MAX - 3, MAX - 2, MAX - 1, MAX])
def test_recovery_commits_exactly_the_decided_transaction_of_either_producer(epoch: int, rules: Rules) -> None:
    worlds = search(epoch, rules)
    wrote = {(world.process.kind, bool(world.row[0].anchor)) for world in worlds if world.process and world.row[0]}
    assert wrote == {(kind, anchored) for kind in Kind for anchored in (True, False)}, "each met each one's state"
    ids = {world.entry.client.producer_id for world in worlds}
    assert (len(ids) > 1) is (epoch > 5), "epochs ran out, and producer ids changed"


def test_without_anchors_a_session_of_librdkafka_is_caught() -> None:
    with pytest.raises(AssertionError, match="ended"):
        search(5, Rules(anchors=False))


def test_the_search_notices_a_librdkafka_that_reuses_an_identity_with_a_request_under_way() -> None:
    with pytest.raises(AssertionError):
        search(5, Rules(goes_on=tuple(Kind)))


@pytest.mark.slow
def test_a_state_of_the_native_producer_has_no_anchor_and_needs_none() -> None:
    states = {world.row[0] for world in search(5, Rules()) if world.row[0] and world.row[0].anchor is None}
    assert states
    assert all(PreparedTxnState.parse(str(state)) == state for state in states)


@pytest.mark.parametrize("always", [RecoveryDecision.COMMIT, RecoveryDecision.ABORT])
def test_the_search_notices_a_recovery_that_does_not_ask_the_row(
    monkeypatch: pytest.MonkeyPatch, always: RecoveryDecision
) -> None:
    monkeypatch.setattr(
        recovery_decision, "verdict", lambda _, ongoing: RecoveryDecision.NOTHING if ongoing is None else always
    )
    with pytest.raises(AssertionError, match=r"(?s)ended.*the shortest history, of \d+ steps"):
        search(5, Rules())
