"""Access tokens and the OAUTHBEARER exchange."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.oauth_tokens import (
    InvalidTokenError,
    TokenRules,
    ValidToken,
    check_token,
    read_header,
)
from dualwrite.broker.access.oauthbearer import OAuthBearerExchange
from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Verdict
from tests.support.broker.token_makers import SECOND_MS, public_jwk, token

NOW_MS = SECOND_MS * 1000 + 500
END_MS = (SECOND_MS + 3600) * 1000
RULES = TokenRules()
UNSECURED = TokenRules(allows_unsecured=True)


def refusal(text: str, key: dict[str, object] | None = None, rules: TokenRules = RULES, now_ms: int = NOW_MS) -> str:
    with pytest.raises(InvalidTokenError) as refused:
        check_token(text, public_jwk("RSA") if key is None else key, rules, now_ms)
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("RSA", "RS256"), ("RSA", "RS512"), ("RSA", "PS256"), ("EC", "ES256"), ("OKP", "EdDSA")],
)
def test_a_signature_by_a_key_pair_is_accepted(kind: str, algorithm: str) -> None:
    for key in (public_jwk(kind), public_jwk(kind, alg=algorithm, use="sig")):
        assert check_token(token(kind, algorithm), key, RULES, NOW_MS) == ValidToken("ann", END_MS)


@pytest.mark.parametrize(
    ("claims", "rules"),
    [
        ({"email": "ann", "sub": "x"}, TokenRules(user_claim="email")),
        ({"aud": "kafka"}, TokenRules(audiences=("other", "kafka"))),
        ({"aud": ["a", "kafka"]}, TokenRules(audiences=("kafka",))),
        ({"aud": "anything"}, RULES),
        ({"iss": "https://issuer"}, TokenRules(issuer="https://issuer")),
        ({"scope": "a b"}, RULES),
        ({"scope": ["a", "b"]}, RULES),
        ({"nbf": SECOND_MS + 29}, RULES),
        ({"iat": SECOND_MS + 29}, RULES),
        ({"exp": SECOND_MS - 29}, RULES),
        ({"sub": " ann "}, RULES),
        ({"jti": 7}, RULES),
    ],
)
def test_a_token_is_accepted_under_its_rules(claims: dict[str, object], rules: TokenRules) -> None:
    assert check_token(token(**claims), public_jwk("RSA"), rules, NOW_MS).user == "ann"


@pytest.mark.parametrize(
    ("claims", "rules", "message"),
    [
        ({"exp": None}, RULES, "it lacks the claim exp"),
        ({"iat": None}, RULES, "it lacks the claim iat"),
        ({"exp": SECOND_MS - 30}, RULES, "it has expired"),
        ({"exp": SECOND_MS}, TokenRules(clock_skew_ms=0), "it has expired"),
        ({"iat": SECOND_MS + 31}, RULES, "it is not valid yet: its iat or nbf lies in the future"),
        ({"nbf": SECOND_MS + 31}, RULES, "it is not valid yet: its iat or nbf lies in the future"),
        ({"exp": "soon"}, RULES, "its claim exp is not a time"),
        ({"exp": True}, RULES, "its claim exp is not a time"),
        ({"exp": 2**60}, RULES, "its claim exp is not a time"),
        ({"iat": [1]}, RULES, "its claim iat is not a time"),
        ({"sub": None}, RULES, "its claim sub names no user"),
        ({"sub": ""}, RULES, "its claim sub names no user"),
        ({"sub": " "}, RULES, "its claim sub names no user"),
        ({"email": 7}, TokenRules(user_claim="email"), "its claim email names no user"),
        ({"scope": 7}, RULES, "its claim scope is neither a text nor a list"),
        ({"aud": "x"}, TokenRules(audiences=("kafka",)), "its audience is not sasl.oauthbearer.expected.audience"),
        ({}, TokenRules(audiences=("kafka",)), "it lacks the claim aud"),
        ({"iss": "x"}, TokenRules(issuer="y"), "its issuer is not sasl.oauthbearer.expected.issuer"),
        ({}, TokenRules(issuer="y"), "it lacks the claim iss"),
    ],
)
def test_a_token_is_refused_with_the_reason(claims: dict[str, object], rules: TokenRules, message: str) -> None:
    assert refusal(token(**claims), rules=rules) == message


def test_a_signature_by_another_key_is_refused() -> None:
    assert refusal(token(), public_jwk("RSA2")) == "its signature is wrong"


def test_a_changed_token_is_refused() -> None:
    header, _, signature = token().split(".")
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "root", "iat": 1, "exp": 2**40}).encode()).decode().strip("=")
    assert refusal(f"{header}.{claims}.{signature}") == "its signature is wrong"


def test_a_signature_with_a_shared_key_is_refused() -> None:
    assert refusal(token(algorithm="HS256")).startswith("its algorithm 'HS256' is not one of RS256")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (public_jwk("EC"), "the token's key does not fit RS256"),
        (public_jwk("RSA", alg="RS512"), "the token's key is not for signatures of RS256"),
        (public_jwk("RSA", use="enc"), "the token's key is not for signatures of RS256"),
        ({"kty": "oct", "k": "AAAA"}, "the token's key does not fit RS256"),
        ({"kty": "RSA"}, "the token's key does not fit RS256"),
        ({}, "the token's key does not fit RS256"),
    ],
    ids=["another kind", "another algorithm", "another use", "shared", "empty", "nothing"],
)
def test_a_key_of_another_kind_is_not_used(key: dict[str, object], message: str) -> None:
    assert refusal(token(), key) == message


def test_without_a_key_a_signed_token_is_refused() -> None:
    for rules in (RULES, UNSECURED):
        with pytest.raises(InvalidTokenError, match="there is no key"):
            check_token(token(), None, rules, NOW_MS)


def test_an_unsecured_token_is_accepted_only_where_it_is_configured() -> None:
    unsecured = token(algorithm="none", iat=None)
    assert read_header(unsecured).is_unsecured
    assert check_token(unsecured, None, UNSECURED, NOW_MS) == ValidToken("ann", END_MS)
    for key in (None, public_jwk("RSA")):
        with pytest.raises(InvalidTokenError, match=r"it is unsecured \(alg none\), which"):
            check_token(unsecured, key, RULES, NOW_MS)


def test_an_unsecured_token_has_no_signature() -> None:
    with pytest.raises(InvalidTokenError, match="and has a signature"):
        check_token(token(algorithm="none") + "AAAA", None, UNSECURED, NOW_MS)


def test_where_unsecured_tokens_are_accepted_signatures_still_count() -> None:
    assert refusal(token(), public_jwk("RSA2"), UNSECURED) == "its signature is wrong"
    assert refusal(token(iat=None), rules=UNSECURED) == "it lacks the claim iat"


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "...", "e30.e30.", "bnVsbA.e30.AA", "eyJhbGciOjF9.e30.AA"])
def test_malformed_text_is_not_a_token(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        check_token(text, public_jwk("RSA"), UNSECURED, NOW_MS)


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{0,40}"))
def test_no_text_breaks_the_check_or_passes(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        check_token(text, public_jwk("RSA"), UNSECURED, NOW_MS)


# --- the exchange


def check(text: str) -> ValidToken:
    if text != "good":
        raise InvalidTokenError("it is bad")
    return ValidToken("ann", END_MS)


def respond(exchange: OAuthBearerExchange, message: bytes) -> Verdict:
    verdict = exchange.respond(message)
    return verdict() if callable(verdict) else verdict


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,a=ann,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=bearer   good\x01\x01",
        b"n,,\x01auth=Bearer good\x01host=h\x01port=1\x01\x01",
        b"n,,\x01extension=a=b c\x01auth=Bearer good\x01\x01",
    ],
)
def test_a_token_that_is_accepted_ends_the_exchange(message: bytes) -> None:
    assert respond(OAuthBearerExchange(check), message) == Granted("ann", b"", END_MS)


def test_after_a_refused_token_the_client_acknowledges_the_error() -> None:
    exchange = OAuthBearerExchange(check)
    assert respond(exchange, b"n,,\x01auth=Bearer bad\x01\x01") == Challenge(
        b'{"status":"invalid_token"}', None, "invalid token: it is bad"
    )
    denied = respond(exchange, b"\x01")
    assert denied == Denied("", '{"status":"invalid_token"}', kind=DenialKind.TOKEN)


def test_after_a_refused_token_no_other_is_tried() -> None:
    exchange = OAuthBearerExchange(check)
    respond(exchange, b"n,,\x01auth=Bearer bad\x01\x01")
    assert isinstance(respond(exchange, b"n,,\x01auth=Bearer good\x01\x01"), Denied)


def test_an_authorization_id_must_be_the_tokens_user() -> None:
    denied = respond(OAuthBearerExchange(check), b"n,a=b=2Cob,\x01auth=Bearer good\x01\x01")
    assert isinstance(denied, Denied)
    assert "authorization id (b,ob) that is different from the token's principal name (ann)" in (denied.message or "")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearergood\x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,a=,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01x",
        b"n,,\x01auth=Bearer g\xffod\x01\x01",
    ],
)
def test_a_malformed_message_is_denied(message: bytes) -> None:
    assert isinstance(OAuthBearerExchange(check).respond(message), Denied)


@given(st.binary(max_size=80))
def test_no_bytes_break_the_exchange(message: bytes) -> None:
    assert isinstance(OAuthBearerExchange(check).respond(message), Denied)
