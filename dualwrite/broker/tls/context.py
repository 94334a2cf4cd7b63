"""A listener's SSLContext, from its settings and the files that they name.

Source: Kafka's DefaultSslEngineFactory (which settings go together, KIP-651), SaslChannelBuilder (KIP-684).
"""

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dualwrite.broker.clients.cipher_suites import openssl_name
from dualwrite.broker.clients.listeners import Listener
from dualwrite.broker.settings.listener_settings import ListenerValues
from dualwrite.broker.settings.tls_settings import (
    HOW_TO_CONVERT,
    NONE,
    REQUESTED,
    REQUIRED,
    SUITES_OF_TLS_1_3,
    TLS_1_2,
    TLS_1_3,
)
from dualwrite.errors import ConfigurationError

_KEYSTORE, _CHAIN, _KEY = "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key"
_TRUSTSTORE, _AUTHORITIES = "ssl.truststore.location", "ssl.truststore.certificates"
_PASSWORD = "ssl.key.password"  # noqa: S105  the name of a setting
_BINARY = (b"\xfe\xed\xfe\xed", b"\x30\x82")
"""The first bytes of JKS and PKCS12."""
_BLOCK = re.compile(r"(-----BEGIN ([A-Z ]+)-----)([A-Za-z0-9+/=\s]*)(-----END \2-----)")
_ANOTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})
_VERIFY = {NONE: ssl.CERT_NONE, REQUESTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}


class _Pem(NamedTuple):
    """A text in PEM form, and the setting that it comes from, for messages."""

    source: str
    text: str


def files_of(values: ListenerValues) -> list[Path]:
    """The files that the settings name. A context must be built anew when one of them changes."""
    return [Path(location) for key in (_KEYSTORE, _TRUSTSTORE) if (location := values.text(key))]


def server_context(listener: Listener, values: ListenerValues) -> ssl.SSLContext:
    """The context for new connections of ``listener``.

    :raises ConfigurationError: if a setting is missing, a file cannot be read, or OpenSSL rejects its content. The
        message names the listener, the setting, and the file.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        _set_versions(context, values)
        _load_certificate(context, values)
        _trust(context, values.client_auth(listener.protocol.is_sasl), values)
    except ConfigurationError as error:
        raise ConfigurationError(f"listener {listener.name}: {error}") from None
    return context


def _set_versions(context: ssl.SSLContext, values: ListenerValues) -> None:
    enabled, suites = set(values.items("ssl.enabled.protocols")), values.items("ssl.cipher.suites")
    older = [openssl_name(suite) for suite in suites if suite not in SUITES_OF_TLS_1_3]
    if suites and len(older) == len(suites):
        enabled.discard(TLS_1_3)
    if suites and not older:
        enabled.discard(TLS_1_2)
    if not enabled:
        raise ConfigurationError("ssl.cipher.suites has no suite of a version in ssl.enabled.protocols")
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if TLS_1_2 in enabled else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if TLS_1_3 in enabled else ssl.TLSVersion.TLSv1_2
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ConfigurationError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(older)}") from None


def _load_certificate(context: ssl.SSLContext, values: ListenerValues) -> None:
    certificate, key = _key_material(values)
    password = values.text(_PASSWORD) or ""
    text = certificate.text if certificate.text == key.text else f"{certificate.text}\n{key.text}\n"
    try:
        with _file(text) as path:
            # With a password given, even an empty one, OpenSSL does not ask for it on the terminal.
            context.load_cert_chain(path, password=lambda: password)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise ConfigurationError(_what_is_wrong(certificate, key, password, error)) from None


def _key_material(values: ListenerValues) -> tuple[_Pem, _Pem]:
    """The certificate with its chain, and the private key."""
    location, chain, key = values.text(_KEYSTORE), values.text(_CHAIN), values.text(_KEY)
    if location and (chain or key):
        raise ConfigurationError(f"{_KEYSTORE} and {_CHAIN if chain else _KEY} are both set; remove one of them")
    if location:
        both = _read(_KEYSTORE, location)
        return both, both
    if not chain or not key:
        missing = _CHAIN if key else _KEY if chain else f"{_KEYSTORE}, a file with the key and the certificate in PEM"
        raise ConfigurationError(f"TLS needs a certificate and its key: set {missing}")
    return _Pem(_CHAIN, _wrapped(chain)), _Pem(_KEY, _wrapped(key))


def _trust(context: ssl.SSLContext, auth: str, values: ListenerValues) -> None:
    """Have ``context`` ask for clients' certificates, and accept those of the configured authorities."""
    context.verify_mode = _VERIFY[auth]
    location, certificates = values.text(_TRUSTSTORE), values.text(_AUTHORITIES)
    if location and certificates:
        raise ConfigurationError(f"{_TRUSTSTORE} and {_AUTHORITIES} are both set; remove one of them")
    if not location and not certificates:
        if auth != NONE:
            raise ConfigurationError(f"ssl.client.auth={auth} needs {_TRUSTSTORE}, a file with the authorities in PEM")
        return
    pem = _read(_TRUSTSTORE, location) if location else _Pem(_AUTHORITIES, _wrapped(certificates or ""))
    try:
        context.load_verify_locations(cadata=pem.text)
    except (ssl.SSLError, ValueError, TypeError):
        raise ConfigurationError(f"{pem.source}: holds no certificate in PEM form") from None


def _read(setting: str, location: str) -> _Pem:
    source = f"{setting} {location}"
    try:
        content = Path(location).read_bytes()
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ConfigurationError(f"{source}: {reason}") from None
    if content.startswith(_BINARY):
        raise ConfigurationError(f"{source}: it is not PEM; {HOW_TO_CONVERT}")
    return _Pem(source, content.decode("ascii", "replace"))


def _wrapped(pem: str) -> str:
    """``pem`` with its blocks in lines: a value in a file of properties is often one line, which OpenSSL refuses."""

    def wrap(block: re.Match[str]) -> str:
        body = "".join(block[3].split())
        lines = [body[start : start + 64] for start in range(0, len(body), 64)]
        return "\n".join([block[1], *lines, block[4], ""])

    return _BLOCK.sub(wrap, pem)


@contextmanager
def _file(text: str) -> Iterator[str]:
    """A file with ``text`` for OpenSSL, which reads certificates from files alone. It is in memory: the private key is
    on no disk, and a system whose every directory is read-only serves TLS, too."""
    with os.fdopen(os.memfd_create("certificate"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _what_is_wrong(certificate: _Pem, key: _Pem, password: str, error: Exception) -> str:
    """Why OpenSSL rejects the certificate and its key; its own message is little more than "PEM lib"."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate.text)
    except (ssl.SSLError, ValueError, TypeError):
        return f"{certificate.source}: holds no certificate in PEM form"
    if "PRIVATE KEY-----" not in key.text:
        return f"{key.source}: holds no private key in PEM form"
    if getattr(error, "reason", None) in _ANOTHER_KEY:
        return f"{key.source}: not the private key of the certificate in {certificate.source}"
    if "ENCRYPTED" in key.text:
        reason = "does not open" if password else "is not set, and is needed for"
        return f"{_PASSWORD}: {reason} the key in {key.source}"
    return f"{key.source}: holds no private key that can be read: {getattr(error, 'reason', None) or error}"
