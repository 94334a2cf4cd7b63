"""Which connections make room for others, and which are closed because they are idle."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.clients.connection_limits import ConnectionLimits, expired, to_make_room


class SeenConnection(NamedTuple):
    """A connection, and its place in the order of arrival."""

    number: int
    address: str
    idle_since: float | None


ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
OPEN = st.lists(st.tuples(ADDRESSES, st.none() | st.floats(0, 100)), max_size=300).map(
    lambda drawn: [SeenConnection(number, *each) for number, each in enumerate(drawn)]
)


def numbers(seen: list[SeenConnection]) -> list[int]:
    return [connection.number for connection in seen]


def connections(*seen: tuple[str, float | None]) -> list[SeenConnection]:
    return [SeenConnection(number, *each) for number, each in enumerate(seen)]


@pytest.mark.parametrize(
    ("seen", "closed"),
    [
        ((), []),
        ((("a", None), ("b", None)), []),
        ((("a", 5.0), ("a", 3.0), ("a", 4.0)), [1]),
        ((("a", None), ("a", 9.0), ("b", 1.0)), [1]),  # not the quiet client, but the one with the most connections
        ((("a", None), ("a", None), ("b", 1.0)), [2]),  # none of them is idle
    ],
)
def test_the_longest_idle_connection_of_the_largest_client_makes_room(
    seen: tuple[tuple[str, float | None], ...], closed: list[int]
) -> None:
    assert numbers(to_make_room(connections(*seen))) == closed


def test_one_in_a_hundred_makes_room_at_once() -> None:
    """So a flood of connections does not cost a look at all of them for each."""
    many = connections(*(("a", float(number)) for number in range(1000)))
    assert numbers(to_make_room(many)) == list(range(10))


@given(OPEN)
def test_room_is_made_by_idle_connections_of_one_address_and_never_by_busy_ones(seen: list[SeenConnection]) -> None:
    closed = to_make_room(seen)
    assert bool(closed) == any(connection.idle_since is not None for connection in seen)
    assert all(connection.idle_since is not None for connection in closed)
    assert len({connection.address for connection in closed}) <= 1
    assert len(closed) <= max(1, len(seen) // 100)


@given(OPEN, st.floats(-1, 50), st.floats(100, 200))
def test_a_connection_expires_once_it_has_been_idle_for_longer_than_the_limit(
    seen: list[SeenConnection], idle_seconds: float, now: float
) -> None:
    closed = expired(seen, ConnectionLimits(10, 10, idle_seconds), now)
    for connection in seen:
        is_over = idle_seconds >= 0 and connection.idle_since is not None and now - connection.idle_since > idle_seconds
        assert (connection in closed) == is_over
