"""The parts of a request add up: its place in the queue, the broker's work, waits for the disk and for others, and the
answer. The clock here goes on only when a test says so."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker import connection as connections
from dualwrite.broker.net import eager, frame_stream
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.eager import Waits, begun
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.meters import REQUEST_BOUNDS, Histogram, RequestTimes
from dualwrite.records.batch import Record
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ApiKey, HeartbeatRequest, InitProducerIdRequest, Message
from dualwrite.wire.codec import read_response_correlation, write_request
from dualwrite.wire.frames import with_size
from tests.support.broker.in_process import InProcessBroker
from tests.support.broker.simulated import Rooms, never, reserved, run

PARTS = ("queue", "local", "fsync", "wait", "response")


class HandClock:
    """Seconds that a test adds."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(eager, "monotonic", clock.monotonic)
    monkeypatch.setattr(connections, "monotonic", clock.monotonic)
    monkeypatch.setattr(frame_stream, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class ReadingTransport:
    """A client that reads everything at once."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_waits_for_the_disk_are_told_from_others(clock: HandClock) -> None:
    async def main() -> None:
        flusher = Flusher(True, on_failure=never)
        waits = Waits(flusher)
        loop = asyncio.get_running_loop()
        other: asyncio.Future[None] = loop.create_future()
        flusher.latest_waiter = loop.create_future()
        disk = flusher.latest_waiter

        async def work() -> None:
            clock.now += 1
            await disk
            clock.now += 2
            await other
            clock.now += 4
            await asyncio.sleep(0)
            clock.now += 8

        rest = begun(work(), waits)
        assert rest is not None

        def after(seconds: float, future: "asyncio.Future[None]") -> Callable[[], None]:
            def pass_time() -> None:
                clock.now += seconds
                future.set_result(None)

            return pass_time

        loop.call_soon(after(16, disk))
        loop.call_soon(loop.call_soon, after(32, other))
        await rest
        assert (waits.disk_seconds, waits.seconds) == (16, 16 + 32)

    run(main())


def test_a_wait_that_fails_is_a_wait_too(clock: HandClock) -> None:
    async def main() -> None:
        flusher = Flusher(True, on_failure=never)
        waits, failing = Waits(flusher), asyncio.get_running_loop().create_future()

        async def work() -> None:
            with pytest.raises(OSError, match="broken"):
                await failing

        rest = begun(work(), waits)
        assert rest is not None
        clock.now += 3
        failing.set_exception(OSError("broken"))
        await rest
        assert (waits.disk_seconds, waits.seconds) == (0, 3)
        waits.clear()
        assert (waits.disk_seconds, waits.seconds) == (0, 0)

    run(main())


def test_the_barrier_is_a_wait_for_the_disk(clock: HandClock) -> None:
    async def main() -> None:
        flusher = Flusher(True, on_failure=never)
        waits = Waits(flusher)
        rooms = await Rooms(MemoryFiles(), flusher).with_topic()
        rooms.partition(0).append_own([Record(None, b"v", 1)])
        rest = begun(flusher.barrier(), waits)
        assert rest is not None
        clock.now += 1  # before any task awaits the rest
        await rest
        assert (waits.disk_seconds, waits.seconds) == (1, 1)

    run(main())


def test_a_frame_arrives_when_its_last_byte_does(clock: HandClock) -> None:
    async def main() -> None:
        stream = FrameStream(1 << 20, lambda _: None, ConnectionMemory())
        stream.connection_made(ReadingTransport())  # type: ignore[arg-type]

        def feed(data: bytes) -> None:
            clock.now += 1
            stream.get_buffer(-1)[: len(data)] = data
            stream.buffer_updated(len(data))

        frame = with_size(b"x" * 10)
        feed(frame[:6])  # 101
        feed(frame[6:] + frame)  # 102: two are complete
        feed(frame[:9])  # 103
        feed(frame[9:])  # 104
        arrivals = []
        while (taken := stream.take()) is not None:
            arrivals.append(stream.arrived_at)
            stream.release(taken)
        assert arrivals == [102, 102, 104]
        feed(frame)  # 105
        assert stream.take() is not None
        assert stream.arrived_at == 105

    run(main())


SHORTEST, LONGEST = REQUEST_BOUNDS[0], REQUEST_BOUNDS[-1]
some_seconds = st.sampled_from([0.0, SHORTEST, SHORTEST * 1.001, 0.02, LONGEST, LONGEST * 5]) | st.floats(0, 10)


@given(st.lists(st.tuples(*[some_seconds] * 5)), st.integers(0, 5))
def test_every_part_of_every_request_is_in_its_bucket(requests: list[tuple[float, ...]], looks: int) -> None:
    """However often a scrape looks meanwhile."""
    times, expected = RequestTimes(), {part: Histogram(REQUEST_BOUNDS) for part in PARTS}
    for number, request in enumerate(requests):
        queue, local, fsync, wait, response = request
        times.note(queue, local, response)
        times.note_waits(fsync, wait)
        for part, seconds in zip(PARTS, request, strict=True):
            if seconds or part not in ("fsync", "wait"):
                expected[part].observe(seconds)
        if number < looks:
            times.parts()
    assert {part: histogram.counts for part, histogram in times.parts().items()} == {
        part: histogram.counts for part, histogram in expected.items()
    }
    for part, histogram in times.parts().items():
        assert histogram.total == pytest.approx(expected[part].total)


def counts(times: RequestTimes) -> dict[str, int]:
    return {part: histogram.count for part, histogram in times.parts().items()}


def totals(times: RequestTimes) -> dict[str, float]:
    return {part: histogram.total for part, histogram in times.parts().items() if histogram.total}


def framed(correlation: int, key: ApiKey, version: int, request: Message) -> bytes:
    return with_size(write_request(key, version, correlation, "me", request))


@pytest.mark.parametrize("durable", [True, False])
def test_only_requests_that_wait_for_the_disk_have_a_time_for_it(durable: bool) -> None:
    async def main() -> None:
        rooms = await Rooms(MemoryFiles(), Flusher(durable, on_failure=never)).with_topic()
        if not durable:
            await reserved(rooms)
        broker = InProcessBroker(rooms)
        client = broker.connect("127.0.0.1")
        await asyncio.sleep(0)
        new_id = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        beat = HeartbeatRequest(group_id="g", member_id="m", generation_id=1, group_instance_id=None)
        client.send(framed(1, ApiKey.HEARTBEAT, 3, beat) + framed(2, ApiKey.INIT_PRODUCER_ID, 4, new_id))
        assert [read_response_correlation(await client.next_frame()) for _ in range(2)] == [1, 2]
        await asyncio.sleep(0)
        requests = broker.context.meters.requests
        assert set(requests) == {ApiKey.HEARTBEAT, ApiKey.INIT_PRODUCER_ID}
        once = {"queue": 1, "local": 1, "fsync": 0, "wait": 0, "response": 1}
        assert counts(requests[ApiKey.HEARTBEAT]) == once
        assert counts(requests[ApiKey.INIT_PRODUCER_ID]) == {**once, "fsync": int(durable)}
        await broker.close()

    run(main())


def test_a_request_behind_a_slow_one_queues(clock: HandClock) -> None:
    """Two requests come at once; the first takes two seconds on the disk, and the second queues for so long."""

    async def main() -> None:
        flusher = Flusher(True, on_failure=never)
        rooms = await Rooms(MemoryFiles(), flusher).with_topic()
        broker = InProcessBroker(rooms)
        client = broker.connect("127.0.0.1")
        await asyncio.sleep(0)
        new_id = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        beat = HeartbeatRequest(group_id="g", member_id="m", generation_id=1, group_instance_id=None)
        client.send(framed(1, ApiKey.INIT_PRODUCER_ID, 4, new_id) + framed(2, ApiKey.HEARTBEAT, 3, beat))
        clock.now += 2
        for _ in range(2):
            await client.next_frame()
        await asyncio.sleep(0)
        first, second = (broker.context.meters.requests[key] for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.HEARTBEAT))
        assert (totals(first), totals(second)) == ({"fsync": 2}, {"queue": 2})
        await broker.close()

    run(main())
