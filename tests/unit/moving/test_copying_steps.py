"""Copying one topic through crashes at any transaction, by fakes: once, in order, with exact positions."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.errors import InputError, KafkaUnavailableError
from dualwrite.moving.copying import compare_topic, copy_topic, records_behind, require_only_moved
from dualwrite.moving.journal import TopicPair
from tests.support.moving.fake_clusters import FakeLog, FakeTarget, WriteCrash

TOPIC = TopicPair("orders", "a", "b")
GAPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=25)
"""For each record, its partition, and how many offsets before it have no record."""


def source_of(gaps: list[tuple[int, int]], batch: int = 2) -> FakeLog:
    log = FakeLog(batch)
    ends = [0, 0]
    for number, (partition, gap) in enumerate(gaps):
        offset = ends[partition] + gap
        log.append(partition, offset, value=str(number).encode())
        ends[partition] = offset + 1
    return log


def values(log: FakeLog, partition: int) -> list[bytes | None]:
    return [record.value for record in log.records if record.partition == partition]


@given(GAPS, st.lists(st.sampled_from(WriteCrash), max_size=12), st.integers(1, 5))
def test_crashes_neither_lose_nor_repeat_a_record(
    gaps: list[tuple[int, int]], crashes: list[WriteCrash], batch: int
) -> None:
    target = FakeTarget(crashes)
    for _ in range(len(crashes) + 1):
        source = source_of(gaps, batch)
        with suppress(KafkaUnavailableError):
            copy_topic(TOPIC, target.state(), source, target)
    state = target.state()
    assert copy_topic(TOPIC, state, source_of(gaps, batch), target) == 0
    source = source_of(gaps, batch)
    for partition in (0, 1):
        assert values(target, partition) == values(source, partition)
        mapping = state.mapping(TOPIC, partition)
        for position in range(100):
            left = [r.value for r in source.records if r.partition == partition and r.offset >= position]
            there = mapping.translate(position)
            assert [r.value for r in target.records if r.partition == partition and r.offset >= there] == left
    assert records_behind(TOPIC, state, source_of(gaps)) == {}
    require_only_moved(TOPIC, state, target)
    compared = compare_topic(TOPIC, state, source_of(gaps), _unread(target), first_offsets=({}, {}), is_compacted=False)
    assert all(comparison.is_equal for comparison in compared)


def test_a_journal_that_is_written_later_is_noticed() -> None:
    target = FakeTarget([WriteCrash.AFTER_COMMIT], journals_later=True)
    for _ in range(2):
        with suppress(KafkaUnavailableError):
            copy_topic(TOPIC, target.state(), source_of([(0, 0)] * 3), target)
    assert values(target, 0) == [b"0", b"1", b"0", b"1", b"2"], "the negative control: records are there twice"
    (compared,) = compare_topic(
        TOPIC, target.state(), source_of([(0, 0)] * 3), _unread(target), first_offsets=({}, {}), is_compacted=False
    )
    assert not compared.is_equal


def _unread(log: FakeLog) -> FakeLog:
    log.positions = {}
    return log


def copied(source: FakeLog) -> FakeTarget:
    target = FakeTarget()
    copy_topic(TOPIC, target.state(), source, target)
    return target


def test_each_transaction_is_reported() -> None:
    seen: list[tuple[str, int]] = []
    target = FakeTarget()
    copy_topic(TOPIC, target.state(), source_of([(0, 0)] * 5), target, lambda *progress: seen.append(progress))
    assert seen == [("orders", 2), ("orders", 2), ("orders", 1)]


def test_records_that_came_later_are_behind() -> None:
    source = source_of([(0, 0), (1, 1)])
    target = copied(source)
    source.append(1, 7)
    source.append(1, 9)
    assert records_behind(TOPIC, target.state(), source) == {1: 2}


@pytest.mark.parametrize("moved", [0, 2])
def test_a_record_of_another_program_at_the_target_is_found(moved: int) -> None:
    target = copied(source_of([(0, 0)] * moved))
    target.append(0, 99)
    message = "a program writes there already" if moved else "is at the target already"
    with pytest.raises(InputError, match=message):
        require_only_moved(TOPIC, target.state(), _unread(target))


def is_equal(source: FakeLog, target: FakeTarget, first: tuple[dict[int, int], dict[int, int]] = ({}, {})) -> bool:
    compared = compare_topic(
        TOPIC, target.state(), _unread(source), _unread(target), first_offsets=first, is_compacted=False
    )
    return all(comparison.is_equal for comparison in compared)


def test_a_changed_record_is_a_difference() -> None:
    for change in ({"value": b"x"}, {"key": b"k"}, {"timestamp": 2}, {"headers": (("a", None),)}, {"offset": 50}):
        source = source_of([(0, 0)] * 4)
        target = copied(source)
        assert is_equal(source, target)
        target.records[1] = target.records[1]._replace(**change)  # type: ignore[arg-type]
        assert not is_equal(source, target), change


def test_a_missing_and_an_additional_record_are_differences() -> None:
    source = source_of([(0, 0)] * 4)
    target = copied(source)
    lost = target.records.pop(1)
    assert not is_equal(source, target)
    target.records.insert(1, lost)
    target.records.insert(2, lost)
    assert not is_equal(source, target)


def test_records_that_one_side_has_deleted_do_not_count() -> None:
    source = source_of([(0, 1)] * 6)
    target = copied(source)
    del source.records[:2]
    assert not is_equal(source, target)
    assert is_equal(source, target, ({0: 5}, {}))
    deleted = target.records[3].offset
    target.records = [record for record in target.records if record.offset >= deleted]
    assert not is_equal(source, target, ({0: 5}, {}))
    assert is_equal(source, target, ({0: 5}, {0: deleted}))


def test_records_that_came_after_the_move_do_not_count() -> None:
    source = source_of([(0, 0)] * 3)
    target = copied(source)
    source.append(0, 20)
    target.append(0, 20, b"new")
    target.append(3, 0, b"in a new partition")
    assert is_equal(source, target)


def test_a_compacted_topic_is_compared_by_the_last_record_of_each_key() -> None:
    source = FakeLog()
    for offset, (key, value) in enumerate([(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"c", None)]):
        source.append(0, offset, value, key)
    target = copied(source)
    del source.records[0]  # the clusters compact at different times
    del target.records[3:]

    def compacted() -> bool:
        (compared,) = compare_topic(
            TOPIC, target.state(), _unread(source), _unread(target), first_offsets=({}, {}), is_compacted=True
        )
        return compared.is_equal

    assert compacted()
    target.records[-1] = target.records[-1]._replace(value=b"3")
    assert not compacted()
