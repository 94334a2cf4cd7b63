"""Who may take which slot: the table of statuses, the order of choice, and what no row may bring about."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.coordinator.rules.slot_rules import (
    AbandonedApplication,
    Candidate,
    SlotObserver,
    SlotRow,
    SlotStatus,
    abandoned_applications,
    application_of,
    application_option,
    choose,
    describe_owner,
    is_another,
    named,
    slot_id,
    slot_number,
    slots_to_recover,
)

ME, OTHER, GONE = "me", "other", "gone"


def observer(held: Collection[str] = ()) -> SlotObserver:
    return SlotObserver(ME, held, lambda owner: owner == GONE)


def row(number: int, owner: str = "", remaining: float | None = None, token: int = 1) -> SlotRow:
    return SlotRow(slot_id("a", number), number, token, owner, remaining)


@pytest.mark.parametrize(
    ("found", "held", "status"),
    [
        (row(0), (), SlotStatus.FREE),
        (row(0, remaining=9), (), SlotStatus.FREE),
        (row(0, OTHER, 9), (), SlotStatus.HELD),
        (row(0, OTHER, 0.001), (), SlotStatus.HELD),
        (row(0, OTHER, 0), (), SlotStatus.EXPIRED),
        (row(0, OTHER, -5), (), SlotStatus.EXPIRED),
        (row(0, OTHER, None), (), SlotStatus.EXPIRED),
        (row(0, GONE, 9), (), SlotStatus.DEAD),
        (row(0, GONE, -1), (), SlotStatus.EXPIRED),
        (row(0, ME, 9), ("a-0",), SlotStatus.HELD),
        (row(0, ME, -1), ("a-0",), SlotStatus.HELD),
        (row(0, ME, 9), ("a-1",), SlotStatus.ABANDONED),
        (row(0, OTHER, -1), ("a-0",), SlotStatus.HELD),
        (row(0), ("a-0",), SlotStatus.HELD),
    ],
)
def test_a_slots_standing_follows_from_its_row(found: SlotRow, held: Collection[str], status: SlotStatus) -> None:
    assert observer(held).status(found) is status


def test_an_owner_is_described_by_the_first_word_of_its_signature() -> None:
    assert describe_owner("host:17 0123456789abcdef a") == "host:17"
    assert describe_owner("") == ""


def test_slots_are_chosen_in_the_order_dead_expired_free_missing_abandoned() -> None:
    rows = [row(0, ME, 9), row(1), row(2, OTHER, 9), row(3, OTHER, -1), row(5, GONE, 9)]
    found = list(choose("a", 7, rows, observer()))
    assert [(candidate.row.number, candidate.status) for candidate in found] == [
        (5, SlotStatus.DEAD),
        (3, SlotStatus.EXPIRED),
        (1, SlotStatus.FREE),
        (4, SlotStatus.FREE),
        (6, SlotStatus.FREE),
        (0, SlotStatus.ABANDONED),
    ]
    assert [candidate.row.fencing_token for candidate in found] == [1, 1, 1, 0, 0, 1]


def test_rows_beyond_the_pool_are_recovered_and_not_used() -> None:
    rows = [row(0, OTHER, 9), row(1, OTHER, -1), row(2), row(3, ME, 9)]
    assert list(choose("a", 1, rows, observer())) == []
    assert slots_to_recover(rows, observer()) == [
        Candidate(rows[1], SlotStatus.EXPIRED),
        Candidate(rows[3], SlotStatus.ABANDONED),
    ]
    assert [candidate.row.number for candidate in slots_to_recover(rows, observer(), free_too=True)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("application", "transactional_id", "number"),
    [
        ("a", "a-0", 0),
        ("a", "a-12", 12),
        ("a-1", "a-1-0", 0),
        ("a", "a-1-0", None),
        ("a", "a-", None),
        ("a", "a-x", None),
        ("a", "a-01", None),
        ("a", "a--1", None),
        ("a", "a-٣", None),
        ("a", "a-²", None),
        ("a", "b-0", None),
        ("a", "A-0", None),
        ("a", "a0", None),
        ("a", "a", None),
        pytest.param("a", f"a-{'1' * 5000}", None, id="more digits than Python takes for a number"),
    ],
)
def test_a_slot_belongs_to_one_application(application: str, transactional_id: str, number: int | None) -> None:
    assert slot_number(application, transactional_id) == number


@given(st.text(max_size=8), st.text(max_size=8), st.integers(0, 10**6))
def test_no_transactional_id_is_of_two_applications(one: str, other: str, number: int) -> None:
    assert slot_number(one, slot_id(one, number)) == number
    assert (slot_number(other, slot_id(one, number)) is None) is (one != other)


@st.composite
def tables(draw: Any) -> list[SlotRow]:
    numbers = draw(st.lists(st.integers(0, 9), unique=True))
    owners = st.sampled_from(["", ME, OTHER, GONE])
    ends = st.none() | st.floats(-60, 60)
    return [row(number, draw(owners), draw(ends), draw(st.integers(1, 5))) for number in numbers]


@given(tables(), st.integers(1, 12), st.sets(st.sampled_from([slot_id("a", number) for number in range(10)])))
def test_only_slots_that_are_certainly_not_in_use_can_be_taken(
    rows: list[SlotRow], pool_size: int, held: set[str]
) -> None:
    observing = observer(held)
    by_number = {found.number: found for found in rows}
    chosen = choose("a", pool_size, rows, observing)
    numbers = [candidate.row.number for candidate in chosen]
    assert len(set(numbers)) == len(numbers)
    for number in range(pool_size):
        found = by_number.get(number)
        in_use = found is not None and observing.status(found) is SlotStatus.HELD
        assert (number in numbers) is not in_use
    for candidate in slots_to_recover(rows, observing):
        found = candidate.row
        assert found.owner, "what was given back is nobody's to recover"
        assert not (found.owner == OTHER and found.remaining is not None and found.remaining > 0), "it may be alive"
        assert not (found.owner == ME and found.transactional_id in held), "it is in use here"


# --- applications that no process recovers


def of(name: str, owner: str, remaining: float | None, token: int = 1) -> SlotRow:
    return SlotRow(name, int(name.rpartition("-")[2]), token, owner, remaining)


def test_an_application_whose_owners_are_all_gone_is_deserted() -> None:
    rows = [of("old-10", OTHER, -60), of("old-2", OTHER, -3600.5), of("old-3", GONE, 20), of("b-1-0", GONE, 20)]
    assert abandoned_applications(rows, observer()) == [
        AbandonedApplication("b-1", ("b-1-0",), 0.0),
        AbandonedApplication("old", ("old-2", "old-3", "old-10"), 3600.5),
    ]


def test_an_application_that_is_alive_is_not_deserted() -> None:
    rows = [of("old-0", GONE, -60), of("old-1", OTHER, 9)]
    assert abandoned_applications(rows, observer()) == []


def test_slots_that_were_given_back_are_not_deserted() -> None:
    assert abandoned_applications([of("old-0", "", None), of("old-1", "", -60)], observer()) == []
    assert abandoned_applications([of("old-0", "", None), of("old-1", GONE, None)], observer()) == [
        AbandonedApplication("old", ("old-1",), None)
    ]


def test_ones_own_application_is_recovered_and_not_deserted() -> None:
    assert abandoned_applications([of("a-0", GONE, -60)], observer(), apart_from="a") == []


@pytest.mark.parametrize(
    ("name", "application"), [("a-0", "a"), ("a-1-0", "a-1"), ("a-01", None), ("a", None), ("-0", None), ("a-", None)]
)
def test_the_application_of_a_transactional_id(name: str, application: str | None) -> None:
    assert application_of(name) == application


@pytest.mark.parametrize(
    ("count", "most", "text"),
    [(0, 3, ""), (3, 3, "a0, a1, a2"), (4, 3, "a0, a1, a2 and 1 more"), (2, 1, "a0 and 1 more")],
)
def test_a_message_names_a_few_and_counts_the_others(count: int, most: int, text: str) -> None:
    assert named([f"a{number}" for number in range(count)], most) == text


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [("a", "b", True), ("a", "a", False), (None, "a", False), ("a", None, False), (None, None, False)],
)
def test_a_cluster_is_another_one_only_if_both_are_known(theirs: str | None, ours: str | None, expected: bool) -> None:
    assert is_another(theirs, ours) is expected


@pytest.mark.parametrize(
    ("application", "option"),
    [("orders", "--application orders"), ("a b", "--application 'a b'"), ("-x", "--application=-x")],
)
def test_the_option_of_a_command_names_the_application_for_a_shell(application: str, option: str) -> None:
    assert application_option(application) == option
