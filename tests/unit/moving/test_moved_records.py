"""Digests of records, and the offsets that the target tells."""

from itertools import combinations

import pytest

from dualwrite.moving.records import MovedRecord, PartitionDigest

RECORDS = [
    MovedRecord(0, 0, 1, None, None, ()),
    MovedRecord(0, 0, 1, b"", None, ()),
    MovedRecord(0, 0, 1, None, b"", ()),
    MovedRecord(0, 0, 1, b"ab", b"c", ()),
    MovedRecord(0, 0, 1, b"a", b"bc", ()),
    MovedRecord(0, 0, 1, b"a", b"bc", (("x", None),)),
    MovedRecord(0, 0, 1, b"a", b"bc", (("x", b""),)),
    MovedRecord(0, 0, 1, b"a", b"bc", (("x", b""), ("x", b""))),
    MovedRecord(0, 0, 2, b"a", b"bc", ()),
    MovedRecord(0, 0, 1, b"-", b" -", ()),
]


@pytest.mark.parametrize(("first", "second"), list(combinations(RECORDS, 2)))
def test_records_that_differ_have_other_digests(first: MovedRecord, second: MovedRecord) -> None:
    assert first.digest_at(7) != second.digest_at(7)
    assert first.digest_at(7) != first.digest_at(8)


def test_the_place_at_the_source_does_not_count() -> None:
    record = RECORDS[3]
    assert record.digest_at(7) == record._replace(offset=99).digest_at(7)


def test_the_order_of_records_counts() -> None:
    digests = []
    for order in ((3, 4), (4, 3)):
        digest = PartitionDigest(only_last=False)
        for number in order:
            digest.add(RECORDS[number], 7)
        digests.append(digest)
    assert digests[0].count == digests[1].count == 2
    assert digests[0].digest() != digests[1].digest()


def test_an_empty_digest_is_that_of_another_empty_one() -> None:
    for only_last in (False, True):
        first, second = PartitionDigest(only_last=only_last), PartitionDigest(only_last=only_last)
        assert (first.count, first.digest()) == (0, second.digest())
