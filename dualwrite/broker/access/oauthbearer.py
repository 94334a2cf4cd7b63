"""OAUTHBEARER (RFC 7628; KIP-255): the client sends an access token.

After a token that is not accepted the server sends an error in JSON, the client answers one byte, and only then the
authentication fails. Source: Kafka's OAuthBearerSaslServer and OAuthBearerClientInitialResponse.
"""

import re
from collections.abc import Callable

from dualwrite.broker.access.oauth_tokens import InvalidTokenError, ValidToken
from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Verdict, Work

_SASLNAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_FIRST = re.compile(rf"n,(?:a=(?P<authzid>{_SASLNAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_ACKNOWLEDGEMENT = b"\x01"
_ERROR = '{"status":"invalid_token"}'

CheckToken = Callable[[str], ValidToken]
"""Checks an access token; raises :class:`InvalidTokenError`."""


class OAuthBearerExchange:
    """One exchange.

    :param check: checks a token. It may wait for the keys of the tokens' issuer, so it runs in a thread.
    """

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._is_refused = False

    def respond(self, token: bytes) -> Verdict | Work:
        """What follows from the client's ``token``."""
        if self._is_refused:
            reason = "" if token == _ACKNOWLEDGEMENT else "no answer to the refusal of its token"
            return Denied(reason, None if reason else _ERROR, kind=DenialKind.TOKEN)
        message = _FIRST.fullmatch(token.decode("latin-1"))  # a match is ASCII
        if message is None:
            return Denied("malformed first message")
        pairs = dict(pair.split("=", 1) for pair in message["pairs"].split("\x01") if pair)
        auth = _AUTH.fullmatch(pairs.get("auth", ""))
        if auth is None or auth["scheme"].lower() != "bearer":
            return Denied("malformed first message: no Bearer token")
        access_token = auth["token"]
        authorization_id = (message["authzid"] or "").replace("=2C", ",").replace("=3D", "=")

        def check() -> Verdict:
            try:
                valid = self._check(access_token)
            except InvalidTokenError as error:
                self._is_refused = True
                return Challenge(_ERROR.encode(), refusal=f"invalid token: {error}")
            if authorization_id not in ("", valid.user):
                return Denied(
                    "authorization id differs from the token's user",
                    f"Authentication failed: Client requested an authorization id ({authorization_id}) that is"
                    f" different from the token's principal name ({valid.user})",
                    valid.user,
                    DenialKind.IDENTITY,
                )
            return Granted(valid.user, expires_at_ms=valid.expires_at_ms)

        return check
