"""However many groups clients make, a scrape has so many lags, and those of the groups that are furthest behind."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.metrics.groups import LONGEST_GROUP, MOST_LAGS, group_lag, group_lags_left_out
from dualwrite.ids import TopicPartition

Offsets = dict[str, dict[TopicPartition, int]]


def broker(offsets: Offsets, ends: dict[TopicPartition, int]) -> Any:
    """What the two metrics read of a broker with such committed offsets and high watermarks."""
    positions = {
        group: {name: SimpleNamespace(offset=offset) for name, offset in by_partition.items()}
        for group, by_partition in offsets.items()
    }
    partitions = {name: SimpleNamespace(state=SimpleNamespace(high_watermark=end)) for name, end in ends.items()}
    return SimpleNamespace(
        offsets=SimpleNamespace(table=SimpleNamespace(groups=positions)),
        cluster=SimpleNamespace(partition=partitions.get),
    )


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_the_highest_lags_are_shown_and_the_others_counted() -> None:
    offsets = {f"g{number}": {T0: number} for number in range(MOST_LAGS + 500)}
    measured = broker(offsets, {T0: MOST_LAGS + 500})
    shown = dict(group_lag(measured))
    assert len(shown) == MOST_LAGS
    assert shown["g0", "t", "0"] == MOST_LAGS + 500
    assert min(shown.values()) == 501
    assert group_lags_left_out(measured) == 500


def test_long_names_are_shortened_and_those_that_become_alike_are_one() -> None:
    name = "g" * 30_000
    measured = broker({name + "1": {T0: 3}, name + "2": {T0: 1}}, {T0: 10})
    assert group_lag(measured) == [(("g" * LONGEST_GROUP, "t", "0"), 9)]


def test_a_deleted_partition_has_no_lag_and_no_lag_is_negative() -> None:
    assert group_lag(broker({"g": {T0: 7, T1: 2}}, {T0: 5})) == [(("g", "t", "0"), 0)]


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.sampled_from([T0, T1]), st.integers(0, 50), max_size=2)))
def test_every_pair_of_a_few_is_shown_with_its_lag(offsets: Offsets) -> None:
    shown = dict(group_lag(broker(offsets, {T0: 50, T1: 50})))
    assert shown == {
        (group, name.topic, str(name.partition)): 50 - offset
        for group, positions in offsets.items()
        for name, offset in positions.items()
    }
