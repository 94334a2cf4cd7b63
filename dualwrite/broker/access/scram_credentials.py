"""The credentials of users: the values that the broker stores instead of passwords (RFC 5802, section 3; KIP-554).

A client that knows only these values cannot log in with SCRAM. But with a copy of them passwords can be guessed
offline, so they appear in no log line, no error message and no ``repr``.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
"""The iterations that a credential may have (Kafka: ScramMechanism.minIterations, ScramControlManager)."""
DEFAULT_ITERATIONS = 8192
LEAST_SALT_BYTES = 12
"""A shorter salt is refused, as the library of the SCRAM exchange does. Kafka's clients send 16 bytes and more."""
SALT_BYTES = 32
"""The salts that this project makes."""


class ScramHash(IntEnum):
    """The SCRAM mechanisms, with the numbers of KIP-554 (Kafka: ScramMechanism)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def mechanism(self) -> str:
        """The name of the SASL mechanism."""
        return f"SCRAM-SHA-{self.digest.removeprefix('sha')}"

    @property
    def digest(self) -> str:
        """The name of the hash function, for hashlib."""
        return "sha256" if self is ScramHash.SHA_256 else "sha512"


MECHANISMS: Mapping[str, ScramHash] = {scram.mechanism: scram for scram in ScramHash}
"""The SCRAM mechanisms by their names in SASL."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """One credential of a user. Its ``repr`` has no secret."""

    scram: ScramHash
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted_password(
        cls, scram: ScramHash, iterations: int, salt: bytes, salted_password: bytes
    ) -> "ScramCredential":
        """The credential of a password that a client has already salted (KIP-554)."""
        client_key = hmac.digest(salted_password, b"Client Key", scram.digest)
        stored_key = hashlib.new(scram.digest, client_key).digest()
        return cls(scram, iterations, salt, stored_key, hmac.digest(salted_password, b"Server Key", scram.digest))

    @classmethod
    def of_password(cls, scram: ScramHash, iterations: int, salt: bytes, password: bytes) -> "ScramCredential":
        """The credential of ``password``, which Kafka's clients use as UTF-8 and without SASLprep.

        This takes milliseconds: not for the event loop's thread.
        """
        return cls.of_salted_password(scram, iterations, salt, salted_password(scram, iterations, salt, password))

    def matches(self, password: bytes) -> bool:
        """True if this is the credential of ``password``. The time does not depend on where they differ.

        This takes milliseconds: not for the event loop's thread.
        """
        of_password = ScramCredential.of_password(self.scram, self.iterations, self.salt, password)
        return hmac.compare_digest(of_password.stored_key, self.stored_key)


def salted_password(scram: ScramHash, iterations: int, salt: bytes, password: bytes) -> bytes:
    """What KIP-554 sends instead of ``password``. This takes milliseconds."""
    return hashlib.pbkdf2_hmac(scram.digest, password, salt, iterations)


@dataclass(slots=True, repr=False)
class UserCredentials:
    """The credentials of all users. The names of users are compared as they are, as in Kafka."""

    decoy_secret: bytes = b""
    """The key of the decoys. It is stored, so that a decoy is the same after a restart."""
    _by_user: dict[str, dict[ScramHash, ScramCredential]] = field(default_factory=dict)
    _forms: dict[ScramHash, Counter[tuple[int, int]]] = field(
        default_factory=lambda: {scram: Counter() for scram in ScramHash}
    )

    def get(self, user: str, scram: ScramHash) -> ScramCredential | None:
        """The credential of ``user``, or None."""
        return self._by_user.get(user, {}).get(scram)

    def of(self, user: str) -> Mapping[ScramHash, ScramCredential]:
        """All credentials of ``user``; empty if there is no such user."""
        return self._by_user.get(user, {})

    def users(self) -> Iterator[str]:
        """The names of all users with a credential."""
        return iter(self._by_user)

    def put(self, user: str, credential: ScramCredential) -> None:
        """Set the credential of ``user`` for its mechanism."""
        self.discard(user, credential.scram)
        self._by_user.setdefault(user, {})[credential.scram] = credential
        self._forms[credential.scram][credential.iterations, len(credential.salt)] += 1

    def discard(self, user: str, scram: ScramHash) -> bool:
        """Remove the credential of ``user`` for ``scram``; False if there is none."""
        credentials = self._by_user.get(user, {})
        credential = credentials.pop(scram, None)
        if credential is None:
            return False
        if not credentials:
            del self._by_user[user]
        forms, form = self._forms[scram], (credential.iterations, len(credential.salt))
        forms[form] -= 1
        if not forms[form]:
            del forms[form]
        return True

    def to_authenticate(self, user: str, scram: ScramHash) -> ScramCredential:
        """The credential of ``user`` for an exchange, or a decoy that no password matches.

        The decoy looks and costs like the most usual credential, and is the same each time. So a client cannot find out
        which users exist. (Kafka refuses an unknown user earlier than a wrong password.)
        """
        decoy = self._decoy(user, scram)  # also for a user that exists: the time must not tell
        return self.get(user, scram) or decoy

    def for_password(self, user: str) -> ScramCredential:
        """The credential against which a password of ``user`` is checked, or a decoy."""
        has_strong = self._forms[ScramHash.SHA_512] or not self._forms[ScramHash.SHA_256]
        decoy = self._decoy(user, ScramHash.SHA_512 if has_strong else ScramHash.SHA_256)
        credentials = self.of(user)
        for scram in (ScramHash.SHA_512, ScramHash.SHA_256):
            if scram in credentials:
                return credentials[scram]
        return decoy

    def _decoy(self, user: str, scram: ScramHash) -> ScramCredential:
        usual = self._forms[scram].most_common(1)
        iterations, size = usual[0][0] if usual else (DEFAULT_ITERATIONS, SALT_BYTES)

        def derive(purpose: bytes, length: int) -> bytes:
            seed = hmac.digest(self.decoy_secret, scram.digest.encode() + purpose + user.encode(), "sha256")
            return hashlib.shake_256(seed).digest(length)

        key_bytes = hashlib.new(scram.digest).digest_size
        return ScramCredential(
            scram, iterations, derive(b"/salt/", size), derive(b"/key/", key_bytes), derive(b"/server/", key_bytes)
        )
