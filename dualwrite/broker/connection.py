"""One client connection: frames in, requests to their handlers, responses out in the order of the requests.

Requests of one connection are handled one after another, as in Kafka; requests that wait in the socket meanwhile are
the client's back-pressure. A malformed request, or one of an unknown API or version, ends the connection.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dualwrite.broker.api import api_versions
from dualwrite.broker.api.context import BrokerContext, Client, UnanswerableError
from dualwrite.broker.api.routes import ROUTES
from dualwrite.broker.frame_stream import FrameStream, StreamEndedError
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
"""The limit of a request without records. It contains names and numbers, and decoding a hundred megabytes of them would
block all other clients for minutes. This is room for ten thousand partitions."""

_BYTES_AT_ONCE = 16 * 1024
"""A longer request without records is decoded, and its answer encoded, in a thread: others are served meanwhile."""

_KEYS = {int(key): key for key in ROUTES}
ResultT = TypeVar("ResultT")


class Connection:
    """Serves one client until it goes away or breaks the protocol."""

    def __init__(self, stream: FrameStream, broker: BrokerContext) -> None:
        self._stream = stream
        self._broker = broker
        self._meters = broker.meters
        self._peer = stream.transport.get_extra_info("peername")
        self._is_answering = False
        self._is_finishing = False

    async def serve(self) -> None:
        """Answer requests until the client closes the connection; then close it here."""
        try:
            while not self._is_finishing:
                frame = await self._stream.read()
                self._is_answering = True
                self._meters.bytes_received += SIZE_PREFIX + len(frame)
                response = await self._answer(frame)
                self._stream.release(frame)  # only records are views of the frame, and they are in the log now
                if response is not None:
                    self._meters.bytes_sent += SIZE_PREFIX + sum(map(len, response))
                    await self._stream.write(response)
                self._is_answering = False
        except StreamEndedError as error:
            logger.debug("%s is gone, between two requests or in the middle of one: %s", self._peer, error)
        except (MalformedMessageError, FrameTooLargeError, UnanswerableError) as error:
            logger.warning("closing the connection of %s: %s", self._peer, error)
        finally:
            self._stream.close()

    def finish(self) -> None:
        """Close the connection after the request in progress, or now if there is none."""
        self._is_finishing = True
        if not self._is_answering:
            self._stream.close()

    async def _answer(self, frame: bytearray | memoryview) -> list[bytes] | None:
        head, body_position = read_request_head(frame)
        key = _KEYS.get(head.api_key)
        if key is None:
            raise MalformedMessageError(f"unknown API key {head.api_key}")
        route = ROUTES[key]
        if head.version not in route.versions:
            return self._refuse_version(key, head)
        if key is not ApiKey.PRODUCE and len(frame) > MOST_BYTES_WITHOUT_RECORDS:
            raise MalformedMessageError(f"{key.name} of {len(frame)} bytes; it may have {MOST_BYTES_WITHOUT_RECORDS}")
        takes_long = key is not ApiKey.PRODUCE and len(frame) > _BYTES_AT_ONCE
        if takes_long:
            make_ready(APIS[key].request, head.version)
            request = await _in_thread(lambda: _read(key, head, frame, body_position))
        else:
            request = _read(key, head, frame, body_position)
        response = await route.handle(request, head.version, self._context(head.client_id))
        self._meters.requests[key] += 1
        if response is None:
            return None
        if takes_long:
            codes, parts = await _in_thread(lambda: _written(key, head, response))
        else:
            codes, parts = _written(key, head, response)
        for code in codes:
            self._meters.errors[key, code] += 1
        return parts

    def _context(self, client_id: str | None) -> BrokerContext:
        """The context for a handler; made anew only if the client changes its client.id."""
        if self._broker.client.client_id != client_id:
            host = self._peer[0] if self._peer else ""
            self._broker = replace(self._broker, client=Client(client_id or "", f"/{host}"))
        return self._broker

    @staticmethod
    def _refuse_version(key: ApiKey, head: RequestHead) -> list[bytes]:
        if key is ApiKey.API_VERSIONS:
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
