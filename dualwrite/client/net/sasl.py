"""SASL: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628), by kafka-python's mechanisms."""

import time
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram

from dualwrite.client.config.settings import SaslSettings
from dualwrite.client.terms.oauth import Token, TokenSource


class KafkaMechanism:
    """One authentication: it gives messages and takes answers until it is done."""

    def __init__(self, inner: Any, name: str, settings: str) -> None:
        self._inner = inner
        self.name = name
        self.settings = settings

    @property
    def is_done(self) -> bool:
        """True once there is nothing left to send, and the server has proved what the mechanism requires."""
        return bool(self._inner.is_done())

    def next_message(self) -> bytes:
        """The next message to send."""
        message: bytes = self._inner.auth_bytes()
        return message

    def receive(self, answer: bytes) -> None:
        """Take the server's answer.

        :raises ValueError: if it is malformed, or does not prove that the server knows the password.
        """
        try:
            self._inner.receive(answer)
        except KeyError as error:
            raise ValueError(f"answer without {error}: {answer!r}") from error
        if self.is_done and not self._inner.is_authenticated():
            raise ValueError("the broker's answer was not the one expected")


def make_mechanism(settings: SaslSettings) -> KafkaMechanism:
    """The mechanism that ``settings`` name."""
    if settings.tokens is not None:
        provider = _Provider(settings.tokens)
        return KafkaMechanism(SaslMechanismOAuth(sasl_oauth_token_provider=provider), settings.mechanism, "oauth_cb")
    inner = _Plain if settings.mechanism == "PLAIN" else SaslMechanismScram
    username = settings.username if settings.mechanism == "PLAIN" else _saslname(settings.username)
    made = inner(sasl_mechanism=settings.mechanism, sasl_plain_username=username, sasl_plain_password=settings.password)
    return KafkaMechanism(made, settings.mechanism, "sasl.username and sasl.password")


class _Plain(SaslMechanismPlain):  # type: ignore[misc]  # kafka-python ships no types
    """PLAIN as in librdkafka and Java: without the optional authorization identity, which means the same."""

    def auth_bytes(self) -> bytes:
        """kafka-python's message, without the authorization identity at its beginning."""
        message: bytes = super().auth_bytes()
        return message[len(self.username.encode()) :]


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python ships no types
    """The token of one authentication, fetched when it is to be sent."""

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self._source = source
        self._token: Token | None = None

    def token(self) -> str:
        """The text after ``Bearer``; the mechanism reads it first."""
        self._token = self._source.token(time.time())
        return self._token.value

    def extensions(self) -> dict[str, str]:
        """The extensions beside the token."""
        return {} if self._token is None else dict(self._token.extensions)


def _saslname(username: str) -> str:
    """``username`` as SCRAM sends it: '=' and ',' are escaped (RFC 5802, section 5.1)."""
    return username.replace("=", "=3D").replace(",", "=2C")
