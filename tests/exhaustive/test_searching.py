"""The searches themselves: bounds are exact, histories the shortest, and nothing passes for want of events."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.support.exhaustive.histories import Chooser, HistoryModel, run_histories
from tests.support.exhaustive.results import as_lines, as_markdown, searched
from tests.support.exhaustive.states import BrokenPropertyError, StateModel, explore

EVEN = "a sum is even"


def steps_of(total: int, seen: Counter[str]) -> Iterator[tuple[str, int]]:
    """Add one or two, up to ten."""
    for more in (1, 2):
        if total + more <= 10:
            seen["two were added"] += more == 2
            yield f"add {more}", total + more


MODEL = StateModel(
    name="sums",
    about="sums of ones and twos",
    first=(0,),
    following=steps_of,
    always={"a sum is small": lambda total: total <= 10},
    sometimes={EVEN: lambda total: total % 2 == 0},
    events=("two were added",),
)


def test_a_search_to_the_end_sees_each_state_once_and_counts_the_rest() -> None:
    found = explore(MODEL)
    assert (found.is_complete, found.states, found.transitions, found.final) == (True, 11, 19, 1)
    assert found.seen == {EVEN: 6, "two were added": 9}
    assert found.widest == 2


def test_a_bound_is_exact() -> None:
    found = explore(MODEL, depth=3)
    assert (found.is_complete, found.depth, found.states) == (False, 3, 7)
    assert set(found.origins) == set(range(7))


def test_the_least_depth_is_reached_without_any_time_and_no_further_one() -> None:
    least = StateModel("sums", "", (0,), steps_of, least=4)
    assert explore(least, seconds=0.0).depth == 4


def test_a_search_ends_where_it_may_keep_no_more_states() -> None:
    assert explore(MODEL, most_states=5).states <= 5


def test_a_broken_property_is_shown_with_the_shortest_history() -> None:
    model = StateModel("sums", "", (0,), steps_of, always={"a sum is below four": lambda total: total < 4})
    with pytest.raises(BrokenPropertyError, match=r"a sum is below four\nthe shortest history, of 2 steps:"):
        explore(model)


def test_a_step_that_breaks_a_property_is_shown_with_the_history_before_it() -> None:
    def following(total: int, seen: Counter[str]) -> Iterator[tuple[str, int]]:
        assert total < 4, "four was reached"
        yield from steps_of(total, seen)

    with pytest.raises(
        BrokenPropertyError, match=r"(?s)four was reached.*the shortest history, of 2 steps and one step more"
    ):
        explore(StateModel("sums", "", (0,), following))


def two_questions(chooser: Chooser) -> list[str]:
    answers = [chooser.choose(3), chooser.choose(2)]
    return [f"{answer} to question {number}" for number, answer in enumerate(answers)]


def test_histories_are_run_in_the_order_of_their_faults() -> None:
    one, every = run_histories(two_questions, faults=1), run_histories(two_questions)
    assert (one.faults, one.is_complete, one.histories) == (1, False, 4)
    assert (every.is_complete, every.histories, every.choices, every.most_choices) == (True, 6, 12, 2)
    assert every.seen["2 to question 0"] == 2


def test_a_history_that_fails_is_shown_with_the_fewest_faults() -> None:
    def scenario(chooser: Chooser) -> list[str]:
        answers = [chooser.choose(2) for _ in range(3)]
        assert sum(answers) < 2, "two faults at once"
        return []

    with pytest.raises(BrokenPropertyError, match=r"two faults at once.*\n2 faults show it, and no fewer"):
        run_histories(scenario)


def test_what_never_happened_is_a_failure() -> None:
    model = StateModel("sums", "", (0,), steps_of, events=("three were added",))
    result = searched(model, 60.0, 100)
    assert (result.missing, result.has_failed) == (["three were added"], True)
    assert "0  three were added  MISSING" in as_lines(result)


def test_a_history_that_never_happened_is_a_failure_too() -> None:
    model = HistoryModel("questions", "", lambda: nullcontext(two_questions), events=("0 to question 1", "nothing"))
    result = searched(model, 60.0, 100)
    assert (result.missing, result.bound) == (["nothing"], "every combination of faults")


def test_a_broken_property_is_a_failure_with_its_history() -> None:
    result = searched(StateModel("sums", "", (0,), steps_of, always={"no sum": lambda total: total == 0}), 60.0, 100)
    assert result.has_failed
    assert "BROKEN: sums: no sum" in as_lines(result)


def test_the_tables_have_a_row_for_each_model_and_each_property() -> None:
    questions = HistoryModel(
        "questions", "two questions", lambda: nullcontext(two_questions), events=("1 to question 1",)
    )
    text = as_markdown([searched(MODEL, 60.0, 100), searched(questions, 60.0, 100)])
    assert "| `sums` | sums of ones and twos | every history | 11 | 19 | 1 | 2 | 0 |" in text
    assert "| `questions` | two questions | every combination of faults | 6 | 12 | 2 | 0 |" in text
    assert f"| {EVEN} | 6 |" in text
    assert "- a sum is small" in text
