"""The results of a SASL mechanism for a token of the client."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol


class DenialKind(Enum):
    """Why an authentication failed, for the metrics. A wrong password and an unknown user are one kind, because metrics
    must not reveal which users exist."""

    CREDENTIALS = "credentials"
    TOKEN = "token"  # noqa: S105  not a password
    MALFORMED = "malformed"
    IDENTITY = "identity"
    MECHANISM = "mechanism"


class Challenge(NamedTuple):
    """The exchange goes on: the client must answer ``message``.

    ``user`` is the user that the client claims to be, once it has said so. ``refusal`` is the reason, for the log, why
    the exchange will fail after that answer; not every client sends it.
    """

    message: bytes
    user: str | None = None
    refusal: str | None = None


class Granted(NamedTuple):
    """The client is ``user``. The server's last ``message`` goes with the answer.

    ``expires_at_ms`` is the end of the client's token, in milliseconds since the epoch, or None.
    """

    user: str
    message: bytes = b""
    expires_at_ms: int | None = None


class Denied(NamedTuple):
    """The authentication failed.

    ``reason`` is only for the broker's log; empty if it is already there. ``message`` is for the client; None stands
    for Kafka's usual message, which must not reveal whether the user exists. ``kind`` is for the metrics.
    """

    reason: str
    message: str | None = None
    user: str | None = None
    kind: DenialKind = DenialKind.MALFORMED


Verdict = Challenge | Granted | Denied
Work = Callable[[], Verdict]
"""A check that takes long or waits: not for the event loop's thread."""


class Mechanism(Protocol):
    """The server's side of one exchange of a SASL mechanism."""

    def respond(self, token: bytes) -> Verdict | Work:
        """What follows from the client's ``token``, or the work that finds it out."""
