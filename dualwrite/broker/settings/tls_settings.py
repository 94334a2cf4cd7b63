"""The settings of TLS: ``ssl.*``. Each listener may have its own.

Sources: Kafka's SslConfigs and BrokerSecurityConfigs (names, types, defaults), DefaultSslEngineFactory (the rules).
"""

from collections.abc import Mapping

from dualwrite.broker.settings.setting import ANYTHING, Allowed, ConfigType, Setting, one_of, only, some_of

PASSWORD, STRING, LIST = ConfigType.PASSWORD, ConfigType.STRING, ConfigType.LIST

NONE, REQUESTED, REQUIRED = "none", "requested", "required"
"""The values of ssl.client.auth."""
TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
SUITES_OF_TLS_1_3 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
PEM = "PEM"
HOW_TO_CONVERT = (
    "this broker reads PEM; convert JKS with 'keytool -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12"
    " -deststoretype PKCS12', and PKCS12 with 'openssl pkcs12 -in FILE.p12 -out FILE.pem'"
)


def _setting(
    kind: ConfigType, default: str | None, rules: Allowed | tuple[Allowed, ...], documentation: str
) -> Setting:
    return Setting(kind, default, rules if isinstance(rules, tuple) else (rules,), documentation)


_AT_LEAST_ONE = Allowed("At least one", bool)
_ALL_OR_NONE = Allowed(
    "Python cannot choose among the suites of TLS 1.3: name all three or none",
    lambda suites: len(SUITES_OF_TLS_1_3 & set(suites)) in (0, len(SUITES_OF_TLS_1_3)),
)

TLS_SETTINGS: Mapping[str, Setting] = {
    "ssl.cipher.suites": _setting(
        LIST, "", _ALL_OR_NONE,
        "The cipher suites, by the names of IANA or OpenSSL; empty: those of OpenSSL. Without a suite of TLS 1.3 no "
        "client can use TLS 1.3."),
    "ssl.client.auth": _setting(
        STRING, NONE, one_of(REQUIRED, REQUESTED, NONE),
        "Whether clients must present a certificate, may, or are not asked. A listener of SASL_SSL follows only its "
        "own value, listener.name.NAME.ssl.client.auth."),
    "ssl.enabled.protocols": _setting(
        LIST, f"{TLS_1_2},{TLS_1_3}", (_AT_LEAST_ONE, some_of(TLS_1_2, TLS_1_3)),
        "The versions of TLS that clients may use."),
    "ssl.key.password": _setting(
        PASSWORD, None, ANYTHING, "The password of the private key, if that is encrypted."),
    "ssl.keystore.certificate.chain": _setting(
        PASSWORD, None, ANYTHING, "The certificate and its chain in PEM form, instead of ssl.keystore.location."),
    "ssl.keystore.key": _setting(
        PASSWORD, None, ANYTHING, "The private key in PEM form, for ssl.keystore.certificate.chain."),
    "ssl.keystore.location": _setting(
        STRING, None, ANYTHING,
        "The file with the private key, the certificate and its chain, in PEM form. Read again when it changes."),
    "ssl.keystore.type": _setting(STRING, PEM, only(PEM, HOW_TO_CONVERT), "The form of the key and the certificate."),
    "ssl.principal.mapping.rules": _setting(
        STRING, "DEFAULT", ANYTHING,
        "How the distinguished name of a client's certificate becomes its principal: DEFAULT, or "
        "RULE:pattern/replacement/[LU], separated by commas. The first rule that matches counts."),
    "ssl.truststore.certificates": _setting(
        PASSWORD, None, ANYTHING,
        "The authorities of clients' certificates in PEM form, instead of ssl.truststore.location."),
    "ssl.truststore.location": _setting(
        STRING, None, ANYTHING,
        "The file with the authorities of clients' certificates, in PEM form. Read again when it changes."),
    "ssl.truststore.type": _setting(STRING, PEM, only(PEM, HOW_TO_CONVERT), "The form of the authorities."),
}  # fmt: skip
