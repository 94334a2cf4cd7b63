"""Facts about users' credentials, stored in the journal of the cluster. Their values are secrets (see ``access``)."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash


@dataclass(frozen=True, slots=True)
class ScramCredentialSet:
    """The credential of ``user`` for one mechanism was created or changed."""

    user: str
    credential: ScramCredential


@dataclass(frozen=True, slots=True)
class ScramCredentialDeleted:
    """The credential of ``user`` for one mechanism was deleted. On disk this is a tombstone."""

    user: str
    scram: ScramHash


@dataclass(frozen=True, slots=True)
class DecoySecretCreated:
    """The key for the decoy credentials of users that do not exist, created before the first credential."""

    secret: bytes = field(repr=False)


CredentialFact = ScramCredentialSet | ScramCredentialDeleted | DecoySecretCreated

DECOY_KIND, SCRAM_KIND = "decoy-secret", "scram"
"""The kinds of these facts: the beginning of their records' keys."""


def encode_credential(fact: CredentialFact) -> tuple[bytes, Mapping[str, object] | None]:
    """The key of the record that stores ``fact``, and its value before it becomes JSON; None for a tombstone."""
    if isinstance(fact, DecoySecretCreated):
        return DECOY_KIND.encode(), {"secret": _text(fact.secret)}
    if isinstance(fact, ScramCredentialDeleted):
        return _key(fact.user, fact.scram), None
    credential = fact.credential
    body = {
        "iterations": credential.iterations,
        "salt": _text(credential.salt),
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }
    return _key(fact.user, credential.scram), body


def decode_credential(name: str, body: Mapping[str, Any] | None) -> ScramCredentialSet | ScramCredentialDeleted:
    """The fact of a record of kind ``scram``, whose key goes on with ``name``.

    :raises ValueError: if it is not such a record. The message has no secret.
    :raises KeyError: if ``body`` lacks a value.
    """
    number, _, user = name.partition(":")
    scram = ScramHash(int(number))
    if body is None:
        return ScramCredentialDeleted(user, scram)
    salt, stored_key, server_key = (decode_secret(body[field]) for field in ("salt", "stored_key", "server_key"))
    return ScramCredentialSet(user, ScramCredential(scram, body["iterations"], salt, stored_key, server_key))


def decode_secret(text: str) -> bytes:
    """The bytes of ``text``.

    :raises ValueError: if it is not in base64. The message has no secret.
    """
    return base64.b64decode(text, validate=True)


def _text(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def _key(user: str, scram: ScramHash) -> bytes:
    return f"{SCRAM_KIND}:{int(scram)}:{user}".encode()
