"""Copying one topic through crashes at any transaction, by fakes: once, in order, with exact positions."""

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.errors import InputError, KafkaUnavailableError
from dualwrite.moving import copying
from dualwrite.moving.copying import compare_topic, copy_topic, records_behind, require_only_moved, require_whole
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
            copy_topic(TOPIC, target.state(), source, target, target.ends)
    state = target.state()
    assert copy_topic(TOPIC, state, source_of(gaps, batch), target, target.ends) == 0
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
            copy_topic(TOPIC, target.state(), source_of([(0, 0)] * 3), target, target.ends)
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
    copy_topic(TOPIC, target.state(), source, target, target.ends)
    return target


def test_each_transaction_is_reported() -> None:
    seen: list[tuple[str, int]] = []
    target = FakeTarget()
    source = source_of([(0, 0)] * 5)
    copy_topic(TOPIC, target.state(), source, target, target.ends, lambda *progress: seen.append(progress))
    assert seen == [("orders", 2), ("orders", 2), ("orders", 1)]


def test_a_transaction_has_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MOST_BYTES", 10)
    source, target = FakeLog(batch=6), FakeTarget()
    for offset, size in enumerate([4, 6, 1, 30, 30, 3]):
        source.append(0, offset, b"x" * size)
    seen: list[int] = []
    copy_topic(TOPIC, target.state(), source, target, {}, lambda _, records: seen.append(records))
    assert seen == [2, 1, 1, 1, 1], "a record may be larger than the limit"
    assert values(target, 0) == values(source, 0)


@given(GAPS, st.integers(0, 8), st.integers(0, 1))
def test_a_record_of_another_program_never_gets_between_the_moved_ones(
    gaps: list[tuple[int, int]], moment: int, partition: int
) -> None:
    target = FakeTarget()
    written: list[int] = []

    def observe(*_: object) -> None:
        written.append(1)
        if len(written) == moment:
            target.foreign(partition)

    state = target.state()
    with suppress(KafkaUnavailableError):
        copy_topic(TOPIC, state, source_of(gaps), target, target.ends, observe)
    there = values(target, partition)
    if b"foreign" in there:
        assert there[-1] == b"foreign"
        with pytest.raises(InputError, match="which this move has not written"):
            require_only_moved(TOPIC, target.state(), _unread(target))


def test_a_source_that_begins_anew_is_noticed_before_anything_is_written() -> None:
    target = copied(source_of([(0, 0)] * 3))
    before = list(target.records)
    again = FakeLog()
    again.append(0, 1, b"another")
    again.read_on = lambda: iter([again.records])  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"topic 'orders' at the source has begun anew at offset 1 of partition 0"):
        copy_topic(TOPIC, target.state(), again, target, target.ends)
    assert target.records == before


def test_a_source_that_begins_anew_meanwhile_is_noticed_before_a_record_is_there_twice() -> None:
    """A consumer whose next record is gone reads from the beginning again."""
    source, target = source_of([(0, 0)] * 4), FakeTarget()
    batches = [source.records[:2], source.records[2:], source.records[:2]]
    source.read_on = lambda: iter(batches)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"topic 'orders' at the source has begun anew at offset 0 of partition 0"):
        copy_topic(TOPIC, target.state(), source, target, target.ends)
    assert values(target, 0) == values(source, 0)


@pytest.mark.parametrize(
    ("source_end", "target_end", "message"),
    [(3, 5, None), (2, 5, "the source ends at offset 2"), (3, 1, "the target ends at offset 1"), (9, 9, None)],
)
def test_a_cluster_that_has_lost_moved_records_is_refused(
    source_end: int, target_end: int, message: str | None
) -> None:
    state = copied(source_of([(0, 0)] * 3)).state()
    with pytest.raises(InputError, match=message) if message else nullcontext():
        require_whole(TOPIC, state, {0: source_end}, {0: target_end})


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


def test_a_record_of_another_program_counts_where_the_source_has_deleted_its_records() -> None:
    source = source_of([(0, 0)] * 6)
    target = copied(source)
    del source.records[:4]
    first = ({0: 4}, {})
    assert is_equal(source, target, first)
    marker = target.records[1].offset + 1
    target.records.insert(2, target.records[1]._replace(offset=marker))
    assert not is_equal(source, target, first)


def test_records_that_came_after_the_move_do_not_count() -> None:
    source = source_of([(0, 0)] * 3)
    target = copied(source)
    source.append(0, 20)
    target.append(0, 20, b"new")
    target.append(3, 0, b"in a new partition")
    assert is_equal(source, target)


def test_a_record_at_the_source_that_was_skipped_is_a_difference() -> None:
    source = source_of([(0, 1)] * 3)
    target = copied(source)
    source.records.insert(0, source.records[0]._replace(offset=0))
    assert not is_equal(source, target)


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


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_key_with_a_record_after_the_move_does_not_count_in_a_compacted_topic(side: str) -> None:
    source = FakeLog()
    for offset, key in enumerate([b"a", b"b"]):
        source.append(0, offset, b"1", key)
    target = copied(source)
    log = {"source": source, "target": target}[side]

    def compacted() -> bool:
        (compared,) = compare_topic(
            TOPIC, target.state(), _unread(source), _unread(target), first_offsets=({}, {}), is_compacted=True
        )
        return compared.is_equal

    log.append(0, 50, b"2", b"a")
    assert compacted(), "before the cluster has compacted"
    del log.records[0]
    assert compacted(), "and after it"
    del log.records[0]
    assert not compacted(), "b is lost"
