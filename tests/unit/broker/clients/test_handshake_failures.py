"""What the log says about a handshake that failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.clients.handshake_failures import ended, explain, late

TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01"
KAFKA = b"\x00\x00\x00\x20\x00\x12\x00\x03"


@pytest.mark.parametrize(
    ("reason", "verification", "first", "words"),
    [
        (
            "WRONG_VERSION_NUMBER",
            None,
            KAFKA,
            "it speaks no TLS, and this listener is SASL_SSL: set the client's secur",
        ),
        ("HTTP_REQUEST", None, b"GET / HT", "it speaks HTTP, and this is a Kafka broker: check the address"),
        ("WRONG_VERSION_NUMBER", None, b"SSH-2.0-", "it speaks SSH"),
        (
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
            None,
            TLS,
            "it presented no certificate, and ssl.client.auth is required",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED",
            "certificate has expired",
            TLS,
            "its certificate is not accepted: certificate has",
        ),
        ("TLSV1_ALERT_UNKNOWN_CA", None, TLS, "it does not trust the authority that signed it (unknown ca)"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", None, TLS, "does not accept this broker's certificate: it has expired"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", None, TLS, "most often the host to which it connects is not in it"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", None, TLS, "its own log says which"),
        ("NO_SHARED_CIPHER", None, TLS, "it offers no cipher suite that fits ssl.cipher.suites"),
        ("UNSUPPORTED_PROTOCOL", None, TLS, "it offers no version of TLS that ssl.enabled.protocols allows"),
        ("SOMETHING_NEW", None, TLS, "the TLS handshake failed: something new"),
        (None, None, TLS, "the TLS handshake failed: no reason is known"),
    ],
)
def test_a_failure_is_explained(reason: str | None, verification: str | None, first: bytes, words: str) -> None:
    assert words in explain(reason, verification, first, "SASL_SSL")


def test_a_client_that_goes_is_explained_by_its_first_bytes() -> None:
    assert "most often that it does not accept this broker's certificate" in ended(TLS, "SSL")
    assert "it speaks no TLS, and this listener is SSL" in ended(KAFKA[:3], "SSL")
    assert late(10.0) == "it did not finish the TLS handshake within 10 s"


@given(st.text(max_size=20) | st.none(), st.text(max_size=20) | st.none(), st.binary(max_size=8))
def test_every_failure_is_one_line(reason: str | None, verification: str | None, first: bytes) -> None:
    assert explain(reason, verification and verification.splitlines()[0], first, "SSL").startswith(("it", "the TLS"))
