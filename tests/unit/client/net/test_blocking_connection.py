"""One connection to one broker, over real sockets: negotiation, TLS, SASL, and every way in which an answer is lost."""

import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualwrite.client.config.settings import ClientSettings, SaslSettings, SocketSettings, TlsSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.net.tls import ssl_context
from dualwrite.client.protocol.requests import VersionedRequest, describe_transactions, init_producer_id
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.oauth import TokenSource
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    KafkaRefusedError,
    KafkaUnavailableError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.client.certificate import CERTIFICATE, KEY
from tests.support.client.sasl_server import ScramServer, handshake_answer, sasl_answer
from tests.support.client.scripted_broker import HANG_UP, SILENCE, FakeClock, ScriptedBroker, described, scripted
from tests.support.waiting import eventually


def connect(broker: ScriptedBroker, **changes: Any) -> BlockingConnection:
    settings = ClientSettings((broker.endpoint,), connect_timeout=5, request_timeout=5)
    return BlockingConnection(broker.endpoint, replace(settings, **changes))


def ask(connection: BlockingConnection, timeout: float | None = None) -> Any:
    return connection.request(describe_transactions("app-0"), timeout=timeout)


def unused_endpoint() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Endpoint(*listener.getsockname()[:2])


def test_a_request_is_answered_under_the_clients_id() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
        connection = connect(broker, client_id="orders")
        assert ask(connection).transaction_states[0].transactional_id == "app-0"
        connection.close()
        assert {seen.client_id for seen in broker.seen} == {"orders"}


def test_an_unreachable_broker_is_named() -> None:
    endpoint = unused_endpoint()
    with pytest.raises(KafkaUnavailableError, match=f"broker {endpoint}: Connection refused"):
        BlockingConnection(endpoint, ClientSettings((endpoint,)))


def test_an_unknown_host_is_named() -> None:
    endpoint = Endpoint("no-such-host.invalid", 9092)
    with pytest.raises(KafkaUnavailableError, match=r"broker no-such-host\.invalid:9092: "):
        BlockingConnection(endpoint, ClientSettings((endpoint,)))


@pytest.mark.parametrize("cap", [0, 1, 2, 3])
def test_an_older_broker_is_asked_in_the_version_of_api_versions_that_it_has(cap: int) -> None:
    with scripted(versions={ApiKey.API_VERSIONS: (0, cap)}) as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
        connection = connect(broker)
        ask(connection)
        connection.close()
        assert [seen.version for seen in broker.requests(ApiKey.API_VERSIONS)] == [4, cap]


def test_a_broker_that_refuses_every_version_is_given_up() -> None:
    with scripted() as broker:
        refusal = APIS[ApiKey.API_VERSIONS].response(error_code=35, api_keys=[], throttle_time_ms=0)
        broker.api_versions_cap = -1
        broker.answer(ApiKey.API_VERSIONS, refusal)
        with pytest.raises(KafkaUnavailableError, match="agrees to no version"):
            connect(broker)
        assert len(broker.requests(ApiKey.API_VERSIONS)) == 2


@pytest.mark.parametrize("answer", [HANG_UP, with_size(b"HTTP"), b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_not_kafka_is_unavailable_and_not_an_answer_lost(answer: Any) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.API_VERSIONS, answer)
        with pytest.raises(KafkaUnavailableError, match=str(broker.endpoint)) as caught:
            connect(broker)
        assert not isinstance(caught.value, AnswerLostError)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (HANG_UP, "closed the connection"),
        (SILENCE, "timed out"),
        (with_size(b"\x00\x00\x00\x63"), "not asked for"),
        (with_size(b"\x00\x00\x00\x01\x00"), "DescribeTransactionsResponse"),
        (with_size(b""), "without a correlation id"),
        (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes"),
    ],
)
def test_an_answer_that_does_not_come_or_makes_no_sense_is_lost(answer: Any, reason: str) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, answer)
        connection = connect(broker)
        with pytest.raises(AnswerLostError, match=f"DESCRIBE_TRANSACTIONS: broker {broker.endpoint}: .*{reason}"):
            ask(connection, timeout=0.2)
        assert not connection.is_usable()


def test_a_version_that_the_broker_lacks_is_refused_before_anything_is_sent() -> None:
    with scripted(versions={ApiKey.INIT_PRODUCER_ID: (0, 5)}) as broker:
        connection = connect(broker)
        keeping = init_producer_id("a", 1, two_phase_commit=False, keep_prepared_txn=True)
        refused = f"InitProducerId of a: broker {broker.endpoint}: .* 0 to 5, .*UNSUPPORTED_VERSION: .*KIP-939"
        with pytest.raises(TwoPhaseCommitUnavailableError, match=refused):
            connection.request(keeping)
        with pytest.raises(KafkaRefusedError, match="INIT_PRODUCER_ID") as caught:
            connection.request(VersionedRequest("asked", ApiKey.INIT_PRODUCER_ID, keeping.message, cap=-1))
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert not broker.requests(ApiKey.INIT_PRODUCER_ID)
        assert connection.is_usable()
        assert (connection.offers(ApiKey.INIT_PRODUCER_ID, 5), connection.offers(ApiKey.INIT_PRODUCER_ID, 6)) == (
            True,
            False,
        )
        connection.close()


def test_a_connection_that_the_broker_closed_meanwhile_is_not_usable() -> None:
    with scripted() as broker:
        connection = connect(broker)
        assert connection.is_usable()
        broker.close()  # the end of the stream is on its way
        assert eventually(lambda: not connection.is_usable())
        connection.close()
        assert not connection.is_usable()


def server_tls(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)


@pytest.mark.parametrize("as_pem", [True, False])
def test_tls_trusts_the_configured_authority(tmp_path: Path, as_pem: bool) -> None:
    context, certificate = server_tls(tmp_path)
    tls = TlsSettings(ca_pem=CERTIFICATE) if as_pem else TlsSettings(ca_location=certificate)
    with scripted(tls=context) as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
        connection = connect(broker, tls=tls)
        assert ask(connection).transaction_states
        connection.close()


def test_tls_trusts_only_the_configured_authority() -> None:
    (trusted,) = ssl_context(TlsSettings(ca_pem=CERTIFICATE)).get_ca_certs()
    assert trusted["subject"] == ((("commonName", "localhost"),),)


def test_tls_shows_the_clients_certificate_when_it_is_asked_for(tmp_path: Path) -> None:
    context, certificate = server_tls(tmp_path)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    tls = TlsSettings(ca_location=certificate, certificate_location=certificate, key_location=str(tmp_path / "key.pem"))
    with scripted(tls=context) as broker:
        broker.answer(ApiKey.DESCRIBE_TRANSACTIONS, described())
        connection = connect(broker, tls=tls)
        assert ask(connection).transaction_states
        connection.close()
        with pytest.raises(KafkaUnavailableError):
            connect(broker, tls=replace(tls, certificate_location=None))


def test_tls_refuses_an_unknown_authority_and_says_which_setting_decides(tmp_path: Path) -> None:
    context, _ = server_tls(tmp_path)
    with scripted(tls=context) as broker, pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        connect(broker, tls=TlsSettings())


def test_tls_refuses_another_hosts_certificate_unless_told_not_to_look(tmp_path: Path) -> None:
    context, certificate = server_tls(tmp_path)
    with scripted(tls=context) as broker:
        alias = Endpoint("127.1", broker.endpoint.port)  # the same address, by a name that the certificate lacks
        settings = ClientSettings((alias,), tls=TlsSettings(ca_location=certificate), connect_timeout=5)
        with pytest.raises(ConfigurationError, match="not trusted"):
            BlockingConnection(alias, settings)
        for tls in (TlsSettings(ca_location=certificate, verify_hostname=False), TlsSettings(verify_certificate=False)):
            BlockingConnection(alias, replace(settings, tls=tls)).close()


@pytest.mark.parametrize(
    ("tls", "named"),
    [
        (TlsSettings(ca_location="/no/such/ca.pem"), r"ssl\.ca\.location /no/such/ca\.pem"),
        (TlsSettings(ca_location=os.devnull), r"ssl\.ca\.location"),
        (TlsSettings(certificate_location="/no/such/cert.pem"), r"ssl\.certificate\.location /no/such/cert\.pem"),
    ],
)
def test_a_tls_file_that_is_missing_or_no_pem_is_named(tls: TlsSettings, named: str) -> None:
    with scripted() as broker, pytest.raises(ConfigurationError, match=named):
        connect(broker, tls=tls)


def test_tls_against_a_plaintext_broker_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname()[:2])
        settings = ClientSettings((endpoint,), tls=TlsSettings(), connect_timeout=0.2)
        with pytest.raises(KafkaUnavailableError, match="TLS: "):
            BlockingConnection(endpoint, settings)


def test_plain_sends_the_credentials_before_any_other_request() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer())
        connect(broker, sasl=SaslSettings("PLAIN", "u", "p")).close()
        assert [seen.api_key for seen in broker.seen] == [
            ApiKey.API_VERSIONS,
            ApiKey.SASL_HANDSHAKE,
            ApiKey.SASL_AUTHENTICATE,
        ]
        assert broker.seen[1].message.mechanism == "PLAIN"
        assert broker.seen[2].message.auth_bytes == b"\0u\0p", "as librdkafka and Java have it"


@pytest.mark.parametrize(("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_proves_the_password_and_checks_the_broker(mechanism: str, hash_name: str) -> None:
    server = ScramServer("p", hash_name)
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, server.first, server.final)
        connect(broker, sasl=SaslSettings(mechanism, "u", "p")).close()
    assert server.authenticated


def test_a_wrong_password_is_a_configuration_error() -> None:
    server = ScramServer("p", "sha256")
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, server.first, server.final)
        with pytest.raises(ConfigurationError, match="invalid credentials"):
            connect(broker, sasl=SaslSettings("SCRAM-SHA-256", "u", "wrong"))
    assert not server.authenticated


@pytest.mark.parametrize(
    "answers",
    [
        (lambda _: sasl_answer(b"e=other-error"),),
        (lambda _: sasl_answer(b"\xff"),),
        (lambda _: sasl_answer(b"r=x,s=eA==,i=1"),),
        (None, lambda _: sasl_answer(b"v=AAAA")),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_not_believed(
    answers: tuple[Callable[[Any], Any] | None, ...],
) -> None:
    first = ScramServer("p", "sha256").first
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, *(answer or first for answer in answers))
        with pytest.raises(ConfigurationError, match="SASL SCRAM-SHA-256"):
            connect(broker, sasl=SaslSettings("SCRAM-SHA-256", "u", "p"))


@pytest.mark.parametrize("lifetime_ms", [100_000, 0])
def test_a_connection_is_used_no_longer_than_its_authentication_lasts(lifetime_ms: int) -> None:
    clock = FakeClock()
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=lifetime_ms))
        settings = ClientSettings((broker.endpoint,), sasl=SaslSettings("PLAIN", "u", "p"))
        connection = BlockingConnection(broker.endpoint, settings, clock.monotonic)
        clock.sleep(84)
        assert connection.is_usable()
        clock.sleep(2)
        assert connection.is_usable() is (lifetime_ms == 0), "0 is for ever"
        connection.close()


def bearer(given: Any) -> SaslSettings:
    return SaslSettings("OAUTHBEARER", tokens=TokenSource(lambda _: given))


def test_a_token_is_sent_with_its_extensions() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer())
        connect(broker, sasl=bearer(("t0ken", 4e9, "me", {"cluster": "a"}))).close()
        (handshake,), (authenticate,) = (
            broker.requests(key) for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        )
        assert handshake.message.mechanism == "OAUTHBEARER"
        assert authenticate.message.auth_bytes == b"n,,\x01auth=Bearer t0ken\x01cluster=a\x01\x01"


def test_a_token_that_the_socket_takes_in_parts_is_sent_whole() -> None:
    token = "x" * 500_000
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer())
        connect(broker, sasl=bearer((token, 4e9)), socket=SocketSettings(send_buffer=8192)).close()
        (authenticate,) = broker.requests(ApiKey.SASL_AUTHENTICATE)
        assert authenticate.message.auth_bytes == f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def test_a_token_that_the_broker_refuses_is_a_configuration_error_with_its_reason() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        refused = sasl_answer(code=ErrorCode.SASL_AUTHENTICATION_FAILED, reason='{"status":"invalid_token"}')
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(b'{"status":"invalid_token"}'), refused)
        with pytest.raises(ConfigurationError, match=r'^oauth_cb: broker .*: {"status":"invalid_token"}$'):
            connect(broker, sasl=bearer(("stolen", 4e9)))
        last = broker.requests(ApiKey.SASL_AUTHENTICATE)[-1]
        assert last.message.auth_bytes == b"\x01", "the client takes note of the refusal (RFC 7628, section 3.2.3)"


@pytest.mark.parametrize(
    ("given", "error"), [(None, ConfigurationError), (("t", 1.0), ConfigurationError), ((), ConfigurationError)]
)
def test_a_callback_that_gives_no_good_token_is_named(given: Any, error: type[Exception]) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        with pytest.raises(error, match="oauth_cb gave "):
            connect(broker, sasl=bearer(given))
        assert not broker.requests(ApiKey.SASL_AUTHENTICATE)


def test_a_callback_that_fails_leaves_the_broker_unavailable() -> None:
    def fails(_config: str) -> Any:
        raise OSError("no route to the identity provider")

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        with pytest.raises(KafkaUnavailableError, match="oauth_cb: OSError: no route"):
            connect(broker, sasl=SaslSettings("OAUTHBEARER", tokens=TokenSource(fails)))


def test_plain_with_an_unexpected_answer_is_refused() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(b"surprise"))
        with pytest.raises(ConfigurationError, match="SASL PLAIN"):
            connect(broker, sasl=SaslSettings("PLAIN", "u", "p"))


def test_a_mechanism_that_the_broker_lacks_is_named_with_those_it_has() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer(ErrorCode.UNSUPPORTED_SASL_MECHANISM))
        with pytest.raises(ConfigurationError, match=r"SCRAM-SHA-512: .* offers PLAIN, SCRAM-SHA-256"):
            connect(broker, sasl=SaslSettings("SCRAM-SHA-512", "u", "p"))
