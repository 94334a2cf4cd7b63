"""The client's end of one connection, sans-I/O: it encodes requests to bytes, and decodes bytes to responses.

``broker_protocol.py`` opens a connection over it. The driver writes the bytes that :meth:`ClientProtocol.send` returns,
feeds the bytes that it reads, and takes the responses. Kafka answers the requests of a connection in order.
"""

from collections import deque
from typing import NamedTuple

from dualwrite.client.terms.versions import NO_VERSIONS, VersionRange, Versions
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.codec import (
    MalformedMessageError,
    read_response,
    read_response_correlation,
    refuse_nulls,
    write_request,
)
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import SIZE_PREFIX, frame_size, with_size
from dualwrite.wire.producing import read_hot_response

RESPONSE_LIMIT = 100 * 1024 * 1024
"""The most bytes of a response that is accepted (Java's receive buffer grows without limit; a client need not)."""

OPENING_VERSION = 4
"""The version of ApiVersions that opens a connection. v5 sends the cluster's id, which this client does not know yet,
and would cost one more round trip with every broker before Apache Kafka 4.4."""

_CORRELATION_MASK = 0x7FFFFFFF
_ERROR_CODE_AT = 4


class _Expected(NamedTuple):
    correlation_id: int
    api_key: ApiKey
    version: int


class ClientProtocol:
    """Correlation ids, versions and framing of one connection.

    :param client_id: the client.id that every request carries.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self.next_correlation_id = 0
        """That of the next request: from 0 to 2^31 - 1, and then from 0 again."""
        self._expected: deque[_Expected] = deque()
        self._received: bytes | bytearray = b""  # a bytearray once something arrived in pieces
        self.versions = NO_VERSIONS
        """The broker's versions, once :meth:`learn_versions` was called."""

    def send(self, api_key: ApiKey, version: int, message: Message) -> bytes:
        """The bytes of the request ``message`` in ``version``."""
        correlation_id = self.next_correlation_id
        self.next_correlation_id = (correlation_id + 1) & _CORRELATION_MASK
        payload = write_request(api_key, version, correlation_id, self._client_id, message)
        self._expected.append(_Expected(correlation_id, api_key, version))
        return with_size(payload)

    def feed(self, data: bytes) -> None:
        """Take bytes that the broker sent."""
        if not self._received:
            self._received = data
            return
        if isinstance(self._received, bytes):
            self._received = bytearray(self._received)
        self._received += data

    def next_response(self) -> Message | None:
        """The oldest complete response; None if more bytes are needed.

        :raises MalformedMessageError: if the bytes are not the expected response. Close the connection.
        :raises FrameTooLargeError: if the broker announces more than RESPONSE_LIMIT. Close the connection.
        """
        received = self._received
        if len(received) < SIZE_PREFIX:
            return None
        end = SIZE_PREFIX + frame_size(bytes(received[:SIZE_PREFIX]), RESPONSE_LIMIT)
        if len(received) < end:
            return None
        frame = bytes(received[SIZE_PREFIX:end])
        self._received = received[end:]
        correlation_id = read_response_correlation(frame)
        if not self._expected or self._expected[0].correlation_id != correlation_id:
            raise MalformedMessageError(f"response with correlation id {correlation_id}, which was not asked for")
        _, api_key, version = self._expected.popleft()
        if api_key is ApiKey.API_VERSIONS and _refuses_version(frame):
            version = 0
        hot = read_hot_response(api_key, version, frame)
        if hot is not None:
            return hot
        response = read_response(api_key, version, frame)
        refuse_nulls(response, version)
        return response

    def learn_versions(self, response: Message) -> int | None:
        """Take the answer to ApiVersions. Returns None if the broker's versions are known now, otherwise the version in
        which to send ApiVersions again (KIP-511: a broker that lacks the version tells its own range in the v0 format).
        """
        offered = Versions.from_response(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            theirs = offered.ranges.get(ApiKey.API_VERSIONS, VersionRange(0, 0))
            return min(OPENING_VERSION - 1, theirs.highest)
        self.versions = offered
        return None


def _refuses_version(frame: bytes) -> bool:
    code = int.from_bytes(frame[_ERROR_CODE_AT : _ERROR_CODE_AT + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION
