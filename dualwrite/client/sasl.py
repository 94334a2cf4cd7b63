"""SASL for the control plane: PLAIN (RFC 4616) and SCRAM (RFC 5802), by kafka-python's mechanisms."""

from typing import Any

from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram

from dualwrite.client.settings import SaslSettings


class Mechanism:
    """One authentication: messages to send and answers to take, until it is done."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

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
    config = {
        "sasl_mechanism": settings.mechanism,
        "sasl_plain_username": settings.username,
        "sasl_plain_password": settings.password,
    }
    return Mechanism(SaslMechanismPlain(**config) if settings.mechanism == "PLAIN" else SaslMechanismScram(**config))
