"""What every connection begins with, ApiVersions, encoded and decoded once: else it takes a fifth of a run's time.

The first connection of each broker process asks the broker's own handler. Later ones get the bytes of that answer,
which is the same for all, with their own correlation id. The client encodes the request and decodes the same answer
once.
"""

from dualwrite.client.protocol import messages
from dualwrite.client.terms.versions import Versions
from dualwrite.wire.apis import ApiKey, Message

_KEY_AT, _CORRELATION_AT = slice(4, 6), slice(8, 12)
_API_VERSIONS = int(ApiKey.API_VERSIONS).to_bytes(2, "big")


class OpeningAnswers:
    """The answers of one broker process to ApiVersions, by the bytes of the request."""

    def __init__(self) -> None:
        self._answers: dict[bytes, bytes] = {}

    @staticmethod
    def is_opening(data: bytes) -> bool:
        """True if the request ``data`` is ApiVersions."""
        return data[_KEY_AT] == _API_VERSIONS

    def keep(self, request: bytes, answer: bytes) -> None:
        """Remember the broker's ``answer`` to ``request``."""
        self._answers[_without_correlation(request)] = answer

    def answer_to(self, request: bytes) -> bytes | None:
        """The answer, if the broker has given it before."""
        answer = self._answers.get(_without_correlation(request))
        if answer is None:
            return None
        return answer[:4] + request[_CORRELATION_AT] + answer[8:]


def _without_correlation(request: bytes) -> bytes:
    return request[:8] + request[12:]


_read_response, _write_request, _refuse_nulls = messages.read_response, messages.write_request, messages.refuse_nulls
_decoded: dict[tuple[int, bytes], Message] = {}
_encoded: dict[tuple[int, int, str], bytes] = {}
_offered: dict[int, Versions] = {}
"""id() of a message in _decoded -> its versions."""


def write_request_once(api_key: ApiKey, version: int, correlation_id: int, client_id: str, request: Message) -> bytes:
    """In place of ``write_request`` in the client: encodes the same request for ApiVersions once."""
    if api_key is not ApiKey.API_VERSIONS:
        return _write_request(api_key, version, correlation_id, client_id, request)
    key = version, correlation_id, client_id
    if key not in _encoded:
        _encoded[key] = _write_request(api_key, version, correlation_id, client_id, request)
    return _encoded[key]


def read_response_once(api_key: ApiKey, version: int, frame: bytes) -> Message:
    """In place of ``read_response`` in the client: decodes the same answer to ApiVersions once."""
    if api_key is not ApiKey.API_VERSIONS:
        return _read_response(api_key, version, frame)
    key = version, frame[4:]
    if key not in _decoded:
        _decoded[key] = answer = _read_response(api_key, version, frame)
        _refuse_nulls(answer, version)
        _offered[id(answer)] = Versions.from_response(answer)
    return _decoded[key]


def refuse_nulls_once(message: Message, version: int) -> None:
    """In place of ``refuse_nulls`` in the client."""
    if id(message) not in _offered:
        _refuse_nulls(message, version)


class KnownVersions:
    """In place of ``Versions`` in the client's protocol."""

    @staticmethod
    def from_response(response: Message) -> Versions:
        """The versions in an answer to ApiVersions."""
        known = _offered.get(id(response))
        return Versions.from_response(response) if known is None else known


def share_openings() -> None:
    """Let the client encode ApiVersions and decode each answer to it once, in this Python process."""
    messages.read_response = read_response_once  # for this module has no port for pure functions
    messages.write_request = write_request_once
    messages.refuse_nulls = refuse_nulls_once
    messages.Versions = KnownVersions  # type: ignore[assignment,misc]
