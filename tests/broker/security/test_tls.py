"""Handshakes that fail: the client and the broker's log say why. And those that succeed beside them."""

import io
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.secured import Keys
from tests.support.client.certificates import EXPIRED, Authority
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, metadata, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def secured(keys: Keys, home: Path) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(home, config=keys.listeners()) as running:
        yield running


@pytest.fixture
def logged(home: Path) -> Callable[[str], bool]:
    """True once the broker has logged the words."""
    return lambda words: eventually(lambda: words in (home / "broker.log").read_text(), bool)


Logged = Callable[[str], bool]


def test_a_request_is_answered_on_every_listener_of_tls(secured: EmbeddedBroker, keys: Keys) -> None:
    with ExitStack() as stack:
        for name, mutual in (("SSL", False), ("MUTUAL", True), ("NEWEST", False), ("SSL", True)):
            client = stack.enter_context(RawClient(secured.listeners[name], tls=keys.context(mutual=mutual)))
            (node,) = metadata(client).brokers
            assert f"{node.host}:{node.port}" == secured.listeners[name]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_large_requests_and_answers_pass_whole(secured: EmbeddedBroker, keys: Keys, version: ssl.TLSVersion) -> None:
    context = keys.context()
    context.maximum_version = version
    values = [bytes([number]) * 300_000 for number in range(3)]
    with RawClient(secured.listeners["SSL"], tls=context) as client:
        topic = new_topic(client)
        assert produce(client, topic, batch(values)).error_code == ErrorCode.NONE
        assert read_all(client, topic) == values


# --- clients of Python's ssl


def connect(address: str, context: ssl.SSLContext) -> None:
    """A handshake and a request, whichever of the two fails. With TLS 1.3 a client learns only after its own part of
    the handshake that the broker refuses its certificate."""
    with RawClient(address, tls=context) as client:
        metadata(client)


def untrusting(keys: Keys) -> ssl.SSLContext:
    return keys.context(trust=Authority("other").file(keys.directory / "other-ca.pem"))


def with_certificate_of_another_authority(keys: Keys) -> ssl.SSLContext:
    context = keys.context()
    context.load_cert_chain(*Authority("other").issue("orders").in_two(keys.directory, "foreign"))
    return context


def with_expired_certificate(keys: Keys) -> ssl.SSLContext:
    context = keys.context()
    context.load_cert_chain(*keys.authority.issue("orders", valid=EXPIRED).in_two(keys.directory, "old"))
    return context


def of_version_1_2(keys: Keys) -> ssl.SSLContext:
    context = keys.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    ("listener", "make", "to_client", "in_log"),
    [
        ("SSL", untrusting, "CERTIFICATE_VERIFY_FAILED", "it does not trust the authority that signed it (unknown ca)"),
        ("EXPIRED", Keys.context, "certificate has expired", "this broker's certificate: it has expired, or is not"),
        ("ELSEWHERE", Keys.context, "Hostname mismatch", "most often the host to which it connects is not in it"),
        ("MUTUAL", Keys.context, "CERTIFICATE_REQUIRED", "no certificate, and ssl.client.auth is required; set the"),
        ("MUTUAL", with_certificate_of_another_authority, "UNKNOWN_CA", "its certificate is not accepted: unable to "),
        ("MUTUAL", with_expired_certificate, "CERTIFICATE_EXPIRED", "is not accepted: certificate has expired"),
        ("NEWEST", of_version_1_2, "PROTOCOL_VERSION", "no version of TLS that ssl.enabled.protocols allows"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_both_sides_say_why_a_handshake_failed(
    secured: EmbeddedBroker,
    keys: Keys,
    logged: Logged,
    listener: str,
    make: Callable[[Keys], ssl.SSLContext],
    to_client: str,
    in_log: str,
) -> None:
    with pytest.raises(ssl.SSLError, match=to_client):
        connect(secured.listeners[listener], make(keys))
    assert logged(f"closing a connection of 127.0.0.1 to listener {listener}: ")
    assert logged(in_log)


def test_a_client_without_a_certificate_learns_it_in_tls_1_2_too(
    secured: EmbeddedBroker, keys: Keys, logged: Logged
) -> None:
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        connect(secured.listeners["MUTUAL"], of_version_1_2(keys))
    assert logged("it presented no certificate")


# --- clients that speak something else


def test_a_client_without_tls_is_named(secured: EmbeddedBroker, logged: Logged) -> None:
    with RawClient(secured.listeners["SSL"]) as client, pytest.raises(ConnectionError):
        metadata(client)
    assert logged("it speaks no TLS, and this listener is SSL: set the client's security.protocol to SSL")


def test_a_client_of_http_is_named(secured: EmbeddedBroker, logged: Logged) -> None:
    with RawClient(secured.listeners["SSL"]) as client:
        client.send_bytes(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.read_to_end() == b""
    assert logged("it speaks HTTP, and this is a Kafka broker")


def test_a_connection_that_sends_nothing_is_not_logged_as_a_failure(secured: EmbeddedBroker, home: Path) -> None:
    before = (home / "broker.log").read_text()
    host, _, port = secured.listeners["SSL"].rpartition(":")
    socket.create_connection((host, int(port)), PATIENCE_SECONDS).close()
    with RawClient(secured.listeners["PLAINTEXT"]) as client:
        assert metadata(client).cluster_id
    assert "closing a connection" not in (home / "broker.log").read_text().removeprefix(before)


# --- librdkafka


def librdkafkas_errors(address: str, settings: dict[str, str], expected: str) -> str:
    """What a client on librdkafka reports and logs that cannot connect, until ``expected`` is in it."""
    said = io.StringIO()
    log = logging.Logger("librdkafka")  # of this test's own
    log.addHandler(logging.StreamHandler(said))
    config = {"bootstrap.servers": address, "error_cb": lambda error: said.write(error.str()), **settings}
    admin = AdminClient(config, logger=log)

    def said_so_far() -> str:
        with suppress(KafkaException):
            admin.list_topics(timeout=0.1)
        admin.poll(0.1)
        return said.getvalue()

    return eventually(said_so_far, lambda text: expected in text)


@pytest.mark.parametrize(
    ("listener", "change", "to_client", "in_log"),
    [
        ("SSL", {"ssl.ca.location": None}, "certificate verify failed", "does not trust the authority"),
        ("EXPIRED", {}, "certificate verify failed", "it has expired, or is not valid yet"),
        ("ELSEWHERE", {}, "certificate verify failed", "most often the host to which it connects is not in it"),
        ("MUTUAL", {}, "certificate required", "it presented no certificate"),
        ("SSL", {"security.protocol": "PLAINTEXT"}, "Disconnected", "it speaks no TLS"),
        ("PLAINTEXT", {}, "Disconnected", "it speaks TLS, and this listener does not"),
    ],
    ids=["wrong authority", "expired", "wrong host", "no certificate", "plaintext to TLS", "TLS to plaintext"],
)
def test_librdkafka_and_the_log_say_why(
    secured: EmbeddedBroker,
    keys: Keys,
    logged: Logged,
    listener: str,
    change: dict[str, str | None],
    to_client: str,
    in_log: str,
) -> None:
    settings = {key: value for key, value in {**keys.librdkafka(), **change}.items() if value is not None}
    assert to_client in librdkafkas_errors(secured.listeners[listener], settings, to_client)
    assert logged(in_log)


# --- many at once


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["silent", "half a greeting"])
def test_unfinished_handshakes_delay_no_other_client(secured: EmbeddedBroker, keys: Keys, first: bytes) -> None:
    host, _, port = secured.listeners["SSL"].rpartition(":")
    with ExitStack() as stack:
        for _ in range(200):
            half_open = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_SECONDS))
            half_open.sendall(first)
        for _ in range(20):
            connect(secured.listeners["SSL"], keys.context())
        with RawClient(secured.listeners["SSL"], tls=keys.context()) as client:
            topic = new_topic(client)
            for number in range(20):
                assert produce(client, topic, batch([b"%d" % number])).error_code == ErrorCode.NONE


@pytest.mark.slow
def test_half_a_handshake_counts_as_a_connection_and_is_closed_as_an_idle_one(tmp_path: Path, keys: Keys) -> None:
    config = {**keys.listeners(), "max.connections": "3", "connections.max.idle.ms": "1500"}
    with ForkedBroker(tmp_path, config=config) as broker:
        host, _, port = broker.listeners["SSL"].rpartition(":")
        with ExitStack() as stack:
            half_open = [
                stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_SECONDS)) for _ in range(3)
            ]
            connect(broker.listeners["SSL"], keys.context())  # room was made
            for connection in half_open:
                assert connection.recv(1) == b""


def test_a_stop_does_not_wait_for_half_a_handshake_and_logs_no_failure(tmp_path: Path, keys: Keys) -> None:
    with ForkedBroker(tmp_path, config=keys.listeners()) as broker:
        host, _, port = broker.listeners["SSL"].rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as half_open:
            half_open.sendall(b"\x16\x03\x01\x02\x00")
            connect(broker.listeners["SSL"], keys.context())
            broker.stop()
            assert half_open.recv(1) == b""
    log = (tmp_path / "broker.log").read_text()
    assert "closing a connection" not in log
    assert log.splitlines()[-1].endswith(": stopped")
