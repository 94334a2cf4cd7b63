"""Decides over the changes of users' credentials, and answers questions about them (KIP-554).

Source: Kafka's ScramControlManager and ScramImage, whose error codes and messages these are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dualwrite.broker.access.scram_credentials import (
    LEAST_ITERATIONS,
    LEAST_SALT_BYTES,
    MOST_ITERATIONS,
    ScramCredential,
    ScramHash,
    UserCredentials,
)
from dualwrite.broker.facts.credentials import ScramCredentialDeleted, ScramCredentialSet
from dualwrite.wire.error_codes import ErrorCode

_TWICE = "A user credential cannot be altered twice in the same request"


@dataclass(frozen=True, slots=True)
class DeleteCredential:
    """A request to delete the credential of ``user`` for the mechanism with the number ``mechanism``."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class SetCredential:
    """A request to create or change a credential. The client has salted the password already."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


CredentialChange = DeleteCredential | SetCredential


class CredentialResult(NamedTuple):
    """The answer about one user."""

    user: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribedUser(NamedTuple):
    """The credentials of one user: mechanism and iterations of each; or an error."""

    user: str
    credentials: tuple[tuple[ScramHash, int], ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_changes(
    changes: Iterable[CredentialChange], known: UserCredentials
) -> tuple[list[CredentialResult], list[ScramCredentialSet | ScramCredentialDeleted]]:
    """The result of each user, and the facts of the changes that are allowed.

    A user that occurs twice is not changed at all, whichever mechanisms the changes are for.
    """
    changes = list(changes)
    times = Counter(change.user for change in changes)
    results: dict[str, CredentialResult] = {}
    facts: list[ScramCredentialSet | ScramCredentialDeleted] = []
    for change in changes:
        user = change.user
        if user in results:
            continue
        error, message = _check(change, known)
        if error is ErrorCode.NONE and times[user] > 1:
            error, message = ErrorCode.DUPLICATE_RESOURCE, _TWICE
        results[user] = CredentialResult(user, error, message)
        if error is ErrorCode.NONE:
            facts.append(_fact(change))
    return list(results.values()), facts


def describe_users(users: Sequence[str] | None, known: UserCredentials) -> Iterator[DescribedUser]:
    """The credentials of ``users``, without secrets; of all users if it is None or empty."""
    times = Counter(users or known.users())
    for user, count in times.items():
        if count > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            yield DescribedUser(user, error=ErrorCode.DUPLICATE_RESOURCE, message=message)
            continue
        credentials = known.of(user)
        if credentials:
            yield DescribedUser(user, tuple((scram, credentials[scram].iterations) for scram in sorted(credentials)))
        else:
            message = f"Attempt to describe a user credential that does not exist: {user}"
            yield DescribedUser(user, error=ErrorCode.RESOURCE_NOT_FOUND, message=message)


def _check(change: CredentialChange, known: UserCredentials) -> tuple[ErrorCode, str | None]:
    if not change.user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if change.mechanism not in tuple(ScramHash):
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, DeleteCredential):
        if known.get(change.user, ScramHash(change.mechanism)) is None:
            return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    elif change.iterations < LEAST_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    elif change.iterations > MOST_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    elif len(change.salt) < LEAST_SALT_BYTES:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The salt must have at least {LEAST_SALT_BYTES} bytes"
    return ErrorCode.NONE, None


def _fact(change: CredentialChange) -> ScramCredentialSet | ScramCredentialDeleted:
    scram = ScramHash(change.mechanism)
    if isinstance(change, DeleteCredential):
        return ScramCredentialDeleted(change.user, scram)
    credential = ScramCredential.of_salted_password(scram, change.iterations, change.salt, change.salted_password)
    return ScramCredentialSet(change.user, credential)
