"""A data directory that a later release has written is refused, and is the same afterwards."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts.fields import encode_string
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.process.data_dir import FORMAT_FILE, FORMAT_VERSION, write_format
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.records.batch import Record
from tests.support.broker.broker_process import in_directory, refused
from tests.support.requests.calls import batch, metadata, new_producer, new_topic, open_transaction, produce, read_all
from tests.support.requests.group_calls import joined_member
from tests.support.requests.raw_client import RawClient


def digests(directory: Path) -> dict[str, str]:
    """Every file and directory, with the hash of its content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(directory.rglob("*"))
    }


def used_directory(path: Path, end: Callable[[EmbeddedBroker], None] = EmbeddedBroker.stop) -> str:
    """A directory with records, an open transaction and a group; the topic with the one record."""
    broker = EmbeddedBroker(path, config={"group.initial.rebalance.delay.ms": "0"}).start()
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        produce(client, topic, batch([b"v"]))
        producer = new_producer(client, "t", two_phase=True)
        open_transaction(client, "t", producer, {(topic, 0): [b"prepared"]})
        joined_member(client, "g", topic)
    end(broker)
    return topic


@pytest.mark.slow
@pytest.mark.parametrize("end", [EmbeddedBroker.stop, EmbeddedBroker.kill])
def test_a_later_format_is_refused_and_no_byte_is_changed(
    tmp_path: Path, end: Callable[[EmbeddedBroker], None]
) -> None:
    used_directory(tmp_path, end)
    log = next(tmp_path.glob("topic-*/*.log"))
    log.write_bytes(log.read_bytes() + b"\x00" * 20)  # a torn tail, which an accepted start would cut
    assert (tmp_path / FORMAT_FILE).read_text() == f"{FORMAT_VERSION}\n"
    (tmp_path / FORMAT_FILE).write_text(f"{FORMAT_VERSION + 1}\n")
    before = digests(tmp_path)
    line = refused(*in_directory(tmp_path))
    assert f"{tmp_path} was written by a later release of dualwrite, in format 2, and this release knows" in line
    assert line.endswith("start the later release")
    assert digests(tmp_path) == before


RECORDS = {
    "a cluster fact": ("__cluster_metadata-0", Record(b"quota:x", b"{}"), "unknown kind 'quota'"),
    "a transaction's key": ("__transaction_state-0", Record(b"\x00\x07" + encode_string("t"), b""), "unknown version"),
    "a transaction's value": (
        "__transaction_state-0",
        Record(b"\x00\x00" + encode_string("t"), b"\x00\x09" + bytes(60)),
        "transaction log value of version 9; only 1 is written here",
    ),
    "a group's key": ("__consumer_offsets-0", Record(b"\x00\x63" + encode_string("g"), b""), "unknown type"),
    "a group's value": (
        "__consumer_offsets-0",
        Record(b"\x00\x02" + encode_string("g"), b"\x00\x09" + bytes(60)),
        "group value of version 9; only 4 is written here",
    ),
    "an offset": (
        "__consumer_offsets-0",
        Record(b"\x00\x01" + encode_string("g") + encode_string("t") + bytes(4), b"\x00\x09" + bytes(60)),
        "offset commit value of version 9; only 4 is written here",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("journal", "record", "words"), RECORDS.values(), ids=RECORDS.keys())
def test_records_of_a_later_release_are_refused_and_no_byte_is_changed(
    tmp_path: Path, journal: str, record: Record, words: str
) -> None:
    used_directory(tmp_path)
    later = Journal.open(DiskFiles(), tmp_path / journal, lambda record: None)
    later.append([record])
    later.log.sync()
    before = digests(tmp_path)
    line = refused(*in_directory(tmp_path))
    assert f"{tmp_path / journal}: record at offset " in line
    assert words in line
    assert line.endswith(". A later release of dualwrite wrote it; start the later release")
    assert digests(tmp_path) == before


def test_a_directory_of_a_release_without_the_format_file_is_used(tmp_path: Path) -> None:
    topic = used_directory(tmp_path)
    (tmp_path / FORMAT_FILE).unlink()
    with EmbeddedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert read_all(client, topic, committed=False) == [b"v", b"prepared"]
    assert (tmp_path / FORMAT_FILE).read_text() == f"{FORMAT_VERSION}\n"


def listed_after_a_start(data_dir: Path) -> list[str]:
    """Make a topic; the names that the broker then lists."""
    with EmbeddedBroker(data_dir) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        return [entry.name.replace(topic, "the new topic") for entry in metadata(client, topic).topics]


def test_the_format_file_is_on_disk_before_it_has_its_name_and_its_name_before_the_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int, list[str]]] = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        synced.append((status.st_ino, size, [path.name for path in tmp_path.iterdir()]))

    monkeypatch.setattr(os, "fsync", fsync)
    write_format(tmp_path)
    file = tmp_path / FORMAT_FILE
    whole = (file.stat().st_ino, file.stat().st_size, [f"{FORMAT_FILE}.tmp"])
    assert synced == [whole, (tmp_path.stat().st_ino, 0, [FORMAT_FILE])]


def test_a_start_after_a_kill_before_the_format_file_was_renamed_succeeds(tmp_path: Path) -> None:
    unfinished = tmp_path / f"{FORMAT_FILE}.tmp"
    unfinished.write_text("")
    assert listed_after_a_start(tmp_path) == ["the new topic"]
    assert (tmp_path / FORMAT_FILE).read_text() == f"{FORMAT_VERSION}\n"
    assert not unfinished.exists()


def test_a_start_with_an_unfinished_file_beside_the_format_file_succeeds(tmp_path: Path) -> None:
    (tmp_path / FORMAT_FILE).write_text(f"{FORMAT_VERSION}\n")
    (tmp_path / f"{FORMAT_FILE}.tmp").write_text("")
    assert listed_after_a_start(tmp_path) == ["the new topic"]
    assert (tmp_path / FORMAT_FILE).read_text() == f"{FORMAT_VERSION}\n"


@pytest.mark.slow_cases
@pytest.mark.parametrize("content", [b"", b"one\n", b"1", b"0\n", b"-1\n", b"1" * 40 + b"\n", b"\xff\n"])
def test_a_damaged_format_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FORMAT_FILE).write_bytes(content)
    line = refused(*in_directory(tmp_path))
    assert f"{tmp_path / FORMAT_FILE}: damaged, not one number and a line feed" in line
    assert digests(tmp_path) == {FORMAT_FILE: hashlib.sha256(content).hexdigest()}
