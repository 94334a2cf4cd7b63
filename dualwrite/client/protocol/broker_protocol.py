"""The client's end of one connection from its first byte on, sans-I/O: opened first, then requests and their answers.

Opening is ApiVersions, repeated if the broker lacks its version, and SASL if it is configured (KIP-35, KIP-152).
The owner of the socket (``socket_connection.py``, ``asyncio_connection.py``) writes the bytes that these methods
return, and closes the connection after every error.
"""

from collections import deque
from collections.abc import Generator
from functools import cache
from typing import NamedTuple, Protocol

from dualwrite.client.protocol.messages import OPENING_VERSION, ClientProtocol
from dualwrite.client.terms.versions import NoCommonVersionError, Versions
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.version import __version__
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import MalformedMessageError
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.frames import FrameTooLargeError

_Opening = Generator[bytes, Message, None]
"""Yields the bytes of a request, and receives its answer by send()."""

_LAST_VERSION_ASKED = 2
"""ApiVersions is sent in our version, and then once in the broker's."""

_TLS_ALERT = b"\x15\x03"
"""How a TLS server answers bytes that are not TLS; read as a frame, the answer would be far too large."""

_WRONG_CREDENTIALS = frozenset({ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE})


class SaslMechanism(Protocol):
    """One SASL authentication; implemented in ``sasl.py``."""

    name: str
    """The mechanism's name, as in sasl.mechanism."""
    settings: str
    """The settings that provide its secret, for messages."""

    @property
    def is_done(self) -> bool:
        """True once there is nothing left to send, and the server has proved what the mechanism requires."""

    def next_message(self) -> bytes:
        """The next message to send."""

    def receive(self, answer: bytes) -> None:
        """Take the server's answer.

        :raises ValueError: if it is malformed, or does not prove that the server knows the secret.
        """


class Response(NamedTuple):
    """The answer to a request; ``tag`` is the request's."""

    tag: int
    message: Message


class BrokerProtocol:
    """One connection to one broker.

    Every method raises KafkaUnavailableError for malformed bytes. The caller must close the connection then: no request
    of it will be answered any more.

    :param broker: the broker's name in errors.
    :param client_id: the client.id that every request carries.
    :param mechanism: a fresh SASL authentication; None for a listener without SASL.
    """

    def __init__(self, broker: str, client_id: str, mechanism: SaslMechanism | None = None) -> None:
        self._broker = broker
        self._protocol = ClientProtocol(client_id)
        self._mechanism = mechanism
        self._opening = self._open()
        self._tags: deque[int] = deque()
        self.has_heard = False
        """True once the broker has answered a request."""
        self.is_open = False
        """True once requests may be sent."""
        self.session_lifetime: float | None = None
        """Seconds from the authentication in which the broker accepts requests (KIP-368); None for ever."""

    @property
    def versions(self) -> Versions:
        """The broker's versions; valid once the connection is open."""
        return self._protocol.versions

    @property
    def unanswered(self) -> int:
        """How many requests are unanswered."""
        return len(self._tags)

    @property
    def is_idle(self) -> bool:
        """True if the connection is open, and has no unanswered request."""
        return self.is_open and not self._tags

    def start(self) -> bytes:
        """The first bytes of a connection."""
        return next(self._opening)

    def advance(self, data: bytes) -> bytes:
        """Take bytes that the broker sent while the connection is being opened; return the bytes to write next.

        :raises KafkaUnavailableError: if the peer is not a Kafka broker, or refuses this client.
        :raises ConfigurationError: if TLS or SASL is missing or refused; correct the settings that the message names.
        """
        if not self.has_heard and data.startswith(_TLS_ALERT):
            raise ConfigurationError(f"broker {self._broker}: this listener uses TLS; see security.protocol")
        self.has_heard = True
        self._protocol.feed(data)
        outgoing = b""
        while (answer := self._next()) is not None:
            try:
                outgoing += self._opening.send(answer)
            except StopIteration:
                self.is_open = True
        return outgoing

    def send(self, tag: int, api_key: ApiKey, version: int, message: Message) -> bytes:
        """The bytes of the request ``message`` in ``version``; its answer comes back with ``tag``. Requests need not
        wait for answers to earlier ones: a broker answers in order."""
        self._tags.append(tag)
        return self._protocol.send(api_key, version, message)

    def receive(self, data: bytes) -> list[Response]:
        """Take bytes that the broker sent on an open connection; return the complete answers, in order."""
        self._protocol.feed(data)
        answers = []
        while (message := self._next()) is not None:
            answers.append(Response(self._tags.popleft(), message))
        return answers

    def _next(self) -> Message | None:
        try:
            return self._protocol.next_response()
        except (MalformedMessageError, FrameTooLargeError) as error:
            raise self._unavailable(str(error)) from error

    def _open(self) -> _Opening:
        yield from self._learn_versions()
        if self._mechanism is not None:
            yield from self._authenticate(self._mechanism)

    def _learn_versions(self) -> _Opening:
        message, version = _opening_request(), OPENING_VERSION
        for _ in range(_LAST_VERSION_ASKED):
            answer = yield self._protocol.send(ApiKey.API_VERSIONS, version, message)
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
                raise self._unavailable(f"ApiVersions: {error_name(answer.error_code)}")
            other = self._protocol.learn_versions(answer)
            if other is None:
                return
            version = other
        raise self._unavailable("agrees to no version of ApiVersions")

    def _authenticate(self, mechanism: SaslMechanism) -> _Opening:
        ask = APIS[ApiKey.SASL_HANDSHAKE].request(mechanism=mechanism.name)
        if ApiKey.SASL_HANDSHAKE not in self.versions.ranges:
            raise self._without_sasl()
        answer = yield self._ask(ApiKey.SASL_HANDSHAKE, 1, ask)
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._without_sasl()
        if answer.error_code:
            offered = ", ".join(answer.mechanisms)
            raise ConfigurationError(
                f"sasl.mechanism {mechanism.name}: broker {self._broker} offers {offered or 'none'}"
            )
        while not mechanism.is_done:
            ask = APIS[ApiKey.SASL_AUTHENTICATE].request(auth_bytes=mechanism.next_message())
            answer = yield self._ask(ApiKey.SASL_AUTHENTICATE, 0, ask)
            if answer.error_code:
                raise self._refused(mechanism, answer)
            try:
                mechanism.receive(answer.auth_bytes)
            except ValueError as error:
                raise ConfigurationError(f"broker {self._broker}: SASL {mechanism.name}: {error}") from error
            self.session_lifetime = answer.session_lifetime_ms / 1000 or None

    def _ask(self, api_key: ApiKey, floor: int, message: Message) -> bytes:
        try:
            return self._protocol.send(api_key, self._protocol.versions.of(api_key, floor), message)
        except NoCommonVersionError as error:
            raise self._unavailable(str(error)) from error

    def _refused(self, mechanism: SaslMechanism, answer: Message) -> Exception:
        reason = answer.error_message or error_name(answer.error_code)
        if answer.error_code in _WRONG_CREDENTIALS:
            return ConfigurationError(f"{mechanism.settings}: broker {self._broker}: {reason}")
        return self._unavailable(f"SASL {mechanism.name}: {reason}")

    def _without_sasl(self) -> ConfigurationError:
        return ConfigurationError(f"broker {self._broker}: there is no SASL at this listener; see security.protocol")

    def _unavailable(self, reason: str) -> KafkaUnavailableError:
        return KafkaUnavailableError(f"broker {self._broker}: {reason}")


@cache
def _opening_request() -> Message:
    """The ApiVersions request, which is the same for every connection."""
    return APIS[ApiKey.API_VERSIONS].request(client_software_name="dualwrite", client_software_version=__version__)
