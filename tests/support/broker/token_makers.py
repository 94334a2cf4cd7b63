"""Makes access tokens, and the JWK Sets that verify them."""

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

SECOND_MS = 1_700_000_000


@cache
def private_key(kind: str) -> Any:
    """A key pair: ``RSA``, ``EC`` or ``OKP``; a digit behind it makes it another one."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, 2048)
    if kind.startswith("EC"):
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(kind: str, key_id: str | None = "key", **more: str) -> dict[str, Any]:
    """The public key of a pair as a JWK."""
    algorithm: Any = {"R": RSAAlgorithm, "E": ECAlgorithm, "O": OKPAlgorithm}[kind[0]]
    jwk = json.loads(algorithm.to_jwk(private_key(kind).public_key()))
    if key_id is not None:
        jwk["kid"] = key_id
    return {**jwk, **more}


def token(kind: str = "RSA", algorithm: str = "RS256", key_id: str | None = "key", **claims: object) -> str:
    """A token of user ann, valid for an hour. A claim of None is left out."""
    every: dict[str, object] = {"sub": "ann", "iat": SECOND_MS, "exp": SECOND_MS + 3600, **claims}
    payload = {name: value for name, value in every.items() if value is not None}
    headers = {} if key_id is None else {"kid": key_id}
    if algorithm == "none":
        return jwt.encode(payload, "", algorithm="none", headers=headers)
    key = b"k" * 64 if algorithm.startswith("HS") else private_key(kind)
    return jwt.encode(payload, key, algorithm=algorithm, headers=headers)
