"""What the control plane reads from a librdkafka configuration, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest

from dualwrite.client.config.settings import ClientSettings, SocketSettings
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError


def repr_of(value: Any) -> str:
    return f"{'an int' if isinstance(value, int) and value > 2**31 else value!r:.20}"


def servers(text: str, protocol: str) -> tuple[Endpoint, ...]:
    config = {"bootstrap.servers": text, "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    return ClientSettings.from_config({**config, "security.protocol": protocol}).bootstrap


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_server_may_name_the_protocol_that_it_is_spoken_to_in_and_no_other(protocol: str) -> None:
    expected = (Endpoint("a", 1), Endpoint("b", 9092))
    assert servers(f"a:1,{protocol}://b", protocol) == expected
    assert servers(f"{protocol.lower()}://a:1,b", protocol.lower()) == expected
    for other in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "FOO"} - {protocol}:
        with pytest.raises(ConfigurationError) as caught:
            servers(f"a:1,{other}://b:2", protocol)
        assert str(caught.value) == f"bootstrap.servers: '{other}://b:2' is not security.protocol's {protocol}"


@pytest.mark.parametrize("protocol", ["http", "https"])
def test_an_http_url_is_refused_as_a_bootstrap_server(protocol: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        servers(f"{protocol}://b:2", "PLAINTEXT")
    assert str(caught.value) == f"bootstrap.servers '{protocol}://b:2': give HOST:PORT, without {protocol}://"


def settings(**overrides: Any) -> ClientSettings:
    config = {"bootstrap.servers": "b:1"} | {key.replace("_", "."): value for key, value in overrides.items()}
    return ClientSettings.from_config(config)


def secured(**overrides: Any) -> ClientSettings:
    sasl = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    return settings(**({"security_protocol": "SASL_SSL"} | sasl | overrides))


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("host", Endpoint("host", 9092)),
        ("host:", Endpoint("host", 9092)),
        ("host:1", Endpoint("host", 1)),
        (" host:65535 ", Endpoint("host", 65535)),
        ("PLAINTEXT://host:9", Endpoint("host", 9)),
        ("[::1]:9093", Endpoint("::1", 9093)),
        ("[::1]", Endpoint("::1", 9092)),
    ],
)
def test_an_endpoint_is_read_as_librdkafka_reads_it(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint


@pytest.mark.parametrize("text", ["", ":9092", "host:x", "host:0", "host:65536", "[::1]:x", "host:-1"])
def test_a_malformed_endpoint_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        Endpoint.parse(text)


@pytest.mark.parametrize("endpoint", [Endpoint("h", 9), Endpoint("::1", 9)])
def test_an_endpoint_prints_as_it_is_written(endpoint: Endpoint) -> None:
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_several_brokers_and_the_older_key_are_understood() -> None:
    made = ClientSettings.from_config({"metadata.broker.list": "a:1, b:2,"})
    assert made.bootstrap == (Endpoint("a", 1), Endpoint("b", 2))


def test_a_missing_bootstrap_server_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is not set"):
        ClientSettings.from_config({})


def test_durations_are_librdkafkas_milliseconds() -> None:
    made = settings(socket_timeout_ms="1500", socket_connection_setup_timeout_ms=250)
    assert (made.request_timeout, made.connect_timeout) == (1.5, 0.25)


def test_none_is_as_if_the_setting_were_not_there() -> None:
    nothing = {
        **dict.fromkeys(("client.id", "security.protocol", "socket.timeout.ms", "socket.keepalive.enable"), None),
        **dict.fromkeys(("sasl.mechanism", "ssl.ca.location", "socket.send.buffer.bytes"), None),
    }
    assert ClientSettings.from_config({"bootstrap.servers": "b:1"} | nothing) == settings()


@pytest.mark.parametrize("word", ["true", "True", True, "t", 1, "1"])
def test_a_flag_is_read_as_librdkafka_reads_it(word: Any) -> None:
    assert settings(socket_keepalive_enable=word).socket.keepalive


NO_NUMBER = ["", float("nan"), float("inf"), -float("inf"), "inf", 1.5, True, 10**400, 10**5000, "9" * 5000, 2**31]


@pytest.mark.parametrize("value", ["soon", 0, -5, *NO_NUMBER], ids=repr_of)
@pytest.mark.parametrize("name", ["socket.timeout.ms", "socket.connection.setup.timeout.ms"])
def test_a_malformed_duration_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(name)} .{{1,200}}$"):
        settings(**{name: value})


def test_plaintext_is_the_default() -> None:
    assert (settings().tls, settings().sasl) == (None, None)


def test_keys_that_only_matter_to_librdkafka_are_left_alone() -> None:
    assert settings(linger_ms=5, ssl_cipher_suites="x").bootstrap == (Endpoint("b", 1),)


def test_a_token_needs_a_callback_and_no_password() -> None:
    config = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    made = ClientSettings.from_config(config | {"oauth_cb": lambda _: ("token", 9), "sasl.oauthbearer.config": "x"})
    assert made.sasl is not None
    assert made.sasl.tokens is not None
    assert made.sasl.tokens.token(0).value == "token"
    with pytest.raises(ConfigurationError, match=r"^oauth_cb: OAUTHBEARER needs a function"):
        ClientSettings.from_config(config)


def test_socket_settings_are_read_as_librdkafka_reads_them() -> None:
    made = settings(socket_keepalive_enable="true", socket_nagle_disable="false", socket_send_buffer_bytes=1)
    assert made.socket == SocketSettings(keepalive=True, no_delay=False, send_buffer=1)
    assert settings().socket == SocketSettings()


@pytest.mark.parametrize("value", ["many", -1, *NO_NUMBER], ids=repr_of)
@pytest.mark.parametrize("name", ["socket.send.buffer.bytes", "socket.receive.buffer.bytes"])
def test_a_malformed_buffer_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(name)} .{{1,200}}$"):
        settings(**{name: value})


@pytest.mark.parametrize("name", ["client.id", "sasl.username", "sasl.password"])
def test_a_text_that_cannot_be_sent_is_named_and_not_shown(name: str) -> None:
    """Python reads such a character from a variable of the environment that is not UTF-8."""
    with pytest.raises(ConfigurationError) as caught:
        secured(**{name: "caf\udce9"})
    assert str(caught.value) == f"{name}: has a character that UTF-8 cannot encode"


def test_a_file_may_be_named_by_a_path_and_by_nothing_else_than_text() -> None:
    made = secured(ssl_ca_location=Path("ca.pem"))
    assert made.tls is not None
    assert made.tls.ca_location == "ca.pem"
    with pytest.raises(ConfigurationError, match=r"^ssl\.ca\.location of type int: give text$"):
        secured(ssl_ca_location=7)


@pytest.mark.parametrize("protocol", ["TLS", ""])
def test_an_unknown_security_protocol_is_refused(protocol: str) -> None:
    """An empty one, too: it may come from an unset variable, and would connect without TLS and without credentials."""
    with pytest.raises(ConfigurationError, match=f"security.protocol '{protocol}': use one of PLAINTEXT, SSL"):
        settings(security_protocol=protocol)


def test_tls_settings_keep_librdkafkas_names_and_defaults() -> None:
    certificate = {"ssl_certificate_location": "/certificate", "ssl_key_password": "secret"}
    tls = settings(security_protocol="ssl", ssl_ca_location="/ca", **certificate).tls
    assert tls is not None
    assert (tls.ca_location, tls.verify_certificate, tls.verify_hostname) == ("/ca", True, True)
    assert "secret" not in repr(tls)


@pytest.mark.parametrize("name", ["ssl.key.location", "ssl.key.password"])
def test_a_key_without_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(security_protocol="SSL", **{name: "x"})
    assert str(caught.value) == f"{name}: of no use without ssl.certificate.location, the key's certificate"
    settings(**{name: "x"})  # without TLS it has no meaning


@pytest.mark.parametrize(
    ("protocol", "unused"),
    [
        ("PLAINTEXT", ("ssl.ca.location", "sasl.mechanism", "sasl.username", "sasl.password")),
        ("SSL", ("sasl.mechanism", "sasl.username", "sasl.password")),
        ("SASL_PLAINTEXT", ("ssl.ca.location",)),
        ("SASL_SSL", ()),
    ],
)
def test_settings_unused_by_the_security_protocol_are_listed(protocol: str, unused: tuple[str, ...]) -> None:
    assert secured(security_protocol=protocol, ssl_ca_location="/ca").unused == unused
    assert settings(sasl_mechanisms="", oauth_cb=None).unused == ()


def test_verification_is_switched_off_only_by_its_own_keys() -> None:
    tls = settings(
        security_protocol="SSL",
        ssl_ca_location="probe",
        ssl_endpoint_identification_algorithm="none",
        enable_ssl_certificate_verification="false",
    ).tls
    assert tls is not None
    assert (tls.ca_location, tls.verify_certificate, tls.verify_hostname) == (None, False, False)


@pytest.mark.parametrize(
    "overrides",
    [
        {"ssl_key_pem": "x"},
        {"ssl_certificate_pem": "x"},
        {"ssl_keystore_location": "x"},
        {"ssl_crl_location": "x"},
        {"ssl_engine_location": "x"},
        {"ssl_providers": "x"},
        {"ssl_cipher_suites": "x"},
        {"ssl_curves_list": "x"},
        {"ssl_sigalgs_list": "x"},
        {"ssl_endpoint_identification_algorithm": "http"},
        {"enable_ssl_certificate_verification": "maybe"},
    ],
)
def test_a_security_setting_that_cannot_be_honoured_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(overrides)).replace("_", r"\.")):
        settings(security_protocol="SSL", **overrides)


def test_sasl_credentials_are_read_and_not_shown() -> None:
    sasl = secured(sasl_password="hunter2").sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.password) == ("PLAIN", "u", "hunter2")
    assert "hunter2" not in repr(sasl)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"sasl_mechanism": "GSSAPI"}, "GSSAPI"),
        ({"sasl_mechanism": None}, "GSSAPI"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "oauth_cb"),
        ({"sasl_username": ""}, "username"),
        ({"sasl_password": None}, "password"),
    ],
)
def test_sasl_that_the_control_plane_cannot_do_is_refused(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        secured(**overrides)
