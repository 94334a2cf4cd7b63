"""Where a group begins: the cluster that its offsets are of, and a partition that is new to it."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Engine, select, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.errors import (
    ForeignClusterError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    RebalancedError,
)
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.offset_units import P, Q, assigned, rows, use, used


@pytest.mark.slow_cases
@pytest.mark.parametrize("in_callback", [True, False])
def test_an_offset_of_another_cluster_is_refused(
    dw: DualWrite, engine: Engine, group: FakeGroup, *, in_callback: bool
) -> None:
    """In a rebalance callback the consumer is not asked for its cluster: its first unit of work refuses."""
    use(dw, assigned(dw, group, P), P, 5)
    elsewhere = FakeGroup()
    elsewhere.cluster_id = "other"
    consumer = FakeConsumer(elsewhere)
    consumer.assign(positions(Q, P))
    if in_callback:
        dw.seek_to_stored(consumer, positions(Q, P))
    with pytest.raises(ForeignClusterError) as caught:
        use(dw, consumer, P, 9) if in_callback else dw.seek_to_stored(consumer)
    said = "the offset in the database of in-0 counts the records of the Kafka cluster cluster, and this consumer reads"
    assert f"{said} from other: " in str(caught.value)
    consumer.assign(positions(P))
    consumer.next[P] = 0
    with pytest.raises(InvalidTransactionStateError):
        use(dw, consumer, P, 9)
    assert rows(engine)["group", P] == 5
    use(dw, assigned(dw, group, P), P, 2)
    assert rows(engine)["group", P] == 7


def test_a_consumer_of_another_cluster_is_refused_again_though_its_error_was_caught(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    """Its cluster is known by then, and would not be compared again: the table would take it for a rebalance."""
    use(dw, assigned(dw, group, P), P, 5)
    elsewhere = FakeGroup()
    elsewhere.cluster_id = "other"
    consumer = FakeConsumer(elsewhere)
    dw.seek_to_stored(consumer, positions(P))
    consumer.poll(P, 9)

    def store_twice() -> None:
        with dw.transaction() as tx:
            with pytest.raises(ForeignClusterError):
                tx.store_offsets(consumer)
            with pytest.raises(InvalidTransactionStateError, match="in-0: this consumer was not set to the offset"):
                tx.store_offsets(consumer)

    with pytest.raises(ForeignClusterError):
        store_twice()
    assert rows(engine)["group", P] == 5


def test_an_offset_of_an_earlier_release_gets_the_cluster_of_its_consumer(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    use(dw, assigned(dw, group, P, Q), P, 5)
    give_rows_to(engine, None)
    use(dw, assigned(dw, group, P, Q), P, 2)
    with engine.connect() as connection:
        found = {row.partition: (row.next_offset, row.cluster_id) for row in connection.execute(select(table))}
    assert found == {0: (7, "cluster"), 1: (0, None)}


def test_a_consumer_whose_row_was_given_to_another_cluster_is_fenced(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    consumer = assigned(dw, group, P)
    give_rows_to(engine, "target")
    with pytest.raises(RebalancedError):
        use(dw, consumer, P, 5)
    assert (rows(engine)["group", P], used(engine)) == (0, [])


def test_an_assignment_without_partitions_leaves_the_cluster_known(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    group.is_cooperative = True
    consumer = assigned(dw, group, P)
    dw.seek_to_stored(consumer, [])
    use(dw, consumer, P, 5)
    assert rows(engine)["group", P] == 5


def test_a_cluster_without_an_id_keeps_offsets_too(dw: DualWrite, engine: Engine, group: FakeGroup) -> None:
    group.cluster_id = None
    use(dw, assigned(dw, group, P), P, 5)
    use(dw, assigned(dw, group, P), P, 2)
    assert rows(engine)["group", P] == 7


def give_rows_to(engine: Engine, cluster_id: str | None) -> None:
    with engine.begin() as connection:
        connection.execute(update(table).values(cluster_id=cluster_id))


@pytest.mark.parametrize(
    ("committed", "reset", "begin"),
    [(None, "earliest", 7), (None, "latest", 50), (20, "earliest", 20), (0, "latest", 0)],
)
def test_a_partition_that_is_new_begins_where_kafka_says(
    dw: DualWrite, engine: Engine, group: FakeGroup, committed: int | None, reset: Any, begin: int
) -> None:
    group.watermarks = (7, 50)
    if committed is not None:
        group.committed[P] = committed
    consumer = FakeConsumer(group)
    dw.seek_to_stored(consumer, positions(P), auto_offset_reset=reset)
    assert consumer.next == {P: begin}
    assert rows(engine) == {("group", P): begin}


@pytest.mark.parametrize("method", ["seek_to_stored", "seek_to_committed"])
def test_an_offset_that_kafka_does_not_tell_is_not_taken_for_none(
    lite: DualWrite, sqlite_engine: Engine, group: FakeGroup, method: str
) -> None:
    """The group would begin anew, and leave records out or use them again. librdkafka raises nothing for a partition
    that the group's coordinator refuses, as it does as long as it does not know of a new ACL."""
    group.committed, group.refusals = {P: 3, Q: 4}, {Q: KafkaError.TOPIC_AUTHORIZATION_FAILED}
    consumer = FakeConsumer(group)
    with pytest.raises(KafkaRefusedError, match=r"committed offsets of in-0, in-1: .*authorization failed"):
        getattr(lite, method)(consumer, positions(P, Q))
    assert (consumer.next, rows(sqlite_engine)) == ({}, {})
    group.refusals.clear()
    getattr(lite, method)(consumer, positions(P, Q))
    assert consumer.next == {P: 3, Q: 4}


@pytest.mark.parametrize(("call", "said"), [("get_watermark_offsets", "offsets of in-0"), ("list_topics", "metadata")])
def test_an_unanswered_question_raises_kafka_unavailable_error(
    lite: DualWrite, sqlite_engine: Engine, group: FakeGroup, call: str, said: str
) -> None:
    consumer = FakeConsumer(group)
    consumer.assign(positions(P))

    def silent(*_: Any, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    setattr(consumer, call, silent)
    with pytest.raises(KafkaUnavailableError, match=f"^{said}"):
        lite.seek_to_stored(consumer)
    assert rows(sqlite_engine) == {}


def test_a_consumer_that_has_lost_all_its_partitions_is_positioned_too(
    lite: DualWrite, sqlite_engine: Engine, group: FakeGroup
) -> None:
    """As after a unit of work that failed because of that."""
    consumer = FakeConsumer(group)
    for seek in (lite.seek_to_stored, lite.seek_to_committed):
        seek(consumer)
    assert (consumer.next, rows(sqlite_engine)) == ({}, {})


def test_a_partition_that_begins_without_a_callback_names_its_cluster(
    lite: DualWrite, sqlite_engine: Engine, group: FakeGroup
) -> None:
    """So a consumer of another cluster is refused even before the first unit of work."""
    consumer = FakeConsumer(group)
    consumer.assign(positions(P))
    lite.seek_to_stored(consumer)
    with sqlite_engine.connect() as connection:
        assert connection.scalars(select(table.c.cluster_id)).all() == ["cluster"]


def test_the_first_of_two_processes_to_begin_a_partition_sets_its_position(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    consumer = FakeConsumer(group)

    def told(partition: Any, timeout: float) -> tuple[int, int]:
        manager_of(dw).process.consuming.table.begin("group", P, 4, "cluster")
        return 9, 9

    consumer.get_watermark_offsets = told  # type: ignore[method-assign]
    dw.seek_to_stored(consumer, positions(P))
    assert (consumer.next, rows(engine)) == ({P: 4}, {("group", P): 4})


def test_groups_do_not_share_rows(dw: DualWrite, engine: Engine, group: FakeGroup) -> None:
    use(dw, assigned(dw, group, P), P, 3)
    other = assigned(dw, FakeGroup("Group"), P)
    assert other.next == {P: 0}
    assert rows(engine) == {("group", P): 3, ("Group", P): 0}
    third = assigned(dw, FakeGroup("third"), P)
    third.poll(P, 7)
    with dw.transaction() as tx:
        tx.store_offsets(third)
    assert rows(engine) == {("group", P): 3, ("Group", P): 0, ("third", P): 7}
