"""Retention: segments that are too old or too many are removed, but only durable ones, and readers get an error."""

import asyncio
import logging
import time

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.partition import Partition
from dualwrite.broker.runtime.retention import Retention
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import peek_header
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import Rooms, run
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import EARLIEST, batch, fetch, list_offset, new_topic, produce
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

HOUR = 3_600_000


async def with_log(rooms: Rooms, configs: dict[str, str | None], hours: list[int]) -> Partition:
    """A partition with one segment of one record for each of ``hours``, which is its age."""
    assert rooms.cluster.create_topic(CreateTopic("kept", configs=configs)).fact is not None
    partition = rooms.cluster.partition(TopicPartition("kept", 0))
    assert partition is not None
    partition.log.settings = LogSettings(segment_bytes=0)
    for age in hours:
        content = build_batch([Record(b"k", b"v" * 100, rooms.clock.now_ms - age * HOUR)])
        partition.append(content, peek_header(content))
    partition.log.settings = LogSettings()
    await rooms.flusher.barrier()
    return partition


def start_after(configs: dict[str, str | None], hours: list[int], passed: int = 0) -> int:
    """The first offset that is left after retention has run, ``passed`` hours later."""

    async def main() -> int:
        rooms = Rooms(MemoryFiles())
        rooms.clock.now_ms = 10**12
        partition = await with_log(rooms, configs, hours)
        rooms.clock.now_ms += passed * HOUR
        await Retention(rooms.cluster, rooms.flusher, rooms.clock).run_once()
        return partition.log.start_offset

    return run(main())


ONE_DAY: dict[str, str | None] = {"retention.ms": str(24 * HOUR)}
WEEK = 7 * 24


@pytest.mark.parametrize(
    ("configs", "hours", "start"),
    [
        pytest.param(ONE_DAY, [30, 25, 23, 1], 2, id="segments older than retention.ms go"),
        pytest.param(ONE_DAY, [30, 1, 30, 1], 1, id="from the oldest on, without a hole"),
        pytest.param(ONE_DAY, [24, 1], 0, id="exactly as old stays"),
        pytest.param(ONE_DAY, [30, 29, 28], 3, id="the active segment too, once it was rolled"),
        pytest.param({}, [WEEK + 1, WEEK - 1], 1, id="a week is the default"),
        pytest.param({"retention.ms": "-1"}, [9 * WEEK, 1], 0, id="no limit"),
        pytest.param({"cleanup.policy": "compact", **ONE_DAY}, [30, 1], 0, id="not where the log is compacted only"),
        pytest.param({"cleanup.policy": "compact,delete", **ONE_DAY}, [30, 1], 1, id="but where it is both"),
        pytest.param({"retention.bytes": "400"}, [4, 3, 2, 1], 1, id="the oldest segments beyond retention.bytes go"),
        pytest.param({"retention.bytes": "0"}, [4, 3, 2, 1], 4, id="nothing needs to stay"),
    ],
)
def test_retention_removes_old_and_excess_segments_only(
    configs: dict[str, str | None], hours: list[int], start: int
) -> None:
    assert start_after(configs, hours) == start


def test_an_idle_partition_empties_with_time() -> None:
    assert start_after(ONE_DAY, [0], passed=23) == 0
    assert start_after(ONE_DAY, [0], passed=25) == 1


def test_an_old_segment_is_rolled_though_it_is_not_full() -> None:
    async def main() -> None:
        rooms = Rooms(MemoryFiles())
        partition = await with_log(rooms, {"segment.ms": str(HOUR), "retention.ms": "-1"}, [0])
        partition.log.settings = LogSettings(segment_ms=HOUR)
        keeper = Retention(rooms.cluster, rooms.flusher, rooms.clock)
        rooms.clock.now_ms += HOUR
        await keeper.run_once()
        assert not partition.log.sealed_segments()
        rooms.clock.now_ms += 1
        await keeper.run_once()
        assert [segment.next_offset for segment in partition.log.sealed_segments()] == [1]

    run(main())


def test_records_that_are_old_when_they_come_do_not_begin_a_segment_at_each_look() -> None:
    async def main() -> int:
        rooms = Rooms(MemoryFiles())
        rooms.clock.now_ms = 10**12
        partition = await with_log(rooms, {"segment.ms": str(HOUR), "retention.ms": "-1"}, [])
        partition.log.settings = LogSettings(segment_ms=HOUR)
        keeper = Retention(rooms.cluster, rooms.flusher, rooms.clock)
        for _ in range(5):
            content = build_batch([Record(b"k", b"v", rooms.clock.now_ms - 9 * HOUR)])
            partition.append(content, peek_header(content))
            await rooms.flusher.barrier()
            await keeper.run_once()
        return len(partition.log.sealed_segments())

    assert run(main()) == 0


@pytest.mark.parametrize("configs", [ONE_DAY, {"retention.bytes": "0", "retention.ms": "-1"}], ids=["time", "size"])
def test_retention_keeps_records_that_are_not_durable_yet(configs: dict[str, str | None]) -> None:
    async def main() -> int:
        rooms = Rooms(MemoryFiles())
        rooms.clock.now_ms = 10**12
        partition = await with_log(rooms, configs, [30])
        content = build_batch([Record(b"k", b"v", rooms.clock.now_ms - 30 * HOUR)])
        partition.append(content, peek_header(content))
        assert partition.state.high_watermark == 1
        Retention(rooms.cluster, rooms.flusher, rooms.clock).keep(partition, rooms.cluster.config("kept"))
        return partition.log.start_offset

    assert run(main()) == 0


def test_a_topic_that_is_deleted_while_retention_runs_is_left_alone() -> None:
    """To change files that are gone could stop the broker."""

    async def main() -> int:
        rooms = Rooms(MemoryFiles())
        rooms.clock.now_ms = 10**12
        partition = await with_log(rooms, ONE_DAY, [30, 1])
        keeping = asyncio.ensure_future(Retention(rooms.cluster, rooms.flusher, rooms.clock).run_once())
        await asyncio.sleep(0)
        assert not keeping.done(), "other tasks have their turn between two partitions"
        await rooms.cluster.delete_topic("kept")
        await keeping
        return partition.log.start_offset

    assert run(main()) == 0


def test_the_log_names_a_partition_only_if_retention_removes_something(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert start_after(ONE_DAY, [1]) == 0
    assert "retention has removed" not in caplog.text
    assert start_after(ONE_DAY, [30, 1]) == 1
    assert "kept-0: retention has removed the records before offset 1" in caplog.text


def test_readers_get_the_log_start_offset(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"log.retention.check.interval.ms": "20"}
    directory = tmp_path_factory.mktemp("broker")
    with ForkedBroker(directory, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, retention_ms="1000")
        assert produce(client, topic, batch([b"old"], timestamp=5)).error_code == ErrorCode.NONE
        assert eventually(lambda: list_offset(client, topic, EARLIEST).offset, lambda offset: offset == 1) == 1
        assert fetch(client, topic, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        broker.kill()
    with ForkedBroker(directory, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        assert list_offset(client, topic, EARLIEST).offset == 1
        answer = produce(client, topic, batch([b"new"], timestamp=time.time_ns() // 1_000_000))
        assert answer.base_offset == 1
