"""SASL on the connections of a listener: the pure session, with the threads, the delays and the log that it needs."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from dualwrite.broker.access.sasl_session import SaslAnswer, SaslFailure, SaslSession, SaslTerms
from dualwrite.broker.clients.shown_text import one_line, shown
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.broker.runtime.meters import Meters
from dualwrite.ports import Clock
from dualwrite.wire.apis import ApiKey, Message, SaslAuthenticateResponse, SaslHandshakeResponse

_THREADS = 2
"""Passwords are checked on so many threads. A flood of logins cannot take all processors, nor the threads that decode
requests."""
_UNSUPPORTED = "unsupported"
"""The name of all mechanisms that are not enabled, in the metrics: clients may send any text."""


class Authentication:
    """How clients authenticate on one listener; the connections share it.

    :param failure_delay: connection.failed.authentication.delay.ms, in seconds.
    :param log: gets a line for each failure, as long as there are not too many.
    """

    def __init__(self, terms: SaslTerms, clock: Clock, failure_delay: float, log: LimitedLog, meters: Meters) -> None:
        self.terms = terms
        self.clock = clock
        self.failure_delay = failure_delay
        self.log = log
        self.meters = meters
        self.threads = ThreadPoolExecutor(_THREADS, "authentication")

    def begin(self, address: str) -> "ClientAuthentication":
        """The authentication of a new connection from ``address``."""
        return ClientAuthentication(self, address)

    def close(self) -> None:
        """Wait for no thread: the broker stops."""
        self.threads.shutdown(wait=False, cancel_futures=True)


class ClientAuthentication:
    """The authentication of one connection. A failure is answered after a delay, which slows down guessing."""

    def __init__(self, shared: Authentication, address: str) -> None:
        self.session = SaslSession(shared.terms)
        self.has_failed = False
        self._is_refused = False
        """True if its token was refused, which is counted; the client may still acknowledge that."""
        self._shared = shared
        self._address = address

    def is_for_handler(self, key: int) -> bool:
        """True if the request is for a handler, False if it belongs to the authentication.

        :raises SaslStateError: if the client may not send it now.
        :raises SessionEndedError: if the session is over.
        """
        return self.session.admits(key, self._shared.clock.monotonic())

    @property
    def principal(self) -> str | None:
        """The principal of the client; None before it has authenticated."""
        return None if self.session.user is None else f"User:{self.session.user}"

    async def answer(self, key: ApiKey, request: Message, version: int) -> Message:
        """The answer to a SaslHandshake or a SaslAuthenticate. After a failure, ``has_failed`` is true, and the
        connection must be closed."""
        if key is ApiKey.SASL_HANDSHAKE:
            error, failure = self.session.choose(request.mechanism, has_headers=version > 0)
            if failure is not None:
                await self._fail(_UNSUPPORTED, failure)
            return SaslHandshakeResponse(error_code=error, mechanisms=list(self._shared.terms.mechanisms))
        answer = await self._take(bytes(request.auth_bytes))
        return SaslAuthenticateResponse(
            error_code=answer.error,
            error_message=answer.message,
            auth_bytes=answer.auth_bytes,
            session_lifetime_ms=answer.session_lifetime_ms,
        )

    async def answer_raw(self, token: bytes) -> bytes | None:
        """The answer to a token without a header; None after a failure."""
        answer = await self._take(token)
        return None if answer.failure is not None else answer.auth_bytes

    def refuse(self, reason: Exception) -> None:
        """Log why the connection is closed, which is not a wrong password."""
        self._shared.log.warn(f"closing the connection of {self._address}: {reason}")

    async def _take(self, token: bytes) -> SaslAnswer:
        verdict = self.session.take(token)
        if callable(verdict):
            verdict = await asyncio.get_running_loop().run_in_executor(self._shared.threads, verdict)
        clock = self._shared.clock
        answer = self.session.settle(verdict, clock.wall_ms(), clock.monotonic())
        if answer.refusal is not None:
            self._count(answer.refusal.mechanism, answer.refusal)
            self._is_refused = True
            self._log(answer.refusal)
        if answer.failure is not None:
            await self._fail(answer.failure.mechanism, answer.failure)
        elif self.session.is_open:
            self._shared.meters.authentications[self.session.mechanism, True] += 1
        return answer

    async def _fail(self, mechanism: str, failure: SaslFailure) -> None:
        self.has_failed = True
        if not self._is_refused:
            self._count(mechanism, failure)
        if failure.reason:
            self._log(failure)
        await asyncio.sleep(self._shared.failure_delay)

    def _count(self, mechanism: str, failure: SaslFailure) -> None:
        self._shared.meters.authentications[mechanism, False] += 1
        self._shared.meters.failed_authentications[mechanism, failure.kind.value] += 1

    def _log(self, failure: SaslFailure) -> None:
        user = "" if failure.user is None else f", user {shown(failure.user)}"
        what = f"{one_line(failure.mechanism)}{user}: {failure.reason}"
        self._shared.log.warn(f"authentication of {self._address} failed: {what}")
