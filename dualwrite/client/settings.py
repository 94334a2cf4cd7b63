"""What the control plane takes from a librdkafka configuration: names and meanings are librdkafka's (CONFIGURATION.md).

One mapping configures both clients. Keys that only matter to librdkafka are left alone; a key that would change how
a connection is secured, and that the control plane cannot honour, is refused rather than ignored.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.client.endpoint import Endpoint
from dualwrite.errors import ConfigurationError

DEFAULT_CLIENT_ID = "dualwrite"
DEFAULT_CONNECT_TIMEOUT_MS = 10_000
DEFAULT_REQUEST_TIMEOUT_MS = 30_000

_BOOTSTRAP_KEYS = ("bootstrap.servers", "metadata.broker.list")
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
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
    """librdkafka's ``sasl.mechanism``, ``sasl.username`` and ``sasl.password``."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the cluster. Durations are in seconds."""

    bootstrap: tuple[Endpoint, ...]
    client_id: str = DEFAULT_CLIENT_ID
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_MS / 1000
    request_timeout: float = DEFAULT_REQUEST_TIMEOUT_MS / 1000

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ClientSettings":
        """The settings that a librdkafka configuration asks for.

        :raises ConfigurationError: if bootstrap.servers is missing, or a setting is malformed or cannot be honoured.
        """
        servers = next((config[key] for key in _BOOTSTRAP_KEYS if config.get(key)), None)
        if servers is None:
            raise ConfigurationError("bootstrap.servers is not set: name one or more brokers as HOST:PORT")
        protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
        if protocol not in _SECURITY_PROTOCOLS:
            raise ConfigurationError(f"security.protocol {protocol!r}: use one of {', '.join(_SECURITY_PROTOCOLS)}")
        return cls(
            bootstrap=tuple(Endpoint.parse(part) for part in str(servers).split(",") if part.strip()),
            client_id=str(config.get("client.id", DEFAULT_CLIENT_ID)),
            tls=_tls(config) if protocol.endswith("SSL") else None,
            sasl=_sasl(config) if protocol.startswith("SASL") else None,
            connect_timeout=_seconds(config, "socket.connection.setup.timeout.ms", DEFAULT_CONNECT_TIMEOUT_MS),
            request_timeout=_seconds(config, "socket.timeout.ms", DEFAULT_REQUEST_TIMEOUT_MS),
        )


def _tls(config: Mapping[str, Any]) -> TlsSettings:
    for key, advice in _UNSUPPORTED.items():
        if config.get(key):
            raise ConfigurationError(f"{key}: not supported together with dualwrite's control plane; {advice}")
    location = _text(config, "ssl.ca.location")
    algorithm = str(config.get("ssl.endpoint.identification.algorithm", "https"))
    if algorithm not in ("https", "none"):
        raise ConfigurationError(f"ssl.endpoint.identification.algorithm {algorithm!r}: use https or none")
    return TlsSettings(
        ca_location=None if location == "probe" else location,
        ca_pem=_text(config, "ssl.ca.pem"),
        certificate_location=_text(config, "ssl.certificate.location"),
        key_location=_text(config, "ssl.key.location"),
        key_password=_text(config, "ssl.key.password"),
        verify_certificate=_flag(config, "enable.ssl.certificate.verification", True),
        verify_hostname=algorithm == "https",
    )


def _sasl(config: Mapping[str, Any]) -> SaslSettings:
    mechanism = _text(config, "sasl.mechanism") or _text(config, "sasl.mechanisms") or "GSSAPI"
    username, password = _text(config, "sasl.username"), _text(config, "sasl.password")
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise ConfigurationError(f"sasl.mechanism {mechanism!r}: the control plane speaks PLAIN and SCRAM-SHA-256/512")
    if not username or password is None:
        raise ConfigurationError(f"sasl.username and sasl.password: {mechanism} needs both")
    return SaslSettings(mechanism, username, password)


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return None if value is None or value == "" else os.fspath(value)


def _flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = str(config.get(key, default)).lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"{key} {value!r}: use true or false")
    return value == "true"


def _seconds(config: Mapping[str, Any], key: str, default_ms: int) -> float:
    try:
        milliseconds = int(config.get(key, default_ms))
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key} {config[key]!r}: give milliseconds") from None
    if milliseconds <= 0:
        raise ConfigurationError(f"{key} {milliseconds}: must be positive")
    return milliseconds / 1000
