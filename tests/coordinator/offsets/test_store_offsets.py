"""tx.store_offsets and dw.seek_to_stored, in every database: the row that another member has moved is the fence."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPosition
from sqlalchemy import Engine, create_engine, insert, select, update
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.offset_table import AT_ONCE
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import (
    ConfigurationError,
    DatabaseNotReadyError,
    ForeignClusterError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    RebalancedError,
)
from dualwrite.ids import TopicPartition
from tests.support.coordinator.event_table import CONFIG, events, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, Position, positions
from tests.support.coordinator.fake_kafka import FakeCluster, FakeKafka, Fault

MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
P, Q = TopicPartition("in", 0), TopicPartition("in", 1)
Make = Callable[..., DualWrite]


@pytest.fixture
def group() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
def make(engine: Engine) -> Iterator[Make]:
    """Makes DualWrites, each as if in a process of its own, with slots enough."""
    made: list[DualWrite] = []
    cluster = FakeCluster()

    def make(**options: Any) -> DualWrite:
        options = {"participant": cluster.participant, "pool_size": 4, **options}
        made.append(DualWrite(engine, CONFIG, application="worker", **options))
        return made[-1]

    yield make
    for dual_write in made:
        dual_write.close(timeout=0)


@pytest.fixture
def dw(make: Make) -> DualWrite:
    return make()


def assigned(dw: DualWrite, group: FakeGroup, *places: TopicPartition, member: str = "member") -> FakeConsumer:
    """A consumer that was given ``places`` in a rebalance."""
    consumer = FakeConsumer(group, member)
    dw.seek_to_stored(consumer, positions(*places))
    return consumer


def use(dw: DualWrite, consumer: FakeConsumer, place: TopicPartition, count: int, fail: bool = False) -> None:
    """A unit of work with the next ``count`` records."""
    records = consumer.poll(place, count)
    with dw.transaction() as tx:
        tx.store_offsets(consumer)
        write(tx, place, records)
        if fail:
            raise KeyError(place)


def use_carelessly(dw: DualWrite, consumer: FakeConsumer, records: list[int], *, is_caught: bool) -> None:
    """A unit of work that stores its offsets last, and may not mind if that fails."""
    with dw.transaction() as tx:
        write(tx, P, records)
        try:
            tx.store_offsets(consumer)
        except RebalancedError:
            if not is_caught:
                raise


def write(tx: Transaction, place: TopicPartition, records: list[int]) -> None:
    for record in records:
        tx.execute(insert(events).values(value=f"{place}@{record}"))


def rows(engine: Engine) -> dict[tuple[str, TopicPartition], int]:
    with engine.connect() as connection:
        return {
            (row.group_id, TopicPartition(row.topic, row.partition)): row.next_offset
            for row in connection.execute(select(table))
        }


def used(engine: Engine) -> list[str]:
    return sorted(stored_values(engine))


def test_the_offsets_are_stored_with_what_the_records_were_used_for(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    consumer = assigned(dw, group, P, Q)
    assert rows(engine) == {("group", P): 0, ("group", Q): 0}
    use(dw, consumer, P, 3)
    use(dw, consumer, Q, 2)
    assert rows(engine) == {("group", P): 3, ("group", Q): 2}
    with pytest.raises(KeyError):
        use(dw, consumer, P, 1, fail=True)
    assert rows(engine) == {("group", P): 3, ("group", Q): 2}
    assert used(engine) == ["in-0@0", "in-0@1", "in-0@2", "in-1@0", "in-1@1"]
    with engine.connect() as connection:
        assert set(connection.scalars(select(table.c.leader_epoch))) == {3}


def test_a_unit_may_store_the_offsets_of_each_partition_by_a_call_of_its_own(
    dw: DualWrite, engine: Engine, group: FakeGroup
) -> None:
    consumer = assigned(dw, group, P, Q)
    for offset in (3, 5):
        with dw.transaction() as tx:
            tx.store_offsets(consumer, [Position(*P, offset)])
            tx.store_offsets(consumer, [Position(*Q, offset)])
    assert rows(engine) == {("group", P): 5, ("group", Q): 5}


def test_the_next_consumer_of_a_partition_starts_at_the_stored_offset(
    make: Make, engine: Engine, group: FakeGroup
) -> None:
    before, after = make(), make()
    use(before, assigned(before, group, P), P, 3)
    group.committed[P] = 99  # of Kafka nobody asks once there is a row
    consumer = assigned(after, group, P, member="other")
    use(after, consumer, P, 2)
    assert consumer.next == {P: 5}
    assert used(engine) == [f"in-0@{record}" for record in range(5)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.parametrize("zombie_first", [False, True])
def test_only_one_of_two_consumers_with_the_same_records_commits_them(
    make: Make, engine: Engine, group: FakeGroup, zombie_first: bool, is_caught: bool
) -> None:
    zombie_dw, owner_dw = make(), make()
    zombie = assigned(zombie_dw, group, P, member="zombie")
    use(zombie_dw, zombie, P, 2)
    owner = assigned(owner_dw, group, P, member="owner")
    pairs = [(zombie_dw, zombie), (owner_dw, owner)] if zombie_first else [(owner_dw, owner), (zombie_dw, zombie)]
    (first_dw, first), (second_dw, second) = pairs
    records = second.poll(P, 4)
    use(first_dw, first, P, 3)
    with pytest.raises(RebalancedError, match=r"moved on 1 of the 1 partitions .*\(in-0\)") as raised:
        use_carelessly(second_dw, second, records[3:], is_caught=is_caught)
    assert not raised.value.retriable
    assert used(engine) == [f"in-0@{record}" for record in range(5)]
    second_dw.seek_to_stored(second)
    use(second_dw, second, P, 1)
    assert used(engine) == [f"in-0@{record}" for record in range(6)]
    assert rows(engine) == {("group", P): 6}


def test_a_zombie_that_waits_for_the_owners_row_finds_it_moved(make: Make, engine: Engine, group: FakeGroup) -> None:
    zombie_dw, owner_dw = make(), make()
    zombie, owner = (
        assigned(each, group, P, member=name) for each, name in ((zombie_dw, "zombie"), (owner_dw, "owner"))
    )
    raised: list[BaseException] = []

    def late() -> None:
        try:
            use(zombie_dw, zombie, P, 5)
        except RebalancedError as error:
            raised.append(error)

    thread = threading.Thread(target=late)
    records = owner.poll(P, 3)
    with owner_dw.transaction() as tx:
        tx.store_offsets(owner)
        thread.start()
        write(tx, P, records)
    thread.join()
    assert len(raised) == 1
    assert used(engine) == ["in-0@0", "in-0@1", "in-0@2"]


def test_members_with_other_partitions_do_not_wait_for_each_other(make: Make, engine: Engine, group: FakeGroup) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite writes for one at a time")
    one_dw, other_dw = make(), make()
    one, other = assigned(one_dw, group, P, member="one"), assigned(other_dw, group, Q, member="other")
    records = one.poll(P, 3)
    with one_dw.transaction() as tx:
        tx.store_offsets(one)
        use_in_a_thread = threading.Thread(target=use, args=(other_dw, other, Q, 2))
        use_in_a_thread.start()
        use_in_a_thread.join(20)
        assert not use_in_a_thread.is_alive(), "it waits for a row that is not its own"
        write(tx, P, records)
    assert rows(engine) == {("group", P): 3, ("group", Q): 2}


def use_what_was_seen_before(
    dw: DualWrite, consumer: FakeConsumer, records: list[int], meanwhile: threading.Thread
) -> None:
    with dw.transaction() as tx:
        tx.scalars(select(table.c.next_offset)).all()
        meanwhile.start()
        meanwhile.join(20)
        assert not meanwhile.is_alive()
        write(tx, P, records)
        tx.store_offsets(consumer)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_hides_no_owner(database_url: str, make: Make, engine: Engine, group: FakeGroup, level: str) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite writes for one at a time")
    if level == "SERIALIZABLE" and engine.dialect.name != "postgresql":
        pytest.skip("what MariaDB reads at this level is locked")
    owner_dw = make()
    strict = create_engine(database_url, isolation_level=level)
    with DualWrite(strict, CONFIG, application="strict", participant=FakeCluster().participant) as zombie_dw:
        zombie = assigned(zombie_dw, group, P, member="zombie")
        owner = assigned(owner_dw, group, P, member="owner")
        records = zombie.poll(P, 2)
        meanwhile = threading.Thread(target=use, args=(owner_dw, owner, P, 1))
        with pytest.raises((RebalancedError, OperationalError)):
            use_what_was_seen_before(zombie_dw, zombie, records[1:], meanwhile)
    strict.dispose()
    assert used(engine) == ["in-0@0"]


def test_many_partitions_are_stored_at_once(dw: DualWrite, engine: Engine, group: FakeGroup) -> None:
    places = [TopicPartition("wide", number) for number in range(2 * AT_ONCE + 7)]
    with engine.begin() as connection:
        connection.execute(
            insert(table),
            [
                {"group_id": "group", "topic": t, "partition": p, "next_offset": p, "updated_at": MOMENT}
                for t, p in places
            ],
        )
    consumer = assigned(dw, group, *places)
    for number, each in enumerate(places):
        consumer.poll(each, 1 + number % 3)
    with dw.transaction() as tx:
        tx.store_offsets(consumer)
    assert rows(engine) == {("group", each): each.partition + 1 + number % 3 for number, each in enumerate(places)}
    other = places[-1]
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.partition == other.partition).values(next_offset=5000))
    for each in places:
        consumer.poll(each, 1)
    before = rows(engine)
    with pytest.raises(RebalancedError, match="moved on 1 of the 7"), dw.transaction() as tx:
        tx.store_offsets(consumer)
    assert rows(engine) == before


# Where a group begins.


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
    ("committed", "reset", "begin"), [(None, "earliest", 7), (None, "latest", 50), (20, "earliest", 20)]
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


# Assignments.


def without_the_table(engine: Engine, act: Callable[[], object]) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table.name} RENAME TO hidden")
    try:
        act()
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE hidden RENAME TO {table.name}")


@pytest.fixture
def lite(make_dual_write: Make) -> DualWrite:
    """Over SQLite, with one slot, and a Kafka that can fail."""
    return make_dual_write()


def test_a_cooperative_group_is_assigned_to_incrementally(lite: DualWrite) -> None:
    group = FakeGroup()
    group.is_cooperative = True
    consumer = assigned(lite, group, P)
    use(lite, consumer, P, 3)
    lite.seek_to_stored(consumer, positions(Q))
    assert consumer.calls == ["incremental_assign", "incremental_assign"]
    assert consumer.refused == ["assign"]  # once: the protocol is remembered
    assert consumer.next == {P: 3, Q: 0}
    use(lite, consumer, Q, 1)
    use(lite, consumer, P, 1)


@pytest.mark.parametrize("is_assigned", [False, True])
def test_no_call_of_the_other_protocol_is_tried_in_a_consumer_group(lite: DualWrite, is_assigned: bool) -> None:
    group = FakeGroup()
    group.is_cooperative = True
    consumer = FakeConsumer(group, "AVbKQhQ5T0+6xL/1n9qk0g")
    if is_assigned:
        consumer.next, consumer.is_fetching = {P: 40}, False
    lite.seek_to_stored(consumer, None if is_assigned else positions(P))
    assert consumer.calls[-1] == "incremental_assign"
    assert consumer.refused == []


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_member_id_that_looks_like_one_of_a_consumer_group_misleads_nothing_but_the_log(
    lite: DualWrite, is_assigned: bool
) -> None:
    consumer = FakeConsumer(FakeGroup(), "AVbKQhQ5T0+6xL/1n9qk0g")
    if is_assigned:
        consumer.next, consumer.is_fetching = {P: 40}, False
    lite.seek_to_stored(consumer, None if is_assigned else positions(P))
    assert consumer.calls[-1] == "assign"
    assert consumer.next == {P: 0}
    use(lite, consumer, P, 1)


def test_a_consumer_goes_back_wherever_it_is(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P, Q)
    use(lite, consumer, P, 2)
    with pytest.raises(KeyError):
        use(lite, consumer, P, 2, fail=True)
    consumer.next[Q] = 7  # the application has sought it there, and has read nothing yet
    lite.seek_to_stored(consumer)
    assert consumer.next == {P: 2, Q: 0}
    use(lite, consumer, P, 1)
    use(lite, consumer, Q, 1)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1", "in-0@2", "in-1@0"]


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_partitions_that_are_not_fetched_yet_are_assigned_again(lite: DualWrite, is_cooperative: bool) -> None:
    group = FakeGroup()
    group.is_cooperative = is_cooperative
    consumer = FakeConsumer(group)
    consumer.next = {P: 40, Q: 40}  # assigned by hand
    consumer.is_fetching = False
    lite.seek_to_stored(consumer)
    assert consumer.next == {P: 0, Q: 0}
    use(lite, consumer, P, 1)


def test_an_unexpected_seek_error_is_raised(lite: DualWrite) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    consumer.poll(P, 3)

    def refuse(partition: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    consumer.seek = refuse  # type: ignore[method-assign]
    with pytest.raises(KafkaException):
        lite.seek_to_stored(consumer)


def test_an_unanswered_offset_request_raises_kafka_unavailable_error(lite: DualWrite) -> None:
    consumer = FakeConsumer(FakeGroup())

    def nothing(partitions: Any, timeout: float) -> list[Any]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer.committed = nothing  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailableError, match="offsets of in-0"):
        lite.seek_to_stored(consumer, positions(P))


def test_a_callback_that_failed_leaves_nothing_that_could_be_stored(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    use(lite, consumer, P, 3)
    with pytest.raises(DatabaseNotReadyError):
        without_the_table(sqlite_engine, lambda: lite.seek_to_stored(consumer, positions(P)))
    consumer.next = {P: 0}  # as librdkafka, which then assigns by itself
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        use(lite, consumer, P, 9)
    lite.seek_to_stored(consumer)
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(4)]


# What is refused.


@pytest.mark.parametrize("method", ["store_offsets", "send_offsets"])
@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        (["in"], TypeError),
        ("in", TypeError),
        ([("in", 0)], TypeError),
        (7, TypeError),
        (KafkaPosition("in", 0, 7), TypeError),
        ([Position("in", 0, -2)], ValueError),
    ],
)
def test_invalid_offsets_are_refused_and_the_unit_continues(
    lite: DualWrite, sqlite_engine: Engine, method: str, offsets: Any, error: type[Exception]
) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    records = consumer.poll(P, 2)
    with lite.transaction() as tx:
        write(tx, P, records)
        with pytest.raises(error, match=r"^offsets: "):
            getattr(tx, method)(consumer, offsets)
        tx.store_offsets(consumer)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]
    assert rows(sqlite_engine) == {("group", P): 2}
    with pytest.raises(TypeError, match=r"^partitions: \('in', 0\): give a list of confluent_kafka.TopicPartition"):
        lite.seek_to_stored(consumer, [("in", 0)])


def test_a_consumer_without_a_position_stores_no_offsets(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.next = {P: 0}
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        use(lite, consumer, P, 3)
    assert used(sqlite_engine) == []


def test_a_consumer_that_reads_on_after_a_failure_stores_nothing(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    for fail in (True, False):
        with pytest.raises(KeyError if fail else InvalidTransactionStateError):
            use(lite, consumer, P, 2, fail=fail)
    lite.seek_to_stored(consumer)
    use(lite, consumer, P, 5)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(5)]


def test_a_unit_that_could_not_begin_has_failed_too(lite: DualWrite, kafka: FakeKafka, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    kafka.fault = lambda request: Fault.BEFORE
    with pytest.raises(KafkaUnavailableError):
        use(lite, consumer, P, 2)
    kafka.fault = lambda request: Fault.NONE
    with pytest.raises(InvalidTransactionStateError, match="seek_to_stored"):
        use(lite, consumer, P, 2)
    assert used(sqlite_engine) == []


def test_records_in_hand_may_be_used_again(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    with pytest.raises(KeyError):
        use(lite, consumer, P, 3, fail=True)
    for record in range(3):
        with lite.transaction() as tx:
            tx.store_offsets(
                consumer, [type(position)(position.topic, position.partition, record + 1) for position in positions(P)]
            )
            write(tx, P, [record])
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(4)]


def test_storing_offsets_inside_a_savepoint_is_refused(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    consumer.poll(P, 1)
    with lite.transaction() as tx:
        with pytest.raises(InvalidTransactionStateError, match="savepoint"), tx.connection.begin_nested():
            tx.store_offsets(consumer)
        tx.store_offsets(consumer)
    assert rows(sqlite_engine) == {("group", P): 1}


def test_a_unit_may_store_twice(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P, Q)
    with lite.transaction() as tx:
        consumer.poll(P, 1)
        tx.store_offsets(consumer)
        consumer.poll(P, 1)
        consumer.poll(Q, 4)
        tx.store_offsets(consumer)
        tx.store_offsets(consumer)
    use(lite, consumer, P, 1)
    assert rows(sqlite_engine) == {("group", P): 3, ("group", Q): 4}


def test_seek_is_refused_inside_a_unit(lite: DualWrite) -> None:
    with lite.transaction(), pytest.raises(InvalidTransactionStateError, match="a unit of work is open"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()))


def test_an_unknown_auto_offset_reset_is_refused(lite: DualWrite) -> None:
    with pytest.raises(ConfigurationError, match="auto_offset_reset='none'"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()), auto_offset_reset="none")  # type: ignore[arg-type]


def test_without_the_offset_table_the_error_names_the_upgrade_command(lite: DualWrite, sqlite_engine: Engine) -> None:
    table.drop(sqlite_engine)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()), positions(P))


# Units that are run again.


def test_a_unit_that_is_run_again_uses_the_same_records(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    attempts = []

    @lite.transactional(retries=2)
    def use_all(tx: Transaction, records: list[int]) -> None:
        tx.store_offsets(consumer)
        write(tx, P, records)
        attempts.append(1)
        if len(attempts) < 3:
            raise KafkaUnavailableError("not yet")

    use_all(consumer.poll(P, 2))
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1", "in-0@2"]


def test_a_unit_that_could_not_begin_is_run_again_with_the_same_records(
    lite: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    left = [Fault.BEFORE]
    kafka.fault = lambda request: left.pop() if left else Fault.NONE

    @lite.transactional(retries=1)
    def use_all(tx: Transaction, records: list[int]) -> None:
        write(tx, P, records)
        tx.store_offsets(consumer)

    use_all(consumer.poll(P, 2))
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]


def test_a_unit_that_polls_and_is_run_again_passes_nothing_over(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)

    @lite.transactional(retries=3)
    def use_next(tx: Transaction) -> None:
        write(tx, P, consumer.poll(P, 2))
        tx.store_offsets(consumer)
        if not failed:
            failed.append(1)
            raise KafkaUnavailableError("not yet")

    failed: list[int] = []
    with pytest.raises(InvalidTransactionStateError, match="seek_to_stored"):
        use_next()
    assert used(sqlite_engine) == []
    lite.seek_to_stored(consumer)
    use_next()
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]


def test_records_that_have_moved_are_not_used_again(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    attempts = []

    @lite.transactional(retries=5)
    def use_all(tx: Transaction, records: list[int]) -> None:
        attempts.append(1)
        tx.store_offsets(consumer)

    with sqlite_engine.begin() as connection:
        connection.execute(update(table).values(next_offset=2))
    with pytest.raises(RebalancedError):
        use_all(consumer.poll(P, 2))
    assert len(attempts) == 1


def test_a_consumer_that_was_positioned_from_kafka_is_told_to_be_positioned_from_the_database(
    dw: DualWrite, group: FakeGroup
) -> None:
    consumer = FakeConsumer(group)
    dw.seek_to_committed(consumer, positions(P))
    consumer.poll(P, 3)
    with (
        pytest.raises(InvalidTransactionStateError, match=r"was not set to the offset in the database: .*stored"),
        dw.transaction() as tx,
    ):
        tx.store_offsets(consumer)
    dw.seek_to_stored(consumer)
    consumer.poll(P, 3)
    with dw.transaction() as tx:
        tx.store_offsets(consumer)
