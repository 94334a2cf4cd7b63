"""SASL: PLAIN (RFC 4616) and SCRAM (RFC 5802), by kafka-python's mechanisms."""

from typing import Any

from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram

from dualwrite.client.settings import SaslSettings


class Mechanism:
    """One authentication: messages to send and answers to take, until it is done."""

    def __init__(self, inner: Any, name: str, settings: str) -> None:
        self._inner = inner
        self.name = name
        self.settings = settings

    @property
    def is_done(self) -> bool:
        """True once nothing is left to send, and the server has proved what the mechanism asks of it."""
        return bool(self._inner.is_done())

    def next_message(self) -> bytes:
        """What to send now."""
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


def make_mechanism(settings: SaslSettings) -> Mechanism:
    """The mechanism that ``settings`` name."""
    inner = SaslMechanismPlain if settings.mechanism == "PLAIN" else SaslMechanismScram
    username = settings.username if settings.mechanism == "PLAIN" else _saslname(settings.username)
    made = inner(sasl_mechanism=settings.mechanism, sasl_plain_username=username, sasl_plain_password=settings.password)
    return Mechanism(made, settings.mechanism, "sasl.username and sasl.password")


def _saslname(username: str) -> str:
    """``username`` as SCRAM sends it, where '=' and ',' have a meaning of their own (RFC 5802, section 5.1)."""
    return username.replace("=", "=3D").replace(",", "=2C")
