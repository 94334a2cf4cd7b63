"""What is computed from the offsets of a partition."""

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.admin.views import OpenTransaction, PartitionDetails, PartitionLag
from dualwrite.ids import ProducerIdentity, TopicPartition

OFFSETS = st.none() | st.integers(0, 20)
T0 = TopicPartition("t", 0)


def lag(committed: int | None, stable: int | None, high: int | None) -> PartitionLag:
    return PartitionLag(T0, committed, False, 0, stable, high, None, None)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_a_lag_ends_at_the_last_stable_offset(committed: int | None, stable: int | None, high: int | None) -> None:
    of_group = lag(committed, stable, high)
    if committed is None or stable is None:
        assert of_group.lag is None
    else:
        assert of_group.lag == max(0, stable - committed)
    assert of_group.held_back == (0 if stable is None or high is None else max(0, high - stable))
    of_topic = PartitionDetails(0, 1, (1,), (1,), 0, stable, high)
    assert of_topic.held_back == of_group.held_back


@given(st.lists(st.integers(0, 9), unique=True), st.integers(0, 9))
def test_the_holder_is_the_transaction_that_begins_at_the_last_stable_offset(starts: list[int], stable: int) -> None:
    begun = tuple(OpenTransaction(f"a-{start}", ProducerIdentity(start, 0), start, None) for start in sorted(starts))
    partition = PartitionDetails(0, 1, (1,), (1,), 0, stable, 10, None, begun)
    if stable in starts:
        assert partition.holder is not None
        assert partition.holder.first_offset == stable
    else:
        assert partition.holder is None


def test_a_partition_whose_transactions_are_not_known_has_no_holder() -> None:
    assert PartitionDetails(0, 1, (1,), (1,), 0, 5, 10).holder is None


def test_a_transaction_without_a_name_is_named_by_its_producer() -> None:
    assert OpenTransaction(None, ProducerIdentity(7, 2), 0, None).name == "of producer 7:2"
    assert OpenTransaction("shop-0", ProducerIdentity(7, 2), 0, None).name == "shop-0"
