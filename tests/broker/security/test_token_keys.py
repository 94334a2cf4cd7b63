"""The keys of access tokens: a file or a server, read again when a key changes; and OAUTHBEARER with signed tokens."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from dualwrite.broker.access.oauth_tokens import InvalidTokenError, TokenRules
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.token_keys import TokenKeys, TokenVerifier
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.scripted_clock import ScriptedClock
from tests.support.broker.token_makers import public_jwk, token
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import (
    CONFIG,
    OPEN,
    SASL,
    add_users,
    log_in,
    log_of,
    sasl_broker,
    unsecured_token,
)
from tests.support.waiting import eventually


class KeyServer:
    """An HTTP server with a JWK Set."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [public_jwk("RSA")]
        self.body: bytes | None = None
        self.status = 200
        self.requests = 0
        self.raw: Callable[[socket.socket], None] | None = None
        """Answers instead, on the connection itself."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests += 1
                if owner.raw is not None:
                    owner.raw(self.connection)
                    return
                self.send_response(owner.status)
                self.end_headers()
                self.wfile.write(json.dumps({"keys": owner.keys}).encode() if owner.body is None else owner.body)

            def log_message(self, *_: object) -> None:
                """Keeps the tests' output clean."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "KeyServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with KeyServer() as running:
        yield running


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


def write(file: Path, *keys: dict[str, Any]) -> str:
    file.write_text(json.dumps({"keys": list(keys)}))
    return file.as_uri()


# --- reading


def test_keys_come_from_a_file_and_from_a_server(tmp_path: Path, server: KeyServer, clock: ScriptedClock) -> None:
    for url in (write(tmp_path / "keys.json", public_jwk("RSA")), server.url):
        keys = TokenKeys(url, clock)
        keys.load()
        assert keys.key("key") == public_jwk("RSA")
        assert keys.key("another") is None
        assert TokenVerifier(TokenRules(), keys, clock)(token()).user == "ann"


def test_an_unknown_key_id_reads_the_keys_again_but_not_each_time(server: KeyServer, clock: ScriptedClock) -> None:
    keys = TokenKeys(server.url, clock)
    keys.load()
    server.keys.append(public_jwk("RSA2", "new"))
    assert keys.key("new") is None, "they were read a moment ago"
    clock.now += 10
    assert keys.key("new") == public_jwk("RSA2", "new")
    for number in range(20):
        assert keys.key(f"unknown {number}") is None
    assert server.requests == 2
    clock.now += 10
    assert keys.key("unknown") is None
    assert server.requests == 3


def test_a_key_that_was_withdrawn_is_forgotten_at_the_next_reading(server: KeyServer, clock: ScriptedClock) -> None:
    keys = TokenKeys(server.url, clock)
    keys.load()
    server.keys = [public_jwk("RSA2", "new")]
    keys.refresh()
    assert (keys.key("key"), keys.key("new")) == (None, public_jwk("RSA2", "new"))


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (None, 503, "HTTP status 503"),
        (b"oops", 200, "it is not a JWK Set: expected JSON"),
        (b"[]", 200, "it is not a JWK Set: expected JSON"),
        (b'{"keys": 1}', 200, "its keys are not a list of objects"),
        (b'{"keys": [1]}', 200, "its keys are not a list of objects"),
        (b"[" * 100_000, 200, "it is not a JWK Set"),
        (b" " * (1024 * 1024 + 1), 200, "it is larger than 1048576 bytes"),
    ],
    ids=["error", "text", "list", "number", "numbers", "deep", "large"],
)
def test_the_known_keys_remain_if_a_reading_fails(
    server: KeyServer,
    clock: ScriptedClock,
    caplog: pytest.LogCaptureFixture,
    body: bytes | None,
    status: int,
    reason: str,
) -> None:
    keys = TokenKeys(server.url, clock)
    keys.load()
    server.body, server.status = body, status
    keys.refresh()
    assert keys.key("key") is not None
    assert reason in caplog.text
    assert "the 1 known keys remain" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000 + b"\r\n\r\n",
        b"",
    ],
    ids=["another protocol", "wrong chunks", "long line", "nothing"],
)
def test_the_known_keys_remain_if_the_server_speaks_no_http(
    server: KeyServer, clock: ScriptedClock, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    """An exception here would end the broker: it reads the keys in a chore."""
    keys = TokenKeys(server.url, clock)
    keys.load()
    server.raw = lambda connection: connection.sendall(answer)
    keys.refresh()
    assert keys.key("key") is not None
    assert "the 1 known keys remain" in caplog.text


def test_a_server_that_answers_byte_by_byte_is_given_up(
    server: KeyServer, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        with suppress(OSError):  # until the broker hangs up
            while True:
                clock.now += 1
                connection.sendall(b" ")

    keys = TokenKeys(server.url, clock)
    keys.load()
    server.raw = drip
    keys.refresh()
    assert "it is not complete after 15 seconds" in caplog.text


def test_a_server_that_does_not_answer_holds_up_no_end(
    server: KeyServer, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
) -> None:
    asked, may_answer = Event(), Event()

    def hang(_: socket.socket) -> None:
        asked.set()
        may_answer.wait(20)

    keys = TokenKeys(server.url, clock)
    keys.load()
    server.raw = hang
    readings = [Thread(target=keys.refresh) for _ in range(2)]
    for reading in readings:
        reading.start()
    assert asked.wait(20)
    keys.close()
    for reading in readings:
        reading.join(20)
    assert not any(reading.is_alive() for reading in readings)
    assert "cannot read" not in caplog.text, "it has not waited until it gave up"
    may_answer.set()
    assert server.requests == 2, "the second reading asks no more"
    assert keys.key("key") is not None


def test_a_server_that_does_not_answer_at_the_start_is_tried_again(
    clock: ScriptedClock, caplog: pytest.LogCaptureFixture, server: KeyServer
) -> None:
    server.status = 500
    keys = TokenKeys(server.url, clock)
    keys.load()
    assert "no token can be verified until then" in caplog.text
    server.status = 200
    clock.now += 10
    assert keys.key("key") is not None


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("http://127.0.0.1:{port}/keys?api_key=hunter2", "http://127.0.0.1:{port}/keys?…"),
        ("http://ann:hunter2@127.0.0.1:{port}/keys", "http://127.0.0.1:{port}/keys"),
    ],
)
def test_the_log_has_no_secret_of_the_url(
    server: KeyServer, clock: ScriptedClock, caplog: pytest.LogCaptureFixture, secret: str, shown: str
) -> None:
    server.status = 503
    port = server.url.rpartition(":")[2].partition("/")[0]
    TokenKeys(secret.format(port=port), clock).load()
    assert f"cannot read sasl.oauthbearer.jwks.endpoint.url={shown.format(port=port)}: " in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("content", [None, "oops"])
def test_a_file_that_cannot_be_used_is_a_mistake(tmp_path: Path, clock: ScriptedClock, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"^broker setting sasl.oauthbearer.jwks.endpoint.url=file:"):
        TokenKeys(file.as_uri(), clock).load()


def test_a_token_without_a_key_id_is_checked_with_the_only_key(tmp_path: Path, clock: ScriptedClock) -> None:
    one = TokenKeys(write(tmp_path / "one", public_jwk("RSA", None)), clock)
    two = TokenKeys(write(tmp_path / "two", public_jwk("RSA", "a"), public_jwk("RSA2", "b")), clock)
    for keys in (one, two):
        keys.load()
    assert TokenVerifier(TokenRules(), one, clock)(token(key_id=None)).user == "ann"
    with pytest.raises(InvalidTokenError, match="there is no key"):
        TokenVerifier(TokenRules(), two, clock)(token(key_id=None))


def test_where_only_unsecured_tokens_are_accepted_a_signed_one_is_not(clock: ScriptedClock) -> None:
    verifier = TokenVerifier(TokenRules(allows_unsecured=True), None, clock)
    assert verifier(token(algorithm="none")).user == "ann"
    with pytest.raises(InvalidTokenError, match=r"it is signed, and sasl\.oauthbearer.jwks\.endpoint\.url is not set"):
        verifier(token())


# --- in a broker


def valid(**claims: object) -> str:
    now = int(time.time())
    return token(**{"iat": now, "exp": now + 600, **claims})


def test_a_broker_accepts_signed_tokens_alone(tmp_path: Path) -> None:
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": write(tmp_path / "keys.json", public_jwk("RSA")),
        "sasl.oauthbearer.unsecured.tokens.allow": "false",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.sub.claim.name": "email",
    }
    good = {"aud": "kafka", "iss": "https://issuer", "email": "ann@example.org"}
    with sasl_broker(tmp_path / "data", **settings) as running:
        with RawClient(running.listeners[SASL]) as client:
            assert log_in(client, "OAUTHBEARER", password=valid(**good)).session_lifetime_ms > 500_000
            assert new_topic(client)
        for bad in (valid(**{**good, "aud": "x"}), valid(**{**good, "iss": "x"}), unsecured_token()):
            with RawClient(running.listeners[SASL]) as client:
                answer = log_in(client, "OAUTHBEARER", password=bad)
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        log = log_of(running)
    assert "its audience is not sasl.oauthbearer.expected.audience" in log
    assert "its issuer is not sasl.oauthbearer.expected.issuer" in log
    assert "it is unsecured (alg none)" in log
    assert valid().split(".")[0] not in log


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.allow": "false"},
            "listener SASL_PLAINTEXT has OAUTHBEARER in sasl.enabled.mechanisms, but no keys for its tokens: set "
            "sasl.oauthbearer.jwks.endpoint.url",
        ),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/keys.json"},
            "broker setting sasl.oauthbearer.jwks.endpoint.url=file:///nowhere/keys.json: No such file or directory",
        ),
        ({"sasl.oauthbearer.jwks.endpoint.url": "keys.json"}, "expected a URL that begins with file:, https: or http:"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Values must be distinct and of: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN"),
        ({"sasl.enabled.mechanisms": ""}, "must name one at least"),
        (
            {"connections.max.idle.ms": "100", "connection.failed.authentication.delay.ms": "100"},
            "connection.failed.authentication.delay.ms=100: must be less than connections.max.idle.ms",
        ),
        ({"listener.name.sasl_plaintext.connections.max.reauth.ms": "-1"}, "Value must be at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        sasl_broker(tmp_path, **settings).start()
    assert message in str(refused.value)


def test_a_broker_reads_its_keys_again_now_and_then(tmp_path: Path) -> None:
    """Another key under the same id makes no token look as if its key were unknown."""
    file = tmp_path / "keys.json"
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": write(file, public_jwk("RSA")),
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
        "sasl.oauthbearer.unsecured.tokens.allow": "false",
        "sasl.oauthbearer.sub.claim.name": "email",
    }
    now = int(time.time())
    signed = token("RSA2", iat=now, exp=now + 600, email="ann@example.org")
    with sasl_broker(tmp_path / "data", **settings) as running:

        def logs_in() -> bool:
            with RawClient(running.listeners[SASL]) as client:
                return log_in(client, "OAUTHBEARER", password=signed).error_code == ErrorCode.NONE

        assert not logs_in()
        write(file, public_jwk("RSA2"))
        assert eventually(logs_in)


def test_a_broker_ends_while_it_reads_its_keys(tmp_path: Path, server: KeyServer) -> None:
    asked, may_answer = Event(), Event()

    def hang(_: socket.socket) -> None:
        asked.set()
        may_answer.wait(60)

    add_users(tmp_path)
    url = {"sasl.oauthbearer.jwks.endpoint.url": server.url, "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000"}
    with EmbeddedBroker(tmp_path, config={**CONFIG, **url}) as running:
        server.raw = hang
        assert asked.wait(20)
        running.stop(60)
    may_answer.set()
    assert "cannot read" not in log_of(running), "it has not waited until it gave up"
    assert log_of(running).endswith("stopped\n")


def test_each_listener_may_have_its_own_mechanisms(tmp_path: Path) -> None:
    settings = {
        "listeners": f"{OPEN}://127.0.0.1:0,A://127.0.0.1:0,B://127.0.0.1:0",
        "listener.security.protocol.map": f"{OPEN}:{OPEN},A:{SASL},B:{SASL}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.b.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.b.connections.max.reauth.ms": "60000",
    }
    with sasl_broker(tmp_path, **settings) as running:
        for listener, mechanism, lifetime_ms in (("A", "PLAIN", 0), ("B", "SCRAM-SHA-256", 60000)):
            with RawClient(running.listeners[listener]) as client:
                assert log_in(client, mechanism).session_lifetime_ms == lifetime_ms


def test_mechanisms_that_others_can_read_are_warned_of(tmp_path: Path) -> None:
    everywhere = {"listeners": f"{SASL}://0.0.0.0:0", "advertised.listeners": f"{SASL}://localhost:9"}
    with sasl_broker(tmp_path / "one", allow_anonymous=True, **everywhere) as running:
        assert "sends passwords and tokens unencrypted (PLAIN, OAUTHBEARER over SASL_PLAINTEXT)" in log_of(running)
        assert "accepts tokens without a signature: any client can be any user" in log_of(running)
    settings = {**everywhere, "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    with sasl_broker(tmp_path / "two", **settings) as running:
        assert "unencrypted" not in log_of(running)


def test_a_broker_without_users_logs_how_to_create_one(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path, config={"listeners": f"{SASL}://127.0.0.1:0"}) as running:
        assert "no user has a credential yet: create one with dualwrite broker users set" in log_of(running)


def test_a_broker_of_tokens_needs_no_users(tmp_path: Path) -> None:
    settings = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.allow": "true"}
    with ForkedBroker(tmp_path, config={"listeners": f"{SASL}://127.0.0.1:0", **settings}) as running:
        assert "no user has a credential" not in log_of(running)
