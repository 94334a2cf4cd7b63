"""Alter- and DescribeUserScramCredentials without a broker: who is changed, and what is answered (KIP-554)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.scram_credentials import ScramHash, UserCredentials
from dualwrite.broker.core.credential_changes import (
    CredentialChange,
    DeleteCredential,
    SetCredential,
    decide_changes,
    describe_users,
)
from dualwrite.broker.facts.credentials import ScramCredentialDeleted, ScramCredentialSet
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.scram_clients import SALT, users

TWICE = "A user credential cannot be altered twice in the same request"
UNACCEPTABLE, UNSUPPORTED = ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.UNSUPPORTED_SASL_MECHANISM


def put(user: str = "ann", mechanism: int = 1, iterations: int = 4096, salt: bytes = SALT) -> SetCredential:
    return SetCredential(user, mechanism, iterations, salt, b"salted password")


def result_of(change: CredentialChange, known: UserCredentials | None = None) -> tuple[ErrorCode, str | None]:
    (result,), facts = decide_changes([change], known or users(ann="x"))
    assert bool(facts) == (result.error is ErrorCode.NONE)
    return result.error, result.message


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (put(""), UNACCEPTABLE, "Username must not be empty"),
        (put(mechanism=0), UNSUPPORTED, "Unknown SCRAM mechanism"),
        (put(mechanism=3), UNSUPPORTED, "Unknown SCRAM mechanism"),
        (put(mechanism=-1), UNSUPPORTED, "Unknown SCRAM mechanism"),
        (put(iterations=4095), UNACCEPTABLE, "Too few iterations"),
        (put(iterations=16385), UNACCEPTABLE, "Too many iterations"),
        (put(salt=bytes(11)), UNACCEPTABLE, "The salt must have at least 12 bytes"),
        (DeleteCredential("", 1), UNACCEPTABLE, "Username must not be empty"),
        (DeleteCredential("ann", 9), UNSUPPORTED, "Unknown SCRAM mechanism"),
        (
            DeleteCredential("bob", 1),
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (DeleteCredential("ann", 2), ErrorCode.NONE, None),
        (put(iterations=16384), ErrorCode.NONE, None),
        (put("ü ,=", salt=bytes(12)), ErrorCode.NONE, None),
    ],
)
def test_a_change_is_checked_as_in_kafka(change: CredentialChange, error: ErrorCode, message: str | None) -> None:
    assert result_of(change) == (error, message)


@pytest.mark.parametrize(
    "changes",
    [
        [put(), put()],
        [put(mechanism=1), put(mechanism=2)],
        [DeleteCredential("ann", 1), put(mechanism=2)],
        [DeleteCredential("ann", 1), DeleteCredential("ann", 2)],
        [put(), put(), put()],
        [put(), put(iterations=1)],
    ],
)
def test_a_user_that_occurs_twice_is_not_changed(changes: list[CredentialChange]) -> None:
    results, facts = decide_changes([*changes, put("bob")], users(ann="x"))
    assert [(result.user, result.error, result.message) for result in results] == [
        ("ann", ErrorCode.DUPLICATE_RESOURCE, TWICE),
        ("bob", ErrorCode.NONE, None),
    ]
    assert [fact.user for fact in facts] == ["bob"]


def test_the_first_error_of_a_user_that_occurs_twice_remains() -> None:
    results, facts = decide_changes([put(iterations=1), put()], UserCredentials())
    assert [result.message for result in results] == ["Too few iterations"]
    assert not facts


def test_the_facts_have_what_follows_from_the_salted_password_and_not_itself() -> None:
    _, (fact,) = decide_changes([put(mechanism=2)], UserCredentials())
    assert isinstance(fact, ScramCredentialSet)
    credential = fact.credential
    assert (credential.scram, credential.iterations, credential.salt) == (ScramHash.SHA_512, 4096, SALT)
    assert b"salted password" not in (credential.stored_key, credential.server_key)
    assert decide_changes([DeleteCredential("ann", 1)], users(ann="x"))[1] == [
        ScramCredentialDeleted("ann", ScramHash.SHA_256)
    ]


def test_a_request_shows_no_secret() -> None:
    shown = repr(SetCredential("ann", 1, 4096, b"SALT", b"SALTED"))
    assert "ann" in shown
    assert "SALT" not in shown


@pytest.mark.slow
@given(
    st.lists(
        st.builds(put, st.sampled_from(["", "ann", "bob", "cy"]), st.integers(0, 3), st.sampled_from([1, 4096, 99999]))
        | st.builds(DeleteCredential, st.sampled_from(["", "ann", "bob"]), st.integers(0, 3)),
        max_size=6,
    )
)
def test_every_user_is_answered_once_and_changed_once_at_most(changes: list[CredentialChange]) -> None:
    known = users(ann="x")
    results, facts = decide_changes(changes, known)
    assert sorted(result.user for result in results) == sorted({change.user for change in changes})
    succeeded = [result.user for result in results if result.error is ErrorCode.NONE]
    assert [fact.user for fact in facts] == succeeded
    for fact in facts:  # each can be applied
        if isinstance(fact, ScramCredentialDeleted):
            assert known.discard(fact.user, fact.scram)
        else:
            known.put(fact.user, fact.credential)


# --- describing


@pytest.mark.parametrize("asked", [None, []])
def test_without_names_all_users_are_described(asked: list[str] | None) -> None:
    described = list(describe_users(asked, users(ann="x", bob="y")))
    assert [user.user for user in described] == ["ann", "bob"]
    assert described[0].credentials == ((ScramHash.SHA_256, 4096), (ScramHash.SHA_512, 4096))


def test_unknown_and_repeated_users_have_errors_of_their_own() -> None:
    described = {user.user: user for user in describe_users(["ann", "bob", "cy", "cy"], users(ann="x"))}
    assert [described[user].error for user in ("ann", "bob", "cy")] == [
        ErrorCode.NONE,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.DUPLICATE_RESOURCE,
    ]
    assert described["bob"].message == "Attempt to describe a user credential that does not exist: bob"
    assert (described["cy"].message or "").endswith("the same user twice in a single request: cy")
    assert not described["cy"].credentials
