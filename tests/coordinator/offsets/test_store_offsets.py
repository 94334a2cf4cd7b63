"""tx.store_offsets and dw.seek_to_stored, in every database: the row that another member has moved is the fence."""

import threading
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from sqlalchemy import Engine, create_engine, insert, select, update
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.offset_table import AT_ONCE
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.errors import RebalancedError
from dualwrite.ids import TopicPartition
from tests.support.coordinator.event_table import CONFIG
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, Position
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.coordinator.offset_units import P, Q, assigned, rows, use, use_carelessly, used, write

MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)

Make = Callable[..., DualWrite]


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
