"""Names of cipher suites: Kafka's settings have those of IANA, OpenSSL takes its own."""

import re

_KEY_BITS = re.compile(r"\b(AES|ARIA|CAMELLIA)_(\d+)")
_KINDS = (("_CBC_", "_"), ("_CHACHA20_POLY1305_SHA256", "_CHACHA20_POLY1305"))


def openssl_name(suite: str) -> str:
    """The name in OpenSSL of a suite of TLS 1.2: ``ECDHE-RSA-AES256-GCM-SHA384`` for
    ``TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384``. Every other text is returned as it is."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = _KEY_BITS.sub(r"\1\2", cipher)
    for iana, openssl in _KINDS:
        cipher = f"_{cipher}".replace(iana, openssl)[1:]
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"  # OpenSSL leaves the exchange by RSA out
    return name.replace("_", "-")
