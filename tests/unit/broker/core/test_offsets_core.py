"""Who may commit an offset, what is refused, and what is remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.group_table import GroupTable
from dualwrite.broker.core.offsets import (
    LONGEST_METADATA,
    CommitDecision,
    CommitOffsets,
    CommittedPosition,
    decide_commit,
)
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.broker.facts.offsets import OffsetCommitted, encode_fact
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

NOW = 1_000_000
P0, P1, MISSING = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 9)
KNOWN = {P0, P1}


def commit(positions: dict[TopicPartition, CommittedPosition], group: str = "g", generation: int = -1) -> CommitOffsets:
    return CommitOffsets(group, positions, generation)


def decide(table: GroupTable, command: CommitOffsets, now_ms: int = NOW) -> CommitDecision:
    """Decide, and apply what was decided."""
    decision = decide_commit(table.groups.get(command.group), command, KNOWN, now_ms)
    for fact in decision.facts:
        table.apply(fact)
    return decision


def with_commit(group: str = "g") -> GroupTable:
    table = GroupTable()
    decide(table, commit({P0: CommittedPosition(5)}, group))
    return table


def offsets(table: GroupTable, group: str = "g") -> dict[TopicPartition, int]:
    return {partition: fact.offset for partition, fact in table.offsets.groups.get(group, {}).items()}


def test_a_commit_is_stored_with_all_its_fields_and_its_time() -> None:
    table = GroupTable()
    decision = decide(table, commit({P0: CommittedPosition(5, 2, "where"), P1: CommittedPosition(0)}))
    assert decision.errors == {P0: ErrorCode.NONE, P1: ErrorCode.NONE}
    assert table.offsets.groups == {
        "g": {P0: OffsetCommitted("g", P0, 5, 2, "where", NOW), P1: OffsetCommitted("g", P1, 0, -1, "", NOW)}
    }


def test_a_later_commit_replaces_the_earlier_one_even_backwards_and_leaves_the_others() -> None:
    table = GroupTable()
    decide(table, commit({P0: CommittedPosition(9, 1, "first"), P1: CommittedPosition(7)}))
    decide(table, commit({P0: CommittedPosition(3)}), NOW + 1)
    assert offsets(table) == {P0: 3, P1: 7}
    assert table.offsets.groups["g"][P0] == OffsetCommitted("g", P0, 3, -1, "", NOW + 1)


def test_groups_do_not_see_each_other() -> None:
    table = with_commit("one")
    decide(table, commit({P0: CommittedPosition(8)}, "other"))
    assert (offsets(table, "one"), offsets(table, "other"), offsets(table, "third")) == ({P0: 5}, {P0: 8}, {})


def test_a_partition_that_does_not_exist_is_refused_alone() -> None:
    table = GroupTable()
    decision = decide(table, commit({MISSING: CommittedPosition(1), P1: CommittedPosition(2)}))
    assert decision.errors == {MISSING: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, P1: ErrorCode.NONE}
    assert offsets(table) == {P1: 2}


@pytest.mark.parametrize("character", ["a", "é", "€"])
def test_metadata_is_measured_in_javas_characters(character: str) -> None:
    table = GroupTable()
    fits, is_too_long = (
        CommittedPosition(1, metadata=character * LONGEST_METADATA),
        CommittedPosition(1, metadata=character * 4097),
    )
    decision = decide(table, commit({P0: fits, P1: is_too_long}))
    assert decision.errors == {P0: ErrorCode.NONE, P1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert offsets(table) == {P0: 1}


def test_a_character_beyond_the_basic_plane_counts_twice() -> None:
    fits, is_too_long = CommittedPosition(1, metadata="𝄞" * 2048), CommittedPosition(1, metadata="𝄞" * 2048 + "a")
    errors = decide(GroupTable(), commit({P0: fits, P1: is_too_long})).errors
    assert errors == {P0: ErrorCode.NONE, P1: ErrorCode.OFFSET_METADATA_TOO_LARGE}


@pytest.mark.parametrize("generation", [0, 1, 2**31 - 1])
def test_no_client_commits_in_a_generation_of_a_group_without_members(generation: int) -> None:
    table = with_commit("known")
    for group, error in (("known", ErrorCode.UNKNOWN_MEMBER_ID), ("new", ErrorCode.GROUP_ID_NOT_FOUND)):
        decision = decide(table, commit({P0: CommittedPosition(8), MISSING: CommittedPosition(8)}, group, generation))
        assert decision.errors == {P0: error, MISSING: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert decision.facts == ()
    assert table.offsets.groups.keys() == {"known"}


@pytest.mark.parametrize("generation", [-1, -2, -(2**31)])
def test_every_negative_generation_counts_as_no_generation(generation: int) -> None:
    assert decide(GroupTable(), commit({P0: CommittedPosition(8)}, generation=generation)).errors == {
        P0: ErrorCode.NONE
    }


@pytest.mark.parametrize(
    ("group", "error"),
    [
        ("", ErrorCode.NONE),
        ("ü" * (LONGEST_STRING // 2), ErrorCode.NONE),
        ("ü" * (LONGEST_STRING // 2 + 1), ErrorCode.INVALID_GROUP_ID),
    ],
    ids=["empty", "longest", "too long"],
)
def test_a_group_may_have_any_name_that_fits_on_disk(group: str, error: ErrorCode) -> None:
    assert decide(GroupTable(), commit({P0: CommittedPosition(8)}, group)).errors == {P0: error}


def test_an_empty_commit_changes_nothing() -> None:
    table = GroupTable()
    assert decide(table, commit({})) == CommitDecision({}, ())
    assert table.offsets.groups == {}


positions = st.builds(
    CommittedPosition,
    st.integers(-5, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(st.characters(codec="utf-8"), max_size=9),
)
commands = st.builds(
    CommitOffsets,
    st.sampled_from(["", "a", "b", "g" * (LONGEST_STRING + 1)]),
    st.dictionaries(st.sampled_from([P0, P1, MISSING]), positions),
    st.integers(-2, 1),
)


@pytest.mark.slow
@given(st.lists(commands, max_size=12))
def test_the_table_has_the_last_accepted_offset_and_every_fact_can_be_encoded(history: list[CommitOffsets]) -> None:
    table = GroupTable()
    expected: dict[str, dict[TopicPartition, int]] = {}
    for command in history:
        decision = decide(table, command)
        assert decision.errors.keys() == command.positions.keys()
        accepted = {name for name, error in decision.errors.items() if error is ErrorCode.NONE}
        assert accepted == {fact.partition for fact in decision.facts}
        assert accepted == (
            command.positions.keys() & KNOWN if command.generation < 0 and len(command.group) < 9 else set()
        )
        for name in accepted:
            expected.setdefault(command.group, {})[name] = command.positions[name].offset
        assert all(len(encode_fact(fact)) == 2 for fact in decision.facts)
    assert {group: offsets(table, group) for group in table.offsets.groups} == expected
