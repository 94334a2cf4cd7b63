"""A compacted segment is one to Kafka's own DumpLogSegments: codecs, delete horizons, empty batches, markers."""

from pathlib import Path

import pytest

from dualwrite.broker.process.disk import DiskFiles
from dualwrite.records.compression import Codec
from tests.support.apache_kafka.single_node import java_tool
from tests.support.broker.compactions import DAY, CompactedHistory, Disk

NOW = 10**12


@pytest.mark.slow
@pytest.mark.jvm
def test_kafka_s_own_tool_reads_what_the_cleaner_wrote(tmp_path: Path) -> None:
    history = CompactedHistory()
    for codec in Codec:
        keys = [b"key-%d-%d" % (codec, index) for index in range(500)]
        history.write([*((key, b"value " * 20) for key in keys), (b"dead-%d" % codec, None), (b"all", b"old")], codec)
    history.write_as(1, [(b"all", b"older")])
    history.write_as(7, [(b"never", b"aborted")], transactional=True)
    history.end(7, commit=False)
    history.write_as(8, [(b"kept", b"committed")], transactional=True)
    history.end(8, commit=True)
    history.write([(b"all", b"new")])
    disk = Disk(DiskFiles(), history, directory=tmp_path)
    disk.clean(NOW, keys=10_000)
    disk.clean(NOW + 1, keys=10_000)
    (segment,) = disk.log.sealed_segments()
    dumped = java_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", str(segment.path), "--print-data-log", "--deep-iteration"
    )
    assert dumped.returncode == 0, dumped.stderr
    lines = dumped.stdout.splitlines()
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert len(batches) == len(disk.batches())
    assert all("isvalid: true" in line for line in batches)
    assert [line.split("compresscodec: ")[1].split()[0] for line in batches[:5]] == [
        codec.name.lower() for codec in Codec
    ]
    assert sum("key: key-" in line for line in lines) == 500 * len(Codec)
    assert sum("key: dead-" in line for line in lines) == len(Codec)
    assert [line.split("payload: ")[1] for line in lines if "key: all " in line] == ["new"]
    assert sum(f"OptionalLong[{NOW + DAY}]" in line for line in batches) == len(Codec)
    empty = [line for line in batches if "count: 0 " in line]
    assert [line.split("producerId: ")[1].split()[0] for line in empty] == ["1", "-1"], "a sequence, and a gap"
    assert not [line for line in lines if "key: never" in line]
