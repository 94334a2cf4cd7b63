"""Partitioners: the hashes that others publish, the partitions that follow from them, and who gets a random one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.encoding.partitioners import PARTITIONERS, StickyChoice, fnv1a, make_partitioner, murmur2
from tests.support.client import librdkafka_properties as client_librdkafka

RANDOM = "the random source was asked"


def refuse(_count: int) -> int:
    raise AssertionError(RANDOM)


# Java's own table (UtilsTest.testMurmur2), as signed numbers.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


# librdkafka's table (rdfnv1a.c), which is that of Sarama.
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"kafka", 0xD33C4E1),
        (b"giberish123456789", 0x77A58295),
        (b"1234", 0x23BDD03),
        (b"4", 0x310CA263),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x65CBD69C),
        (b"", 0x7EE3623B),
    ],
)
def test_fnv1a_is_that_of_librdkafka_and_sarama(key: bytes, hashed: int) -> None:
    assert fnv1a(key) == hashed


@pytest.mark.parametrize(
    ("name", "null", "empty", "key"),
    [
        ("consistent", 0, 0, 0xCBF43926),
        ("consistent_random", None, None, 0xCBF43926),
        ("murmur2", murmur2(b"") & 0x7FFFFFFF, murmur2(b"") & 0x7FFFFFFF, murmur2(b"123456789") & 0x7FFFFFFF),
        ("murmur2_random", None, murmur2(b"") & 0x7FFFFFFF, murmur2(b"123456789") & 0x7FFFFFFF),
        ("fnv1a", 0x7EE3623B, 0x7EE3623B, fnv1a(b"123456789")),
        ("fnv1a_random", None, 0x7EE3623B, fnv1a(b"123456789")),
        ("random", None, None, None),
    ],
)
def test_null_and_empty_keys_go_where_the_name_says(
    name: str, null: int | None, empty: int | None, key: int | None
) -> None:
    partition_of = make_partitioner(name, refuse)
    for record_key, hashed in ((None, null), (b"", empty), (b"123456789", key)):
        if hashed is None:
            with pytest.raises(AssertionError, match=RANDOM):
                partition_of(record_key, 100)
        else:
            assert partition_of(record_key, 100) == hashed % 100


@given(st.sampled_from(PARTITIONERS), st.none() | st.binary(max_size=50), st.integers(1, 100_000), st.integers())
def test_every_partition_given_exists(name: str, key: bytes | None, count: int, seed: int) -> None:
    assert 0 <= make_partitioner(name, random.Random(seed).randrange)(key, count) < count


keys = st.binary(max_size=80) | st.text().map(str.encode)


@pytest.mark.slow_cases("consistent", "fnv")
@pytest.mark.parametrize("name", [name for name in PARTITIONERS if name != "random"])
@given(st.lists(keys, min_size=20, max_size=50), st.integers(1, 100_000))
def test_every_key_has_librdkafkas_partition(name: str, drawn: list[bytes], count: int) -> None:
    partition_of = make_partitioner(name, refuse)
    for key in drawn:
        if key or name != "consistent_random":
            assert partition_of(key, count) == client_librdkafka.partition_of(name, key, count)


@pytest.mark.parametrize("name", ["consistent", "murmur2", "fnv1a"])
def test_records_without_a_key_have_librdkafkas_partition_where_it_is_not_random(name: str) -> None:
    for count in range(1, 100):
        assert make_partitioner(name, refuse)(None, count) == client_librdkafka.partition_of(name, None, count)


@pytest.mark.parametrize("name", [name for name in PARTITIONERS if name.endswith("random")])
def test_records_without_a_key_reach_every_partition(name: str) -> None:
    partition_of = make_partitioner(name, random.Random(7).randrange)
    assert {partition_of(None, 5) for _ in range(200)} == set(range(5))


def test_a_sticky_choice_holds_until_it_is_renewed() -> None:
    chosen = iter([3, 4, 0])
    sticky = StickyChoice(lambda count: next(chosen))
    partition_of = make_partitioner("consistent_random", sticky)
    assert [partition_of(None, 5), partition_of(b"", 5), partition_of(None, 5)] == [3, 3, 3]
    sticky.renew()
    assert [partition_of(None, 5), partition_of(None, 5)] == [4, 4]
    assert partition_of(None, 1) == 0, "a topic with another number of partitions has another choice"


def test_an_unknown_partitioner_name_is_refused() -> None:
    with pytest.raises(KeyError):
        make_partitioner("round_robin", refuse)
