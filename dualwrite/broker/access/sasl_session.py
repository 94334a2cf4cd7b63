"""The authentication of one connection: which requests the client may send, and which user it is.

    VERSIONS ── ApiVersions ──> HANDSHAKE ── SaslHandshake ──> TOKENS ── SaslAuthenticate, last token ──> OPEN
       └────────────────────── SaslHandshake ────────────────────┘          OPEN ── SaslHandshake ──> TOKENS

From OPEN a SaslHandshake begins a re-authentication (KIP-368), if sessions end and the last one did not begin less than
a second ago. A session that has ended takes no other request. Source: Kafka's SaslServerAuthenticator, KafkaChannel.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Mechanism, Verdict, Work
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

_LEAST_SECONDS_BETWEEN = 1.0
"""The least time between two re-authentications (Kafka: MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""


class SaslStateError(ConnectionError):
    """The client sent a request that it may not send before it has authenticated. The broker ends the connection."""


class SessionEndedError(ConnectionError):
    """The session has ended, and the client did not authenticate again. The broker closes the connection."""


class SaslTerms(NamedTuple):
    """How clients authenticate on a listener.

    :param mechanisms: sasl.enabled.mechanisms: makes the server's side of an exchange, by the mechanism's name.
    :param most_reauth_ms: connections.max.reauth.ms, by the mechanism's name; 0 for sessions that do not end.
    :param most_token_bytes: sasl.server.max.receive.size.
    """

    mechanisms: Mapping[str, Callable[[], Mechanism]]
    most_reauth_ms: Mapping[str, int] = {}
    most_token_bytes: int = 524288


class SaslFailure(NamedTuple):
    """Why an authentication failed, for the log; the reason is empty if it was logged before. The user is the claimed
    one, if the client named one."""

    mechanism: str
    reason: str
    user: str | None = None
    kind: DenialKind = DenialKind.MALFORMED


class SaslAnswer(NamedTuple):
    """The answer to a SaslAuthenticate request.

    :param failure: the reason for which the broker closes the connection after this answer; None if it does not.
    :param refusal: the reason of a refusal that the client must still acknowledge before the broker closes.
    """

    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    failure: SaslFailure | None = None
    refusal: SaslFailure | None = None


class _Phase(Enum):
    VERSIONS = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    TOKENS = "SaslAuthenticate"
    OPEN = "any request"
    FAILED = "nothing"


class SaslSession:
    """The authentication of one connection. Every method belongs to the event loop's thread."""

    def __init__(self, terms: SaslTerms) -> None:
        self._terms = terms
        self._phase = _Phase.VERSIONS
        self._mechanism = ""
        self._exchange: Mechanism | None = None
        self._has_headers = True
        self._claimed: str | None = None
        self._user: str | None = None
        self._bound_mechanism = ""
        self._ends_at: float | None = None
        self._reauthenticated_at = -_LEAST_SECONDS_BETWEEN

    @property
    def user(self) -> str | None:
        """The authenticated user; None before."""
        return self._user

    @property
    def mechanism(self) -> str:
        """The mechanism that the client has chosen last; empty before."""
        return self._mechanism

    @property
    def is_open(self) -> bool:
        """True if the client has authenticated and is not doing so again."""
        return self._phase is _Phase.OPEN

    @property
    def wants_raw_token(self) -> bool:
        """True if the next frame is a token without a header, after a SaslHandshake of v0."""
        return self._phase is _Phase.TOKENS and not self._has_headers

    def admits(self, key: int, monotonic: float) -> bool:
        """True if the request with the API key ``key`` is for a handler, False if it is for this session.

        :param monotonic: the time in monotonic seconds.
        :raises SaslStateError: if the client may not send it now.
        :raises SessionEndedError: if the session is over.
        """
        if self._phase is _Phase.OPEN:
            return not self._begins_again(key, monotonic)
        if key == ApiKey.API_VERSIONS and self._phase is _Phase.VERSIONS:
            return True
        if key == ApiKey.SASL_HANDSHAKE and self._phase in (_Phase.VERSIONS, _Phase.HANDSHAKE):
            return False
        if key == ApiKey.SASL_AUTHENTICATE and self._phase is _Phase.TOKENS:
            return False
        raise SaslStateError(
            f"it sent {_name(key)} before it has authenticated, where {self._phase.value} is expected"
            "; does the client have the right security.protocol and sasl.mechanism?"
        )

    def versions_answered(self) -> None:
        """ApiVersions was answered without an error: the client may not ask for it again."""
        if self._phase is _Phase.VERSIONS:
            self._phase = _Phase.HANDSHAKE

    def choose(self, mechanism: str, has_headers: bool) -> tuple[ErrorCode, SaslFailure | None]:
        """Begin an exchange of ``mechanism``: the error code for SaslHandshake, and the failure if there is one.

        :param has_headers: whether the tokens come in SaslAuthenticate, from v1 of SaslHandshake on.
        """
        make = self._terms.mechanisms.get(mechanism)
        if make is None:
            self._phase = _Phase.FAILED
            enabled = ", ".join(self._terms.mechanisms)
            reason = f"the mechanism is not enabled; enabled are {enabled}"
            failure = SaslFailure(mechanism[:40], reason, kind=DenialKind.MECHANISM)
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, failure
        self._mechanism, self._has_headers, self._claimed = mechanism, has_headers, None
        self._exchange, self._phase = make(), _Phase.TOKENS
        return ErrorCode.NONE, None

    def take(self, token: bytes) -> Verdict | Work:
        """What the mechanism says about ``token``. The caller runs work in a thread, then calls :meth:`settle`."""
        assert self._exchange is not None, "an exchange has begun"
        if len(token) > self._terms.most_token_bytes:
            return Denied(f"a token of {len(token)} bytes; sasl.server.max.receive.size allows fewer")
        if self._user is not None and self._mechanism != self._bound_mechanism:
            message = (
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for re-authentication of"
                f" mechanism '{self._bound_mechanism}'"
            )
            return Denied(message, message, kind=DenialKind.MECHANISM)
        return self._exchange.respond(token)

    def settle(self, verdict: Verdict, wall_ms: int, monotonic: float) -> SaslAnswer:
        """The answer to the client after ``verdict``.

        :param wall_ms: the time in milliseconds since the epoch.
        :param monotonic: the time in monotonic seconds.
        """
        if isinstance(verdict, Challenge):
            self._claimed = verdict.user or self._claimed
            if verdict.refusal is None:
                return SaslAnswer(verdict.message)
            refusal = SaslFailure(self._mechanism, verdict.refusal, self._claimed, DenialKind.TOKEN)
            return SaslAnswer(verdict.message, refusal=refusal)
        if isinstance(verdict, Granted) and self._user not in (None, verdict.user):
            verdict = Denied(
                f"the principal changed from {self._user!r}",
                f"Cannot change principals during re-authentication from User.{self._user}: User.{verdict.user}",
                verdict.user,
                DenialKind.IDENTITY,
            )
        if isinstance(verdict, Denied):
            return self._fail(verdict)
        lifetime_ms = self._lifetime_ms(verdict, wall_ms)
        self._ends_at = None if lifetime_ms is None else monotonic + lifetime_ms / 1000
        self._user, self._bound_mechanism = verdict.user, self._mechanism
        self._exchange, self._phase = None, _Phase.OPEN
        return SaslAnswer(verdict.message, lifetime_ms or 0)

    def _begins_again(self, key: int, monotonic: float) -> bool:
        """True if the request begins a re-authentication."""
        if self._ends_at is None:
            return False
        if key == ApiKey.SASL_HANDSHAKE and monotonic - self._reauthenticated_at >= _LEAST_SECONDS_BETWEEN:
            self._reauthenticated_at = monotonic
            self._phase = _Phase.HANDSHAKE
            return True
        if monotonic > self._ends_at:
            raise SessionEndedError(
                f"the session of {self._user!r} has ended, and the client did not authenticate again"
            )
        return False

    def _fail(self, denied: Denied) -> SaslAnswer:
        self._phase, self._exchange = _Phase.FAILED, None
        during = "authentication" if self._user is None else "re-authentication"
        usual = f"Authentication failed during {during} due to invalid credentials with SASL mechanism "
        failure = SaslFailure(self._mechanism, denied.reason, denied.user or self._claimed, denied.kind)
        message = denied.message or usual + self._mechanism
        return SaslAnswer(error=ErrorCode.SASL_AUTHENTICATION_FAILED, message=message, failure=failure)

    def _lifetime_ms(self, granted: Granted, wall_ms: int) -> int | None:
        """How long the session lasts, in milliseconds; None if it does not end."""
        limits = [] if granted.expires_at_ms is None else [max(0, granted.expires_at_ms - wall_ms)]
        most_reauth_ms = self._terms.most_reauth_ms.get(self._mechanism, 0)
        if most_reauth_ms > 0:
            limits.append(most_reauth_ms)
        return min(limits, default=None)


def _name(key: int) -> str:
    try:
        return ApiKey(key).name
    except ValueError:
        return f"API key {key}"
