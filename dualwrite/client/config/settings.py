"""The control plane's settings from a librdkafka configuration, with librdkafka's names and meanings
(CONFIGURATION.md).

One mapping configures both clients. The control plane ignores keys that only matter to librdkafka. It refuses a key
that would change how a connection is secured and that it cannot honour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.client.config.native_keys import KEYS
from dualwrite.client.config.reading import flag_in, milliseconds_in, require_mapping, servers_in, text_in, value_in
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.oauth import TokenSource
from dualwrite.errors import ConfigurationError

_CONNECT_TIMEOUT = "socket.connection.setup.timeout.ms"
_REQUEST_TIMEOUT = "socket.timeout.ms"
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_KEYS = ("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.key.location", "ssl.key.password")
_SASL_KEYS = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "oauth_cb")
_UNSUPPORTED = {
    "ssl.key.pem": "use ssl.key.location",
    "ssl.certificate.pem": "use ssl.certificate.location",
    "ssl.keystore.location": "use ssl.key.location and ssl.certificate.location",
    "ssl.crl.location": "remove it",
    "ssl.engine.location": "remove it",
    "ssl.providers": "remove it",
    "ssl.cipher.suites": "remove it",
    "ssl.curves.list": "remove it",
    "ssl.sigalgs.list": "remove it",
}
LONGEST_CLIENT_ID = 32767
"""Bytes of a client.id that the header of a request can have."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """librdkafka's ``ssl.*``: files in PEM form. ``ca_location`` None is the system's trust store."""

    ca_location: str | None = None
    ca_pem: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_certificate: bool = True
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """librdkafka's ``sasl.*``: a name and a password for PLAIN and SCRAM, tokens for OAUTHBEARER."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """librdkafka's ``socket.*`` options of the operating system. Buffers are in bytes; 0 is the system's default."""

    keepalive: bool = False
    no_delay: bool = True
    send_buffer: int = 0
    receive_buffer: int = 0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the cluster. Durations are in seconds."""

    bootstrap: tuple[Endpoint, ...]
    client_id: str = KEYS["client.id"].default
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    socket: SocketSettings = SocketSettings()
    connect_timeout: float = KEYS[_CONNECT_TIMEOUT].default / 1000
    request_timeout: float = KEYS[_REQUEST_TIMEOUT].default / 1000
    unused: tuple[str, ...] = ()
    """Settings of TLS or SASL that are given, but have no effect with this security.protocol."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ClientSettings":
        """The settings in a librdkafka configuration. None as a value means that the setting is not given.

        :raises ConfigurationError: if it is no mapping, or bootstrap.servers is missing, or a setting is malformed or
            cannot be honoured.
        """
        require_mapping(config)
        servers = servers_in(config)
        protocol = str(value_in(config, "security.protocol")).upper()
        if protocol not in _SECURITY_PROTOCOLS:
            raise ConfigurationError(f"security.protocol {protocol!r}: use one of {', '.join(_SECURITY_PROTOCOLS)}")
        return cls(
            bootstrap=tuple(Endpoint.parse(part, protocol) for part in servers.split(",") if part.strip()),
            client_id=_client_id(config),
            tls=_tls(config) if protocol.endswith("SSL") else None,
            sasl=_sasl(config) if protocol.startswith("SASL") else None,
            socket=_socket(config),
            connect_timeout=_seconds(config, _CONNECT_TIMEOUT),
            request_timeout=_seconds(config, _REQUEST_TIMEOUT),
            unused=_unused(config, protocol),
        )


def _client_id(config: Mapping[str, Any]) -> str:
    client_id = str(value_in(config, "client.id"))
    if len(_encoded("client.id", client_id)) > LONGEST_CLIENT_ID:
        raise ConfigurationError(f"client.id of {len(client_id):,} characters: use at most {LONGEST_CLIENT_ID:,} bytes")
    return client_id


def _encoded(name: str, text: str) -> bytes:
    """``text`` as it is sent. Python takes bytes of the environment that are no UTF-8 for half characters."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name}: has a character that UTF-8 cannot encode") from None


def _unused(config: Mapping[str, Any], protocol: str) -> tuple[str, ...]:
    tls = () if protocol.endswith("SSL") else _TLS_KEYS
    sasl = () if protocol.startswith("SASL") else _SASL_KEYS
    return tuple(name for name in (*tls, *sasl) if config.get(name))


def _tls(config: Mapping[str, Any]) -> TlsSettings:
    for name, advice in _UNSUPPORTED.items():
        if config.get(name):
            raise ConfigurationError(f"{name}: not supported together with dualwrite's control plane; {advice}")
    location = text_in(config, "ssl.ca.location")
    certificate, key = text_in(config, "ssl.certificate.location"), text_in(config, "ssl.key.location")
    password = text_in(config, "ssl.key.password")
    for name, value in (("ssl.key.location", key), ("ssl.key.password", password)):
        if value is not None and certificate is None:
            raise ConfigurationError(f"{name}: of no use without ssl.certificate.location, the key's certificate")
    algorithm = str(value_in(config, "ssl.endpoint.identification.algorithm"))
    if algorithm not in ("https", "none"):
        raise ConfigurationError(f"ssl.endpoint.identification.algorithm {algorithm!r}: use https or none")
    return TlsSettings(
        ca_location=None if location == "probe" else location,
        ca_pem=text_in(config, "ssl.ca.pem"),
        certificate_location=certificate,
        key_location=key,
        key_password=password,
        verify_certificate=flag_in(config, "enable.ssl.certificate.verification"),
        verify_hostname=algorithm == "https",
    )


def _sasl(config: Mapping[str, Any]) -> SaslSettings:
    mechanism = (text_in(config, "sasl.mechanism") or "GSSAPI").upper()
    username, password = text_in(config, "sasl.username"), text_in(config, "sasl.password")
    if mechanism not in SASL_MECHANISMS:
        raise ConfigurationError(f"sasl.mechanism {mechanism!r}: use one of {', '.join(SASL_MECHANISMS)}")
    if mechanism == "OAUTHBEARER":
        return SaslSettings(mechanism, tokens=_tokens(config))
    if not username or password is None:
        raise ConfigurationError(f"sasl.username and sasl.password: {mechanism} needs both")
    for name, text in (("sasl.username", username), ("sasl.password", password)):
        _encoded(name, text)
    return SaslSettings(mechanism, username, password)


def _tokens(config: Mapping[str, Any]) -> TokenSource:
    callback = config.get("oauth_cb")
    if not callable(callback):
        raise ConfigurationError("oauth_cb: OAUTHBEARER needs a function that gives (token, expiry); no OIDC by itself")
    return TokenSource(callback, text_in(config, "sasl.oauthbearer.config") or "")


def _socket(config: Mapping[str, Any]) -> SocketSettings:
    return SocketSettings(
        keepalive=flag_in(config, "socket.keepalive.enable"),
        no_delay=flag_in(config, "socket.nagle.disable"),
        send_buffer=_bytes(config, "socket.send.buffer.bytes"),
        receive_buffer=_bytes(config, "socket.receive.buffer.bytes"),
    )


def _bytes(config: Mapping[str, Any], key: str) -> int:
    return int(KEYS[key].rule.checked(key, value_in(config, key)))


def _seconds(config: Mapping[str, Any], key: str) -> float:
    milliseconds = milliseconds_in(config, key)
    if milliseconds is None:
        milliseconds = int(KEYS[key].default)
    if milliseconds <= 0:
        raise ConfigurationError(f"{key} {milliseconds}: must be positive")
    return milliseconds / 1000
