"""SASL over raw connections: the states of a connection, failures, hostile clients, and the end of sessions."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import ApiKey, DescribeClusterRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.requests.calls import batch, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import (
    ALICE,
    BOB,
    EVERY_MECHANISM,
    OPEN,
    PASSWORD,
    SASL,
    VERSIONS,
    handshake,
    log_in,
    log_of,
    sasl_broker,
    send_token,
    tokens,
    unsecured_token,
)
from tests.support.waiting import eventually

MECHANISMS = EVERY_MECHANISM.split(",")
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with sasl_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.listeners[SASL]) as connected:
        yield connected


def secret(mechanism: str, user: str = ALICE) -> str:
    return unsecured_token(user) if mechanism == "OAUTHBEARER" else PASSWORD


def is_closed(client: RawClient) -> bool:
    return client.read_to_end() == b""


# --- the right password


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [ALICE, BOB], ids=["plain name", "odd name"])
def test_a_client_is_served_after_it_has_authenticated(client: RawClient, mechanism: str, user: str) -> None:
    assert client.ask(VERSIONS, 3).error_code == ErrorCode.NONE
    answer = log_in(client, mechanism, user, secret(mechanism, user))
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert (answer.session_lifetime_ms > 0) == (mechanism == "OAUTHBEARER")
    topic = new_topic(client)
    produce(client, topic, batch([b"v"]))
    assert [described.name for described in metadata(client, topic).topics] == [topic]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_the_requests_is_answered(client: RawClient, version: int) -> None:
    assert handshake(client, "PLAIN").mechanisms == MECHANISMS
    assert send_token(client, tokens("PLAIN", ALICE, PASSWORD).first, version).error_code == ErrorCode.NONE


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_tokens_without_headers_are_taken_after_the_first_version_of_the_handshake(
    client: RawClient, mechanism: str
) -> None:
    handshake(client, mechanism, version=0)
    exchange = tokens(mechanism, ALICE, PASSWORD)
    client.send_bytes(with_size(exchange.first))
    second = exchange.second(client.receive_frame())
    if second is not None:
        client.send_bytes(with_size(second))
        assert client.receive_frame().startswith(b"v=")
    assert metadata(client).topics is not None


def test_a_wrong_token_without_a_header_closes_the_connection(client: RawClient) -> None:
    handshake(client, "PLAIN", version=0)
    client.send_bytes(with_size(tokens("PLAIN", ALICE, "wrong").first))
    assert is_closed(client)


def test_a_token_may_come_in_pieces(client: RawClient) -> None:
    handshake(client, "PLAIN", version=0)
    for byte in with_size(tokens("PLAIN", ALICE, PASSWORD).first):
        client.send_bytes(bytes([byte]))
    assert client.receive_frame() == b""


def test_requests_and_answers_are_large_after_the_authentication(client: RawClient) -> None:
    log_in(client)
    topic = new_topic(client, max_message_bytes="3000000")
    large = b"v" * 2_000_000
    produce(client, topic, batch([large]))
    assert read_all(client, topic) == [large]


# --- wrong ones


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [ALICE, "nobody"])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(client: RawClient, mechanism: str, user: str) -> None:
    answer = log_in(client, mechanism, user, "wrong")
    assert answer.error_code == FAILED
    assert answer.error_message == {
        "PLAIN": "Authentication failed: Invalid username or password",
        "OAUTHBEARER": '{"status":"invalid_token"}',
    }.get(
        mechanism,
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}",
    )
    assert is_closed(client)


def test_an_unknown_user_gets_a_challenge_like_any_other(broker: EmbeddedBroker) -> None:
    seen: dict[str, list[tuple[bytes, bytes]]] = {ALICE: [], "nobody": []}
    for user in (ALICE, "nobody") * 2:
        with RawClient(broker.listeners[SASL]) as client:
            handshake(client, "SCRAM-SHA-256")
            challenge = send_token(client, tokens("SCRAM-SHA-256", user, "x").first).auth_bytes
            match = re.fullmatch(rb"r=[^,]+,s=([^,]+),i=(\d+)", challenge)
            assert match is not None
            seen[user].append((match[1], match[2]))
    assert all(first == second for first, second in seen.values()), "the salt of a user is always the same"
    assert len(seen[ALICE][0][0]) == len(seen["nobody"][0][0])
    assert seen[ALICE][0][1] == seen["nobody"][0][1]


def test_the_salt_of_an_unknown_user_outlives_a_restart(tmp_path: Path) -> None:
    def salt(running: EmbeddedBroker) -> bytes:
        with RawClient(running.listeners[SASL]) as client:
            handshake(client, "SCRAM-SHA-512")
            challenge: bytes = send_token(client, tokens("SCRAM-SHA-512", "nobody", "x").first).auth_bytes
            return challenge.split(b",")[1]

    with sasl_broker(tmp_path) as running:
        before = salt(running)
        running.kill()
        assert salt(running.start()) == before


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with sasl_broker(tmp_path, sasl_enabled_mechanisms="SCRAM-SHA-512") as running:
        for mechanism in ("PLAIN", "GSSAPI", "", "x" * 1000):
            with RawClient(running.listeners[SASL]) as client:
                answer = handshake(client, mechanism)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["SCRAM-SHA-512"]
                assert is_closed(client)


def test_a_failure_is_logged_with_the_user_and_never_with_the_password(tmp_path: Path) -> None:
    with sasl_broker(tmp_path) as running:
        for number, mechanism in enumerate(MECHANISMS):
            with RawClient(running.listeners[SASL]) as client:
                log_in(client, mechanism, "mallory", f"guess{number}")
        line = next(line for line in log_of(running).splitlines() if "failed" in line)
        assert line.endswith(
            "authentication of 127.0.0.1 failed: SCRAM-SHA-512, user 'mallory': wrong password, or no such user"
        )
        assert "guess" not in log_of(running)
        assert PASSWORD not in log_of(running)


@pytest.mark.slow
def test_failures_are_counted_and_not_each_is_logged(tmp_path: Path) -> None:
    def fail(running: EmbeddedBroker) -> None:
        with RawClient(running.listeners[SASL]) as client:
            log_in(client, "PLAIN", password="wrong")

    def lines(running: EmbeddedBroker) -> list[str]:
        return [line for line in log_of(running).splitlines() if "authentication of" in line]

    with sasl_broker(tmp_path) as running:
        began = time.monotonic()
        for _ in range(60):
            fail(running)
        assert len(lines(running)) <= 10 * (time.monotonic() - began + 1)

        def has_counted() -> bool:
            fail(running)
            return "were left out before" in log_of(running)

        assert eventually(has_counted, bool)


def test_a_failure_is_answered_after_the_delay(tmp_path: Path) -> None:
    with (
        sasl_broker(tmp_path, connection_failed_authentication_delay_ms="400") as running,
        RawClient(running.listeners[SASL]) as client,
        RawClient(running.listeners[SASL]) as other,
    ):
        handshake(client, "PLAIN")
        began = time.monotonic()
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        assert log_in(other).error_code == ErrorCode.NONE, "others are served meanwhile"
        assert client.receive(ApiKey.SASL_AUTHENTICATE, 2, 2).error_code == FAILED
        assert time.monotonic() - began >= 0.4


# --- states


@pytest.mark.parametrize("key", [key for key in ApiKey if key not in (ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS)])
def test_before_the_authentication_no_request_gets_an_answer(client: RawClient, key: ApiKey) -> None:
    head = key.to_bytes(2, "big") + (0).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    client.send_bytes(with_size(head + bytes(100)))
    assert is_closed(client)


def test_a_client_without_sasl_gets_versions_and_then_nothing(broker: EmbeddedBroker) -> None:
    def is_logged() -> bool:
        with RawClient(broker.listeners[SASL]) as client:
            client.ask(VERSIONS, 3)
            client.send(DescribeClusterRequest(), 0)
            assert is_closed(client)
        return "it sent DESCRIBE_CLUSTER before it has authenticated, where SaslHandshake is expected" in log_of(broker)

    assert eventually(is_logged, bool), "one such line a second is logged"


def test_a_second_api_versions_request_before_authentication_closes_the_connection(client: RawClient) -> None:
    assert client.ask(VERSIONS, 3).error_code == ErrorCode.NONE
    client.send(VERSIONS, 3)
    assert is_closed(client)


def test_requests_behind_a_failed_authentication_get_no_answer(client: RawClient) -> None:
    handshake(client, "PLAIN")
    correlation = client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    client.send(DescribeClusterRequest(), 0)
    assert client.receive(ApiKey.SASL_AUTHENTICATE, 2, correlation).error_code == FAILED
    assert is_closed(client)


def test_after_a_refused_token_no_other_is_tried(client: RawClient) -> None:
    handshake(client, "OAUTHBEARER")
    send_token(client, tokens("OAUTHBEARER", "", "wrong").first)
    assert send_token(client, tokens("OAUTHBEARER", "", unsecured_token()).first).error_code == FAILED
    assert is_closed(client)


@pytest.mark.parametrize("listener", [OPEN, SASL])
def test_sasl_requests_without_need_of_authentication_get_illegal_sasl_state(
    broker: EmbeddedBroker, listener: str
) -> None:
    with RawClient(broker.listeners[listener]) as client:
        if listener == SASL:
            log_in(client)
        answer = handshake(client, "PLAIN")
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        assert send_token(client, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert metadata(client).topics is not None


def test_every_listener_advertises_the_requests(broker: EmbeddedBroker) -> None:
    for address in broker.listeners.values():
        with RawClient(address) as client:
            keys = {api_key.api_key: api_key.max_version for api_key in client.ask(VERSIONS, 3).api_keys}
        assert (keys[ApiKey.SASL_HANDSHAKE], keys[ApiKey.SASL_AUTHENTICATE]) == (1, 2)


# --- hostile clients


def test_a_giant_token_closes_the_connection_before_it_is_received(client: RawClient) -> None:
    client.send_bytes((600_000).to_bytes(4, "big") + b"\0\x24\0\x02")
    assert is_closed(client)


def test_the_largest_request_before_the_authentication_is_a_setting(tmp_path: Path) -> None:
    with (
        sasl_broker(tmp_path, sasl_server_max_receive_size="2000") as running,
        RawClient(running.listeners[SASL]) as client,
    ):
        handshake(client, "PLAIN")
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0" + b"x" * 2000), 2)
        assert is_closed(client)


def test_a_client_that_does_not_authenticate_counts_as_a_connection(tmp_path: Path) -> None:
    with sasl_broker(tmp_path, max_connections_per_ip="3") as running, ExitStack() as stack:
        silent = [stack.enter_context(RawClient(running.listeners[SASL])) for _ in range(3)]
        for client in silent:
            client.ask(VERSIONS, 3)
        with RawClient(running.listeners[SASL]) as refused:
            assert is_closed(refused)
        assert log_in(silent[0]).error_code == ErrorCode.NONE


def test_a_client_that_does_not_authenticate_is_closed_when_it_idles(tmp_path: Path) -> None:
    with (
        sasl_broker(tmp_path, connections_max_idle_ms="300") as running,
        RawClient(running.listeners[SASL]) as client,
    ):
        handshake(client, "PLAIN")
        assert is_closed(client)


def test_a_flood_of_guesses_does_not_stop_others(broker: EmbeddedBroker) -> None:
    def guess(number: int) -> int:
        with RawClient(broker.listeners[SASL]) as client:
            return int(log_in(client, "PLAIN", f"user{number}", "guess").error_code)

    with ThreadPoolExecutor(8) as threads, RawClient(broker.listeners[OPEN]) as other:
        guesses = [threads.submit(guess, number) for number in range(40)]
        slowest = 0.0
        while not all(each.done() for each in guesses):
            began = time.monotonic()
            metadata(other)
            slowest = max(slowest, time.monotonic() - began)
        assert {each.result() for each in guesses} == {FAILED}
    assert slowest < 2.0


# --- sessions


def is_over(client: RawClient) -> bool:
    try:
        metadata(client)
    except OSError:
        return True
    return False


@pytest.mark.slow
def test_a_session_ends_unless_the_client_authenticates_again(tmp_path: Path) -> None:
    with sasl_broker(tmp_path, connections_max_reauth_ms="1500") as running, ExitStack() as stack:
        diligent, lazy = (stack.enter_context(RawClient(running.listeners[SASL])) for _ in range(2))
        began = time.monotonic()
        for client in (diligent, lazy):
            assert log_in(client).session_lifetime_ms == 1500
        assert eventually(lambda: is_over(lazy), bool)
        assert time.monotonic() - began > 1.5
        assert "the session of 'alice' has ended, and the client did not authenticate again" in log_of(running)
        assert log_in(diligent).session_lifetime_ms == 1500, "also after its end"
        assert not is_over(diligent)


def test_a_renewal_keeps_the_user_and_the_mechanism(tmp_path: Path) -> None:
    with sasl_broker(tmp_path, connections_max_reauth_ms="60000") as running:
        with RawClient(running.listeners[SASL]) as client:
            log_in(client)
            answer = log_in(client, user=BOB)
            assert answer.error_code == FAILED
            assert answer.error_message == (
                f"Cannot change principals during re-authentication from User.{ALICE}: User.{BOB}"
            )
            assert is_closed(client)
        with RawClient(running.listeners[SASL]) as client:
            log_in(client)
            assert "is not supported for re-authentication" in log_in(client, "PLAIN").error_message
            assert is_closed(client)
        with RawClient(running.listeners[SASL]) as client:
            log_in(client)
            answer = log_in(client, password="wrong")
            assert "failed during re-authentication" in answer.error_message


@pytest.mark.slow
def test_a_token_that_expires_ends_its_session(broker: EmbeddedBroker, client: RawClient) -> None:
    answer = log_in(client, "OAUTHBEARER", password=unsecured_token(lifetime=1.0))
    assert 0 < answer.session_lifetime_ms <= 1000
    assert eventually(lambda: is_over(client), bool)


def test_two_renewals_within_a_second_are_one_too_many(tmp_path: Path) -> None:
    with (
        sasl_broker(tmp_path, connections_max_reauth_ms="60000") as running,
        RawClient(running.listeners[SASL]) as client,
    ):
        log_in(client)
        log_in(client)
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
