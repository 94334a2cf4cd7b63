"""TLS as librdkafka's ``ssl.*`` settings describe it, on the standard library's ssl."""

import logging
import os
import ssl
from pathlib import Path
from typing import NamedTuple

from dualwrite.client.config.settings import TlsSettings
from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")
_ANOTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})
_Refusals = (ssl.SSLError, ValueError, TypeError)


def ssl_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client's context.

    :raises ConfigurationError: if a file is missing or no PEM, or a password is wrong; the message names the setting.
    """
    context = _trusting(settings)
    context.check_hostname = settings.verify_certificate and settings.verify_hostname
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify_certificate else ssl.CERT_NONE
    if settings.certificate_location:
        _show(context, settings.certificate_location, settings)
    return context


class _File(NamedTuple):
    """What shows that a file has been written anew, or that another one has its name."""

    inode: int
    size: int
    written_ns: int


class RenewedContext:
    """The context for the next connection: made anew once a file of the settings has changed, for a certificate is
    renewed more often than a service is restarted. Open connections keep theirs.

    :param settings: None for connections without TLS.
    :raises ConfigurationError: as :func:`ssl_context`.
    """

    def __init__(self, settings: TlsSettings | None) -> None:
        self._settings = settings
        self._used = self._tried = [] if settings is None else _files_of(settings)
        self._context = None if settings is None else ssl_context(settings)

    def now(self) -> ssl.SSLContext | None:
        """The context; the former one if the changed files cannot be used now, as while only one of two is written.
        They are tried again each time: what stands in the way may pass without a new file, such as a missing right."""
        if self._settings is not None and (files := _files_of(self._settings)) != self._used:
            try:
                self._context = ssl_context(self._settings)
            except ConfigurationError as error:
                if files != self._tried:
                    _LOG.warning("%s: connections are opened with what the files held before", error)
            else:
                self._used = files
            self._tried = files
        return self._context


def _files_of(settings: TlsSettings) -> list[_File | None]:
    locations = (settings.ca_location, settings.certificate_location, settings.key_location)
    return [None if location is None else _file_at(location) for location in locations]


def _file_at(location: str) -> _File | None:
    try:
        status = os.stat(location)
    except (OSError, ValueError):
        return None
    return _File(status.st_ino, status.st_size, status.st_mtime_ns)


def _trusting(settings: TlsSettings) -> ssl.SSLContext:
    """A context that trusts only the configured authorities; the system's if none is configured."""
    location, pem = settings.ca_location, settings.ca_pem
    name = "ssl.ca.pem" if location is None else f"ssl.ca.location {location}"
    try:
        is_directory = location is not None and Path(location).is_dir()
        context = ssl.create_default_context(
            cafile=None if is_directory else location,
            capath=location if is_directory else None,
            cadata=pem if location is None else None,
        )
        if location is not None and pem is not None:
            name = "ssl.ca.pem"
            context.load_verify_locations(cadata=pem)
    except _Refusals as error:
        raise ConfigurationError(f"{name}: holds no certificate in PEM form") from error
    except OSError as error:
        raise ConfigurationError(f"{name}: {_reason(error)}") from error
    return context


def _show(context: ssl.SSLContext, certificate: str, settings: TlsSettings) -> None:
    """Have ``context`` present this client's certificate to brokers that request one."""
    shown = _content("ssl.certificate.location", certificate)
    key = shown if settings.key_location is None else _content("ssl.key.location", settings.key_location)
    try:
        # With a password given, even an empty one, OpenSSL does not ask for it on the terminal.
        context.load_cert_chain(certificate, settings.key_location, lambda: settings.key_password or "")
    except (*_Refusals, OSError) as error:
        raise ConfigurationError(_what_is_wrong(shown, key, settings, error)) from error


def _what_is_wrong(shown: bytes, key: bytes, settings: TlsSettings, error: Exception) -> str:
    """Why OpenSSL rejects the certificate and its key; its own message is little more than "PEM lib"."""
    certificate = f"ssl.certificate.location {settings.certificate_location}"
    holder = certificate if settings.key_location is None else f"ssl.key.location {settings.key_location}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=shown.decode("ascii", "ignore"))
    except _Refusals:
        return f"{certificate}: holds no certificate in PEM form"
    if b"PRIVATE KEY-----" not in key:
        reason = f"{holder}: holds no private key in PEM form"
        return reason if settings.key_location else f"{reason}, and ssl.key.location is not set"
    if getattr(error, "reason", None) in _ANOTHER_KEY:
        return f"{holder}: not the private key of {certificate}"
    if b"ENCRYPTED" in key:
        reason = "does not open" if settings.key_password else "is not set, and is needed for"
        return f"ssl.key.password: {reason} the key in {holder}"
    return f"{holder}: holds no private key that can be read: {error}"


def _content(name: str, location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} {location}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
