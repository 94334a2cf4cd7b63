"""A listener's certificates: what is wrong with a file, renewal while the broker runs, and clients' principals."""

import asyncio
import logging
import os
import re
import signal
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from dualwrite.broker.api.context import ANONYMOUS
from dualwrite.broker.clients.listeners import Listener, SecurityProtocol
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.broker.settings.listener_settings import ListenerValues
from dualwrite.broker.tls.listener_tls import ListenerTls
from dualwrite.broker.tls.transport import TlsHandshakeError, TlsTransport
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.secured import AUTH, STORE, TRUST, Keys
from tests.support.client.certificates import Authority, named
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import BROKER, describe_configs
from tests.support.requests.calls import batch, metadata, new_topic, produce
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SSL = Listener("EXTERNAL", SecurityProtocol.SSL, "localhost", 0, "localhost", 0)
SASL_SSL = Listener("EXTERNAL", SecurityProtocol.SASL_SSL, "localhost", 0, "localhost", 0)
CHAIN, KEY, PASSWORD = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.key.password"
AUTHORITIES = "ssl.truststore.certificates"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def tls(config: dict[str, str], listener: Listener = SSL) -> ListenerTls:
    return ListenerTls(listener, ListenerValues(listener.name, config))


async def principal(config: dict[str, str], client: ssl.SSLContext, listener: Listener = SSL) -> str:
    """The principal of a client that connects to a listener with ``config``."""
    secured = tls(config, listener)
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def accept(stream: FrameStream) -> None:
        async def greet() -> None:
            assert isinstance(stream.transport, TlsTransport)
            try:
                found.set_result(await secured.handshake(stream.transport))
            except TlsHandshakeError as error:
                found.set_exception(error)
            stream.close()

        tasks.append(asyncio.ensure_future(greet()))

    tasks: list[asyncio.Future[None]] = []
    stream = lambda: secured.transport(FrameStream(1000, accept, ConnectionMemory()))  # noqa: E731
    server = await asyncio.get_running_loop().create_server(stream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        writer.close()
        return await found
    finally:
        server.close()
        await asyncio.gather(*tasks)


# --- principals


NAME = named((NameOID.ORGANIZATION_NAME, "shop"), (NameOID.COMMON_NAME, "Orders"))


def presenting(keys: Keys, name: x509.Name) -> ssl.SSLContext:
    context = keys.context()
    context.load_cert_chain(*keys.authority.issue(name, hosts=()).in_two(keys.directory, "presented"))
    return context


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({AUTH: "required"}, "User:CN=Orders,O=shop"),
        ({AUTH: "requested"}, "User:CN=Orders,O=shop"),
        ({AUTH: "none"}, ANONYMOUS),
        ({AUTH: "required", "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"}, "User:orders"),
    ],
)
def test_a_clients_principal_is_the_name_in_its_certificate(keys: Keys, more: dict[str, str], expected: str) -> None:
    config = {STORE: keys.broker, TRUST: keys.trust, **more}
    assert asyncio.run(principal(config, presenting(keys, NAME))) == expected


def test_a_client_that_need_not_present_a_certificate_is_anonymous(keys: Keys) -> None:
    config = {STORE: keys.broker, TRUST: keys.trust, AUTH: "requested"}
    assert asyncio.run(principal(config, keys.context())) == ANONYMOUS


def test_a_name_that_no_rule_maps_is_refused(keys: Keys) -> None:
    config = {STORE: keys.broker, TRUST: keys.trust, AUTH: "required", "ssl.principal.mapping.rules": "RULE:x/y/"}
    with pytest.raises(TlsHandshakeError, match=r"no rule .* matches its certificate CN=Orders,O=shop"):
        asyncio.run(principal(config, presenting(keys, NAME)))


def test_with_sasl_only_the_listeners_own_setting_asks_for_certificates(keys: Keys) -> None:
    """KIP-684. The principal is always that of SASL."""
    config = {STORE: keys.broker, TRUST: keys.trust, AUTH: "required"}
    assert asyncio.run(principal(config, keys.context(), SASL_SSL)) == ANONYMOUS
    config[f"listener.name.external.{AUTH}"] = "required"
    assert asyncio.run(principal(config, presenting(keys, NAME), SASL_SSL)) == ANONYMOUS
    with pytest.raises(TlsHandshakeError, match="presented no certificate"):
        asyncio.run(principal(config, keys.context(), SASL_SSL))


# --- where the certificate comes from


@pytest.mark.parametrize("in_one_line", [False, True])
@pytest.mark.parametrize("password", [None, "open sesame"])
def test_certificates_may_be_settings_themselves(keys: Keys, in_one_line: bool, password: str | None) -> None:
    issued = keys.authority.issue()
    texts = {CHAIN: issued.certificate, KEY: issued.key(password), AUTHORITIES: keys.authority.certificate}
    if in_one_line:
        texts = {key: text.replace("\n", " ") for key, text in texts.items()}
    config = {**texts, AUTH: "required", **({PASSWORD: password} if password else {})}
    assert asyncio.run(principal(config, presenting(keys, NAME))) == "User:CN=Orders,O=shop"


def test_the_key_in_the_file_may_be_encrypted(keys: Keys) -> None:
    store = keys.authority.issue().in_one(keys.directory / "encrypted.pem", "pw")
    assert asyncio.run(principal({STORE: store, PASSWORD: "pw"}, keys.context())) == ANONYMOUS


def test_no_directory_has_to_be_writable(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a container may be read-only, and so may be its /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(keys.directory / "missing"))
    assert asyncio.run(principal({STORE: keys.broker}, keys.context())) == ANONYMOUS


def test_cipher_suites_and_versions_are_those_of_the_settings(keys: Keys) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    config = {STORE: keys.broker, "ssl.cipher.suites": suite}
    newest = keys.context()
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    assert asyncio.run(principal(config, keys.context())) == ANONYMOUS
    with pytest.raises(ssl.SSLError):
        asyncio.run(principal(config, newest))
    other = keys.context()
    other.maximum_version = ssl.TLSVersion.TLSv1_2
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        asyncio.run(principal(config, other))


Change = Callable[[Keys, Path], dict[str, str]]


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


REFUSED: list[tuple[Change, str]] = [
    (lambda keys, tmp: {}, "TLS needs a certificate and its key: set ssl.keystore.location, a file with the key and"),
    (lambda keys, tmp: {CHAIN: "x"}, "TLS needs a certificate and its key: set ssl.keystore.key"),
    (lambda keys, tmp: {KEY: "x"}, "TLS needs a certificate and its key: set ssl.keystore.certificate.chain"),
    (lambda keys, tmp: {STORE: keys.broker, KEY: "x"}, "ssl.keystore.location and ssl.keystore.key are both set"),
    (lambda keys, tmp: {STORE: str(tmp / "gone")}, "ssl.keystore.location /.*/gone: No such file or directory"),
    (lambda keys, tmp: {STORE: str(tmp)}, "ssl.keystore.location /.*: Is a directory"),
    (lambda keys, tmp: {STORE: written(tmp / "x", b"x")}, "ssl.keystore.location /.*/x: holds no certificate in PEM"),
    (lambda keys, tmp: {STORE: written(tmp / "x", b"\xfe\xed\xfe\xed")}, "it is not PEM; .* convert JKS with 'keytool"),
    (lambda keys, tmp: {STORE: written(tmp / "x", b"\x30\x82\x01")}, "it is not PEM; .* PKCS12 with 'openssl pkcs12"),
    (lambda keys, tmp: {STORE: keys.trust}, "ssl.keystore.location /.*/ca.pem: holds no private key in PEM form"),
    (
        lambda keys, tmp: {CHAIN: keys.authority.issue().certificate, KEY: keys.authority.issue().key()},
        "ssl.keystore.key: not the private key of the certificate in ssl.keystore.certificate.chain",
    ),
    (
        lambda keys, tmp: {STORE: keys.authority.issue().in_one(tmp / "x", "pw")},
        "ssl.key.password: is not set, and is needed for the key in ssl.keystore.location /.*/x",
    ),
    (
        lambda keys, tmp: {STORE: keys.authority.issue().in_one(tmp / "x", "pw"), PASSWORD: "wrong-secret"},
        "ssl.key.password: does not open the key in ssl.keystore.location /.*/x",
    ),
    (
        lambda keys, tmp: {STORE: keys.broker, AUTH: "required"},
        "ssl.client.auth=required needs ssl.truststore.location, a file with the authorities in PEM",
    ),
    (
        lambda keys, tmp: {STORE: keys.broker, TRUST: written(tmp / "x", b"x")},
        "ssl.truststore.location /.*/x: holds no certificate in PEM form",
    ),
    (
        lambda keys, tmp: {STORE: keys.broker, TRUST: keys.trust, AUTHORITIES: "x"},
        "ssl.truststore.location and ssl.truststore.certificates are both set",
    ),
    (lambda keys, tmp: {STORE: keys.broker, "ssl.cipher.suites": "NOPE"}, "ssl.cipher.suites: OpenSSL knows none of"),
    (
        lambda keys, tmp: {
            STORE: keys.broker,
            "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384",
            "ssl.enabled.protocols": "TLSv1.3",
        },
        "ssl.cipher.suites has no suite of a version in ssl.enabled.protocols",
    ),
    (
        lambda keys, tmp: {STORE: keys.broker, "ssl.principal.mapping.rules": "RULE:x"},
        "ssl.principal.mapping.rules: 'RULE:x' is not DEFAULT or RULE",
    ),
]


@pytest.mark.parametrize(("change", "why"), REFUSED, ids=[why[:40] for _, why in REFUSED])
def test_a_bad_certificate_is_refused_with_one_line(keys: Keys, tmp_path: Path, change: Change, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^listener EXTERNAL: .*{why}") as raised:
        tls(change(keys, tmp_path))
    assert "\n" not in str(raised.value)
    assert "wrong-secret" not in str(raised.value)


def test_a_broker_with_a_broken_certificate_does_not_start(keys: Keys, tmp_path: Path) -> None:
    config = {"listeners": "SSL://localhost:0", STORE: str(tmp_path / "gone")}
    with pytest.raises(ConfigurationError, match=r"did not start: listener SSL: .* No such file"):
        ForkedBroker(tmp_path / "broker", config=config).start()


def test_no_client_and_no_log_sees_a_password(keys: Keys, tmp_path: Path) -> None:
    secret = "correct-horse"
    store = keys.authority.issue().in_one(tmp_path / "broker.pem", secret)
    config = {
        "listeners": "SSL://localhost:0",
        STORE: store,
        PASSWORD: secret,
        f"listener.name.ssl.{PASSWORD}": secret,
        "listener.name.ssl.ssl.client.auth": "none",
    }
    with ForkedBroker(tmp_path / "broker", config=config) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_text()
        with RawClient(broker.bootstrap_servers, tls=keys.context()) as client:
            entries = {entry.name: entry for entry in describe_configs(client, BROKER, "0", more=True).configs}
    for name in (PASSWORD, f"listener.name.ssl.{PASSWORD}"):
        assert (entries[name].value, entries[name].is_sensitive, entries[name].config_type) == (None, True, 9)
        assert entries[name].synonyms
        assert {synonym.value for synonym in entries[name].synonyms} == {None}
    assert entries[STORE].value == store
    assert entries["listener.name.ssl.ssl.client.auth"].value == "none"
    assert not entries["listener.name.ssl.ssl.client.auth"].is_sensitive
    assert secret not in str(entries)
    assert secret not in command
    assert secret not in (tmp_path / "broker" / "broker.log").read_text()


# --- renewal


def test_a_listener_reads_its_files_again_only_when_they_have_changed(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = tmp_path / "broker.pem"
    keys.authority.issue().in_one(store)
    secured = tls({STORE: str(store)})
    secured.renew()
    assert caplog.messages == []
    keys.authority.issue().in_one(store)
    secured.renew()
    secured.renew()
    assert caplog.messages == ["listener EXTERNAL has read its certificates again"]
    caplog.clear()
    store.write_text("half a fi")
    for _ in range(3):
        secured.renew()
    (message,) = caplog.messages
    expected = r"keeping the earlier certificate: listener EXTERNAL: ssl.keystore.location .*: holds no certificate"
    assert re.match(expected, message)
    caplog.clear()
    store.unlink()
    secured.renew()
    keys.authority.issue().in_one(store)
    secured.renew()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    caplog.clear()
    secured.renew(even_if_unchanged=True)
    assert caplog.messages == ["listener EXTERNAL has read its certificates again"]


@pytest.mark.parametrize("how", ["chore", "signal"])
def test_a_new_certificate_is_used_without_a_restart_and_no_request_fails(keys: Keys, tmp_path: Path, how: str) -> None:
    store = tmp_path / "broker.pem"
    first, second = keys.authority.issue(), Authority("second")
    first.in_one(store)
    is_over = threading.Event()
    errors: list[str] = []
    acknowledged: list[int] = []
    with ForkedBroker(tmp_path / "broker", config={"listeners": "SSL://localhost:0", STORE: str(store)}) as broker:
        with RawClient(broker.bootstrap_servers, tls=keys.context()) as client:
            topic = new_topic(client)

        def work() -> None:
            with RawClient(broker.bootstrap_servers, tls=keys.context()) as worker:
                while not is_over.is_set():
                    answer = produce(worker, topic, batch([b"v"]))
                    if answer.error_code != ErrorCode.NONE:
                        errors.append(str(answer))
                    acknowledged.append(answer.base_offset)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert eventually(lambda: len(acknowledged), bool)
            temporary = tmp_path / "new.pem"
            second.issue().in_one(temporary)
            os.replace(temporary, store)
            if how == "signal":
                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGHUP)
            trust = second.file(tmp_path / "second-ca.pem")

            def connects() -> bool:
                try:
                    with RawClient(broker.bootstrap_servers, tls=keys.context(trust=trust)) as client:
                        return bool(metadata(client).cluster_id)
                except ssl.SSLCertVerificationError:
                    return False

            assert eventually(connects, bool)
            seen = len(acknowledged)
            assert eventually(lambda: len(acknowledged), lambda count: count > seen) > seen
        finally:
            is_over.set()
            thread.join()
        with pytest.raises(ssl.SSLCertVerificationError):
            RawClient(broker.bootstrap_servers, tls=keys.context())
    assert errors == []
    assert acknowledged == sorted(acknowledged)
    assert "listener SSL has read its certificates again" in (tmp_path / "broker" / "broker.log").read_text()


def test_a_signal_has_certificates_read_that_are_the_same_on_disk(keys: Keys, tmp_path: Path) -> None:
    """As after a change of the files that the broker does not see, for example behind a link."""
    config = {"listeners": "SSL://localhost:0", STORE: keys.broker}
    with ForkedBroker(tmp_path, config=config) as broker:
        log = tmp_path / "broker.log"
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
        said = eventually(log.read_text, lambda text: "has read its certificates again" in text)
        assert "listener SSL has read its certificates again" in said
