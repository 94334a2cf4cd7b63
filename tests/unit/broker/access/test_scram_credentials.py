"""Credentials: what is stored, what is shown, and the decoys of users that do not exist."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.scram_credentials import (
    DEFAULT_ITERATIONS,
    MECHANISMS,
    SALT_BYTES,
    ScramCredential,
    ScramHash,
    UserCredentials,
)
from tests.support.broker.scram_clients import SALT, users

SCRAMS = list(ScramHash)


def credential(scram: ScramHash = ScramHash.SHA_256, iterations: int = 4096, salt: bytes = SALT) -> ScramCredential:
    return ScramCredential(scram, iterations, salt, b"stored", b"server")


def test_the_mechanisms_have_the_names_and_numbers_of_kip_554() -> None:
    assert {name: int(scram) for name, scram in MECHANISMS.items()} == {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
    assert [scram.digest for scram in SCRAMS] == ["sha256", "sha512"]


def test_the_keys_are_those_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = ScramCredential.of_password(ScramHash.SHA_256, 4096, salt, b"pencil")
    assert base64.b64encode(made.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(made.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.parametrize("scram", SCRAMS)
@pytest.mark.parametrize("password", ["secret", "pässwörd", "Ⅸ", " "])
def test_a_credential_matches_its_password_alone(scram: ScramHash, password: str) -> None:
    made = ScramCredential.of_password(scram, 4096, SALT, password.encode())
    assert made.matches(password.encode())
    assert not made.matches(password.encode() + b"x")
    assert not made.matches(b"")


def test_a_credential_shows_no_secret() -> None:
    shown = repr(ScramCredential(ScramHash.SHA_512, 4096, b"SALT", b"STORED", b"SERVER"))
    assert "4096" in shown
    assert not any(secret in shown for secret in ("SALT", "STORED", "SERVER"))


def test_a_user_exists_while_it_has_a_credential() -> None:
    known = UserCredentials()
    known.put("ann", credential())
    known.put("ann", credential(ScramHash.SHA_512))
    assert list(known.users()) == ["ann"]
    assert set(known.of("ann")) == set(SCRAMS)
    assert known.discard("ann", ScramHash.SHA_256)
    assert known.get("ann", ScramHash.SHA_256) is None
    assert not known.discard("ann", ScramHash.SHA_256)
    assert known.discard("ann", ScramHash.SHA_512)
    assert list(known.users()) == []
    assert not known.discard("bob", ScramHash.SHA_256)


def test_the_last_credential_of_a_mechanism_counts() -> None:
    known = UserCredentials()
    known.put("ann", credential(iterations=4096))
    known.put("ann", credential(iterations=8192))
    assert known.of("ann")[ScramHash.SHA_256].iterations == 8192


# --- decoys


def test_a_user_that_exists_gets_its_own_credential() -> None:
    known = users(ann="secret")
    for scram in SCRAMS:
        assert known.to_authenticate("ann", scram) is known.get("ann", scram)
    assert known.for_password("ann") is known.get("ann", ScramHash.SHA_512)


def test_a_password_is_checked_against_the_only_credential() -> None:
    known = UserCredentials()
    known.put("ann", credential())
    assert known.for_password("ann") is known.get("ann", ScramHash.SHA_256)


@pytest.mark.slow
@given(st.text(max_size=20), st.sampled_from(SCRAMS))
def test_a_decoy_is_the_same_each_time_and_of_each_user_its_own(user: str, scram: ScramHash) -> None:
    one, again, restarted = users(ann="x"), users(ann="y", bob="z"), users(ann="x")
    decoy = one.to_authenticate(user + "!", scram)
    assert decoy == again.to_authenticate(user + "!", scram) == restarted.to_authenticate(user + "!", scram)
    assert decoy.salt != one.to_authenticate(user + "?", scram).salt


def test_a_decoy_has_another_salt_for_each_mechanism_as_a_users_credentials_have() -> None:
    known = users(ann="x")
    first, second = (known.to_authenticate("bob", scram).salt for scram in SCRAMS)
    assert first != second


def test_a_decoy_depends_on_the_secret() -> None:
    one, other = users(ann="x"), users(ann="x")
    other.decoy_secret = b"another"
    assert one.to_authenticate("bob", ScramHash.SHA_256).salt != other.to_authenticate("bob", ScramHash.SHA_256).salt


def test_a_decoy_looks_like_the_most_usual_credential() -> None:
    known = UserCredentials()
    assert known.to_authenticate("x", ScramHash.SHA_512).iterations == DEFAULT_ITERATIONS
    assert len(known.to_authenticate("x", ScramHash.SHA_512).salt) == SALT_BYTES
    for number in range(3):
        known.put(f"user{number}", credential(iterations=16384, salt=bytes(64)))
    for number in range(2):
        known.put(f"other{number}", credential(iterations=4096))
    decoy = known.to_authenticate("x", ScramHash.SHA_256)
    assert (decoy.iterations, len(decoy.salt)) == (16384, 64)
    for number in range(3):
        known.discard(f"user{number}", ScramHash.SHA_256)
    assert known.to_authenticate("x", ScramHash.SHA_256).iterations == 4096


def test_a_decoy_does_not_look_like_credentials_that_were_replaced() -> None:
    known = UserCredentials()
    for iterations in (4096, 4096, 8192):
        known.put("ann", credential(iterations=iterations))
    assert known.to_authenticate("x", ScramHash.SHA_256).iterations == 8192


def test_a_decoy_for_a_password_is_of_a_mechanism_that_some_user_still_has() -> None:
    known = UserCredentials()
    known.put("ann", credential(ScramHash.SHA_512))
    known.put("ann", credential(ScramHash.SHA_256))
    known.discard("ann", ScramHash.SHA_512)
    assert known.for_password("nobody").scram is known.for_password("ann").scram


@pytest.mark.parametrize("scrams", [[ScramHash.SHA_256], [ScramHash.SHA_512], SCRAMS], ids=["256", "512", "both"])
def test_checking_an_unknown_users_password_takes_as_many_iterations_as_a_known_users(scrams: list[ScramHash]) -> None:
    known = UserCredentials()
    for scram in scrams:
        known.put("ann", credential(scram))
    assert known.for_password("nobody").scram is known.for_password("ann").scram
    assert known.for_password("nobody").iterations == known.for_password("ann").iterations


def test_no_password_matches_a_decoy() -> None:
    known = users(ann="secret")
    decoy = known.for_password("nobody")
    assert not decoy.matches(b"secret")
    assert not decoy.matches(b"")
