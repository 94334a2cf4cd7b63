"""Delivery reports of one transaction: what they add up to, and where they anchor it."""

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.librdkafka.deliveries import Deliveries
from dualwrite.ids import Anchor, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 3)


def delivered(*reports: tuple[TopicPartition, int]) -> Deliveries:
    deliveries = Deliveries()
    for partition, offset in reports:
        deliveries.sent()
        deliveries.delivered(partition, offset)
    return deliveries


def test_a_record_without_a_report_is_missing() -> None:
    deliveries = Deliveries()
    for _ in range(3):
        deliveries.sent()
    deliveries.delivered(A, 5)
    assert (deliveries.produced, deliveries.missing) == (3, 2)
    deliveries.refused("no")
    assert (deliveries.missing, deliveries.failed) == (1, 1)


def test_the_first_delivery_failure_is_reported() -> None:
    deliveries = Deliveries()
    for reason in ("first", "second"):
        deliveries.refused(reason, f"topic-of-{reason}")
    assert (deliveries.failed, deliveries.first_error) == (2, "first")
    assert deliveries.first_topic == "topic-of-first"


def test_nothing_delivered_has_no_anchor() -> None:
    deliveries = Deliveries()
    deliveries.sent()
    deliveries.refused("no")
    assert deliveries.anchor() is None
    assert deliveries.partitions == frozenset()


def test_the_anchor_is_the_first_record_of_its_partition() -> None:
    assert delivered((A, 7), (A, 8), (B, 2)).anchor() == Anchor.of(A, 7)


def test_offset_zero_is_an_anchor() -> None:
    assert delivered((A, 0)).anchor() == Anchor.of(A, 0)


def test_a_partition_with_an_unknown_first_offset_gives_no_anchor() -> None:
    assert delivered((A, -1), (A, 8)).anchor() is None
    assert delivered((A, -1), (A, 8), (B, 2)).anchor() == Anchor.of(B, 2)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.booleans()), max_size=20), st.integers(0, 5))
def test_an_anchor_is_always_a_partitions_first_offset(records: list[tuple[TopicPartition, bool]], begin: int) -> None:
    next_offset = {A: begin, B: begin + 100}
    reports = []
    for partition, known in records:
        reports.append((partition, next_offset[partition] if known else -1))
        next_offset[partition] += 1
    deliveries = delivered(*reports)
    first_known = {partition for partition in (A, B) if next((k for p, k in records if p == partition), False)}
    anchors = {Anchor.of(partition, {A: begin, B: begin + 100}[partition]) for partition in first_known}
    assert deliveries.partitions == {partition for partition, _ in records}
    assert deliveries.anchor() in anchors if anchors else deliveries.anchor() is None
