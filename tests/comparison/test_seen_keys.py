"""The file that counts rows and records: against a plain dictionary, and over several looks."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.comparison.job import Difference
from dualwrite.comparison.seen_keys import TABLE, Seen, SeenKeys

ONLY_IN_TABLE, ONLY_IN_TOPIC, NOT_EQUALLY_OFTEN, OTHER_VALUE, UNSETTLED = Difference
KEYS = [b"", b"a", b"b\0", b"\xff"]


@pytest.fixture
def seen() -> Iterator[SeenKeys]:
    made = SeenKeys(last=False)
    yield made
    made.close()


def found(seen: SeenKeys) -> dict[bytes, Difference]:
    examples = {example.key: example.difference for example in seen.examples(100)}
    assert Counter(examples.values()) == Counter({each: number for each, number in seen.counts().items() if number})
    return examples


def look(seen: SeenKeys, *rows: Seen, open_keys: tuple[bytes, ...] = ()) -> dict[bytes, Difference]:
    seen.begin_look()
    seen.mark_open(open_keys)
    seen.add(TABLE, rows, differing_only=True)
    seen.end_look()
    return found(seen)


def expected(rows: list[bytes], records: list[tuple[int, bytes, int]], last: bool) -> dict[bytes, Difference]:
    """A second statement of the rules."""
    live: Counter[tuple[int, bytes]] = Counter()
    for partition, key, counts in records:
        live[partition, key] = live[partition, key] + 1 if counts else 0
    differences = {}
    for key in KEYS:
        n_rows, n_records = rows.count(key), sum(number for (_, name), number in live.items() if name == key)
        if bool(n_rows) != bool(n_records):
            differences[key] = ONLY_IN_TABLE if n_rows else ONLY_IN_TOPIC
        elif n_rows != n_records and not last:
            differences[key] = NOT_EQUALLY_OFTEN
    return differences


@given(
    st.lists(st.sampled_from(KEYS)),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(KEYS), st.integers(0, 1))),
    st.booleans(),
)
def test_it_finds_what_a_dictionary_finds(rows: list[bytes], records: list[tuple[int, bytes, int]], last: bool) -> None:
    seen = SeenKeys(last=last)
    for partition in (0, 1):
        seen.add(partition, [Seen(key, counts) for place, key, counts in records if place == partition])
    seen.add(TABLE, [Seen(key) for key in rows])
    differences = expected(rows, records, last)
    assert seen.compare() == len(differences)
    assert found(seen) == differences
    assert look(seen, *map(Seen, rows)) == differences, "a second look at the same rows finds the same"
    seen.close()


@pytest.mark.parametrize("last", [False, True])
def test_values_are_compared_if_there_is_one_row(last: bool) -> None:
    seen = SeenKeys(last=last)
    seen.add(TABLE, [Seen(b"a", 1, b"1"), Seen(b"b", 1, b"1"), Seen(b"c", 1, b"1"), Seen(b"c", 1, b"2")])
    seen.add(0, [Seen(b"a", 1, b"1"), Seen(b"b", 1, b"2"), Seen(b"c", 1, b"1"), Seen(b"c", 1, b"1")])
    seen.compare()
    assert found(seen) == {b"b": OTHER_VALUE}
    seen.close()


def test_the_value_of_a_deleted_record_does_not_count(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a", 1, b"1")])
    seen.add(0, [Seen(b"a", 1, b"2"), Seen(b"a", 0)])
    seen.add(1, [Seen(b"a", 1, b"1")])
    seen.compare()
    assert found(seen) == {}


def test_a_look_drops_keys_that_agree_now(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a"), Seen(b"b"), Seen(b"c")])
    seen.compare()
    seen.add(0, [Seen(b"a")])
    assert look(seen, Seen(b"a"), Seen(b"c")) == {b"c": ONLY_IN_TABLE}


def test_a_key_whose_rows_have_changed_is_not_settled_before_the_next_look(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a")])
    seen.compare()
    assert look(seen, Seen(b"a"), Seen(b"a")) == {b"a": UNSETTLED}
    assert look(seen, Seen(b"a"), Seen(b"a")) == {b"a": ONLY_IN_TABLE}


def test_a_key_with_an_open_record_is_not_settled_while_it_is_open(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a")])
    seen.compare()
    assert look(seen, Seen(b"a"), open_keys=(b"a", b"other")) == {b"a": UNSETTLED}
    assert look(seen, Seen(b"a")) == {b"a": ONLY_IN_TABLE}


def test_keys_that_agreed_are_not_looked_at_again(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a"), Seen(b"b")])
    seen.add(0, [Seen(b"a")])
    seen.compare()
    seen.add(0, [Seen(b"a")])
    assert look(seen, Seen(b"a"), Seen(b"a"), Seen(b"b")) == {b"b": ONLY_IN_TABLE}


def test_a_key_lacks_rows_if_it_had_more_in_the_look_before(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(b"a"), Seen(b"a"), Seen(b"b"), Seen(b"c")])
    seen.add(0, [Seen(b"c"), Seen(b"d")])
    seen.compare()
    for again, lacks in (
        ([b"a", b"a", b"b"], False),
        ([b"a", b"a", b"a", b"b", b"d"], False),
        ([b"a", b"b"], True),
        ([b"a", b"a"], True),
    ):
        seen.begin_look()
        seen.add(TABLE, map(Seen, again), differing_only=True)
        assert seen.lacks_rows() is lacks, again
    seen.forget_rows()
    assert seen.lacks_rows()
    assert look(seen, Seen(b"a"), Seen(b"a"), Seen(b"b")) == {
        b"a": ONLY_IN_TABLE,
        b"b": ONLY_IN_TABLE,
        b"d": ONLY_IN_TOPIC,
    }


@pytest.mark.parametrize(("most", "keys"), [(2, [b"a", b"b"]), (1, None)])
def test_the_differing_keys_are_listed_if_they_are_not_too_many(
    seen: SeenKeys, most: int, keys: list[bytes] | None
) -> None:
    seen.add(TABLE, [Seen(b"b"), Seen(b"a")])
    seen.compare()
    assert seen.differing(most) == keys


def test_examples_are_the_first_of_each_difference(seen: SeenKeys) -> None:
    seen.add(TABLE, [Seen(bytes([number])) for number in range(9)])
    seen.add(0, [Seen(b"z"), Seen(b"y")])
    seen.compare()
    assert len(list(seen.examples(10**20))) == 11
    assert [(example.difference, example.key) for example in seen.examples(2)] == [
        (ONLY_IN_TABLE, b"\x00"),
        (ONLY_IN_TABLE, b"\x01"),
        (ONLY_IN_TOPIC, b"y"),
        (ONLY_IN_TOPIC, b"z"),
    ]
