"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), by the library scramp.

As in Kafka: no channel binding, no authorization identity, and the user's name counts as the client sent it, without
SASLprep. Extensions that change the meaning (``tokenauth``, of delegation tokens) are refused.
Source: Kafka's ScramSaslServer.
"""

from scramp import ScramException, ScramMechanism
from scramp.core import ScramServer

from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash, UserCredentials
from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Verdict

_NAME = "n="
_WRONG = "wrong password, or no such user"


class ScramExchange:
    """One exchange.

    :param credentials: the credentials of all users.
    :param nonce: the server's part of the nonce: printable ASCII characters without a comma, new for each exchange.
    """

    def __init__(self, scram: ScramHash, credentials: UserCredentials, nonce: str) -> None:
        self._scram = scram
        self._credentials = credentials
        self._user = ""
        self._server: ScramServer = ScramMechanism(scram.mechanism).make_server(self._look_up, s_nonce=nonce)
        self._is_first = True

    def respond(self, token: bytes) -> Verdict:
        """What follows from the client's ``token``."""
        try:
            message = token.decode()
            if self._is_first:
                self._is_first = False
                self._user = _user_in(message)
                self._server.set_client_first(message)
                return Challenge(self._server.get_server_first().encode(), self._user)
            self._server.set_client_final(message)
            return Granted(self._user, self._server.get_server_final().encode())
        except UnicodeDecodeError:
            return Denied("its message is not UTF-8", user=self._user or None)
        except ScramException as error:
            reason = _reason(error)
            kind = DenialKind.CREDENTIALS if reason is _WRONG else DenialKind.MALFORMED
            return Denied(reason, user=self._user or None, kind=kind)

    def _look_up(self, prepared_name: str) -> tuple[bytes, bytes, bytes, int]:
        """The credential of the user in the form that the library wants. ``prepared_name`` has passed SASLprep, which
        Kafka does not apply: it is not used."""
        credential: ScramCredential = self._credentials.to_authenticate(self._user, self._scram)
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations


def _user_in(client_first: str) -> str:
    """The user's name in the client's first message; empty if the message is malformed, which the library reports."""
    for attribute in client_first.split(",")[2:]:
        if attribute.startswith(_NAME):
            return attribute.removeprefix(_NAME).replace("=2C", ",").replace("=3D", "=")
    return ""


def _reason(error: ScramException) -> str:
    """Why the library ended the exchange. The text says which message was wrong, and has no secret."""
    if "client keys don't match" in str(error):
        return _WRONG
    return str(error.args[0]) if error.args else "invalid message"
