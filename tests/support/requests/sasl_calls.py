"""Authentication by hand over a raw connection, and brokers whose listeners ask for it."""

import base64
import json
import time
from pathlib import Path

from scramp import ScramClient

from dualwrite.broker.access.scram_credentials import MECHANISMS, ScramHash
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.offline_users import open_users
from dualwrite.wire.apis import (
    ApiVersionsRequest,
    Message,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.raw_client import RawClient

ALICE, BOB = "alice", "al=i,ce bob ü"
PASSWORD = "pa,ss=wörd"
SASL, OPEN = "SASL_PLAINTEXT", "PLAINTEXT"
EVERY_MECHANISM = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER"
CONFIG = {
    "listeners": f"{OPEN}://127.0.0.1:0,{SASL}://127.0.0.1:0",
    "sasl.enabled.mechanisms": EVERY_MECHANISM,
    "sasl.oauthbearer.unsecured.tokens.allow": "true",
    "connection.failed.authentication.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}
VERSIONS = ApiVersionsRequest(client_software_name="tests", client_software_version="1")


def add_users(data_dir: Path, iterations: int = 4096) -> None:
    """Create the users, each with both mechanisms."""
    with open_users(data_dir, create=True) as users:
        for user in (ALICE, BOB):
            users.put(user, list(ScramHash), iterations, PASSWORD.encode())


def sasl_broker(data_dir: Path, *, allow_anonymous: bool = False, **config: str) -> EmbeddedBroker:
    """A broker with users and two listeners: an open one, and one with SASL. Its failures are answered at once.

    :param config: further settings; underscores stand for dots.
    """
    add_users(data_dir)
    named = {name.replace("_", "."): value for name, value in config.items()}
    return ForkedBroker(data_dir, config={**CONFIG, **named}, allow_anonymous=allow_anonymous)


def log_of(broker: EmbeddedBroker) -> str:
    """The broker's log."""
    return (broker.data_dir / "broker.log").read_text()


def unsecured_token(user: str = ALICE, lifetime: float = 3600) -> str:
    """An access token without a signature."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + lifetime})
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join([*texts, ""])


def handshake(client: RawClient, mechanism: str, version: int = 1) -> Message:
    """The answer to a SaslHandshake."""
    return client.ask(SaslHandshakeRequest(mechanism=mechanism), version)


def send_token(client: RawClient, token: bytes, version: int = 2) -> Message:
    """The answer to a SaslAuthenticate."""
    return client.ask(SaslAuthenticateRequest(auth_bytes=token), version)


def tokens(mechanism: str, user: str, password: str) -> "Tokens":
    """The client's side of an exchange."""
    return Tokens(mechanism, user, password)


class Tokens:
    """The tokens of a client, one after another; for OAUTHBEARER the password is the access token."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._scram = ScramClient([mechanism], user, password) if mechanism in MECHANISMS else None
        self.first = {
            "PLAIN": f"\0{user}\0{password}".encode(),
            "OAUTHBEARER": f"n,,\x01auth=Bearer {password}\x01\x01".encode(),
        }.get(mechanism, b"")
        if self._scram is not None:
            self.first = self._scram.get_client_first().encode()

    def second(self, challenge: bytes) -> bytes | None:
        """The answer to the server's challenge, if there is one."""
        if self._scram is None:
            return b"\x01" if challenge else None
        self._scram.set_server_first(challenge.decode())
        return self._scram.get_client_final().encode()


def log_in(client: RawClient, mechanism: str = "SCRAM-SHA-256", user: str = ALICE, password: str = PASSWORD) -> Message:
    """Authenticate; the last answer."""
    assert handshake(client, mechanism).error_code == ErrorCode.NONE
    exchange = tokens(mechanism, user, password)
    answer = send_token(client, exchange.first)
    if answer.error_code == ErrorCode.NONE:
        token = exchange.second(answer.auth_bytes)
        if token is not None:
            answer = send_token(client, token)
    return answer
