"""Offsets of the two clusters: every position leads to the same records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.moving.offset_mapping import SEVERAL, OffsetMapping, OffsetRun, first_offset, runs_of

GAPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30)
"""For each record, how many offsets without a record are before it on both sides."""


def offsets(gaps: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The offsets of records on both sides."""
    sources, targets = [], []
    source = target = 0
    for source_gap, target_gap in gaps:
        source, target = source + source_gap, target + target_gap
        sources.append(source)
        targets.append(target)
        source, target = source + 1, target + 1
    return sources, targets


@given(GAPS)
def test_each_position_leads_to_the_same_next_record(gaps: list[tuple[int, int]]) -> None:
    sources, targets = offsets(gaps)
    mapping = OffsetMapping(runs_of(sources, targets))
    for position in range(-1, (sources[-1] if sources else 0) + 3):
        left = [source for source in sources if source >= position]
        moved = [target for target in targets if target >= mapping.translate(position)]
        assert len(left) == len(moved)


@given(GAPS)
def test_each_record_has_its_target_and_no_other_offset_has_one(gaps: list[tuple[int, int]]) -> None:
    sources, targets = offsets(gaps)
    mapping = OffsetMapping(runs_of(sources, targets))
    expected = dict(zip(sources, targets, strict=True))
    for offset in range((sources[-1] if sources else 0) + 2):
        assert mapping.target_of(offset) == expected.get(offset)
    assert len(mapping) == len(sources)


@given(GAPS)
def test_the_reverse_of_the_reverse_is_the_same(gaps: list[tuple[int, int]]) -> None:
    mapping = OffsetMapping(runs_of(*offsets(gaps)))
    assert list(mapping.reversed().reversed()) == list(mapping)
    for run in mapping:
        assert mapping.reversed().translate(run.target) == run.source


@given(GAPS, st.lists(st.booleans(), min_size=30, max_size=30))
def test_runs_that_were_written_in_either_direction_are_merged(
    gaps: list[tuple[int, int]], directions: list[bool]
) -> None:
    sources, targets = offsets(gaps)
    forward, backward = OffsetMapping(), OffsetMapping()
    for source, target, is_forward in zip(sources, targets, directions, strict=False):
        if is_forward:
            forward.add(OffsetRun(source, target, 1))
        else:
            backward.add(OffsetRun(target, source, 1))
    assert list(forward.merged(backward.reversed())) == list(OffsetMapping(runs_of(sources, targets)))


def test_runs_without_a_gap_are_one() -> None:
    assert runs_of([1, 2, 3, 5], [7, 8, 9, 10]) == [OffsetRun(1, 7, 3), OffsetRun(5, 10, 1)]
    mapping = OffsetMapping([OffsetRun(0, 5, 2), OffsetRun(2, 7, 1)])
    assert list(mapping) == [OffsetRun(0, 5, 3)]
    assert (mapping.next_source, mapping.next_target) == (3, 8)


def test_an_empty_mapping_begins_at_the_beginning() -> None:
    mapping = OffsetMapping()
    assert (mapping.next_source, mapping.next_target, mapping.translate(9), mapping.target_of(0)) == (0, 0, 0, None)


@pytest.mark.parametrize("run", [OffsetRun(1, 9, 1), OffsetRun(9, 1, 1), OffsetRun(9, 9, 0)])
def test_a_run_that_is_not_behind_the_others_is_refused(run: OffsetRun) -> None:
    mapping = OffsetMapping([OffsetRun(0, 0, 5)])
    with pytest.raises(ValueError, match="is not behind source offset 5, target offset 5"):
        mapping.add(run)


def test_overlapping_mappings_are_not_merged() -> None:
    with pytest.raises(ValueError, match="is not behind"):
        OffsetMapping([OffsetRun(0, 0, 5)]).merged(OffsetMapping([OffsetRun(4, 9, 1)]))


@pytest.mark.parametrize(
    ("offsets", "first"),
    [
        ([7, 8, 9], 7),
        ([7], 7),
        ([-1, 8, -1], 7),
        ([-1001, -1001], None),
        ([7, 9], SEVERAL),
        ([7, -1, 10], SEVERAL),
    ],
)
def test_the_first_offset_is_found_if_some_are_not_told(offsets: list[int], first: int | None) -> None:
    assert first_offset(offsets) == first
