"""Both drivers with TLS and SASL, over real sockets: what is refused, what is lost, and what errors say."""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings, TlsSettings
from dualwrite.client.engine.contract import Operation
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.oauth import TokenSource
from dualwrite.errors import ConfigurationError, DualWriteError, KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from tests.support.client.certificate import CERTIFICATE
from tests.support.client.certificates import Authority
from tests.support.client.driving import (
    AskingEngine,
    Drive,
    drive_async,
    drive_blocking,
    echo,
    end_txn,
    ids,
    lost_error,
    resolving,
    unused_endpoint,
)
from tests.support.client.sasl_server import ScramServer, handshake_answer, sasl_answer
from tests.support.client.scripted_broker import HANG_UP, ScriptedBroker, scripted, with_shutdown

pytestmark = pytest.mark.parametrize("drive", [drive_blocking, drive_async])
PATIENCE = 20.0


def test_tls_carries_requests_and_answers_longer_than_a_tls_record(drive: Drive, server_tls: ssl.SSLContext) -> None:
    names = ["x" * 200] * 1000
    with scripted(tls=server_tls) as broker:
        response = APIS[ApiKey.LIST_TRANSACTIONS].response
        broker.answer(
            ApiKey.LIST_TRANSACTIONS,
            response(throttle_time_ms=0, error_code=0, unknown_state_filters=names, transaction_states=[]),
        )
        broker.answer(ApiKey.END_TXN, echo)
        question = APIS[ApiKey.LIST_TRANSACTIONS].request(state_filters=names, producer_id_filters=[])
        engine = AskingEngine((broker.endpoint, question), (broker.endpoint, end_txn(4)))
        listed, answered = drive(engine, tls=TlsSettings(ca_pem=CERTIFICATE))
        assert (list(listed.unknown_state_filters), answered.producer_id) == (names, 4)


def test_tls_keeps_no_end_of_an_answer_back(drive: Drive, server_tls: ssl.SSLContext) -> None:
    names = ["x" * 200] * 75  # as long as one TLS record at most: nothing else arrives that would wake the driver
    with scripted(tls=server_tls) as broker:
        response = APIS[ApiKey.LIST_TRANSACTIONS].response
        broker.answer(
            ApiKey.LIST_TRANSACTIONS,
            response(throttle_time_ms=0, error_code=0, unknown_state_filters=names, transaction_states=[]),
        )
        question = APIS[ApiKey.LIST_TRANSACTIONS].request(state_filters=[], producer_id_filters=[])
        (listed,) = drive(AskingEngine((broker.endpoint, question)), tls=TlsSettings(ca_pem=CERTIFICATE))
        assert list(listed.unknown_state_filters) == names


def test_tls_refuses_an_unknown_authority_and_says_which_setting_decides(
    drive: Drive, server_tls: ssl.SSLContext
) -> None:
    with scripted(tls=server_tls) as broker:
        engine = AskingEngine((broker.endpoint, end_txn()))
        assert "ssl.ca.location" in lost_error(engine, drive, ConfigurationError, tls=TlsSettings())


def test_tls_refuses_another_hosts_certificate(
    drive: Drive, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tls=server_tls) as broker, resolving(monkeypatch, broker.endpoint) as host:
        message = lost_error(
            AskingEngine((host, end_txn())), drive, ConfigurationError, tls=TlsSettings(ca_pem=CERTIFICATE)
        )
        assert "not trusted" in message
        assert ".; see" not in message


def test_tls_against_a_plaintext_broker_is_unavailable(drive: Drive) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = AskingEngine((Endpoint(*listener.getsockname()[:2]), end_txn()))
        assert "TLS: timed out" in lost_error(
            engine, drive, KafkaUnavailableError, tls=TlsSettings(), connect_timeout=0.2
        )


def test_a_broker_that_hangs_up_in_the_tls_handshake_is_lost(drive: Drive) -> None:
    with scripted() as broker:  # to which a ClientHello is a frame of an impossible size
        engine = AskingEngine((broker.endpoint, end_txn()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ScriptedBroker, "reply", lambda *_: False)
            patch.setattr("tests.support.client.scripted_broker.frame_size", lambda *_: 1)
            assert "TLS: " in lost_error(engine, drive, KafkaUnavailableError, tls=TlsSettings())


@pytest.mark.parametrize("renewed", ["ca_location", "certificate_location"])
def test_the_next_connection_takes_a_renewed_file(drive: Drive, tmp_path: Path, renewed: str) -> None:
    """As where certificates are valid for a day, and the service runs for weeks."""
    authority, former = Authority(), Authority()
    broker_certificate, key = authority.issue().in_two(tmp_path, "broker")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(broker_certificate, key)
    server_tls.load_verify_locations(cadata=authority.certificate)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    files = {"ca_location": tmp_path / "ca.pem", "certificate_location": tmp_path / "client.pem"}

    def write(name: str, issuer: Authority) -> None:
        issued = issuer.issue("orders")
        written = tmp_path / "written.pem"
        written.write_text(issuer.certificate if name == "ca_location" else issued.key() + issued.certificate)
        written.rename(files[name])  # another file, however coarse the clock of the file system

    class Renewing(AskingEngine):
        def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
            if self.events("lost"):
                super().lost(endpoint, error, now)
                return
            awaited, self.operation = self.operation, Operation()
            super().lost(endpoint, error, now)
            write(renewed, authority)
            self.ask((endpoint, end_txn(3)))
            self.operation = awaited

    for name in files:
        write(name, former if name == renewed else authority)
    with scripted(tls=server_tls) as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = Renewing((broker.endpoint, end_txn(2)))
        tls = TlsSettings(**{name: str(path) for name, path in files.items()})
        assert ids(drive(engine, tls=tls)) == [3]
        assert len(engine.events("lost")) == 1


@contextlib.contextmanager
def saying(said: bytes) -> Iterator[Endpoint]:
    """A listener that takes some bytes, says ``said``, and closes the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(said)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield Endpoint(*listener.getsockname()[:2])
    with_shutdown(listener)
    thread.join()


def test_tls_against_a_listener_without_it_names_the_setting(drive: Drive) -> None:
    with saying(b"") as endpoint:
        message = lost_error(AskingEngine((endpoint, end_txn())), drive, KafkaUnavailableError, tls=TlsSettings())
        assert message.startswith(f"broker {endpoint}: TLS: ")
        assert message.endswith("; is it a listener without TLS? See security.protocol")
    with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as endpoint:
        message = lost_error(AskingEngine((endpoint, end_txn())), drive, ConfigurationError, tls=TlsSettings())
        assert message == f"broker {endpoint}: this listener does not use TLS; see security.protocol"


def test_plaintext_against_a_listener_with_tls_names_the_setting(drive: Drive) -> None:
    with saying(bytes.fromhex("15030300020246")) as endpoint:  # the alert protocol_version
        message = lost_error(AskingEngine((endpoint, end_txn())), drive, ConfigurationError)
        assert message == f"broker {endpoint}: this listener uses TLS; see security.protocol"
    with saying(b"") as endpoint:
        message = lost_error(AskingEngine((endpoint, end_txn())), drive, KafkaUnavailableError)
        assert message.endswith("closed the connection; is it a listener with TLS? See security.protocol")


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.END_TXN])
def test_a_broker_that_hangs_up_when_it_has_answered_or_spoken_tls_is_not_suspected(
    drive: Drive, server_tls: ssl.SSLContext, api_key: ApiKey
) -> None:
    is_secured = api_key is ApiKey.API_VERSIONS
    with scripted(tls=server_tls if is_secured else None) as broker:
        broker.answer(api_key, HANG_UP)
        changes = {"tls": TlsSettings(ca_pem=CERTIFICATE)} if is_secured else {}
        message = lost_error(AskingEngine((broker.endpoint, end_txn())), drive, KafkaUnavailableError, **changes)
        assert "security.protocol" not in message
        assert "timed out" not in message


def test_the_life_of_connections_is_logged(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dualwrite")
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        drive(AskingEngine((broker.endpoint, end_txn())))
    nobody = unused_endpoint()
    error = lost_error(AskingEngine((nobody, end_txn())), drive, KafkaUnavailableError)
    assert [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "dualwrite"] == [
        ("DEBUG", f"broker {broker.endpoint}: connecting"),
        ("DEBUG", f"broker {broker.endpoint}: connected"),
        ("DEBUG", f"broker {nobody}: connecting"),
        ("WARNING", error),
    ]


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_is_done_before_the_connection_is_open(
    drive: Drive, server_tls: ssl.SSLContext, mechanism: str, secured: bool
) -> None:
    server = ScramServer("p", "sha" + mechanism[-3:]) if mechanism != "PLAIN" else None
    with scripted(tls=server_tls if secured else None) as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, APIS[ApiKey.SASL_HANDSHAKE].response(error_code=0, mechanisms=[mechanism]))
        rounds = (sasl_answer(),) if server is None else (server.first, server.final)
        broker.answer(ApiKey.SASL_AUTHENTICATE, *rounds)
        broker.answer(ApiKey.END_TXN, echo)
        changes: dict[str, Any] = {"sasl": SaslSettings(mechanism, "u", "p")}
        if secured:
            changes["tls"] = TlsSettings(ca_pem=CERTIFICATE)
        assert ids(drive(AskingEngine((broker.endpoint, end_txn(5))), **changes)) == [5]
        assert server is None or server.authenticated


def test_a_failed_oauth_callback_is_named_in_the_error(drive: Drive) -> None:
    def fails(_config: str) -> None:
        raise OSError("no route")

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        for callback, kind, said in (
            (fails, KafkaUnavailableError, "oauth_cb: OSError: no route"),
            (lambda _: None, ConfigurationError, "oauth_cb gave a value of type NoneType"),
        ):
            engine = AskingEngine((broker.endpoint, end_txn()))
            sasl = SaslSettings("OAUTHBEARER", tokens=TokenSource(callback))
            assert said in lost_error(engine, drive, kind, sasl=sasl)
        assert not broker.requests(ApiKey.SASL_AUTHENTICATE)


def test_a_wrong_password_is_a_configuration_error(drive: Drive) -> None:
    server = ScramServer("p", "sha256")
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, server.first, server.final)
        engine = AskingEngine((broker.endpoint, end_txn()))
        sasl = SaslSettings("SCRAM-SHA-256", "u", "wrong")
        assert "invalid credentials" in lost_error(engine, drive, ConfigurationError, sasl=sasl)
