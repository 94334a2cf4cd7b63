"""One blocking connection to one broker: socket, TLS, SASL, ApiVersions, then one request at a time."""

import select
import socket
import ssl
import time
from collections.abc import Callable

from dualwrite.client.endpoint import Endpoint
from dualwrite.client.protocol import OPENING_VERSION, ClientProtocol
from dualwrite.client.sasl import make_mechanism
from dualwrite.client.settings import ClientSettings
from dualwrite.client.tls import ssl_context
from dualwrite.client.versions import NoCommonVersionError
from dualwrite.errors import ConfigurationError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.version import __version__
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import MalformedMessageError
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.frames import FrameTooLargeError

_READ_SIZE = 64 * 1024


class AnswerLostError(KafkaUnavailableError):
    """A request was sent and its answer never came: the broker may or may not have carried it out. Ask the broker what
    is the case before the request is repeated, unless repeating it changes nothing."""


class BrokerConnection:
    """A connection on which ApiVersions (and SASL, if it is configured) is done. Not thread-safe.

    After any error but KafkaRefusedError the connection is closed and a new one must be opened.

    :param endpoint: the broker.
    :param settings: how to reach it.
    :param clock: monotonic seconds.
    :raises KafkaUnavailableError: if the broker cannot be reached, or is no Kafka broker.
    :raises ConfigurationError: if TLS or SASL is refused; correct the settings that the message names.
    """

    def __init__(
        self, endpoint: Endpoint, settings: ClientSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._clock = clock
        self._protocol = ClientProtocol(settings.client_id)
        self._socket = self._connect()
        try:
            self._negotiate()
            if settings.sasl is not None:
                self._authenticate()
        except AnswerLostError as error:
            raise KafkaUnavailableError(str(error)) from error  # no request of the caller's was sent
        except BaseException:
            self.close()
            raise

    def is_usable(self) -> bool:
        """False if the connection is closed, or the broker has hung up since the last answer: nothing else makes an
        idle connection readable. A request that is sent on it all the same would be lost without being carried out."""
        if self._socket.fileno() < 0:
            return False
        idle = select.poll()
        idle.register(self._socket, select.POLLIN)
        return not idle.poll(0)

    def request(
        self, api_key: ApiKey, message: Message, *, floor: int = 0, cap: int | None = None, timeout: float | None = None
    ) -> Message:
        """Ask ``message`` in the highest version that both sides share, from ``floor`` to ``cap``; return the answer.

        :param timeout: seconds to wait for the answer, at most socket.timeout.ms.
        :raises KafkaRefusedError: UNSUPPORTED_VERSION if no such version is shared; nothing was sent.
        :raises AnswerLostError: if the answer did not come, or made no sense. The request may have been carried out.
        """
        try:
            version = self._protocol.versions.of(api_key, floor, cap)
        except NoCommonVersionError as error:
            code = ErrorCode.UNSUPPORTED_VERSION
            raise KafkaRefusedError(f"broker {self.endpoint}: {error}", code, code.name) from error
        limit = self._settings.request_timeout if timeout is None else min(timeout, self._settings.request_timeout)
        return self._exchange(api_key, version, message, limit)

    def offers(self, api_key: ApiKey, version: int) -> bool:
        """True if the broker advertised ``version`` of ``api_key``."""
        try:
            return self._protocol.versions.of(api_key, floor=version, cap=version) == version
        except NoCommonVersionError:
            return False

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self._socket.close()

    def _connect(self) -> socket.socket:
        try:
            plain = socket.create_connection(self.endpoint, timeout=self._settings.connect_timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise KafkaUnavailableError(f"broker {self.endpoint}: {_reason(error)}") from error
        if self._settings.tls is None:
            return plain
        try:
            return ssl_context(self._settings.tls).wrap_socket(plain, server_hostname=self.endpoint.host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise ConfigurationError(
                f"broker {self.endpoint}: its certificate is not trusted: {error.verify_message};"
                " see ssl.ca.location and ssl.endpoint.identification.algorithm"
            ) from error
        except OSError as error:
            plain.close()
            raise KafkaUnavailableError(f"broker {self.endpoint}: TLS: {_reason(error)}") from error
        except ConfigurationError:
            plain.close()
            raise

    def _negotiate(self) -> None:
        request = APIS[ApiKey.API_VERSIONS].request
        message = request(client_software_name="dualwrite", client_software_version=__version__)
        version: int | None = OPENING_VERSION
        for _ in range(2):
            if version is None:
                return
            response = self._exchange(ApiKey.API_VERSIONS, version, message, self._settings.connect_timeout)
            version = self._protocol.learn_versions(response)
        if version is not None:
            raise KafkaUnavailableError(f"broker {self.endpoint}: agrees to no version of ApiVersions")

    def _authenticate(self) -> None:
        assert self._settings.sasl is not None
        name = self._settings.sasl.mechanism
        handshake = APIS[ApiKey.SASL_HANDSHAKE].request(mechanism=name)
        answer = self.request(ApiKey.SASL_HANDSHAKE, handshake, floor=1)
        if answer.error_code:
            offered = ", ".join(answer.mechanisms)
            raise ConfigurationError(f"sasl.mechanism {name}: broker {self.endpoint} offers {offered or 'none'}")
        mechanism = make_mechanism(self._settings.sasl)
        while not mechanism.is_done:
            ask = APIS[ApiKey.SASL_AUTHENTICATE].request(auth_bytes=mechanism.next_message())
            answer = self.request(ApiKey.SASL_AUTHENTICATE, ask)
            if answer.error_code:
                reason = answer.error_message or error_name(answer.error_code)
                raise ConfigurationError(f"sasl.username and sasl.password: broker {self.endpoint}: {reason}")
            try:
                mechanism.receive(answer.auth_bytes)
            except ValueError as error:
                raise ConfigurationError(f"broker {self.endpoint}: SASL {name}: {error}") from error

    def _exchange(self, api_key: ApiKey, version: int, message: Message, timeout: float) -> Message:
        deadline = self._clock() + timeout
        outgoing = self._protocol.send(api_key, version, message)
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(outgoing)
            while (response := self._protocol.next_response()) is None:
                self._socket.settimeout(max(deadline - self._clock(), 0.001))
                received = self._socket.recv(_READ_SIZE)
                if not received:
                    raise ConnectionError("the broker closed the connection")
                self._protocol.feed(received)
        except (OSError, MalformedMessageError, FrameTooLargeError) as error:
            self.close()
            raise AnswerLostError(f"broker {self.endpoint}: {api_key.name}: {_reason(error)}") from error
        except BaseException:
            self.close()  # interrupted in the middle: the next answer would be this request's
            raise
        return response


def _reason(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "timed out"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
