"""Listeners: what Kafka takes for ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.clients.listeners import (
    DEFAULT_LISTENERS,
    DEFAULT_PROTOCOL_MAP,
    PLAINTEXT_LISTENER,
    Listener,
    ListenerEndpoint,
    SecurityProtocol,
    host_and_port,
    is_loopback,
    parse_endpoint,
    parse_listeners,
)
from dualwrite.errors import ConfigurationError

PLAINTEXT, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL
SASL_PLAINTEXT, SASL_SSL = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL


def parse(listeners: str, advertised: str | None = None, protocols: str = DEFAULT_PROTOCOL_MAP) -> tuple[Listener, ...]:
    entries = None if advertised is None else [entry for entry in advertised.split(",") if entry]
    return parse_listeners(listeners.split(","), entries, protocols.split(","))


# --- protocols


@pytest.mark.parametrize(
    ("protocol", "is_tls", "is_sasl"),
    [(PLAINTEXT, False, False), (SSL, True, False), (SASL_PLAINTEXT, False, True), (SASL_SSL, True, True)],
)
def test_a_protocol_has_tls_or_sasl_or_both(protocol: SecurityProtocol, is_tls: bool, is_sasl: bool) -> None:
    assert (protocol.is_tls, protocol.is_sasl) == (is_tls, is_sasl)


def test_every_protocol_is_a_listeners_name_by_default() -> None:
    for protocol in SecurityProtocol:
        (listener,) = parse(f"{protocol.value}://h:1")
        assert (listener.name, listener.protocol) == (protocol.value, protocol)


# --- entries


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://localhost:9092", ("PLAINTEXT", "localhost", 9092)),
        ("ssl://h:0", ("SSL", "h", 0)),
        ("MY_listener-1.x://under_score-1:1", ("MY_LISTENER-1.X", "under_score-1", 1)),
        ("SSL://:9093", ("SSL", "", 9093)),
        ("SSL://[::1]:9093", ("SSL", "::1", 9093)),
        ("SSL://[::]:9093", ("SSL", "::", 9093)),
        ("SSL://[fe80::1%eth0]:65535", ("SSL", "fe80::1%eth0", 65535)),
        ("SSL://10.0.0.1:65536", None),
        ("SSL://h", None),
        ("SSL://h:", None),
        ("SSL://h:-1", None),
        ("SSL://h:1/", None),
        ("SSL://::1:9093", None),
        ("SSL://[h:1", None),
        ("://h:1", None),
        ("h:1", None),
        ("SSL:h:1", None),
        ("SSL://h h:1", None),
        ("SSL://h:１", None),  # noqa: RUF001  a digit, but not one of ASCII
        ("", None),
    ],
)
def test_an_entry_is_name_host_and_port(text: str, endpoint: tuple[str, str, int] | None) -> None:
    assert parse_endpoint(text) == (endpoint and ListenerEndpoint(*endpoint))


HOSTS = st.sampled_from(["h", "a-b.example", "10.0.0.1", "::1", "fe80::1%eth0", "127.0.0.1"])


@given(st.sampled_from(["A", "EXTERNAL", "X_1"]), HOSTS, st.integers(0, 65535))
def test_an_entry_that_is_written_is_read_again(name: str, host: str, port: int) -> None:
    assert parse_endpoint(f"{name}://{host_and_port(host, port)}") == (name, host, port)


@given(st.text(max_size=30))
def test_any_text_is_an_entry_or_none(text: str) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint is None or text.upper().startswith(f"{endpoint.name}://")


# --- listeners


def test_a_broker_without_settings_listens_on_loopback() -> None:
    assert parse(DEFAULT_LISTENERS) == (PLAINTEXT_LISTENER,)


def test_listeners_have_names_and_protocols_of_their_own() -> None:
    inside, outside = parse(
        "internal://10.0.0.1:9092,EXTERNAL://0.0.0.0:9093",
        "external://kafka.example:443",
        "Internal:plaintext, EXTERNAL : SASL_SSL",
    )
    assert inside == Listener("INTERNAL", PLAINTEXT, "10.0.0.1", 9092, "10.0.0.1", 9092)
    assert outside == Listener("EXTERNAL", SASL_SSL, "0.0.0.0", 9093, "kafka.example", 443)


def test_a_free_port_is_advertised_once_it_is_known() -> None:
    (listener,) = parse("SSL://localhost:0")
    assert (listener.port, listener.advertised_port) == (0, 0)
    bound = listener.on_port(40001)
    assert (bound.port, bound.advertised_port, bound.address) == (40001, 40001, "localhost:40001")


def test_an_advertised_port_does_not_depend_on_the_free_one() -> None:
    (listener,) = parse("SSL://0.0.0.0:0", "SSL://h:443")
    assert listener.on_port(40001) == replace(listener, port=40001)
    assert listener.on_port(40001).advertised_port == 443


@pytest.mark.parametrize(
    ("host", "address"), [("h", "h:1"), ("::1", "[::1]:1"), ("", "0.0.0.0:1"), ("0.0.0.0", "0.0.0.0:1")]
)
def test_the_address_is_one_to_listen_on(host: str, address: str) -> None:
    assert replace(PLAINTEXT_LISTENER, host=host, port=1).address == address


@pytest.mark.parametrize(
    "listeners",
    [
        "PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092",
        "PLAINTEXT://h:0,SSL://h:0",
        "PLAINTEXT://h:1,SSL://h:2",
    ],
)
def test_listeners_that_do_not_collide_are_taken(listeners: str) -> None:
    assert len(parse(listeners)) == 2


REFUSED = [
    ("nothing", None, "listeners: 'nothing' is not NAME://HOST:PORT, as in SSL://127.0.0.1:9093"),
    ("SSL://h:1,ssl://h:2", None, "listeners: the name SSL occurs twice"),
    ("SSL://h:1,PLAINTEXT://h:1", None, "listeners: SSL and PLAINTEXT have the same port 1"),
    ("SSL://a:1,PLAINTEXT://b:1", None, "listeners: SSL and PLAINTEXT have the same port 1"),
    ("SSL://127.0.0.1:1,PLAINTEXT://127.0.0.2:1", None, "have the same port 1"),
    ("SSL://[::1]:1,PLAINTEXT://[::2]:1", None, "have the same port 1"),
    ("SSL://[::1]:1,PLAINTEXT://h:1", None, "have the same port 1"),
    ("SSL://[::1]:1,PLAINTEXT://127.0.0.1:1,SASL_SSL://127.0.0.2:1", None, "have the same port 1"),
    ("EXTERNAL://h:1", None, "listeners: EXTERNAL has no security protocol; add EXTERNAL:SSL, or another one, to list"),
    ("SSL://:1", None, "--config advertised.listeners=SSL://HOST:PORT"),
    ("SSL://0.0.0.0:1", None, "--config advertised.listeners=SSL://HOST:PORT"),
    ("SSL://[::]:1", None, "listening on ::: clients cannot connect to that address"),
    ("SSL://0.0.0.0:1,PLAINTEXT://0.0.0.0:2", "SSL://h:1", "advertised.listeners=PLAINTEXT://HOST:PORT"),
    ("SSL://h:1", "", "advertised.listeners is empty: expected NAME://HOST:PORT, or do not set it"),
    ("SSL://h:1", "PLAINTEXT://h:1", "advertised.listeners: PLAINTEXT is no listener; listeners has SSL"),
    ("SSL://h:1", "SSL://h:1,SSL://h:2", "advertised.listeners: the name SSL occurs twice"),
    ("SSL://h:1", "SSL://0.0.0.0:1", "advertised.listeners: no client can connect to SSL://0.0.0.0:1"),
    ("SSL://h:1", "SSL://[::]:1", "advertised.listeners: no client can connect to SSL://[::]:1"),
    ("SSL://h:1", "SSL://:1", "advertised.listeners: no client can connect to SSL://:1"),
    ("SSL://h:1", "SSL://h:0", "advertised.listeners: no client can connect to SSL://h:0"),
    ("SSL://h:1", "SSL://h", "advertised.listeners: 'SSL://h' is not NAME://HOST:PORT"),
]


@pytest.mark.parametrize(("listeners", "advertised", "why"), REFUSED)
def test_unusable_listeners_are_refused_with_the_reason(listeners: str, advertised: str | None, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)) as raised:
        parse(listeners, advertised)
    assert "\n" not in str(raised.value)


def test_two_listeners_may_advertise_one_port() -> None:
    """They may be behind a proxy that tells them apart by the name."""
    one, other = parse("SSL://h:1,PLAINTEXT://h:2", "SSL://a:443,PLAINTEXT://b:443")
    assert one.advertised_port == other.advertised_port == 443


@pytest.mark.parametrize(
    ("protocols", "why"),
    [
        ("SSL", "listener.security.protocol.map: 'SSL' is not NAME:PROTOCOL; the protocols are PLAINTEXT, SSL, SASL_"),
        ("SSL:TLS", "listener.security.protocol.map: 'SSL:TLS' is not NAME:PROTOCOL"),
        (":SSL", "listener.security.protocol.map: ':SSL' is not NAME:PROTOCOL"),
        ("A:SSL,a:PLAINTEXT", "listener.security.protocol.map: A occurs twice"),
        ("A:SSL", "listeners: SSL has no security protocol"),
    ],
)
def test_a_map_must_give_every_listener_a_protocol(protocols: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        parse("SSL://h:1", protocols=protocols)


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("a-name", True),
    ],
)
def test_only_loopback_is_out_of_reach_of_other_machines(address: str, answer: bool) -> None:
    assert is_loopback(address) is answer
