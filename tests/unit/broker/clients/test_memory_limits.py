"""Which connections are closed for their memory, and which request gets free memory next."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.clients.memory_limits import (
    LONGEST_SECONDS,
    STALLED_SECONDS,
    answer_share,
    next_in_line,
    slowest,
    stalled,
)

NOW = 1000.0
PAUSE, LONG = NOW - STALLED_SECONDS, NOW - LONGEST_SECONDS


class Holder(NamedTuple):
    """A connection as the rules see it."""

    address: str
    held_bytes: int = 10
    active_at: float = NOW
    held_since: float = NOW
    is_receiving: bool = True
    number: int = 0


ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
TIMES = st.floats(NOW - 2 * LONGEST_SECONDS, NOW)
HOLDERS = st.lists(st.builds(Holder, ADDRESSES, st.integers(1, 100), TIMES, TIMES, st.booleans()), max_size=30).map(
    lambda drawn: [holder._replace(number=number) for number, holder in enumerate(drawn)]
)


@pytest.mark.parametrize(
    ("holders", "closed"),
    [
        ([], []),
        ([Holder("a"), Holder("b")], []),
        ([Holder("a", active_at=PAUSE)], [0]),
        ([Holder("a", active_at=PAUSE + 0.1)], []),
        ([Holder("a", active_at=PAUSE, is_receiving=False)], []),  # it waits for the broker, not the broker for it
        ([Holder("a", held_since=LONG)], [0]),  # one byte at a time
        ([Holder("a", held_since=LONG, is_receiving=False)], [0]),
        ([Holder("a", held_since=LONG + 0.1)], []),
        ([Holder("a", active_at=PAUSE), Holder("b", 30, PAUSE), Holder("a", active_at=PAUSE)], [1]),
        ([Holder("a", active_at=PAUSE), Holder("b", 15, PAUSE), Holder("a", active_at=PAUSE)], [0, 2]),
        ([Holder("a", 99), Holder("b", 1, PAUSE)], [1]),  # the client that holds the most makes progress
    ],
)
def test_the_stalled_requests_of_the_largest_client_are_closed(holders: list[Holder], closed: list[int]) -> None:
    assert stalled(holders, NOW) == [holders[number] for number in closed]


@given(HOLDERS)
def test_only_stalled_requests_of_one_address_are_closed(holders: list[Holder]) -> None:
    closed = stalled(holders, NOW)
    assert len({holder.address for holder in closed}) <= 1
    for holder in closed:
        assert holder.active_at <= PAUSE or holder.held_since <= LONG
    if not closed:
        assert all(holder.active_at > PAUSE or not holder.is_receiving for holder in holders)
        assert all(holder.held_since > LONG for holder in holders)


@given(HOLDERS)
def test_closing_again_and_again_leaves_only_requests_that_make_progress(holders: list[Holder]) -> None:
    """However many addresses there are, none of them holds memory for ever."""
    rounds = 0
    while closed := stalled(holders, NOW):
        holders = [holder for holder in holders if holder not in closed]
        rounds += 1
    assert rounds <= 3


def test_the_address_that_holds_least_is_next() -> None:
    holding = [Holder("a", 50), Holder("b", 20)]
    first, second, third, fourth = (Holder(address, number=n) for n, address in enumerate("abca"))
    assert next_in_line([first, second, third, fourth], holding) == third
    assert next_in_line([first, second, fourth], holding) == second
    assert next_in_line([fourth, first], holding) == fourth
    assert next_in_line([first, second], []) == first


@given(HOLDERS, HOLDERS.filter(bool))
def test_no_waiting_request_of_a_smaller_address_is_passed_over(held: list[Holder], waiting: list[Holder]) -> None:
    def total(address: str) -> int:
        return sum(holder.held_bytes for holder in held if holder.address == address)

    chosen = next_in_line(waiting, held)
    for holder in waiting:
        assert total(chosen.address) <= total(holder.address)
        if holder.address == chosen.address:
            assert chosen.number <= holder.number


def test_the_answer_without_progress_for_longest_is_given_up() -> None:
    answers = [(Holder("a", active_at=3.0), 10), (Holder("b", active_at=1.0), 15), (Holder("a", active_at=2.0), 10)]
    assert slowest(answers) == answers[2][0]
    assert slowest(answers[:2]) == answers[1][0]


@given(st.floats(0, 1e9), st.integers(0, 2**40))
def test_an_answer_takes_a_part_of_what_is_left(most: float, used: int) -> None:
    share = answer_share(most, used)
    assert 0 <= share <= max(0.0, most - used)


@given(st.integers(1, 2**40), st.integers(0, 100))
def test_answers_of_their_share_never_exceed_the_memory(most: int, count: int) -> None:
    used = 0
    for _ in range(count):
        used += int(answer_share(most, used))
    assert used <= most


def test_without_a_limit_an_answer_may_have_any_size() -> None:
    assert answer_share(math.inf, 2**40) == math.inf
