"""Kafka's DumpLogSegments reads the files of a log: segments, indexes and snapshots, and finds no mismatch."""

import random
import re
from pathlib import Path

import pytest

from dualwrite.broker.log.layout import CHECKSUMS, INDEXES, LOG, SNAPSHOT
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.records.header import iterate_batches
from tests.support.apache_kafka.single_node import java_tool
from tests.support.broker import log_histories
from tests.support.broker.log_histories import LogHistory
from tests.support.broker.logs import whole

TOOL = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINT = re.compile(r"(?i)mismatch|corrupt|invalid|not found|exception|out of order|sanity check failed")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogHistory:
    """A log of several segments, stopped cleanly."""
    monkeypatch.setattr(log_histories, "DIRECTORY", tmp_path / "t-0")
    made = LogHistory(DiskFiles(), random.Random(3), LogSettings(segment_bytes=30_000, index_interval_bytes=500))
    for number in range(1000):
        made.step()
        if number % 300 == 0:
            made.take_point()
    made.take_point()
    return made


def dumped(directory: Path, *options: str, suffixes: tuple[str, ...] = (LOG, *INDEXES, SNAPSHOT)) -> str:
    """What the tool says of the files in ``directory``."""
    paths = sorted(str(path) for path in directory.iterdir() if path.suffix in suffixes)
    result = java_tool(TOOL, *options, "--files", ",".join(paths))
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--index-sanity-check"], ["--verify-index-only"]])
def test_no_file_of_a_log_has_a_mismatch(history: LogHistory, options: list[str]) -> None:
    output = dumped(history.log.directory, *options)
    assert COMPLAINT.findall(output.replace("isvalid: true", "")) == []
    kafkas_own = [path for path in history.log.directory.glob("0*") if path.suffix != CHECKSUMS]
    assert output.count("Dumping") == len(kafkas_own)


@pytest.mark.slow
def test_the_tool_reads_what_the_broker_wrote(history: LogHistory) -> None:
    batches = dumped(history.log.directory, suffixes=(LOG,))
    assert batches.count("baseOffset:") == len(list(iterate_batches(whole(history.log))))
    aborted = dumped(history.log.directory, suffixes=(".txnindex",))
    expected = [
        (transaction.producer_id, transaction.first_offset, transaction.last_offset)
        for transaction in history.state.aborted
    ]
    found = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)", aborted)
    assert [tuple(map(int, numbers)) for numbers in found] == expected
    snapshot = max(history.log.directory.glob("*.snapshot"))
    result = java_tool(TOOL, "--files", str(snapshot)).stdout
    known = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*lastSequence: (-?\d+)", result)
    assert {tuple(map(int, numbers)) for numbers in known} == {
        (producer.producer_id, producer.epoch, producer.last_sequence) for producer in history.state.producers.values()
    }


@pytest.mark.slow
def test_the_tool_would_notice_a_wrong_index(history: LogHistory) -> None:
    """The negative control."""
    path = min(history.log.directory.glob("*.index"))
    data = bytearray(path.read_bytes())
    data[3] += 1
    path.write_bytes(data)
    assert COMPLAINT.search(dumped(history.log.directory, suffixes=(".index",)))
