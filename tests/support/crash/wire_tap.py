"""A tap on the wire between clients and a cluster: it sees what is asked again, and loses what it is told to.

What is lost is lost at an exact moment: a request that its node never gets, or the answer to one that was carried out.
At that moment a test may kill a node.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotStruckError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import NamedTuple

from dualwrite.records.header import iterate_batches
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import read_body, read_request_head, read_response
from dualwrite.wire.errors import error_codes
from tests.support.apache_kafka.process import free_ports
from tests.support.waiting import PATIENCE_SECONDS

WATCHED = (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN)


class Lost(Enum):
    """What does not arrive."""

    REQUEST = "request"
    ANSWER = "answer"
    """Of a request that succeeded."""


class Asked(NamedTuple):
    """A request on its way."""

    node: int
    api: ApiKey
    version: int
    message: Message

    @property
    def transactional_id(self) -> str:
        """Whose it is."""
        return str(self.message.transactional_id)


@dataclass
class WireFault:
    """The next request of ``api`` under ``transactional_id`` is lost on its way, or its answer is.

    An EndTxn that is lost is one that commits: whoever aborts is never in doubt.

    :param also: done at that moment, before the client can notice anything.
    """

    api: ApiKey
    lost: Lost
    transactional_id: str
    also: Callable[[Asked], None]
    struck: "Future[Asked]" = field(default_factory=Future)

    def hits(self, asked: Asked, lost: Lost) -> bool:
        """Whether this is what it waits for."""
        is_one = (asked.api, lost, asked.transactional_id) == (self.api, self.lost, self.transactional_id)
        return is_one and (asked.api is not ApiKey.END_TXN or asked.message.committed)

    def strike(self, asked: Asked) -> None:
        """Do it."""
        try:
            self.also(asked)
            self.struck.set_result(asked)
        except BaseException as error:  # noqa: BLE001  wait() raises it where the test sees it
            self.struck.set_exception(error)

    def begins(self) -> bool:
        """False if nobody waits for it any more."""
        return self.struck.set_running_or_notify_cancel()

    def wait(self, patience: float = PATIENCE_SECONDS) -> Asked:
        """What was lost, once it is. After ``patience`` seconds it never will be: a later test is not to meet it."""
        try:
            return self.struck.result(patience)
        except NotStruckError:
            if self.struck.cancel():
                raise
            return self.struck.result(patience)


def nothing(asked: Asked) -> None:
    """Done to the cluster where only what is on the wire is lost."""


class Tap:
    """Listens on ``ports`` for each node; :meth:`start` says where the nodes are."""

    def __init__(self, *nodes: int) -> None:
        self.ports = dict(zip(nodes, free_ports(len(nodes)), strict=True))
        self.repeated: Counter[tuple[str, ApiKey]] = Counter()
        """By transactional id and API, how many requests were sent again as their answer was an error, or lost."""
        self._targets: Mapping[int, int] = {}
        self._faults: list[WireFault] = []
        self._contents: set[tuple[object, ...]] = set()
        self._unanswered: set[str] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap")

    def start(self, targets: Mapping[int, int]) -> "Tap":
        """Forward what comes for a node to its port in ``targets``."""
        self._targets = targets
        self._thread.start()
        self._do(self._listen())
        return self

    def arm(self, fault: WireFault) -> WireFault:
        """Let ``fault`` strike once."""
        self._loop.call_soon_threadsafe(self._faults.append, fault)
        return fault

    def close(self) -> None:
        """Cut everything."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Tap":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, work: "asyncio.Future[None] | object") -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(self._accepting(node), "127.0.0.1", port) for node, port in self.ports.items()
        ]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        # Those, too, that the loop is still accepting.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for connection in self._connections:
                connection.cancel()
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # for what is called when a connection is done

    def _accepting(self, node: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(node, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # Not in the task: one that is cancelled before it begins would leave its connection open.
            task.add_done_callback(lambda _: writer.transport.abort())

        return accept

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, for as long as both ends of it last."""
        opened: list[asyncio.StreamWriter] = []
        ways: list[asyncio.Task[None]] = []
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                answers, node_writer = await asyncio.open_connection("127.0.0.1", self._targets[node])
                opened.append(node_writer)
                under_way: deque[Asked | None] = deque()
                ways = [
                    self._loop.create_task(self._requests(node, reader, node_writer, under_way)),
                    self._loop.create_task(self._answers(answers, writer, under_way)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything is awaited: a cancellation that comes there would leave the node's connection open.
            for connection in opened:
                connection.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, under_way: deque[Asked | None]
    ) -> None:
        while True:
            size, frame = await _frame(reader)
            asked = _read(node, frame)
            under_way.append(asked)
            if asked is not None:
                self._notice(asked)
                if self._strikes(asked, Lost.REQUEST):
                    return
            writer.write(size + frame)

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, under_way: deque[Asked | None]
    ) -> None:
        while True:
            size, frame = await _frame(reader)
            asked = under_way.popleft()
            if asked is not None and _succeeded(asked, frame):
                if self._strikes(asked, Lost.ANSWER):
                    return
                if asked.api is ApiKey.END_TXN:
                    self._unanswered.discard(asked.transactional_id)
            writer.write(size + frame)

    def _strikes(self, asked: Asked, lost: Lost) -> bool:
        fault = next((fault for fault in self._faults if fault.hits(asked, lost)), None)
        if fault is None:
            return False
        self._faults.remove(fault)
        if not fault.begins():
            return self._strikes(asked, lost)
        fault.strike(asked)
        return True

    def _notice(self, asked: Asked) -> None:
        """Count ``asked`` if it was asked before. A producer's identity may do for many transactions, so that an EndTxn
        is known as a repetition by the one before it that had no answer."""
        name = asked.transactional_id
        if asked.api is ApiKey.END_TXN:
            self.repeated[name, asked.api] += name in self._unanswered
            self._unanswered.add(name)
        elif asked.api is ApiKey.INIT_PRODUCER_ID:
            self._unanswered.discard(name)
        else:
            for content in (_batches if asked.api is ApiKey.PRODUCE else _offsets)(asked.message):
                self.repeated[name, asked.api] += content in self._contents
                self._contents.add(content)


async def _frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    size = await reader.readexactly(4)
    return size, await reader.readexactly(int.from_bytes(size, "big"))


def _read(node: int, frame: bytes) -> Asked | None:
    """The request in ``frame`` if it is one that is watched, and of a transactional producer."""
    head, position = read_request_head(frame)
    if head.api_key not in WATCHED:
        return None
    api = ApiKey(head.api_key)
    message = read_body(APIS[api].request, head.version, frame, position)
    return None if message.transactional_id is None else Asked(node, api, head.version, message)


def _succeeded(asked: Asked, frame: bytes) -> bool:
    return not any(error_codes(read_response(asked.api, asked.version, frame)))


def _batches(request: Message) -> set[tuple[object, ...]]:
    """What tells the batches of a Produce request from all others."""
    return {
        (topic.name, topic.topic_id, entry.index, header.producer, header.base_sequence)
        for topic in request.topic_data
        for entry in topic.partition_data
        for header, _ in iterate_batches(entry.records)
    }


def _offsets(request: Message) -> set[tuple[object, ...]]:
    """What tells the offsets of a TxnOffsetCommit request from all others that have metadata of their own."""
    return {
        (request.group_id, request.producer_id, request.producer_epoch, topic.name, entry.partition_index, metadata)
        for topic in request.topics
        for entry in topic.partitions
        for metadata in [entry.committed_metadata]
    }
