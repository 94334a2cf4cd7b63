"""What every connection begins with, ApiVersions, encoded and decoded once: else it takes a fifth of a run's time.

The first connection of each broker process asks the broker's own handler. Later ones get the bytes of that answer,
which is the same for all, with their own correlation id. The client decodes the same bytes once.
"""

from dualwrite.client.protocol import messages
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


_read_response = messages.read_response
_decoded: dict[tuple[int, bytes], Message] = {}


def read_response_once(api_key: ApiKey, version: int, frame: bytes) -> Message:
    """In place of ``read_response`` in the client: decodes the same answer to ApiVersions once."""
    if api_key is not ApiKey.API_VERSIONS:
        return _read_response(api_key, version, frame)
    key = version, frame[4:]
    if key not in _decoded:
        _decoded[key] = _read_response(api_key, version, frame)
    return _decoded[key]


def share_openings() -> None:
    """Let the client decode each answer to ApiVersions once, in this Python process."""
    messages.read_response = read_response_once  # for this module has no port for pure functions
