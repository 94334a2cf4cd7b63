"""The server's side of SCRAM and PLAIN."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker.access.plain import PlainExchange
from dualwrite.broker.access.scram import ScramExchange
from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash, UserCredentials
from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Verdict
from tests.support.broker.scram_clients import exchange, users

SCRAMS = list(ScramHash)
NONCE = "0123456789abcdef"


def server(known: UserCredentials, scram: ScramHash = ScramHash.SHA_256) -> ScramExchange:
    return ScramExchange(scram, known, NONCE)


def test_the_exchange_is_that_of_rfc_7677() -> None:
    known = UserCredentials()
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known.put("user", ScramCredential.of_password(ScramHash.SHA_256, 4096, salt, b"pencil"))
    scram = ScramExchange(ScramHash.SHA_256, known, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = scram.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == Challenge(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "user")
    final = scram.respond(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert final == Granted("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("scram", SCRAMS)
@pytest.mark.parametrize("user", ["ann", "al=i,ce", "=2C", "ü"])
def test_the_right_password_is_granted_to_any_name(scram: ScramHash, user: str) -> None:
    verdict = exchange(server(users(**{user: "secret"}), scram), user, "secret", scram)
    assert isinstance(verdict, Granted)
    assert verdict.user == user


@pytest.mark.parametrize("scram", SCRAMS)
@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(scram: ScramHash, user: str) -> None:
    verdict = exchange(server(users(ann="secret"), scram), user, "wrong", scram)
    assert verdict == Denied("wrong password, or no such user", None, user, DenialKind.CREDENTIALS)


def test_the_name_counts_as_it_was_sent() -> None:
    """SASLprep makes ``IX`` of ``Ⅸ``: to Kafka these are two users."""
    known = users(IX="other")
    known.put("Ⅸ", ScramCredential.of_password(ScramHash.SHA_256, 4096, bytes(20), b"secret"))
    first = server(known).respond("n,,n=Ⅸ,r=abc".encode())
    assert isinstance(first, Challenge)
    assert first.user == "Ⅸ"
    assert base64.b64encode(bytes(20)) in first.message


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ann",
        b"n,,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=ann,r=",
        b"n,,n=ann,r=abc,tokenauth=true",
        b"n,,m=x,n=ann,r=abc",
        b"n,a=bob,n=ann,r=abc",
        b"p=tls-unique,,n=ann,r=abc",
        b"x,,n=ann,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=ann,n=bob,r=abc",
        b"n,,n=ann,r=abc\n",
        "n,,n=ann,r=äbc".encode(),
    ],
)
def test_a_malformed_first_message_is_denied(first: bytes) -> None:
    assert isinstance(server(users(ann="secret")).respond(first), Denied)


@pytest.mark.parametrize(
    "final",
    [b"", b"c=biws", b"c=biws,r=abc,p=AAAA", b"c=AAAA,r=abc0123456789abcdef,p=AAAA", b"\xff", b"c=biws,r=x,p=!!!"],
)
def test_a_malformed_last_message_is_denied(final: bytes) -> None:
    scram = server(users(ann="secret"))
    assert isinstance(scram.respond(b"n,,n=ann,r=abc"), Challenge)
    denied = scram.respond(final)
    assert isinstance(denied, Denied)
    assert denied.user == "ann"


def test_an_exchange_ends_once() -> None:
    scram = server(users(ann="secret"))
    assert isinstance(exchange(scram, "ann", "secret", ScramHash.SHA_256), Granted)
    assert isinstance(scram.respond(b"c=biws,r=x,p=AAAA"), Denied)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_break_an_exchange_or_are_granted(first: bytes, second: bytes) -> None:
    scram = server(users(ann="secret"))
    for token in (first, second):
        assert not isinstance(scram.respond(token), Granted)


# --- PLAIN


def plain(token: bytes) -> Verdict:
    """The verdict over ``token``, of users ann and ü."""
    verdict = PlainExchange(users(ann="secret", ü="pä=,ss")).respond(token)
    return verdict() if callable(verdict) else verdict


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0ann\0secret", "ann"),
        (b"ann\0ann\0secret", "ann"),
        ("\0ü\0pä=,ss".encode(), "ü"),
    ],
)
def test_a_password_is_granted(token: bytes, user: str) -> None:
    assert plain(token) == Granted(user)


WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0ann\0wrong", WRONG),
        (b"\0nobody\0secret", WRONG),
        (b"\0Ann\0secret", WRONG),
        (b"\0ann\0" + b"x" * 1025, "Authentication failed: password is too long"),
        (b"\0ann\0", "Authentication failed: password not specified"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"ann\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0ann\0secret\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\0secret", "Authentication failed: username is not UTF-8"),
        (
            b"bob\0ann\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_a_refusal_of_plain_has_kafkas_message(token: bytes, message: str) -> None:
    denied = plain(token)
    assert isinstance(denied, Denied)
    assert denied.message == message
    assert "secret" not in denied.reason


def test_an_authorization_id_tells_nothing_about_a_password() -> None:
    expected = Denied("wrong password, or no such user", WRONG, "ann", DenialKind.CREDENTIALS)
    assert plain(b"bob\0ann\0wrong") == expected


@pytest.mark.slow
@given(st.binary(max_size=80))
def test_no_bytes_break_plain(token: bytes) -> None:
    assert isinstance(plain(token), Denied)
