"""IANA's names of cipher suites in OpenSSL's words, as ``openssl ciphers -stdname`` shows them."""

import ssl

import pytest

from dualwrite.broker.clients.cipher_suites import openssl_name

NAMES = [
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CCM", "ECDHE-ECDSA-AES256-CCM"),
]


@pytest.mark.parametrize(("iana", "openssl"), NAMES)
def test_a_name_of_iana_is_one_of_openssl(iana: str, openssl: str) -> None:
    assert openssl_name(iana) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


@pytest.mark.parametrize("name", ["ECDHE-RSA-AES256-GCM-SHA384", "TLS_AES_128_GCM_SHA256", "nonsense", ""])
def test_every_other_name_is_left_as_it_is(name: str) -> None:
    assert openssl_name(name) == name
