"""One client connection: frames in, requests to their handlers, responses out in the order of the requests.

The broker handles the requests of one connection one after another, as Kafka does. Further requests wait in the socket,
which slows the client down. A malformed request, or one of an unknown API or version, ends the connection.

The requests of producers and of transactions begin as their bytes arrive, without a turn of the event loop. If one has
to wait for the disk, the connection's task finishes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from dualwrite.broker.access.sasl_session import SaslStateError, SessionEndedError
from dualwrite.broker.api import api_versions
from dualwrite.broker.api.auditing.audit_log import audit
from dualwrite.broker.api.context import ANONYMOUS, BrokerContext, Client, UnanswerableError
from dualwrite.broker.api.routes import ROUTES
from dualwrite.broker.authentication import Authentication, ClientAuthentication
from dualwrite.broker.clients.listeners import Listener
from dualwrite.broker.net.eager import Waits, begun
from dualwrite.broker.net.frame_stream import ForeignProtocolError, FrameStream, StreamEndedError
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import (
    MalformedMessageError,
    RequestHead,
    make_ready,
    read_body,
    read_request_head,
    refuse_nulls,
    write_response_parts,
)
from dualwrite.wire.errors import error_codes
from dualwrite.wire.frames import SIZE_PREFIX, FrameTooLargeError
from dualwrite.wire.hot_requests import read_hot_request

logger = logging.getLogger(__name__)

MOST_BYTES_WITHOUT_RECORDS = 1024 * 1024
"""The largest request without records, with room for ten thousand partitions. Such a request contains names and
numbers; to decode a hundred megabytes of them would block all other clients for minutes."""

_BYTES_AT_ONCE = 16 * 1024
"""The longest request without records that the event loop decodes itself. A thread decodes a longer one and encodes its
answer, so that other clients are served meanwhile."""

# Python 3.11 looks the members of an enum up slowly.
_PRODUCE, _API_VERSIONS = ApiKey.PRODUCE, ApiKey.API_VERSIONS

_AT_ONCE = tuple(
    key.to_bytes(2, "big")
    for key in (
        _PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.OFFSET_COMMIT,
        ApiKey.HEARTBEAT,
    )
)
"""How the requests begin that are carried out as their bytes arrive. Their answers are small: the system takes no large
answer before the next turn of the event loop, so the answers that wait would not be counted."""

KINDS_OF_PRINCIPAL = ("none", "anonymous", "user")
"""The values of :attr:`Connection.kind_of_principal`."""

_KEYS = {int(key): key for key in ROUTES}
ResultT = TypeVar("ResultT")


class Connection:
    """Serves one client until it disconnects or breaks the protocol.

    :param listener: the listener that accepted the connection.
    :param handshake: waits for the TLS handshake and returns the client's principal; None without TLS.
    :param authentication: how clients authenticate on a listener with SASL.
    """

    def __init__(
        self,
        stream: FrameStream,
        broker: BrokerContext,
        listener: Listener,
        handshake: Callable[[], Awaitable[str]] | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        self._stream = stream
        self._listener = listener
        self._handshake = handshake
        self._is_shaking_hands = handshake is not None
        self._meters = broker.meters
        self._waits = Waits(broker.flusher)
        self._peer = stream.transport.get_extra_info("peername")
        self._polls = LongPolls(broker.stopping, lambda: stream.is_deaf)
        stream.when_deaf(self._polls.wake)
        self._broker = replace(broker, client=Client("", f"/{self.address}"), polls=self._polls)
        self._is_answering = False
        self._is_finishing = False
        self._idle: asyncio.Future[Awaitable[None] | None] | None = None
        """Done when the idle task is needed, with the rest of a request that has to wait, if any."""
        self._sasl = authentication.begin(self.address) if authentication is not None else None

    @property
    def listener(self) -> Listener:
        """The listener that accepted the connection."""
        return self._listener

    @property
    def address(self) -> str:
        """The client's address, without its port."""
        return self._peer[0] if self._peer else ""

    @property
    def kind_of_principal(self) -> str:
        """``none`` before the client has authenticated where it must, ``anonymous`` where it need not, else ``user``.
        Names of users are for the log alone."""
        if self._is_shaking_hands or (self._sasl is not None and self._sasl.principal is None):
            return "none"
        return "anonymous" if self._broker.client.principal == ANONYMOUS else "user"

    @property
    def is_waiting(self) -> bool:
        """True while its request in progress waits, for example a Fetch for records."""
        return self._polls.are_waiting

    @property
    def idle_since(self) -> float | None:
        """When bytes last came or went, in monotonic seconds; None while a request is being carried out. A request that
        waits, and an answer that the client does not read, are idle."""
        is_busy = self._is_answering and not self._stream.is_blocked and not self.is_waiting
        return None if is_busy else self._stream.active_at

    async def serve(self) -> None:
        """Answer requests until the client closes the connection. Then close the broker's end, and wait for its end.

        :raises TlsHandshakeError: if the client's TLS handshake fails.
        """
        try:
            if self._handshake is not None:
                self._serve_as(await self._handshake())
                self._is_shaking_hands = False
            self._stream.when_ready(self._on_ready)
            while not self._is_finishing:
                frame = self._stream.take()
                if frame is not None:
                    unfinished = begun(self._answer_frame(frame), self._waits)
                    if unfinished is not None:
                        await unfinished
                    continue
                self._idle = asyncio.get_running_loop().create_future()
                unfinished = await self._idle
                if unfinished is not None:
                    await unfinished
        except StreamEndedError as error:
            logger.debug("%s has disconnected, between two requests or during one: %s", self._peer, error)
        except (SaslStateError, SessionEndedError) as error:
            assert self._sasl is not None
            self._sasl.refuse(error)
        except (MalformedMessageError, FrameTooLargeError, ForeignProtocolError, UnanswerableError) as error:
            logger.warning("closing the connection of %s: %s", self._peer, error)
        finally:
            self._is_answering = False
            self._stream.close()
        await self._stream.wait_closed()  # a client that does not read the last answer holds the connection

    def abort(self) -> None:
        """Close the connection now, without sending what is not sent yet."""
        self._stream.transport.abort()

    def finish(self) -> None:
        """Close the connection after the request in progress, or at once if there is none."""
        self._is_finishing = True
        if not self._is_answering:
            self._stream.close()

    def _on_ready(self) -> None:
        """Answer the requests that have arrived while the task was idle, and wake the task if something is left to
        do."""
        idle, self._idle = self._idle, None  # one request at a time
        if idle is None or idle.done():
            return
        try:
            unfinished = self._answer_at_once()
        except Exception as error:  # noqa: BLE001  the task handles it
            idle.set_exception(error)
            del idle  # with the error's traceback it would keep the request and the answer in memory
            return
        if unfinished is None and not self._stream.has_news and not self._is_finishing:
            self._idle = idle
        else:
            idle.set_result(unfinished)

    def _answer_at_once(self) -> Awaitable[None] | None:
        """Answer the next requests that need no turn of the event loop. Return the rest of the first that has to
        wait."""
        while not self._is_finishing and self._stream.starts_with(_AT_ONCE):
            frame = self._stream.take()
            assert frame is not None, "the stream has a frame"
            unfinished = begun(self._answer_frame(frame), self._waits)
            if unfinished is not None:
                return unfinished
        return None

    async def _answer_frame(self, frame: bytearray | memoryview) -> None:
        self._is_answering = True
        self._meters.bytes_received += SIZE_PREFIX + len(frame)
        began, waits = monotonic(), self._waits
        if self._sasl is not None and self._sasl.session.wants_raw_token:
            times = self._meters.requests[ApiKey.SASL_AUTHENTICATE]
            response = await self._answer_raw_token(bytes(frame), self._sasl)
        else:
            head, body_position = read_request_head(frame)
            key = _KEYS.get(head.api_key)
            if key is None:
                raise MalformedMessageError(f"unknown API key {head.api_key}")
            times = self._meters.requests[key]
            response = await self._answer(key, head, frame, body_position)
        ended = sent = monotonic()
        local = ended - began
        if waits.seconds:
            local -= waits.seconds
            times.note_waits(waits.disk_seconds, waits.seconds - waits.disk_seconds)
            waits.clear()
        self._stream.release(frame)  # only records are views of the frame, and they are in the log now
        if response is not None:
            self._meters.bytes_sent += self._stream.send(response)
            if self._stream.is_blocked:
                await self._stream.drained()
                waits.clear()
            sent = self._stream.active_at
        times.note(began - self._stream.arrived_at, local, sent - ended)
        self._is_answering = False

    async def _answer(
        self, key: ApiKey, head: RequestHead, frame: bytearray | memoryview, body_position: int
    ) -> list[bytes] | None:
        route = ROUTES[key]
        is_for_handler = self._sasl is None or self._sasl.is_for_handler(key)
        if head.version not in route.versions:
            return self._refuse_version(key, head)
        if key is not _PRODUCE and len(frame) > MOST_BYTES_WITHOUT_RECORDS:
            raise MalformedMessageError(f"{key.name} of {len(frame)} bytes; the limit is {MOST_BYTES_WITHOUT_RECORDS}")
        takes_long = key is not _PRODUCE and len(frame) > _BYTES_AT_ONCE
        if takes_long:
            make_ready(APIS[key].request, head.version)
            request = await _in_thread(lambda: _read(key, head, frame, body_position))
        else:
            request = _read(key, head, frame, body_position)
        if is_for_handler:
            response = await route.handle(request, head.version, self._context(head.client_id))
            if route.acts is not None and response is not None:
                await audit(route.acts(request, response), self._broker.client)
        else:
            response = await self._authenticate(key, request, head)
        if response is None:
            return None
        if key is _API_VERSIONS and self._sasl is not None and not response.error_code:
            self._sasl.session.versions_answered()
        if takes_long:
            codes, parts = await _in_thread(lambda: _written(key, head, response))
        else:
            codes, parts = _written(key, head, response)
        for code in codes:
            self._meters.errors[key, code] += 1
        return parts

    async def _authenticate(self, key: ApiKey, request: Message, head: RequestHead) -> Message:
        """The answer to a request that is part of the authentication."""
        assert self._sasl is not None
        response = await self._sasl.answer(key, request, head.version)
        self._take_over_principal(self._sasl)
        return response

    async def _answer_raw_token(self, token: bytes, sasl: ClientAuthentication) -> list[bytes] | None:
        """The answer to a token without a header, as clients send it after SaslHandshake v0."""
        answer = await sasl.answer_raw(token)
        self._take_over_principal(sasl)
        return None if answer is None else [answer]

    def _take_over_principal(self, sasl: ClientAuthentication) -> None:
        """Serve the client as the user that it has proved to be. After a failure, close the connection."""
        if sasl.has_failed:
            self._is_finishing = True
        elif sasl.session.is_open and sasl.principal is not None:
            self._serve_as(sasl.principal)
            self._stream.limit_frames(self._broker.options.number("socket.request.max.bytes"))

    def _context(self, client_id: str | None) -> BrokerContext:
        """The context for a handler. It is new only if the client changes its client.id."""
        client = self._broker.client
        if client.client_id != (client_id or ""):
            self._broker = replace(self._broker, client=client._replace(client_id=client_id or ""))
        return self._broker

    def _serve_as(self, principal: str) -> None:
        """Let ``principal`` be the sender of all further requests."""
        self._broker = replace(self._broker, client=self._broker.client._replace(principal=principal))

    @staticmethod
    def _refuse_version(key: ApiKey, head: RequestHead) -> list[bytes]:
        if key is _API_VERSIONS:
            return write_response_parts(key, 0, head.correlation_id, api_versions.refuse())
        raise MalformedMessageError(f"{key.name} v{head.version} is not supported")


def _read(key: ApiKey, head: RequestHead, frame: bytearray | memoryview, position: int) -> Message:
    hot = read_hot_request(key, head.version, frame, position)
    if hot is not None:
        return hot
    request = read_body(APIS[key].request, head.version, frame, position)
    refuse_nulls(request, head.version)
    return request


def _written(key: ApiKey, head: RequestHead, response: Message) -> tuple[list[int], list[bytes]]:
    """The error codes in ``response``, and its bytes."""
    return error_codes(response), write_response_parts(key, head.version, head.correlation_id, response)


async def _in_thread(work: Callable[[], ResultT]) -> ResultT:
    return await asyncio.get_running_loop().run_in_executor(None, work)
