"""TLS as librdkafka's ``ssl.*`` settings describe it, on the standard library's ssl."""

import ssl
from pathlib import Path

from dualwrite.client.settings import TlsSettings
from dualwrite.errors import ConfigurationError


def ssl_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client's context.

    :raises ConfigurationError: if a file is missing, is no PEM, or its password is wrong.
    """
    try:
        context = _trusting(settings)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ssl.ca.location {settings.ca_location}: {error}") from error
    context.check_hostname = settings.verify_certificate and settings.verify_hostname
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify_certificate else ssl.CERT_NONE
    if settings.certificate_location:
        try:
            # A password that is always given keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(
                settings.certificate_location, settings.key_location, lambda: settings.key_password or ""
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"ssl.certificate.location {settings.certificate_location}: {error}") from error
    return context


def _trusting(settings: TlsSettings) -> ssl.SSLContext:
    """Trusts the configured authorities and no others; the system's if none is configured."""
    location = settings.ca_location
    is_directory = location is not None and Path(location).is_dir()
    return ssl.create_default_context(
        cafile=None if is_directory else location,
        capath=location if is_directory else None,
        cadata=settings.ca_pem,
    )
