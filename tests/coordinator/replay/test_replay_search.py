"""Exhaustive search of the real coordinator where a prepared transaction may time out: at any request, beside whatever
fails or dies. With replay both sides are equal in the end; without, every difference is on record.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.support.breaking.coordinator import REPLAYS, replay_that_stores_no_state
from tests.support.coordinator.searches.driver_search import in_foreground, search_engine
from tests.support.coordinator.searches.replay_search import ON_RECORD, TIMED_OUT, replay_scenario
from tests.support.exhaustive.histories import run_histories


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    with in_foreground(), search_engine(sqlite_url) as engine:
        yield engine


def search(
    engine: Engine, values: tuple[str, ...], faults: int, *, replay: bool, deaths_only: bool = False
) -> Counter[str]:
    """Every combination of faults; in how many histories units of work ended in which way, and one timed out.

    :param deaths_only: processes die between their steps, and nothing else fails but timeouts.
    """
    scenario = replay_scenario(engine, values, replay=replay, deaths_only=deaths_only)
    found = run_histories(scenario, faults=faults)
    assert found.faults == faults
    return found.seen


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_any_fault_in_one_unit_of_work(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one",), faults=1, replay=replay)
    assert min(seen["succeeded"], seen["rolled back"], seen["killed"], seen[TIMED_OUT], seen[ON_RECORD]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_any_fault_in_two_units_of_work(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one", "two"), faults=1, replay=replay)
    assert min(seen[TIMED_OUT], seen[ON_RECORD]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("replay", [True, False])
def test_after_two_timeouts_or_deaths(engine: Engine, replay: bool) -> None:
    seen = search(engine, ("one",), faults=2, replay=replay, deaths_only=True)
    assert min(seen[TIMED_OUT], seen[ON_RECORD]) > 2


def test_the_search_notices_a_replay_whose_state_is_not_stored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that is committed before the database knows of it comes twice if its process dies in between."""

    REPLAYS.broken_by(monkeypatch, replay_that_stores_no_state)
    with pytest.raises(AssertionError, match="torn"):
        search(engine, ("one",), faults=2, replay=True, deaths_only=True)
