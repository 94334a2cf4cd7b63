"""PLAIN (RFC 4616): the client sends its password, which is checked against the user's SCRAM credential.

So PLAIN needs no second list of users, and the broker stores no password (Redpanda does the same; Kafka reads
passwords from its JAAS configuration). Source of the messages: Kafka's PlainSaslServer.
"""

from dualwrite.broker.access.scram_credentials import UserCredentials
from dualwrite.broker.access.verdicts import DenialKind, Denied, Granted, Verdict, Work

_PARTS = 3
_MOST_PASSWORD_BYTES = 1024
"""Longer passwords are refused unread."""
_WRONG = "Authentication failed: Invalid username or password"


class PlainExchange:
    """One exchange: one token.

    :param credentials: the credentials of all users.
    """

    def __init__(self, credentials: UserCredentials) -> None:
        self._credentials = credentials

    def respond(self, token: bytes) -> Verdict | Work:
        """The check of the password in ``token``; or the refusal of a malformed token."""
        parts = token.split(b"\0")
        if len(parts) != _PARTS:
            return _refused(f"Invalid SASL/PLAIN response: expected {_PARTS} tokens, got {min(len(parts), 4)}")
        try:
            authorization_id, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            return _refused("Authentication failed: username is not UTF-8")
        password = parts[2]
        if not user:
            return _refused("Authentication failed: username not specified")
        if not password:
            return _refused("Authentication failed: password not specified", user)
        if len(password) > _MOST_PASSWORD_BYTES:
            return _refused("Authentication failed: password is too long", user)
        credential = self._credentials.for_password(user)

        def check() -> Verdict:
            if not credential.matches(password):
                return Denied("wrong password, or no such user", _WRONG, user, DenialKind.CREDENTIALS)
            if authorization_id not in ("", user):
                return _refused(
                    "Authentication failed: Client requested an authorization id that is different from username",
                    user,
                    DenialKind.IDENTITY,
                )
            return Granted(user)

        return check


def _refused(message: str, user: str | None = None, kind: DenialKind = DenialKind.MALFORMED) -> Denied:
    return Denied(message.removeprefix("Authentication failed: "), message, user, kind)
