"""The memory of the requests and the answers of all connections, with one limit for each of the two.

A large request takes its memory before it is received (Kafka: SimpleMemoryPool, queued.max.request.bytes). If there is
none, its connection is not read until there is. Small requests and answers have memory of their own connection.
"""

import asyncio
import logging
import math
import time
from typing import Protocol

from dualwrite.broker.clients.memory_limits import RequestHolder, answer_share, next_in_line, slowest, stalled
from dualwrite.broker.net.frame_buffers import FrameBuffers

logger = logging.getLogger(__name__)

_MOST_UNREAD_BYTES = 16 * 1024 * 1024
"""The most bytes of small requests that wait behind others. With more, each connection may have one of them."""


class MemoryUser(RequestHolder, Protocol):
    """A connection that takes memory."""

    def provide(self, memory: memoryview) -> None:
        """Called with the memory that the connection waited for."""

    def abort(self) -> None:
        """Close the connection without sending what is not sent yet."""


class ConnectionMemory:
    """The memory of all connections of one broker. Belongs to the event loop's thread.

    :param most_bytes: queued.max.request.bytes, for the requests, and as much again for the answers; infinite for no
        limit.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self._most_bytes = most_bytes
        self._buffers = FrameBuffers()
        self._request_bytes = 0
        self._unread_bytes = 0
        self._answer_bytes = 0
        self._users: dict[MemoryUser, None] = {}
        self._waiting: dict[MemoryUser, int] = {}
        self._answers: dict[MemoryUser, int] = {}
        self._closing: set[MemoryUser] = set()
        self._room: asyncio.Future[None] | None = None

    @property
    def request_bytes(self) -> int:
        """The bytes of memory that large requests hold."""
        return self._request_bytes

    @property
    def answer_bytes(self) -> int:
        """The bytes of the answers that their clients do not read."""
        return self._answer_bytes

    # --- requests

    def take(self, user: MemoryUser, size: int) -> memoryview | None:
        """Memory for a request of ``size`` bytes. None if there is none yet: ``user.provide`` is then called later."""
        if not self._has_room(size):
            self._waiting[user] = size
            return None
        memory = self._buffers.take(size)
        self._request_bytes += FrameBuffers.capacity(size)
        self._users[user] = None
        return memory

    def give_back(self, user: MemoryUser, frame: memoryview, is_reusable: bool = True) -> None:
        """Free the memory of ``frame``, which ``user`` took.

        :param is_reusable: False if the frame may still be in use, for example by a thread. Its memory then goes back
            to the system with the last reference to it.
        """
        if not user.held_bytes:
            self._users.pop(user, None)
        self._request_bytes -= FrameBuffers.capacity_of(frame)
        if is_reusable:
            self._buffers.give_back(frame)
        self._admit()

    def stop_waiting(self, user: MemoryUser) -> None:
        """``user`` no longer waits for memory."""
        if self._waiting.pop(user, None) is not None:
            self._admit()

    def close_stalled(self) -> None:
        """If a request waits for memory, close connections that hold memory and make no progress."""
        if not self._waiting:
            return
        for user in stalled(self._users, time.monotonic()):
            logger.warning(
                "closing a connection of %s: it holds %d bytes for a request that it does not finish, and other "
                "requests wait for this memory (queued.max.request.bytes)", user.address, user.held_bytes,
            )  # fmt: skip
            user.abort()

    def _has_room(self, size: int) -> bool:
        """True if a request of ``size`` bytes may be received now. A single one may always."""
        return not self._request_bytes or self._request_bytes + FrameBuffers.capacity(size) <= self._most_bytes

    def _admit(self) -> None:
        while self._waiting:
            user = next_in_line(list(self._waiting), self._users)
            if not self._has_room(self._waiting[user]):
                return
            memory = self.take(user, self._waiting.pop(user))
            assert memory is not None, "there is room"
            user.provide(memory)

    # --- small requests that wait behind others

    @property
    def has_many_unread(self) -> bool:
        """True if each connection should have one waiting request at most."""
        return self._unread_bytes > _MOST_UNREAD_BYTES

    def add_unread(self, size: int) -> None:
        """A request of ``size`` bytes waits behind others; or no more, if ``size`` is negative."""
        self._unread_bytes += size

    # --- answers

    @property
    def answer_share(self) -> float:
        """How many bytes of records the next answer should have at most."""
        return answer_share(self._most_bytes, self._answer_bytes)

    async def room_for_answers(self) -> None:
        """Return once the answers that wait are fewer than the limit. Build a large answer without any ``await`` after
        this call, or other answers are built meanwhile."""
        while self._answer_bytes > self._most_bytes:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    def hold_answer(self, user: MemoryUser, size: int) -> None:
        """Count an answer of ``size`` bytes that the client does not read at once. If the answers are too many, close
        the connections that have read nothing for longest. Their memory is free after :meth:`release_answer`."""
        self._answers[user] = size
        self._answer_bytes += size
        staying = {each: held for each, held in self._answers.items() if each not in self._closing}
        excess = sum(staying.values()) - self._most_bytes
        while excess > 0:
            last = slowest(staying.items())
            excess -= staying.pop(last)
            logger.warning(
                "closing a connection of %s: it does not read its answer of %d bytes, and the answers that wait have "
                "%d bytes (queued.max.request.bytes)", last.address, self._answers[last], self._answer_bytes,
            )  # fmt: skip
            self._closing.add(last)
            last.abort()

    def release_answer(self, user: MemoryUser) -> None:
        """The client has read its answer, or its connection is closed."""
        self._answer_bytes -= self._answers.pop(user, 0)
        self._closing.discard(user)
        if self._room is not None and self._answer_bytes <= self._most_bytes:
            self._room.set_result(None)
            self._room = None
