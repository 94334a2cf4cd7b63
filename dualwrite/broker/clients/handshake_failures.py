"""Messages for failed TLS handshakes that say what to change. OpenSSL's own messages only say what it has received."""

from collections.abc import Mapping

from dualwrite.broker.clients.foreign_protocols import protocol_of

_TLS_RECORD = b"\x16\x03"

_NOT_ACCEPTED = "it does not accept this broker's certificate"
_ALERTS: Mapping[str, str] = {
    "TLSV1_ALERT_UNKNOWN_CA": f"{_NOT_ACCEPTED}: it does not trust the authority that signed it (unknown ca);"
    " check its ssl.ca.location or ssl.truststore.location",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_NOT_ACCEPTED}: it has expired, or is not valid yet",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{_NOT_ACCEPTED}: it is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"{_NOT_ACCEPTED}: most often the host to which it connects is not in it",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"{_NOT_ACCEPTED}: it does not trust the authority, or the host to which it"
    " connects is not in it; its own log says which",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it accepts no version of TLS that ssl.enabled.protocols allows",
}
_REASONS: Mapping[str, str] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presented no certificate, and ssl.client.auth is required; set the"
    " client's ssl.certificate.location and ssl.key.location, or its ssl.keystore.location",
    "NO_SHARED_CIPHER": "it offers no cipher suite that fits ssl.cipher.suites and the kind of this broker's key",
    "UNSUPPORTED_PROTOCOL": "it offers no version of TLS that ssl.enabled.protocols allows",
    "VERSION_TOO_LOW": "it offers no version of TLS that ssl.enabled.protocols allows",
}


def explain(reason: str | None, verification: str | None, first: bytes, protocol: str) -> str:
    """The text for the log about a client whose handshake failed.

    :param reason: OpenSSL's name of the error, such as ``NO_SHARED_CIPHER``; None if there is none.
    :param verification: why the client's certificate was not accepted; None if that is not the reason.
    :param first: the first bytes that the client sent.
    :param protocol: the security protocol of the listener.
    """
    if first[: len(_TLS_RECORD)] != _TLS_RECORD[: len(first)]:
        other = protocol_of(first)
        if other is not None:
            return f"it speaks {other}, and this is a Kafka broker: check the address"
        return f"it speaks no TLS, and this listener is {protocol}: set the client's security.protocol to {protocol}"
    if verification is not None:
        return f"its certificate is not accepted: {verification}"
    name = reason or ""
    if name in _ALERTS or name in _REASONS:
        return _ALERTS.get(name) or _REASONS[name]
    return f"the TLS handshake failed: {name.replace('_', ' ').lower() or 'no reason is known'}"


def ended(first: bytes, protocol: str) -> str:
    """The text about a client that ended the connection during its handshake."""
    if first[: len(_TLS_RECORD)] != _TLS_RECORD[: len(first)]:
        return explain(None, None, first, protocol)
    return (
        "it ended the connection during the TLS handshake; its own log says why, most often that it does not accept"
        " this broker's certificate"
    )


def late(seconds: float) -> str:
    """The text about a client that did not finish its handshake in time."""
    return f"it did not finish the TLS handshake within {seconds:g} s"
