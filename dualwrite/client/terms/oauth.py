"""The token of SASL OAUTHBEARER from confluent-kafka's ``oauth_cb``: fetched when it is needed, and kept while it is
valid."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dualwrite.errors import ConfigurationError, KafkaUnavailableError

_KEPT_FOR = 0.8
"""The part of a token's lifetime after which it is renewed, as in librdkafka."""

_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7E \t\r\n]+")
_RESERVED = "auth"
_MOST_BITS = 64
"""Of an expiry: larger integers have no place among floats."""


class Token(NamedTuple):
    """One token.

    :param value: the token that is sent to the broker (RFC 6750).
    :param expires_at: in seconds since the epoch.
    :param extensions: sent beside it (KIP-342).
    """

    value: str
    expires_at: float
    extensions: Mapping[str, str]


class TokenSource:
    """Provides the token for authentications. All connections of a client share one source.

    :param callback: ``oauth_cb``: takes ``config``, returns (token, expiry in seconds since the epoch[, principal,
        extensions]). The principal is not sent: the broker finds it in the token.
    :param config: ``sasl.oauthbearer.config``.
    """

    def __init__(self, callback: Callable[[str], Any], config: str = "") -> None:
        self._callback = callback
        self._config = config
        self._token: Token | None = None
        self._renewed_at = 0.0

    def token(self, now: float) -> Token:
        """A token that is valid at ``now``, in seconds since the epoch.

        :raises KafkaUnavailableError: if the callback fails; its error is the cause.
        :raises ConfigurationError: if it returns anything but a valid token.
        """
        kept = self._token
        if kept is not None and now < self._renewed_at:
            return kept
        try:
            result = self._callback(self._config)
        except Exception as error:
            if kept is not None and now < kept.expires_at:
                return kept
            raise KafkaUnavailableError(f"oauth_cb: {type(error).__name__}: {error}") from error
        fresh = _checked(result, now)
        self._token = fresh  # first: another thread must not take the one before for renewed
        self._renewed_at = now + _KEPT_FOR * (fresh.expires_at - now)
        return fresh


def _checked(result: Any, now: float) -> Token:
    """``result`` as a token. Error messages never contain it."""
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4:
        raise ConfigurationError(
            f"oauth_cb gave a value of type {type(result).__name__}: allowed: (token, expiry in seconds since the epoch"
            "[, principal, extensions])"
        )
    value, expires_at = result[0], result[1]
    extensions = result[3] if len(result) > 3 else {}
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ConfigurationError("oauth_cb gave a token with characters that a bearer token cannot have (RFC 6750)")
    if isinstance(expires_at, int) and expires_at.bit_length() > _MOST_BITS:
        raise ConfigurationError(
            f"oauth_cb gave a token with an expiry of more than {_MOST_BITS} bits: allowed: seconds after {now:.0f}"
        )
    if not isinstance(expires_at, int | float) or not expires_at > now:
        raise ConfigurationError(
            f"oauth_cb gave a token with the expiry {expires_at!r}: allowed: seconds after {now:.0f}"
        )
    if not isinstance(extensions, dict):
        raise ConfigurationError(f"oauth_cb gave extensions of type {type(extensions).__name__}: allowed: a dict")
    for name, content in extensions.items():
        if not _NAME.fullmatch(str(name)) or name == _RESERVED:
            raise ConfigurationError(f"oauth_cb gave the extension {name!r}: allowed: letters, and not {_RESERVED!r}")
        if not isinstance(content, str) or not _VALUE.fullmatch(content):
            raise ConfigurationError(f"oauth_cb gave the extension {name!r} a value that is no printable text")
    return Token(value, float(expires_at), extensions)
