"""The authentication of one connection as a state machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.sasl_session import (
    SaslAnswer,
    SaslSession,
    SaslStateError,
    SaslTerms,
    SessionEndedError,
)
from dualwrite.broker.access.verdicts import Challenge, DenialKind, Denied, Granted, Verdict
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

VERSIONS, HANDSHAKE, AUTHENTICATE = ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
WALL_MS = 1_700_000_000_000
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


class Says:
    """A mechanism that follows its token: ``ann`` is granted, ``?`` is challenged, ``!`` is denied, ``-`` is denied
    after one more token."""

    def respond(self, token: bytes) -> Verdict:
        if token == b"?":
            return Challenge(b"more", "claimed")
        if token == b"-":
            return Challenge(b"no", "claimed", "the reason")
        if token == b"!":
            return Denied("a reason", None, None)
        user, _, ends = token.decode().partition(":")
        return Granted(user, b"done", int(ends) if ends else None)


def session(reauth_ms: int = 0, most_token_bytes: int = 100) -> SaslSession:
    return SaslSession(SaslTerms({"ONE": Says, "TWO": Says}, {"ONE": reauth_ms}, most_token_bytes))


def send(of: SaslSession, token: bytes, now: float = 0.0) -> SaslAnswer:
    assert not of.admits(AUTHENTICATE, now)
    verdict = of.take(token)
    assert not callable(verdict)
    return of.settle(verdict, WALL_MS, now)


def log_in(of: SaslSession, token: bytes = b"ann", now: float = 0.0, mechanism: str = "ONE") -> SaslAnswer:
    assert not of.admits(HANDSHAKE, now)
    assert of.choose(mechanism, has_headers=True) == (ErrorCode.NONE, None)
    return send(of, token, now)


# --- the first authentication


def test_a_client_asks_for_versions_chooses_a_mechanism_and_sends_tokens() -> None:
    one = session()
    assert one.admits(VERSIONS, 0)
    one.versions_answered()
    assert not one.admits(HANDSHAKE, 0)
    assert one.choose("ONE", has_headers=True) == (ErrorCode.NONE, None)
    assert send(one, b"?") == SaslAnswer(b"more")
    assert (one.user, one.is_open) == (None, False)
    assert send(one, b"ann") == SaslAnswer(b"done")
    assert (one.user, one.is_open) == ("ann", True)
    assert all(one.admits(key, 1e9) for key in ApiKey)


def test_versions_may_be_left_out_and_asked_for_again_after_an_error() -> None:
    one = session()
    assert one.admits(VERSIONS, 0)
    assert one.admits(VERSIONS, 0)
    assert log_in(one).error is ErrorCode.NONE


@pytest.mark.parametrize("key", [key for key in ApiKey if key not in (VERSIONS, HANDSHAKE)] + [-1, 99, 999])
def test_nothing_else_is_taken_before_the_authentication(key: int) -> None:
    with pytest.raises(SaslStateError, match="before it has authenticated"):
        session().admits(key, 0)


@pytest.mark.parametrize("key", [VERSIONS, AUTHENTICATE, ApiKey.METADATA])
def test_after_the_versions_only_a_handshake_is_taken(key: ApiKey) -> None:
    one = session()
    one.versions_answered()
    with pytest.raises(SaslStateError, match=f"it sent {key.name} before"):
        one.admits(key, 0)


@pytest.mark.parametrize("key", [VERSIONS, HANDSHAKE, ApiKey.PRODUCE])
def test_within_an_exchange_only_tokens_are_taken(key: ApiKey) -> None:
    one = session()
    one.choose("ONE", has_headers=True)
    with pytest.raises(SaslStateError):
        one.admits(key, 0)


def test_an_unknown_mechanism_is_refused_with_those_that_are_enabled() -> None:
    one = session()
    error, failure = one.choose("GSSAPI", has_headers=True)
    assert error is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert failure is not None
    assert (failure.mechanism, failure.user, failure.kind) == ("GSSAPI", None, DenialKind.MECHANISM)
    assert failure.reason == "the mechanism is not enabled; enabled are ONE, TWO"


def test_of_a_long_name_of_a_mechanism_the_log_gets_the_beginning() -> None:
    _, failure = session().choose("x" * 30_000, has_headers=True)
    assert failure is not None
    assert failure.mechanism == "x" * 40


@pytest.mark.parametrize("key", list(ApiKey))
def test_nothing_is_taken_after_a_failure(key: ApiKey) -> None:
    one = session()
    one.choose("GSSAPI", has_headers=True)
    with pytest.raises(SaslStateError):
        one.admits(key, 0)
    other = session()
    log_in(other, b"!")
    with pytest.raises(SaslStateError):
        other.admits(key, 0)


def test_a_failure_hides_its_reason_from_the_client_and_logs_the_claimed_name() -> None:
    one = session()
    one.choose("ONE", has_headers=True)
    send(one, b"?")
    answer = send(one, b"!")
    assert (answer.error, answer.auth_bytes) == (FAILED, b"")
    assert answer.message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism ONE"
    )
    assert answer.failure is not None
    assert answer.failure == ("ONE", "a reason", "claimed", DenialKind.MALFORMED)


def test_a_refusal_awaiting_acknowledgement_is_reported_for_the_log() -> None:
    one = session()
    answer = log_in(one, b"-")
    assert (answer.auth_bytes, answer.error, answer.failure) == (b"no", ErrorCode.NONE, None)
    assert answer.refusal == ("ONE", "the reason", "claimed", DenialKind.TOKEN)


def test_a_token_has_a_largest_size() -> None:
    one = session(most_token_bytes=3)
    assert log_in(one, b"ann").error is ErrorCode.NONE
    other = session(most_token_bytes=3)
    answer = log_in(other, b"anna")
    assert answer.error is FAILED
    assert answer.failure is not None
    assert "sasl.server.max.receive.size" in answer.failure.reason


def test_tokens_without_headers_follow_a_handshake_of_v0() -> None:
    one = session()
    assert not one.wants_raw_token
    one.choose("ONE", has_headers=False)
    assert one.wants_raw_token
    one.settle(Granted("ann"), WALL_MS, 0)
    assert not one.wants_raw_token


# --- the length of a session


@pytest.mark.parametrize(
    ("reauth_ms", "token", "lifetime_ms"),
    [
        (0, b"ann", 0),
        (5000, b"ann", 5000),
        (0, b"ann:%d" % (WALL_MS + 700), 700),
        (5000, b"ann:%d" % (WALL_MS + 700), 700),
        (500, b"ann:%d" % (WALL_MS + 700), 500),
        (500, b"ann:%d" % (WALL_MS - 1), 0),
    ],
)
def test_the_shorter_of_setting_and_token_ends_a_session(reauth_ms: int, token: bytes, lifetime_ms: int) -> None:
    assert log_in(session(reauth_ms), token).session_lifetime_ms == lifetime_ms


def test_a_session_that_is_over_takes_no_request() -> None:
    one = session(5000)
    log_in(one)
    assert one.admits(ApiKey.PRODUCE, 5.0)
    with pytest.raises(SessionEndedError, match="the session of 'ann' has ended"):
        one.admits(ApiKey.PRODUCE, 5.1)


def test_a_token_that_has_expired_meanwhile_ends_the_session_at_once() -> None:
    one = session()
    log_in(one, b"ann:%d" % (WALL_MS - 1))
    with pytest.raises(SessionEndedError):
        one.admits(ApiKey.PRODUCE, 0.001)


def test_a_client_renews_its_session_before_and_after_its_end() -> None:
    one = session(5000)
    log_in(one)
    for now in (4.0, 8.0, 20.0):
        assert log_in(one, now=now).session_lifetime_ms == 5000
        assert one.admits(ApiKey.FETCH, now + 4)


@pytest.mark.parametrize("key", [key for key in ApiKey if key is not HANDSHAKE])
def test_during_a_renewal_only_the_authentication_is_taken(key: ApiKey) -> None:
    one = session(5000)
    log_in(one)
    assert not one.admits(HANDSHAKE, 2.0)
    with pytest.raises(SaslStateError):
        one.admits(key, 2.0)


def test_a_session_without_an_end_is_not_renewed() -> None:
    one = session()
    log_in(one)
    assert one.admits(HANDSHAKE, 5.0)
    assert one.admits(AUTHENTICATE, 5.0)


def test_a_session_is_not_renewed_twice_within_a_second() -> None:
    one = session(5000)
    log_in(one)
    log_in(one, now=3.0)
    assert one.admits(HANDSHAKE, 3.9)
    assert not one.admits(HANDSHAKE, 4.0)


def test_a_renewal_may_not_change_the_user() -> None:
    one = session(5000)
    log_in(one)
    answer = log_in(one, b"bob", now=2.0)
    assert answer.error is FAILED
    assert answer.message == "Cannot change principals during re-authentication from User.ann: User.bob"
    assert (one.user, one.is_open) == ("ann", False)


def test_a_renewal_may_not_change_the_mechanism() -> None:
    one = session(5000)
    log_in(one)
    answer = log_in(one, now=2.0, mechanism="TWO")
    assert answer.error is FAILED
    assert answer.message == (
        "SASL mechanism 'TWO' requested by client is not supported for re-authentication of mechanism 'ONE'"
    )


def test_a_failed_renewal_is_reported_as_re_authentication() -> None:
    one = session(5000)
    log_in(one)
    answer = log_in(one, b"!", now=2.0)
    assert "failed during re-authentication" in (answer.message or "")


# --- any order of requests

STEPS = st.lists(
    st.sampled_from([*ApiKey]) | st.sampled_from([HANDSHAKE, AUTHENTICATE, VERSIONS]),
    max_size=12,
)


@given(STEPS, st.lists(st.sampled_from([b"?", b"!", b"ann", b"bob"]), min_size=12, max_size=12))
def test_no_order_of_requests_reaches_a_handler_without_a_granted_token(
    keys: list[ApiKey], tokens: list[bytes]
) -> None:
    one, granted = session(5000), False
    for number, key in enumerate(keys):
        try:
            is_for_handler = one.admits(key, number * 2.0)
        except (SaslStateError, SessionEndedError):
            return
        if is_for_handler:
            assert granted or key is VERSIONS
            one.versions_answered()
        elif key is HANDSHAKE:
            one.choose("ONE", has_headers=True)
        else:
            verdict = one.take(tokens[number])
            assert not callable(verdict)
            answer = one.settle(verdict, WALL_MS, number * 2.0)
            granted = granted or isinstance(verdict, Granted)
            assert (answer.failure is None) == (answer.error is ErrorCode.NONE)
        assert one.user is None or granted
