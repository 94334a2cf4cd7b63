"""Makes the authentication of each listener with SASL from its settings. It imports the libraries of the mechanisms
only where they are enabled: a start must be quick."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dualwrite.broker.access.sasl_session import SaslTerms
from dualwrite.broker.access.scram_credentials import MECHANISMS, UserCredentials
from dualwrite.broker.access.verdicts import Mechanism
from dualwrite.broker.authentication import Authentication
from dualwrite.broker.clients.listeners import Listener, SecurityProtocol, is_loopback
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.listening import BoundListener
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.settings.listener_settings import ListenerValues
from dualwrite.broker.settings.sasl_settings import (
    ALLOW_UNSECURED,
    CLOCK_SKEW_SECONDS,
    ENABLED_MECHANISMS,
    EXPECTED_AUDIENCE,
    EXPECTED_ISSUER,
    FAILURE_DELAY_MS,
    JWKS_REFRESH_MS,
    JWKS_URL,
    MAX_REAUTH_MS,
    MAX_RECEIVE_SIZE,
    OAUTHBEARER,
    PLAIN,
    SCOPE_CLAIM,
    USER_CLAIM,
)
from dualwrite.errors import ConfigurationError
from dualwrite.ports import Clock, Entropy

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from dualwrite.broker.token_keys import TokenKeys, TokenVerifier

_NONCE_BYTES = 24
_MOST_FAILURES = 10
"""The most failed authentications that are logged in a second."""


class SaslListeners:
    """The listeners with SASL.

    :param options: the broker's settings.
    :param credentials: the users' credentials, which change while the broker runs.
    :param clock: the time.
    :param entropy: randomness that is fit for secrets.
    :raises ConfigurationError: if a listener's settings contradict each other, or a file of keys cannot be used.
    """

    def __init__(
        self,
        bound: Sequence[BoundListener],
        options: BrokerOptions,
        credentials: UserCredentials,
        clock: Clock,
        entropy: Entropy,
        meters: Meters,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._entropy = entropy
        self._keys: dict[str, tuple[TokenKeys, int]] = {}
        self.authentications: dict[str, Authentication] = {}
        """The authentication of each listener with SASL, by the listener's name."""
        log = LimitedLog(logger, _MOST_FAILURES, clock.monotonic)
        delay = options.number(FAILURE_DELAY_MS) / 1000
        for listener, sock, _ in bound:
            if listener.protocol.is_sasl:
                values = options.for_listener(listener.name)
                terms = self._terms(listener, values)
                self.authentications[listener.name] = Authentication(terms, clock, delay, log, meters)
                self._warn_of_readable(listener, sock.getsockname()[0], terms.mechanisms)
        mechanisms = {
            name for authentication in self.authentications.values() for name in authentication.terms.mechanisms
        }
        if mechanisms - {OAUTHBEARER} and not any(credentials.users()):
            logger.warning("no user has a credential yet: create one with dualwrite broker users set")

    def refreshes(self) -> Iterator[tuple[Callable[[], Awaitable[None]], int]]:
        """The periodic tasks, each with its interval in milliseconds."""
        for keys, interval_ms in self._keys.values():
            yield partial(asyncio.to_thread, keys.refresh), interval_ms

    def close(self) -> None:
        """Check no more passwords, and wait for no keys."""
        for keys, _ in self._keys.values():
            keys.close()
        for authentication in self.authentications.values():
            authentication.close()

    def _terms(self, listener: Listener, values: ListenerValues) -> SaslTerms:
        names = values.items(ENABLED_MECHANISMS)
        mechanisms = {name: self._factory(name, listener, values) for name in names}
        reauth_ms = values.number(MAX_REAUTH_MS)
        return SaslTerms(mechanisms, dict.fromkeys(names, reauth_ms), values.number(MAX_RECEIVE_SIZE))

    def _factory(self, name: str, listener: Listener, values: ListenerValues) -> Callable[[], Mechanism]:
        credentials, entropy = self._credentials, self._entropy
        if name == PLAIN:
            from dualwrite.broker.access.plain import PlainExchange

            return lambda: PlainExchange(credentials)
        if name == OAUTHBEARER:
            from dualwrite.broker.access.oauthbearer import OAuthBearerExchange

            verifier = self._verifier(listener, values)
            return lambda: OAuthBearerExchange(verifier)
        from dualwrite.broker.access.scram import ScramExchange

        return lambda: ScramExchange(MECHANISMS[name], credentials, entropy.random_bytes(_NONCE_BYTES).hex())

    def _verifier(self, listener: Listener, values: ListenerValues) -> "TokenVerifier":
        from dualwrite.broker.access.oauth_tokens import TokenRules
        from dualwrite.broker.token_keys import TokenVerifier

        url, allows_unsecured = values.text(JWKS_URL), values.value(ALLOW_UNSECURED) is True
        if url is None and not allows_unsecured:
            raise ConfigurationError(
                f"listener {listener.name} has {OAUTHBEARER} in {ENABLED_MECHANISMS}, but no keys for its tokens: set"
                f" {JWKS_URL}"
            )
        if allows_unsecured:
            logger.warning("listener %s accepts tokens without a signature: any client can be any user", listener.name)
        rules = TokenRules(
            tuple(values.items(EXPECTED_AUDIENCE)),
            values.text(EXPECTED_ISSUER),
            values.text(USER_CLAIM) or "",
            values.text(SCOPE_CLAIM) or "",
            values.number(CLOCK_SKEW_SECONDS) * 1000,
            allows_unsecured,
        )
        return TokenVerifier(rules, None if url is None else self._keys_at(url, values), self._clock)

    def _keys_at(self, url: str, values: ListenerValues) -> "TokenKeys":
        """The keys at ``url``, which listeners share."""
        from dualwrite.broker.token_keys import TokenKeys

        if url not in self._keys:
            keys = TokenKeys(url, self._clock)
            keys.load()
            self._keys[url] = (keys, values.number(JWKS_REFRESH_MS))
        return self._keys[url][0]

    @staticmethod
    def _warn_of_readable(listener: Listener, host: str, mechanisms: Mapping[str, object]) -> None:
        """Warn of mechanisms whose secrets everybody on the network can read."""
        readable = [name for name in mechanisms if name in (PLAIN, OAUTHBEARER)]
        if readable and listener.protocol is SecurityProtocol.SASL_PLAINTEXT and not is_loopback(host):
            logger.warning(
                "listener %s sends passwords and tokens unencrypted (%s over SASL_PLAINTEXT): use SASL_SSL, or SCRAM",
                listener.name,
                ", ".join(readable),
            )
