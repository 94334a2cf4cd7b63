"""Errors of failed connections: the reason in few words, and the setting that may be wrong."""

import os
import socket
import ssl

from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError, KafkaUnavailableError

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reason for bytes that are not TLS."""
_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)


def reason_of(error: BaseException) -> str:
    """``error`` in few words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio words it differently
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def of_handshake(endpoint: Endpoint, error: BaseException) -> KafkaUnavailableError | ConfigurationError:
    """The error of a failed TLS handshake. A broker that hangs up may just be stopping. A broker that does not speak
    TLS, or whose certificate is not trusted, will fail again."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"broker {endpoint}: its certificate is not trusted: {error.verify_message.rstrip('.')};"
            " see ssl.ca.location and ssl.endpoint.identification.algorithm"
        )
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return ConfigurationError(f"broker {endpoint}: this listener does not use TLS; see security.protocol")
    hint = "; is it a listener without TLS? See security.protocol" if isinstance(error, _HUNG_UP) else ""
    return KafkaUnavailableError(f"broker {endpoint}: TLS: {reason_of(error)}{hint}")


def of_opening(endpoint: Endpoint, error: BaseException, *, is_first: bool, is_secured: bool) -> KafkaUnavailableError:
    """The error of a connection that the broker closed while it was being opened.

    :param is_first: True if the broker had not answered any request.
    :param is_secured: True if TLS is spoken.
    """
    is_suspect = is_first and not is_secured and isinstance(error, ConnectionError)
    hint = "; is it a listener with TLS? See security.protocol" if is_suspect else ""
    return KafkaUnavailableError(f"broker {endpoint}: {reason_of(error)}{hint}")
