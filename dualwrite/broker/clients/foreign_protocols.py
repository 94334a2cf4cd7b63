"""Recognises the first bytes of clients that speak another protocol, for the log.

A wrong port or a missing ``security.protocol`` is the usual reason. Without a name for it, the log would speak of a
frame of 369 megabytes.
"""

_TLS_HANDSHAKE = b"\x16\x03"
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")
_POSTGRESQL_CODES = {
    b"\x04\xd2\x16\x2f": "PostgreSQL (SSLRequest)",
    b"\x04\xd2\x16\x30": "PostgreSQL (GSSENCRequest)",
    b"\x04\xd2\x16\x2e": "PostgreSQL (CancelRequest)",
}
_PREFIX = 4


def protocol_of(first: bytes) -> str | None:
    """The protocol that a connection speaks whose first bytes are ``first`` (up to eight); None if it is not known.

    No request of Kafka's is taken for another protocol: those of TLS, HTTP and SSH would announce more than 300 MB, and
    PostgreSQL's an API that does not exist. (PostgreSQL's plain start looks like Metadata v0.)
    """
    if first.startswith(_TLS_HANDSHAKE):
        return "TLS"
    if first.startswith(_HTTP):
        return "HTTP"
    if first.startswith(b"SSH-"):
        return "SSH"
    return _POSTGRESQL_CODES.get(first[_PREFIX : 2 * _PREFIX])


def advice(protocol: str) -> str:
    """The log line's text about a client that speaks ``protocol``."""
    if protocol == "TLS":
        return (
            "it speaks TLS, and this listener does not: set the client's security.protocol to that of the listener"
            " (PLAINTEXT or SASL_PLAINTEXT), or use the port of a listener of SSL"
        )
    return f"it speaks {protocol}, and this is a Kafka broker: check the address"
