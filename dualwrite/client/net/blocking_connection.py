"""One blocking connection to one broker for the control plane: opened, then used for one request at a time."""

import selectors
import time
from collections.abc import Callable

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.socket_connection import SocketConnection, context_of
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import AnswerLostError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message

_ONLY_TAG = 0


class BlockingConnection:
    """A connection after ApiVersions (and SASL, if it is configured). Not thread-safe.

    After any error but KafkaRefusedError, the connection is closed, and the caller must open a new one.

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
        self._link = SocketConnection(endpoint, settings, context_of(settings), clock())
        try:
            while not self._link.node.is_open:
                due = self._link.due
                assert due is not None, "a connection that is not open has a deadline"
                if self._wait_until(due):
                    self._link.advance(clock())
                else:
                    self._link.expire(clock())
        except BaseException:
            self.close()
            raise

    @property
    def versions(self) -> Versions:
        """The broker's versions, from when the connection was opened."""
        return self._link.node.versions

    def is_usable(self) -> bool:
        """False if the connection is closed, its authentication has expired (KIP-368), or the broker has hung up since
        the last answer, as only that makes an idle connection readable. A request that is sent on such a connection is
        lost without being carried out."""
        due = self._link.due
        if self._link.fileno() < 0 or (due is not None and self._clock() >= due):
            return False
        return not self._is_ready(selectors.EVENT_READ, 0)

    def request(self, call: VersionedRequest, *, timeout: float | None = None) -> Message:
        """Send a request in the highest of its versions that both sides share; return the answer.

        :param timeout: seconds to wait for the answer, at most socket.timeout.ms.
        :raises KafkaRefusedError: UNSUPPORTED_VERSION if there is no such version; nothing was sent.
        :raises TwoPhaseCommitUnavailableError: the same, if two-phase commit was requested.
        :raises AnswerLostError: if the answer did not come, or was malformed. The request may have been carried out.
        """
        version = call.version_at(self.endpoint, self.versions)
        limit = self._settings.request_timeout if timeout is None else min(timeout, self._settings.request_timeout)
        try:
            return self._exchange(call.api_key, version, call.message, limit)
        except KafkaUnavailableError as error:
            self.close()
            raise AnswerLostError(f"{call.api_key.name}: {error}") from error
        except BaseException:
            self.close()  # after an interrupt, the next answer would belong to this request
            raise

    def offers(self, api_key: ApiKey, version: int) -> bool:
        """True if the broker advertised ``version`` of ``api_key``."""
        return self.versions.offers(api_key, version)

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self._link.close()

    def _exchange(self, api_key: ApiKey, version: int, message: Message, timeout: float) -> Message:
        deadline = self._clock() + timeout
        self._link.send(_ONLY_TAG, api_key, version, message)
        while True:
            if not self._wait_until(deadline):
                raise KafkaUnavailableError(f"broker {self.endpoint}: timed out")
            answers = self._link.advance(self._clock())
            if answers:
                return answers[0].message

    def _wait_until(self, deadline: float) -> bool:
        """False if the link cannot proceed before ``deadline``."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.wants_write else 0)
        return self._is_ready(events, max(deadline - self._clock(), 0))

    def _is_ready(self, events: int, timeout: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, events)
            return bool(selector.select(timeout))
