"""Bounds of the offsets that records will get."""

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.engine.acknowledged_offsets import FRESH, AcknowledgedOffsets


def test_a_partition_without_an_acknowledged_record_has_no_bound() -> None:
    offsets = AcknowledgedOffsets()
    offsets.acknowledged("t", 0, 7, now=0.0)
    assert offsets.bound("t", 1, now=0.0) is None
    assert offsets.bound("u", 0, now=0.0) is None
    assert offsets.bound("t", 0, now=0.0) == 7


def test_the_last_acknowledgement_is_the_bound() -> None:
    """Even if it is lower: the topic was made anew."""
    offsets = AcknowledgedOffsets()
    for following in (7, 9, 3):
        offsets.acknowledged("t", 0, following, now=0.0)
    assert offsets.bound("t", 0, now=0.0) == 3


def test_an_old_bound_does_not_count() -> None:
    offsets = AcknowledgedOffsets()
    offsets.acknowledged("t", 0, 7, now=100.0)
    assert offsets.bound("t", 0, now=100.0 + FRESH) == 7
    assert offsets.bound("t", 0, now=100.1 + FRESH) is None


@given(st.lists(st.integers(0, 3000), max_size=4000))
def test_the_partitions_with_the_latest_acknowledgements_are_remembered(partitions: list[int]) -> None:
    offsets = AcknowledgedOffsets()
    for number, partition in enumerate(partitions):
        offsets.acknowledged("t", partition, number, now=0.0)
    latest = list(dict.fromkeys(reversed(partitions)))
    assert all(offsets.bound("t", partition, now=0.0) is not None for partition in latest[:1024])
    assert all(offsets.bound("t", partition, now=0.0) is None for partition in latest[1024:])
