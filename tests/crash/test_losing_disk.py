"""A power cut loses unsynced pages and no others; the broker survives it, and a broker that does not sync is found."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.crash.losing_disk import PAGE, LosingBroker, lose_pages, read_notes
from tests.support.requests.calls import batch, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient

pytestmark = pytest.mark.crash

RECORDS = 30
SEEDS = range(20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_bytes(b"s" * 100 + b"u" * (3 * PAGE))
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_only_unsynced_bytes_are_lost(file: Path, seed: int) -> None:
    assert lose_pages(file, 100, random.Random(seed)) == 3 * PAGE
    content = file.read_bytes()
    assert content[:100] == b"s" * 100
    assert set(content[100:]) <= {0, ord("u")}
    assert len(content) <= 100 + 3 * PAGE


def test_pages_get_lost_in_every_way(tmp_path: Path) -> None:
    kinds = set()
    for seed in SEEDS:
        path = tmp_path / str(seed)
        path.write_bytes(b"u" * (2 * PAGE))
        lose_pages(path, 0, random.Random(seed))
        content = path.read_bytes()
        kinds.add((len(content) < 2 * PAGE, 0 in content, ord("u") in content))
    assert {(True, True, True), (True, True, False), (True, False, True)} <= kinds


def test_a_file_that_is_synced_loses_nothing(file: Path) -> None:
    before = file.read_bytes()
    assert lose_pages(file, len(before), random.Random(1)) == 0
    assert file.read_bytes() == before


def test_the_last_note_of_a_file_counts(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("10 /a b.log\n7 /c.log\n20 /a b.log\n")
    assert dict(read_notes(notes)) == {"/a b.log": 20, "/c.log": 7}


@contextmanager
def after_a_power_cut(directory: Path, durability: str) -> Iterator[tuple[LosingBroker, str, list[bytes], int]]:
    """A broker that is not running, a topic, the records that it had acknowledged, and how many bytes were at risk."""
    broker = LosingBroker(directory / "broker", durability=durability)
    values = [b"%d" % number * 500 for number in range(RECORDS)]
    with broker.start(), RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        for value in values:
            produce(client, topic, batch([value]))
        yield broker, topic, values, broker.cut_power(random.Random(5))


def test_acknowledged_records_survive_a_power_cut(tmp_path: Path) -> None:
    with after_a_power_cut(tmp_path, "fsync") as (broker, topic, values, _):
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert read_all(client, topic) == values


def test_a_broker_that_does_not_sync_loses_acknowledged_records(tmp_path: Path) -> None:
    """The control of the test above."""
    with after_a_power_cut(tmp_path, "os") as (broker, topic, values, at_risk):
        (log,) = (broker.data_dir / f"{topic}-0").glob("*.log")
        left = log.read_bytes()
        assert at_risk > RECORDS * 500
        assert not all(value in left for value in values)
