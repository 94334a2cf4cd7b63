"""The server's side of SASL, as far as a client can observe it."""

import base64
import hashlib
import hmac
from typing import Any

from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.error_codes import ErrorCode


def handshake_answer(code: int = 0) -> Any:
    return APIS[ApiKey.SASL_HANDSHAKE].response(error_code=code, mechanisms=["PLAIN", "SCRAM-SHA-256"])


def sasl_answer(auth_bytes: bytes = b"", code: int = 0, reason: str | None = None, lifetime_ms: int = 0) -> Any:
    return APIS[ApiKey.SASL_AUTHENTICATE].response(
        error_code=int(code), error_message=reason, auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms
    )


class ScramServer:
    """RFC 5802's server side, for a user whose password is ``password``."""

    def __init__(self, password: str, hash_name: str) -> None:
        self._hash = hash_name
        self._salt, self._iterations = b"salt", 4096
        self._salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), self._salt, self._iterations)
        self._first = ""
        self.authenticated = False

    def first(self, message: Any) -> Any:
        bare = message.auth_bytes.decode().removeprefix("n,,")
        nonce = dict(part.split("=", 1) for part in bare.split(","))["r"] + "server"
        answer = f"r={nonce},s={base64.b64encode(self._salt).decode()},i={self._iterations}"
        self._first = f"{bare},{answer}"
        return sasl_answer(answer.encode())

    def final(self, message: Any) -> Any:
        without_proof, _, proof = message.auth_bytes.decode().rpartition(",p=")
        auth = f"{self._first},{without_proof}".encode()
        client_key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), auth)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            return sasl_answer(code=ErrorCode.SASL_AUTHENTICATION_FAILED, reason="invalid credentials")
        self.authenticated = True
        verifier = self._hmac(self._hmac(self._salted, b"Server Key"), auth)
        return sasl_answer(b"v=" + base64.b64encode(verifier))

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()
