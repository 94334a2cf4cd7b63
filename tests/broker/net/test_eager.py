"""A request begins as its bytes arrive: its answer needs no turn of the loop, and answers keep the requests' order."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from dualwrite.broker.net.eager import Waits, begun
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ApiKey, ApiVersionsRequest, HeartbeatRequest, InitProducerIdRequest, Message
from dualwrite.wire.codec import read_response_correlation, write_request
from dualwrite.wire.frames import with_size
from tests.support.broker.in_process import InProcessBroker, ScriptedClient
from tests.support.broker.simulated import Rooms, never, reserved, run


def waits() -> Waits:
    return Waits(Flusher(False, on_failure=never))


def test_work_that_need_not_wait_is_done_at_once() -> None:
    done = []

    async def work() -> None:
        done.append(1)

    assert begun(work(), waits()) is None
    assert done == [1]


def test_the_rest_of_the_work_is_done_by_the_task_that_awaits_it() -> None:
    steps: list[object] = []

    async def work(first: Awaitable[str]) -> None:
        steps.append(await first)
        await asyncio.sleep(0)
        steps.append(asyncio.current_task())

    async def main() -> None:
        first: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        rest = begun(work(first), waits())
        assert rest is not None
        first.set_result("arrived")
        assert steps == []
        await rest
        assert steps == ["arrived", asyncio.current_task()]

    run(main())


def test_an_error_at_once_or_later_is_the_callers() -> None:
    async def work(first: Awaitable[None] | None) -> None:
        if first is not None:
            await first
        raise KeyError("of the work")

    async def main() -> None:
        with pytest.raises(KeyError):
            begun(work(None), waits())
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rest = begun(work(first), waits())
        assert rest is not None
        first.set_result(None)
        with pytest.raises(KeyError):
            await rest

    run(main())


def test_a_failed_wait_and_a_cancellation_reach_the_work() -> None:
    async def outcome(end: Callable[["asyncio.Future[None]", "asyncio.Task[None]"], object]) -> list[type]:
        met: list[type] = []

        async def work(first: Awaitable[None]) -> None:
            try:
                await first
            except BaseException as error:
                met.append(type(error))
                raise

        async def finish(rest: Awaitable[None]) -> None:
            await rest

        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rest = begun(work(first), waits())
        assert rest is not None
        task = asyncio.ensure_future(finish(rest))
        await asyncio.sleep(0)
        end(first, task)
        await asyncio.gather(task, return_exceptions=True)
        return met

    async def main() -> None:
        assert await outcome(lambda first, _: first.set_exception(OSError())) == [OSError]
        assert await outcome(lambda _, task: task.cancel()) == [asyncio.CancelledError]

    run(main())


def test_after_an_error_nothing_holds_what_the_work_had() -> None:
    """A client that goes while it is answered would otherwise keep megabytes until the next collection."""

    class Answer:
        """An object that can be watched."""

    async def work(futures: "list[asyncio.Future[None]]", watched: list["weakref.ref[Answer]"]) -> None:
        answer = Answer()
        watched.append(weakref.ref(answer))
        await futures[0]

    async def main() -> None:
        watched: list[weakref.ref[Answer]] = []
        futures: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future()]
        rest = begun(work(futures, watched), waits())
        assert rest is not None
        futures.pop().set_exception(ConnectionError())
        with suppress(ConnectionError):  # pytest.raises would keep the error
            await rest
        await asyncio.sleep(0)  # the loop holds the future while it wakes the task
        assert watched[0]() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def framed(correlation: int, key: ApiKey, version: int, request: Message) -> bytes:
    return with_size(write_request(key, version, correlation, "me", request))


def producer_id(correlation: int) -> bytes:
    """A request for a producer id, which is answered once its reservation is on disk."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1)
    return framed(correlation, ApiKey.INIT_PRODUCER_ID, 4, request)


def versions(correlation: int) -> bytes:
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1")
    return framed(correlation, ApiKey.API_VERSIONS, 3, request)


def heartbeat(correlation: int) -> bytes:
    request = HeartbeatRequest(group_id="no-group", member_id="nobody", generation_id=1, group_instance_id=None)
    return framed(correlation, ApiKey.HEARTBEAT, 3, request)


async def connected(durable: bool) -> tuple[InProcessBroker, ScriptedClient]:
    """A client whose connection waits for its first request."""
    rooms = await Rooms(MemoryFiles(), Flusher(durable, on_failure=never)).with_topic()
    broker = InProcessBroker(rooms)
    client = broker.connect("127.0.0.1")
    await asyncio.sleep(0)
    return broker, client


def test_a_request_that_need_not_wait_is_answered_as_it_arrives() -> None:
    async def main() -> None:
        broker, client = await connected(durable=False)
        await reserved(broker.rooms)
        for number in range(3):
            client.send(producer_id(number))
            assert client.answers, "it is answered within the same call"
            assert read_response_correlation(await client.next_frame()) == number
        await broker.close()

    run(main())


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("is_split", [True, False])
def test_answers_come_in_the_order_of_the_requests(durable: bool, is_split: bool) -> None:
    """Some wait for the disk, some for the task, some for nothing."""

    async def main() -> None:
        broker, client = await connected(durable)
        kinds = [producer_id, heartbeat, versions, heartbeat, versions, producer_id, producer_id, heartbeat]
        frames = [kind(number) for number, kind in enumerate(kinds * 3)]
        for data in frames if is_split else [b"".join(frames)]:
            client.send(data)
        answers = [read_response_correlation(await client.next_frame()) for _ in frames]
        assert answers == list(range(len(frames)))
        await broker.close()

    run(main())


def test_a_malformed_request_closes_the_connection_after_the_answers_before_it() -> None:
    async def main() -> None:
        broker, client = await connected(durable=True)
        client.send(producer_id(1) + heartbeat(2) + with_size(heartbeat(3)[4:-6]) + heartbeat(4))
        assert [read_response_correlation(await client.next_frame()) for _ in range(2)] == [1, 2]
        with pytest.raises(ConnectionError):
            await client.next_frame()
        await broker.close()

    run(main())
